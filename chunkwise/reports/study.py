"""`chunkwise study NAME_OR_FILE`: trains a config over a grid and seeds, and compares what came of it.

    chunkwise study quickstart --dry-run
    chunkwise study quickstart --out studies/quickstart --workers 2

Every run is an ordinary one, in a process of its own with its share of the cores. Given again, the same command skips
what is finished and goes on with what is not. A run that fails is reported, and the others go on.
"""

import concurrent.futures
import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.config.saved import fingerprint, flatten, read_flat, resume_rules, without_younger
from chunkwise.config.study import Run, StudyConfig, read_study, runs_of
from chunkwise.distributed.cores import cores
from chunkwise.errors import BusyError, ConfigError, RunError, StopRequested, one_line
from chunkwise.files.durable import make_folders
from chunkwise.files.strict_json import read_json
from chunkwise.printable import say
from chunkwise.reports import study_table

ASK_AGAIN = 0.2
"""Seconds between two looks at a process."""
BUSY_SECONDS = 5.0
"""Between two tries for a run that another process has open: one of an earlier start of the study."""


class Processes:
    """The runs' processes: they stop when the study is asked to, each saved as a run is that is stopped alone."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def call(self, words: Sequence[str], log: Path) -> int:
        """Runs a command, its output appended to `log`; returns its exit code, negative for a signal.

        Raises:
          StopRequested: The study is to stop, and the process has.
        """
        make_folders(log.parent)
        with open(log, "ab") as file:
            if self.stopping.is_set():
                raise StopRequested
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            asked = False
            while process.poll() is None:
                if self.stopping.wait(ASK_AGAIN) and not asked:
                    process.terminate()
                    asked = True
                elif asked:
                    time.sleep(ASK_AGAIN)
        if asked:
            raise StopRequested
        return process.returncode


def is_finished(run: Run, out: Path) -> bool:
    """Whether a run came to its last update, with the config that the study has now."""
    folder = out / run.folder
    if not (folder / "done.json").is_file():
        return False
    done = read_json(folder / "done.json")
    rules = resume_rules(type(run.config))
    saved = fingerprint(read_flat(folder), rules)
    now = without_younger(fingerprint(flatten(run.config), rules), saved, rules)
    # Another config is refused by the run itself, which says how they differ.
    return saved == now and isinstance(done, dict) and done.get("step") == run.config.train.steps


def train_all(study: StudyConfig, runs: Sequence[Run], out: Path, workers: int) -> dict[str, str]:
    """Trains, and evaluates, what is not finished; returns what is said of runs that failed, by folder."""
    shares = _shares(workers)
    free, lock = list(shares), threading.Lock()
    processes, failed = Processes(), {}

    def one(run: Run) -> None:
        with lock:
            cores = free.pop()
        try:
            with contextlib.suppress(OSError, AttributeError):  # else all share all
                os.sched_setaffinity(0, cores)  # of this thread, which its process inherits
            if why := _one(study, run, out, processes):
                failed[run.folder] = why
        except RunError as error:  # of a folder that cannot be read
            failed[run.folder] = one_line(error)
            say(f"{run.folder}: {failed[run.folder]}", error=True)
        finally:
            with lock:
                free.append(cores)

    todo = list(runs)
    threads = concurrent.futures.ThreadPoolExecutor(len(shares))
    try:
        futures = []
        if todo:  # it may record the dataset of all: the others wait until it trains
            first = todo.pop(0)
            futures.append(threads.submit(one, first))
            metrics = out / first.folder / "metrics.jsonl"
            while not futures[0].done() and not (metrics.is_file() and metrics.stat().st_size):
                time.sleep(ASK_AGAIN)
        futures += [threads.submit(one, run) for run in todo]
        for future in futures:
            while not future.done():  # no wait that a signal does not break
                time.sleep(ASK_AGAIN)
            future.result()
    finally:
        processes.stopping.set()
        threads.shutdown(cancel_futures=True)
    return failed


def _one(study: StudyConfig, run: Run, out: Path, processes: Processes) -> str:
    """Does what is left of a run; returns what is said if it failed."""
    folder, log = out / run.folder, out / "logs" / f"{run.folder.replace('/', '-')}.txt"
    chunkwise = [sys.executable, "-m", "chunkwise"]
    if is_finished(run, out):
        say(f"{run.folder}: finished before")
    else:
        say(f"{run.folder}: training")
        train = [*chunkwise, "train", *run.words, "--run.dir", str(folder), "--run.resume"]
        if why := _call(processes, train, log, run.folder):
            return why
        say(f"{run.folder}: finished")
    if study.evaluate is None or study_table.evaluated_step(folder) == run.config.train.steps:
        return ""
    say(f"{run.folder}: evaluating")
    made = ["--out", str(folder / study_table.EVALUATION), *study.evaluate]
    return _call(processes, [*chunkwise, "evaluate", str(folder), *made], log, run.folder)


def _call(processes: Processes, words: Sequence[str], log: Path, name: str) -> str:
    """Runs a command; what is said if it failed."""
    waited = False
    while (code := processes.call(words, log)) == BusyError.exit_code:
        if not waited:
            say(f"{name}: another process has it open, of an earlier start perhaps; waiting for that")
        waited = True
        if processes.stopping.wait(BUSY_SECONDS):
            raise StopRequested
    if code == 0:
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
    why = f"ended with {code}: {said}"
    say(f"{name}: {why} (all of it in {log})", error=True)
    return why


def _shares(workers: int) -> list[set[int]]:
    """Cores of this process for each worker, as many for all, since a digest depends on their number; with more workers
    than cores they share them."""
    usable = cores()
    if workers > len(usable):
        return [set(usable)] * workers
    each = len(usable) // workers
    return [set(usable[i * each : (i + 1) * each]) for i in range(workers)]


def main(argv: Sequence[str] | None = None, *, show: Callable[[str], None] = print) -> int:
    """Command line; returns the exit code: 70 where a run failed."""
    parser = Parser(
        prog="chunkwise study",
        description="Trains a config over a grid of overrides and seeds, and compares the runs.",
        epilog="example: chunkwise study quickstart --out studies/quickstart --workers 2",
    )
    parser.add_argument("study", help="a name of configs/studies, or a file with get_study()")
    parser.add_argument("--out", type=Path, help="folder of the runs and the table; default: studies/<name>")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="runs at once, the cores divided among them"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the commands, and what is finished; train nothing")
    arguments = parser.parse_args(argv)
    try:
        if arguments.workers < 1:
            raise ConfigError(f"--workers is {arguments.workers}; expected at least 1")
        study, name = read_study(arguments.study)
        runs = runs_of(study)
        out = Path(os.path.abspath(arguments.out or Path("studies") / name))
        if arguments.dry_run:
            done = sum(is_finished(run, out) for run in runs)
            show("\n".join([f"OUT={shlex.quote(str(out))}", *study_table.commands(study, runs)]))
            show(f"# {done} of {len(runs)} runs are finished")
            return 0
        make_folders(out)
        failed = train_all(study, runs, out, arguments.workers)
        found = study_table.write(study, runs, out, failed)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(study_table.markdown(found))
    show(f"{out / 'table.md'}, table.json, curves.png")
    return RunError.exit_code if failed else 0


if __name__ == "__main__":
    command.run(main, "stopped; the same command goes on with the study")
