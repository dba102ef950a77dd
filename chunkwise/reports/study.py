"""`chunkwise study NAME_OR_FILE`: trains a config over a grid and seeds, and compares what came of it.

    chunkwise study quickstart --dry-run
    chunkwise study quickstart --out studies/quickstart --workers 2

Every run is an ordinary one, in a process of its own with its share of the cores: of this machine, of a Ray cluster
(--fleet) or of Slurm (--slurm). Given again, the same command skips what is finished and goes on with what is not. A
run that fails is reported, and the others go on.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import importlib
import io
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.cli.progress import live_table
from chunkwise.cli.verbs import resolve
from chunkwise.config.saved import is_run
from chunkwise.config.study import Run, StudyConfig, digest_of, read_study, runs_of
from chunkwise.distributed import stopping
from chunkwise.distributed.cores import shares_of
from chunkwise.distributed.jobs import do_all
from chunkwise.distributed.ray_cluster import add_flag
from chunkwise.errors import BusyError, ConfigError, RunError, StopRequested, exit_reason, one_line
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.lock import locked
from chunkwise.files.place import prepare_place, require_no_pattern, told_place
from chunkwise.printable import say
from chunkwise.reports import study_table
from chunkwise.reports.run_record import last_word
from chunkwise.reports.study_fleet import StudyWorker, leashed, lost_run, require_sbatch, script, submit
from chunkwise.reports.study_progress import (
    COLUMNS,
    begun,
    error_in,
    evaluated_otherwise,
    has_same_config,
    is_complete,
    is_finished,
    log_of,
    other_data,
    rows,
    unfinished,
    unfinished_start,
)

OF = "--of"
"""Flag by which a job says whose number it has: that of `digest_of`."""
ASK_AGAIN = 0.2
"""Seconds between two looks at a process."""
BUSY_SECONDS = 5.0
"""Between two tries for a run that another process has open: one of an earlier start of the study."""
WATCH_SECONDS = 2.0
"""Between two looks at runs that are trained elsewhere."""


class Processes:
    """The runs' processes: they stop when the study is asked to, each saved as a run is that is stopped alone."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def call(self, words: Sequence[str], log: Path) -> int:
        """Runs a command, its output appended to `log`; returns its exit code, negative for a signal.

        A command whose study is killed is asked to stop, and leaves nothing that goes on beside the next start.

        Raises:
          StopRequested: The study is to stop, and the process has.
          StorageError: The log cannot be written.
        """
        with told_place(log):
            make_folders(log.parent)
            file = open(log, "ab")
        with file:
            if self.stopping.is_set():
                raise StopRequested
            process = subprocess.Popen(leashed(words), stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
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


def train_all(
    study: StudyConfig, runs: Sequence[Run], out: Path, workers: int, failed: dict[str, str] | None = None
) -> dict[str, str]:
    """Trains, and evaluates, what is not finished; returns what is said of runs that failed, by folder.

    Args:
      study: The study.
      runs: Those to train.
      out: Folder of the study.
      workers: Runs at once.
      failed: Returned, and filled meanwhile.
    """
    failed = {} if failed is None else failed
    shares = shares_of(workers)
    free, lock = list(shares), threading.Lock()
    processes = Processes()

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
        # However long they take to save: an array's task, and a container, kill what is left when the study has ended.
        with stopping.watched() as watch:
            watch.attend(lambda: threads.shutdown(cancel_futures=True), None, math.inf)
    return failed


def _goes_on(run: Run, folder: Path) -> bool:
    """Whether a run that was begun has updates to make yet, and may."""
    done = last_word(folder, 0)
    return has_same_config(run, folder) and (done is None or done["step"] < run.config.train.steps)


_MEASURED_SO = {
    True: "Its numbers are those of its own evaluation. To measure finished runs anew give the study an `evaluate` "
    'with the flags that say so, such as ("--episodes", "50"); or train them in another folder',
    False: "Its evaluation takes what the study's `evaluate` does not say from the run; say it there, or train the "
    "run in another folder",
}
"""What is said of a run whose eval.* is not the study's: by whether its own evaluation is what counts."""


def _one(study: StudyConfig, run: Run, out: Path, processes: Processes) -> str:
    """Does what is left of a run; returns what is said if it failed."""
    folder, log = out / run.folder, log_of(run, out)
    chunkwise = [sys.executable, "-m", "chunkwise"]
    if is_finished(run, out):
        say(f"{run.folder}: finished before")
        if otherwise := evaluated_otherwise(run, out):
            say(f"{run.folder}: warning: {otherwise}. {_MEASURED_SO[study.evaluate is None]}")
    else:
        if not is_run(folder) and (why := unfinished_start(run)):
            say(f"{run.folder}: {why}", error=True)
            return why
        say(f"{run.folder}: training")
        if not is_run(folder) or _goes_on(run, folder):  # else it is refused, or at its end, and the evaluation stands
            (folder / study_table.EVALUATION).unlink(missing_ok=True)  # of fewer updates, and of its best by then
        train = [*chunkwise, "train", *run.words, "--run.dir", str(folder), "--run.resume"]
        if why := _call(processes, train, log, run.folder):
            return why
        say(f"{run.folder}: finished")
        if study.evaluate is None and (why := study_table.unmeasured(folder, study)):  # now, not after all the others
            say(f"{run.folder}: warning: {why}")
    if study.evaluate is None or study_table.is_evaluated(folder, study.evaluate, run.config.train.steps):
        return ""
    with _alone(folder, run.folder, processes):
        if study_table.is_evaluated(folder, study.evaluate, run.config.train.steps):  # by the one that was waited for
            return ""
        say(f"{run.folder}: evaluating")
        study_table.begin_evaluation(folder, study.evaluate, run.config.train.steps)
        made = ["--out", str(folder / study_table.EVALUATION), *study.evaluate]
        return _call(processes, [*chunkwise, "evaluate", str(folder), *made], log, run.folder)


@contextlib.contextmanager
def _alone(folder: Path, name: str, processes: Processes) -> Iterator[None]:
    """Holds a run's evaluations for this process: outcomes and the flags that made them are of one."""
    place = (folder / study_table.EVALUATION).parent
    make_folders(place)
    waited = False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(place, f"another process is evaluating {folder}"))
                break
            except BusyError:
                if not waited:
                    say(f"{name}: another process evaluates it; waiting for that")
                waited = True
                if processes.stopping.wait(BUSY_SECONDS):
                    raise StopRequested from None
        yield


def _call(processes: Processes, words: Sequence[str], log: Path, name: str) -> str:
    """Runs a command; what is said if it failed."""
    begun(log, words)
    waited, before = False, _size(log)
    while (code := processes.call(words, log)) == BusyError.exit_code:
        if not waited:
            say(f"{name}: another process has it open, of an earlier start perhaps; waiting for that")
        waited = True
        if processes.stopping.wait(BUSY_SECONDS):
            raise StopRequested
        before = _size(log)
    if code == 0:
        return ""
    with open(log, "rb") as file:
        file.seek(before)  # an earlier start may have failed for another reason
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    said = error_in(lines) or "".join(lines[-1:])
    if code < 0 and not error_in(lines):
        said = f"{exit_reason(code)}{', perhaps for want of memory' * (code == -signal.SIGKILL)}"
    why = f"ended with {code}: {said}"
    say(f"{name}: {why} (all of it in {log})", error=True)
    return why


def _size(log: Path) -> int:
    """Bytes of a log; 0 where there is none yet."""
    return log.stat().st_size if log.exists() else 0


def train_on_fleet(
    runs: Sequence[Run],
    out: Path,
    command: Sequence[str],
    numbers: Sequence[int],
    places: argparse.Namespace,
    failed: dict[str, str],
) -> None:
    """Trains, and evaluates, runs on a Ray cluster.

    Args:
      runs: Of the study.
      out: Its folder.
      command: Its command, without places.
      numbers: Of the runs that are not complete.
      places: With the command line's fleet, workers and cores.
      failed: Is filled with what is said of runs that failed, by folder.
    """
    worker = StudyWorker(command=tuple(command), folder=os.getcwd(), cores=places.cores)
    say(f"{len(numbers)} of {len(runs)} runs on the cluster, {places.cores} core(s) each")
    trained = do_all(
        numbers, worker, workers=places.workers, fleet=places.fleet, name="run", cores=places.cores, lost=lost_run
    )
    with contextlib.closing(trained):
        for number, (code, said) in trained:
            folder = runs[number].folder
            if code:
                failed[folder] = said.removeprefix(f"{folder}: ") or f"ended with {code}"
            say(f"{folder}: {failed.get(folder, 'finished')}", error=bool(code))


def watch(study: StudyConfig, runs: Sequence[Run], out: Path) -> None:
    """Returns once all runs are complete; on a terminal they are shown, elsewhere there is a line when one ends."""
    known = -1
    with live_table(COLUMNS, functools.partial(rows, study, runs, out, {})):
        while (done := sum(is_complete(study, run, out) for run in runs)) < len(runs):
            if done != known:
                say(f"{done} of {len(runs)} runs are finished")
                known = done
            time.sleep(WATCH_SECONDS)


def _is_left(study: StudyConfig, run: Run, out: Path) -> bool:
    """Whether a run is to be given to a worker; it says itself what is wrong with a folder that cannot be read."""
    try:
        return not is_complete(study, run, out)
    except RunError:
        return True


def _require_evaluable(study: StudyConfig, runs: Sequence[Run], out: Path) -> None:
    """Raises ConfigError where `chunkwise evaluate` would not take a study's `evaluate`: before a run is trained."""
    if study.evaluate is None:
        return
    folder = out / runs[0].folder
    made = ("--out", str(folder / study_table.EVALUATION))
    module, words = resolve(["evaluate", runs[0].config.package, str(folder), *made, *study.evaluate])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = importlib.import_module(module).read_arguments(words)
        if getattr(found, "checkpoint", None) == "best" and any(
            run.config.checkpoint.keep_best is None for run in runs
        ):
            raise ConfigError("--checkpoint best: expected checkpoint.keep_best in the config of each run")
    except (ConfigError, SystemExit) as error:
        why = error if isinstance(error, ConfigError) else said.getvalue().strip().rpartition("\n")[2]
        given = shlex.join(study.evaluate)
        raise ConfigError(
            f"the study's evaluate is {given!r}, which chunkwise evaluate does not take: {why}"
        ) from error


def _submit(name: str, command: Sequence[str], out: Path, numbers: Sequence[int], places: argparse.Namespace) -> None:
    """Writes the script of an array of Slurm, and submits it, or shows it; says so where the job behind it is refused.

    Raises:
      ConfigError: --sbatch is no words, there is no sbatch, or it refuses the array.
      StorageError: The script cannot be written.
    """
    try:
        options = shlex.split(places.sbatch)
    except ValueError as error:
        raise ConfigError(f"--sbatch is {places.sbatch!r}: {error}; expected words as on a command line") from error
    text = script(name, command, out, numbers, workers=places.workers, cores=places.cores)
    if places.dry_run:
        print(text, end="")
        return
    path = out / "slurm.sh"
    prepare_place(path)
    require_sbatch()
    with told_place(out):
        make_folders(out / "logs")
        write_durably(path, text)
    array, table, refused = submit(path, options, command)
    said = f"{path}: {len(numbers)} runs are the array {array}"
    if refused:
        say(f"{said}; the job of the table behind it was refused: {refused}. --table writes it later", error=True)
    else:
        say(f"{said}, and job {table} writes the table behind it")
    say(f"{shlex.join(_for_people(command))} --watch shows how far they are")


def main(argv: Sequence[str] | None = None, *, show: Callable[[str], None] = print) -> int:
    """Command line; returns the exit code: 70 where a run failed, with --only that of the run."""
    arguments = _parser().parse_args(argv)
    try:
        _require_places(arguments)
        study, name = read_study(arguments.study)
        runs = runs_of(study)
        out = Path(os.path.abspath(arguments.out or Path("studies") / name))
        require_no_pattern(Path(os.path.realpath(out)), "--out")
        file = os.path.abspath(arguments.study) if arguments.study.endswith(".py") else arguments.study
        digest = digest_of(study, runs)
        command = [sys.executable, "-m", "chunkwise", "study", file, "--out", str(out), OF, digest]
        if arguments.of is not None and arguments.of != digest:
            raise ConfigError(
                f"{file}: its runs are no longer those that were submitted, so that a number means another one; submit "
                "it again, and change a copy of a study whose jobs wait"
            )
        if not arguments.table:
            _require_evaluable(study, runs, out)
        if arguments.only is not None:
            if not 0 <= arguments.only < len(runs):
                raise ConfigError(f"--only is {arguments.only}; expected 0 to {len(runs) - 1}")
            if arguments.dry_run:
                show("\n".join([f"OUT={shlex.quote(str(out))}", *study_table.commands(study, [runs[arguments.only]])]))
                return 0
            prepare_place(out / study_table.TABLE)  # of the study's folder
            failed = train_all(study, [runs[arguments.only]], out, 1)
            return _code_of(next(iter(failed.values()))) if failed else 0
        left = [number for number, run in enumerate(runs) if _is_left(study, run, out)]
        if arguments.slurm and left:
            _submit(name, command, out, left, arguments)
            return 0
        if arguments.dry_run:
            done = sum(is_finished(run, out) for run in runs)
            show("\n".join([f"OUT={shlex.quote(str(out))}", *study_table.commands(study, runs)]))
            show(f"# {done} of {len(runs)} runs are finished")
            return 0
        if not arguments.table:  # of runs that are there, which a folder that cannot be written shows all the same
            prepare_place(out / study_table.TABLE)
        failed: dict[str, str] = {}
        if arguments.watch:
            watch(study, runs, out)
        elif arguments.fleet is not None and left:
            with live_table(COLUMNS, functools.partial(rows, study, runs, out, failed)):
                train_on_fleet(runs, out, command, left, arguments, failed)
        elif not (arguments.table or arguments.slurm or arguments.fleet):
            with live_table(COLUMNS, functools.partial(rows, study, runs, out, failed)):
                failed |= train_all(study, runs, out, arguments.workers or 1, failed)
        left_out = unfinished(study, [run for run in runs if run.folder not in failed], out)
        others = other_data([run for run in runs if run.folder not in {*failed, *left_out}], out)
        left_out |= others
        measured = [run for run in runs if run.folder not in {*failed, *left_out}]
        otherwise = {run.folder: said for run in measured if (said := evaluated_otherwise(run, out))}
        found = study_table.write(study, runs, out, failed, left_out, otherwise)
        not_begun = {run.folder for run in runs if not _is_drawn(run, out)}
        drawn = study_table.draw(study, runs, out, {*found["failed"], *others, *not_begun})
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(study_table.markdown(found))
    show(f"{out / 'table.md'}, table.json{', curves.png' * drawn}")
    missing = left_out and not arguments.table
    if missing:
        say(
            f"{len(left_out)} of {len(runs)} runs are no result, and the table says why: {', '.join(left_out)}",
            error=True,
        )
    return RunError.exit_code if found["failed"] or missing else 0


def _is_drawn(run: Run, out: Path) -> bool:
    """Whether a run's curve is one of the study's: it was begun with the config that the study has now."""
    with contextlib.suppress(RunError):  # a folder that cannot be read
        return is_run(out / run.folder) and has_same_config(run, out / run.folder)
    return False


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="chunkwise study",
        description="Trains a config over a grid of overrides and seeds, and compares the runs.",
        epilog="example: chunkwise study quickstart --out studies/quickstart --workers 2",
    )
    parser.add_argument("study", help="a name of configs/studies, or a file with get_study()")
    parser.add_argument("--out", type=Path, help="folder of the runs and the table; default: studies/<name>")
    at_once = "runs at once; default: 1, the cores divided among them; on a --fleet and --slurm as many as have room"
    parser.add_argument("--workers", type=int, metavar="N", help=at_once)
    add_flag(parser, "runs")
    parser.add_argument("--slurm", action="store_true", help="submit the runs as an array; --dry-run shows its script")
    options = "options for sbatch, in one word: '--partition gpu --gres gpu:1 --time 12:00:00'"
    parser.add_argument("--sbatch", metavar="OPTIONS", default="", help=options)
    parser.add_argument(
        "--cores", type=int, default=1, metavar="K", help="of a run on a --fleet or --slurm; default: 1"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the commands, and what is finished; train nothing")
    parser.add_argument("--watch", action="store_true", help="train nothing; show the runs until all are finished")
    parser.add_argument("--table", action="store_true", help="train nothing; write the table of what is there")
    parser.add_argument(OF, dest="of", metavar="DIGEST", help=argparse.SUPPRESS)  # of the jobs that it submits
    parser.add_argument("--only", type=int, metavar="NUMBER", help="train one run, counted from 0; write no table")
    return parser


def _require_places(arguments: argparse.Namespace) -> None:
    """Refuses what cannot be, or would have no effect."""
    for name in ("workers", "cores"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name} is {value}; expected at least 1")
    chosen = [name for name in ("fleet", "slurm", "watch", "table") if getattr(arguments, name)]
    chosen += [] if arguments.only is None else ["only"]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]}: choose one of them")
    if arguments.workers is not None and chosen[:1] in (["watch"], ["table"], ["only"]):
        raise ConfigError(f"--workers is for runs at once; with --{chosen[0]} there are none")
    if arguments.cores != 1 and chosen[:1] not in (["fleet"], ["slurm"]):
        raise ConfigError("--cores is for --fleet and --slurm; else the cores are divided among --workers")
    if arguments.sbatch and not arguments.slurm:
        raise ConfigError("--sbatch is for --slurm")


def _for_people(command: Sequence[str]) -> list[str]:
    """A study's command without what its jobs alone are given."""
    return list(command[: command.index(OF)])


def _code_of(why: str) -> int:
    """Exit code of a run of which `_call` says why it failed; a folder that cannot be read has none of its own."""
    found = re.match(r"ended with (-?[0-9]+): ", why)
    code = int(found[1]) if found else RunError.exit_code
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    command.run(main, "stopped; the same command goes on with the study")
