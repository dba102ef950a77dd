"""The runs of a study as jobs of a Ray cluster, and as an array of Slurm: each is `chunkwise study ... --only N`.

What a study needs is in its folder, which all machines have under the same name; so is what its runs leave.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chunkwise.distributed.cores import cores
from chunkwise.distributed.jobs import MAX_DEATHS
from chunkwise.errors import ConfigError, RunError, StorageError, one_line

MAX_RESTARTS = 100
"""How often Slurm queues a run again that was stopped, or whose machine was lost."""
_LEASH = """
import ctypes, os, sys
parent, *words = sys.argv[1:]
ends_with_its_parent = getattr(ctypes.CDLL(None), "prctl", None)
if ends_with_its_parent is not None:
    ends_with_its_parent(1, 15)
if os.getppid() != int(parent):  # which has ended before
    sys.exit(75)
os.execvp(words[0], words)
"""
"""Program that becomes the command behind its parent's number, and gets SIGTERM when its parent ends: Linux's
PR_SET_PDEATHSIG."""
_APART = """
import os, subprocess, sys
leash, *words = sys.argv[1:]
words = [sys.executable, "-c", leash, str(os.getpid()), *words]
code = subprocess.run(words, start_new_session=True, check=False).returncode
sys.exit(code if code >= 0 else 128 - code)
"""
"""Program that runs the command behind the leash's text, on that and in a session of its own; ends with its code."""
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --cpus-per-task={cores}
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --requeue
# A run of a study each. Stopped ahead of the time limit, or with its machine lost, it is queued again, and goes on.
# 75: stopped, and saved; 143: stopped while it began. Any other code would come again: 134 too, of a run that crashed.
set -u
# Since Slurm 22.05 srun no longer takes --cpus-per-task from sbatch, whose own -c goes before the line above.
srun --cpus-per-task="${{SLURM_CPUS_PER_TASK:-{cores}}}" --kill-on-bad-exit=0 {command} --only "$SLURM_ARRAY_TASK_ID"
code=$?
case $code in
  75 | 143)
    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
      exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    fi
    ;;
esac
exit $code
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyWorker:
    """Trains runs on a machine of a cluster, each on cores of its own; pickled to it."""

    command: Sequence[str]
    """Of the study, without --only."""
    folder: str
    """In which the study was started."""
    cores: int

    def __call__(self) -> Callable[[int], tuple[int, str]]:
        """Opens it there."""
        return self.train

    def train(self, number: int) -> tuple[int, str]:
        """Trains a run; returns its exit code, and the last line that it said.

        Where this machine cannot start it, that of a run that could not be written, and what the system says.
        """
        # Ray kills the children of a worker that it ends, and all of the worker's group of processes: a run that was
        # its child would not come to save. So it is a grandchild, in a group of its own, which is asked to stop.
        words = leashed([sys.executable, "-c", _APART, _LEASH, *self.command, "--only", str(number)])
        try:
            with own_cores(self.cores) as mine, _only_on(mine):
                done = subprocess.run(
                    words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
                )
        except OSError as error:
            return StorageError.exit_code, f"could not be started on {socket.gethostname()}: {one_line(error)}"
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        return done.returncode, lines[-1] if lines else ""


def leashed(words: Sequence[str]) -> list[str]:
    """Returns a command that runs `words`, and asks them to stop when the thread that started it ends."""
    return [sys.executable, "-c", _LEASH, str(os.getpid()), *words]


def lost_run(_: int) -> tuple[int, str]:
    """What `StudyWorker.train` would return of a run that cost too many workers."""
    return RunError.exit_code, f"{MAX_DEATHS} workers died in it, perhaps for want of memory"


@contextlib.contextmanager
def _only_on(mine: set[int]) -> Iterator[None]:
    """Keeps this thread, and the processes that it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)  # or the next run could only have these


@contextlib.contextmanager
def own_cores(count: int, folder: Path | None = None) -> Iterator[set[int]]:
    """Yields so many cores of this machine that no other caller has; all of them where too few are left.

    Args:
      count: Cores.
      folder: Of the locks, one a core; the kernel lets go of those of a process that ends.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"chunkwise-cores-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        mine: set[int] = set()
        for core in cores():
            if len(mine) == count:
                break
            lock = stack.enter_context(open(folder / str(core), "wb"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine.add(core)
        yield mine if len(mine) == count else set(cores())


def script(
    name: str, command: Sequence[str], out: Path, numbers: Sequence[int], *, workers: int | None, cores: int
) -> str:
    """Returns the script of an array of Slurm.

    Args:
      name: Of the study.
      command: Of the study, without --only.
      out: Its folder.
      numbers: Of the runs that are not complete, ascending.
      workers: Runs at once; None: as many as Slurm finds room for.
      cores: Of each.

    Raises:
      ConfigError: Slurm would read the folder's path as another one.
    """
    at_once = "" if workers is None else f"%{workers}"
    return _SCRIPT.format(
        name=shlex.quote(f"study-{name}"),
        array=_ranges(numbers) + at_once,
        cores=cores,
        log=shlex.quote(f"{_pattern(out)}/logs/slurm-%A-%a.txt"),
        command=shlex.join(command),
        restarts=MAX_RESTARTS,
    )


def submit(path: Path, options: Sequence[str], command: Sequence[str]) -> tuple[str, str, str]:
    """Submits a script's array, and behind it a job that writes the study's table.

    Args:
      path: The script.
      options: For sbatch, such as --partition.
      command: Of the study.

    Returns:
      Both jobs' numbers, and why the second was refused: then its number is empty, and the array is under way.

    Raises:
      ConfigError: sbatch refuses the array.
    """
    array = _sbatch([*options, str(path)])
    table = shlex.join([*command, "--table"])
    log = f"{_pattern(path.parent)}/slurm-table-%j.txt"
    behind = [f"--dependency=afterany:{array}", "--job-name=study-table", f"--output={log}", "--wrap", table]
    try:
        return array, _sbatch([*options, *behind]), ""
    except ConfigError as error:
        return array, "", str(error)


def require_sbatch() -> None:
    """Raises ConfigError where there is no sbatch."""
    if shutil.which("sbatch") is None:
        raise ConfigError("--slurm: expected Slurm's sbatch on this machine, found none")


def _pattern(folder: Path) -> str:
    """A folder's path as Slurm's patterns of file names write it. Raises ConfigError where they cannot."""
    text = str(folder)
    if "\\" in text or "\n" in text:
        raise ConfigError(f"{text!r}: expected no backslash and no line break in the path, which Slurm reads otherwise")
    return text.replace("%", "%%")


def _sbatch(words: Sequence[str]) -> str:
    """Submits a job, and returns its number: it stands in the last line, behind what a site's own sbatch may say."""
    try:
        done = subprocess.run(["sbatch", "--parsable", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"--slurm: sbatch cannot be started: {one_line(error)}") from error
    said = " ".join((done.stderr or done.stdout).split())
    if done.returncode:
        raise ConfigError(f"sbatch ended with {done.returncode}: {said}")
    found = re.search(r"(?:^|\n)([0-9]+)(?:;[^\n]*)?$", done.stdout.rstrip())
    if found is None:
        raise ConfigError(f"sbatch --parsable said {said!r}; expected a job's number last. squeue shows what it made")
    return found[1]


def _ranges(numbers: Sequence[int]) -> str:
    """0-2,5: numbers as Slurm writes them."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
