"""Lets every read and write of a checkpoint fail in turn, and goes on with the run: nothing may be moved or lost.

    python -m tests.faults                  # every third case, 25 minutes on two cores
    python -m tests.faults --every 1        # all

A small run (tests/chunkwise/toy.py) is made once, untouched. Then its calls to the system and to Orbax that touch a
checkpoint are counted: opening, listing, forcing out, renaming, removing, saving and loading arrays, reading for sums.
In a case one of them raises EIO, EACCES, ENOSPC, MemoryError, or what tensorstore makes of them (RESOURCE_EXHAUSTED as
text, of arrays and sums alone), once or from then on, either in a run that has been saved and is to go on, or in a
fresh one. What is tried again is tried at once, not after a pause. That start must end as the untouched run, or with
exit code 74; nothing lies in quarantine; and the next start, without a fault, must end as the untouched run.
"""

import argparse
import builtins
import collections
import contextlib
import dataclasses
import errno
import hashlib
import io
import logging
import multiprocessing
import os
import shutil
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from orbax.checkpoint import v1 as ocp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from chunkwise.checkpoint.saved_steps import steps_in
from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.errors import RunError
from chunkwise.files import trouble
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config

STEPS = 20
KEPT = {"norm_stats.json": b"{}\n"}


def _error(number: int) -> Callable[[], BaseException]:
    return lambda: OSError(number, os.strerror(number))


ERRORS: dict[str, Callable[[], BaseException]] = {
    "EIO": _error(errno.EIO),
    "EACCES": _error(errno.EACCES),
    "ENOSPC": _error(errno.ENOSPC),
    "MemoryError": MemoryError,
    "RESOURCE_EXHAUSTED": lambda: ValueError("RESOURCE_EXHAUSTED: Error reading \"w/c/0\" [os_error_code='24']"),
}


LIBRARIES = ("read", "save_checkpointables", "load_checkpointables")
"""Calls that raise what tensorstore does; the system's own raise numbers, or MemoryError."""


class Faults:
    """Counts the calls that touch a checkpoint of a run, and lets some of them fail."""

    def __init__(self, run: Path) -> None:
        self.calls: list[str] = []
        self._run = str(run)
        self._lock = threading.Lock()
        self._first, self._last, self._make = 10**9, 0, MemoryError

    def fail(self, first: int, last: int, make: Callable[[], BaseException]) -> None:
        """From call `first` to call `last`, counted from 0, `make()` is raised instead."""
        self._first, self._last, self._make = first, last, make

    def _touch(self, name: str, path: Any) -> None:
        """Notes a call; raises if it is to fail."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}") if path >= 0 else ""
        if not isinstance(path, str | os.PathLike):
            return
        path = os.fspath(path)
        if not isinstance(path, str) or not path.startswith(self._run):
            return
        inside = path.removeprefix(self._run).strip("/")
        if not inside.startswith(("checkpoints", "saved.json", "quarantine", *KEPT)):
            return
        with self._lock:
            number = len(self.calls)
            self.calls.append(name)
        if self._first <= number <= self._last and (
            name in LIBRARIES or self._make is not ERRORS["RESOURCE_EXHAUSTED"]
        ):
            raise self._make()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Watches for the length of the block."""
        with contextlib.ExitStack() as stack:

            def watch(owner: Any, name: str, said: str) -> None:
                call = getattr(owner, name)

                def watched(*arguments: Any, **options: Any) -> Any:
                    first = arguments[0] if arguments else ""
                    self._touch(said, getattr(first, "name", first) if said == "read" else first)
                    return call(*arguments, **options)

                stack.enter_context(mock.patch.object(owner, name, watched))

            for owner in (builtins, io):
                watch(owner, "open", "open")
            for name in ("open", "scandir", "mkdir", "fsync", "replace", "rename", "unlink", "rmdir"):
                watch(os, name, name)
            watch(hashlib, "file_digest", "read")
            for name in ("save_checkpointables", "load_checkpointables"):
                watch(ocp, name, name)
            yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One fault."""

    fresh: bool
    """In a run that begins; else in one that goes on."""
    call: int
    error: str
    once: bool


def config(folder: Path, steps: int = STEPS) -> ToyConfig:
    """The run: a save every four updates, the newest two stay."""
    made = toy_config(folder, train=TrainConfig(steps=steps, batch_size=8, log_every=2, eval_every=0))
    made = dataclasses.replace(made, checkpoint=CheckpointConfig(every=4, max_to_keep=2))
    return dataclasses.replace(made, run=dataclasses.replace(made.run, resume=True))


def train(folder: Path, steps: int = STEPS) -> str:
    """Trains or goes on; the digest."""
    with RunFolder(config(folder, steps), "faults") as run, contextlib.redirect_stdout(io.StringIO()):
        run.kept |= KEPT
        return fit(config(folder, steps), ToyTask(config(folder, steps)), run)


def start(case: Case, begun: Path, target: Path) -> Path:
    """The folder in which a case's run starts."""
    shutil.rmtree(target, ignore_errors=True)
    if not case.fresh:
        shutil.copytree(begun, target)
    return target


def calls(fresh: bool, begun: Path, target: Path) -> list[str]:
    """Names of the calls of a start without a fault."""
    faults = Faults(target)
    start(Case(fresh=fresh, call=0, error="", once=True), begun, target)
    with faults.under_way():
        train(target)
    return faults.calls


def play(case: Case, begun: Path, target: Path, digest: str) -> str:
    """How the start with the fault ended: 'went on' or '74'. AssertionError if anything was lost or moved."""
    faults = Faults(start(case, begun, target))
    faults.fail(case.call, case.call if case.once else 10**9, ERRORS[case.error])
    before = steps_in(target / "checkpoints")
    ended = "went on"
    try:
        with faults.under_way():
            found = train(target)
        if found != digest:
            raise AssertionError(f"{case}: ended with another digest than the untouched run")
    except RunError as error:
        ended = str(error.exit_code)
        if ended != "74":
            raise AssertionError(f"{case}: ended with {ended}: {error}") from error
    if (target / "quarantine").exists():
        raise AssertionError(f"{case}: {[path.name for path in (target / 'quarantine').iterdir()]} set aside")
    if ended == "74" and not set(before[:1]) <= set(steps_in(target / "checkpoints")):
        raise AssertionError(f"{case}: the newest save, {before[0]}, is gone")
    try:
        found = train(target)
    except RunError as error:
        raise AssertionError(f"{case}: {ended}, and the next start ended with {error.exit_code}: {error}") from error
    if found != digest:
        raise AssertionError(f"{case}: the next start ended with another digest than the untouched run")
    return ended


@dataclasses.dataclass
class Result:
    """What came of some cases."""

    endings: dict[tuple[str, str], collections.Counter[str]]
    """How starts ended, by (call, error)."""
    failures: list[str]
    cases: int


def run(folder: Path, every: int, offset: int = 0) -> Result:
    """Plays one case in so many."""
    begun, target = folder / "begun", folder / "run"
    digest = train(folder / "untouched")
    train(begun, STEPS - 8)
    result = Result(collections.defaultdict(collections.Counter), [], 0)
    cases: list[tuple[str, Case]] = []
    for fresh in (False, True):
        for call, name in enumerate(calls(fresh, begun, target)):
            cases += [
                (name, Case(fresh=fresh, call=call, error=error, once=once))
                for error in ERRORS
                if error != "RESOURCE_EXHAUSTED" or name in LIBRARIES
                for once in (True, False)
            ]
    with mock.patch.object(trouble, "time", types.SimpleNamespace(sleep=lambda seconds: None)):
        for name, case in cases[offset::every]:
            # A folder of its own: threads that Orbax left behind where a save failed still write into the last one.
            target = folder / f"run_{result.cases}"
            result.cases += 1
            try:
                result.endings[name, case.error][play(case, begun, target, digest)] += 1
            except AssertionError as failure:
                result.failures.append(f"{name}: {failure}")
            else:
                shutil.rmtree(target, ignore_errors=True)
    return result


PARTS = 16
"""In which `main` cuts the cases, for its workers and for what it says of how far they are."""


def part(which: tuple[int, int]) -> Result:
    """As `run` with (every, offset), in a folder of its own; a worker's task."""
    logging.disable(logging.CRITICAL)  # Orbax logs a page for each fault
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder).resolve(), *which)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3, help="take one case in so many")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes; default: one a core")
    arguments = parser.parse_args()
    settings = {  # as tests/conftest.py has it: the small program is compiled once, not by every start
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".cache/programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    result = Result(collections.defaultdict(collections.Counter), [], 0)
    parts = [(arguments.every * PARTS, arguments.every * i) for i in range(PARTS)]
    # A pool that terminates its workers: what Orbax leaves behind where a save fails keeps a process for minutes.
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as workers:
        for found in track(workers.imap_unordered(part, parts), "failing", total=PARTS, transient=True):
            result.cases += found.cases
            result.failures += found.failures
            for key, counts in found.endings.items():
                result.endings[key] += counts
    table = Table(title="went on to the untouched run's end / ended with 74 and went on at the next start")
    for column in ("call", *ERRORS):
        table.add_column(column, justify="left" if column == "call" else "right")
    for name in sorted({name for name, _ in result.endings}):
        counts = [result.endings.get((name, error), collections.Counter()) for error in ERRORS]
        table.add_row(name, *(f"{count['went on']} / {count['74']}" for count in counts))
    Console(width=120).print(table)
    if result.failures:
        raise SystemExit("\n".join([*result.failures, f"{len(result.failures)} of {result.cases} cases failed"]))
    print(f"{result.cases} cases: nothing was set aside, nothing lost, every next start ended as the untouched run")


if __name__ == "__main__":
    main()
