"""The folder of one run: its lock, its config, its metrics file and its last word.

config.json      the resolved config, every field
saved.json       the newest save that was announced (chunkwise/checkpoint/saved_steps.py)
metrics.jsonl    {"step": int, "split": "train"|"eval", name: float ...} a line; no clock in it, so that a run
                 that was killed and resumed writes the same bytes as one that was not
timing.jsonl     where the wall-clock time went; differs from run to run
machine.json     on which cores, devices and versions, chunkwise/train/machine.py
starts.jsonl     command, commit, versions, host and dataset of every start, chunkwise/train/provenance.py
log.txt          what was printed, chunkwise/train/log_file.py
checkpoints/     chunkwise/checkpoint/manager.py
tensorboard/, logger_id   of run.loggers, chunkwise/train/loggers.py
dataset_files.gz chunkwise/files/dataset_files.py
done.json        the line that a finished run prints
report.html      its page, chunkwise/reports/report.py
profile/         traces of run.profile, chunkwise/train/tracing.py
"""

import contextlib
import fcntl
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from chunkwise.checkpoint.prune import evaluation_in
from chunkwise.checkpoint.saved_steps import SAVES, steps_in
from chunkwise.config.experiment import ExperimentConfig, of_a_run_of_before
from chunkwise.config.saved import (
    as_written_today,
    fingerprint,
    flatten,
    read_flat,
    require_as_new,
    resume_rules,
    with_fitting_values,
    without_younger,
)
from chunkwise.distributed import children, processes
from chunkwise.errors import BusyError, ConfigError, DataError, StorageError, require_equal
from chunkwise.files import budget, dataset_files, trust
from chunkwise.files.durable import make_folders, sweep, sync_folder, write_json
from chunkwise.files.identity import Files
from chunkwise.files.place import require_no_pattern
from chunkwise.files.strict_json import parse_json
from chunkwise.files.trouble import SYSTEM
from chunkwise.train import log_file, loggers, machine

IN_USE = "is in use by"
"""In what is said of a folder that another process trains in."""

SEEN_SECONDS = 60.0
"""For which a process waits for a file that the first one has written; a network's file system shows it late."""
_LOOK = 0.2


class RunFolder:
    """An open, locked run folder; use it as a context manager.

    Of several processes only the first holds the lock and writes; on the others what would write does nothing.
    """

    def __init__(self, config: ExperimentConfig, name: str) -> None:
        """Opens or makes the folder.

        Args:
          config: The resolved config; `run.dir` and `run.resume` decide.
          name: Name of the experiment, used where run.dir is not given.

        Raises:
          ConfigError: The folder holds a run and run.resume is off, or the other way round; or the config could not be
            read back from the folder, or holds what only a run of before may; or its path has *, ? or [, with which no
            checkpoint can be written; or another process of the run has another folder there.
          MismatchError: The folder's run was started with another config.
          BusyError: Another process has the folder open.
          StorageError: The folder cannot be written.
        """
        with of_a_run_of_before():  # or of none, which `_claim` finds
            with_fitting_values(config, name)  # a program's own, which no command line has looked at
        self._files = contextlib.ExitStack()
        self.kept: dict[str, bytes] = {}
        """Files that whoever uses a checkpoint needs beside it, by name: set before `fit`, which writes them, binds
        each checkpoint to their hashes, and refuses to go on where one was changed."""
        self._metrics: Appender | None = None
        self._timing: Appender | None = None
        self._loggers: loggers.Loggers | None = None
        self._config = config
        self._listed: bytes | None = None
        path, self.begun = processes.broadcast_one_to_all(lambda: self._claim(config, name))
        """Whether it held a run already, which goes on."""
        self.path = Path(path)
        if processes.is_multiprocess() and not config.run.dry_run:
            try:
                self._require_shared()
            except ConfigError:
                self._files.close()
                raise

    def _claim(self, config: ExperimentConfig, name: str) -> tuple[str, bool]:
        """Opens the folder for this process, which is the only one that writes; returns its path, and `begun`."""
        children.require_first_import()
        if config.run.dir == "":  # as of a variable that a shell does not know
            raise ConfigError('--run.dir is ""; expected the name of a folder, or no --run.dir')
        if config.run.resume and config.run.dir is None:
            raise ConfigError("--run.resume needs --run.dir, the folder of the run to continue")
        loggers.require(config.run.loggers)
        if config.run.dry_run:
            if config.run.resume or config.run.dir is not None:
                raise ConfigError(
                    "--dry-run has no folder and goes on with no run; leave --run.dir and --run.resume out"
                )
            self.path = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="chunkwise-dry-run-")))
            self._open(config, holds_run=False)
            return str(self.path), False
        default = f"runs/{config.package}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        # Orbax fails on a relative folder, and only at the first save.
        self.path = Path(os.path.realpath(os.path.expanduser(config.run.dir or default)))  # raises nothing
        require_no_pattern(self.path, "--run.dir")
        if config.run.dir is None:
            with storage_error(self.path):
                self.path = _made_anew(self.path)
        with storage_error(self.path):
            holds_run = _holds_run(self.path)
        if holds_run and not config.run.resume:
            raise ConfigError(
                f"{self.path} holds a run already. Add --run.resume to continue it, or choose another --run.dir"
            )
        if not holds_run:
            with_fitting_values(config, name)
            require_as_new(config)
        try:
            with storage_error(self.path):
                self._open(config, holds_run)
        except BaseException:
            self._files.close()
            raise
        return str(self.path), holds_run

    def _open(self, config: ExperimentConfig, holds_run: bool) -> None:
        """Makes the folder, locks it, and opens its files."""
        make_folders(self.path)
        trust.require_own_files(self.path)  # before anything is written through a link
        self._lock = self._files.enter_context(open(self.path / "lock", "a+"))
        self._take_lock()
        if holds_run:
            self._require_same_config(config)
        for folder in (self.path, self.path / "replay", *self.path.glob("rollouts/*/")):
            sweep(folder)
        if not holds_run:  # else once all is compared: a start that is refused changes nothing (`go_on`)
            write_json(self.path / "config.json", flatten(config))
        self._files.enter_context(log_file.logged(self.path))
        self._metrics = Appender(self._files.enter_context(open(self.path / "metrics.jsonl", "ab", buffering=0)))
        self._timing = Appender(self._files.enter_context(open(self.path / "timing.jsonl", "ab", buffering=0)))

    def _take_lock(self) -> None:
        """Locks the folder for this process; the system frees the lock when the process ends, however it ends."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            raise BusyError(f"{self.path} {IN_USE} {holder}. Wait for it, or choose another --run.dir") from error
        os.truncate(self._lock.fileno(), 0)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        os.write(self._lock.fileno(), holder.encode())  # no buffer that would fail again when closed
        os.fsync(self._lock.fileno())  # a network's file system shows others no more than that

    def _require_shared(self) -> None:
        """Raises ConfigError, on all processes, unless each sees the folder that the first one has locked."""
        lock, until = self.path / "lock", time.monotonic() + SEEN_SECONDS
        here = _text(lock)
        locked = processes.gather(here)[0]
        while (here := _text(lock)) != locked and time.monotonic() < until:
            time.sleep(_LOOK)
        found = processes.gather(here)
        if blind := [index for index, text in enumerate(found) if text != locked]:
            raise ConfigError(
                f"{lock}: process 0 has written {locked!r} there, and process {blind[0]} finds "
                f"{found[blind[0]] or 'nothing'!r}. Expected --run.dir on storage that all processes of a run share"
            )

    def _require_same_config(self, config: ExperimentConfig) -> None:
        """Compares with the config.json of the run that is to go on, before anything of it is touched."""
        path = self.path / "config.json"
        try:
            saved = parse_json(budget.read_bytes(path).decode(), source=str(path), finite=False)
        except budget.LimitError:
            raise
        except (ValueError, DataError) as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(saved, dict):
            raise ConfigError(f"{path}: expected a JSON object of config fields, found another value")
        rules = resume_rules(type(config))
        saved, now = fingerprint(saved, rules), fingerprint(flatten(config), rules)
        now = without_younger(now, saved, rules)
        require_equal(saved, now, f"{self.path} was started with another config")

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._files.__exit__(kind, error, trace)
        if kind is None:  # a report, or a logger's last lines, take as long as they take; the others' end does not wait
            processes.gather("")

    @property
    def plays(self) -> bool:
        """Whether rollouts are to be expected of this start: not of a dry run, nor where the run was done already."""
        return not self._config.run.dry_run and not (self.path / "done.json").exists()

    def require_same_files(self, files: Files) -> None:
        """Compares the files of a dataset with those that the run was started with; at its first start they are noted
        once it begins (`go_on`).

        Raises:
          MismatchError: Files changed, are missing or were added; the message names them.
        """
        if processes.is_primary():
            with storage_error(self.path, dataset_files.NAME):
                self._listed = dataset_files.require_same(self.path, files, resume=self.begun)

    def log(self, step: int, split: str, values: dict[str, float]) -> None:
        """Appends a line to metrics.jsonl. Non-finite numbers are written as null, which is valid JSON."""
        row = {"step": step, "split": split} | {k: _finite(v) for k, v in values.items()}
        if self._metrics is not None:
            self._metrics.append(row)
        if self._loggers is not None:
            self._loggers.write(row)

    def log_timing(self, step: int, seconds: dict[str, float]) -> None:
        """Appends a line to timing.jsonl: seconds since the start by purpose, and the peak of memory until now (GB)."""
        if self._timing is not None:
            spent = {name: round(value, 4) for name, value in seconds.items()}
            self._timing.append({"step": step, "seconds": spent, "memory": machine.peak_memory()})

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl so far, all of them on disk; 0 where another process writes it."""
        return 0 if self._metrics is None else self._metrics.sync()

    def go_on(self, step: int | None, size: int = 0, *, evaluated: bool = False) -> dict[str, float]:
        """Begins, or goes on from a checkpoint, now that config, data and checkpoint were compared.

        Drops what metrics.jsonl has behind the checkpoint, writes config.json and the list of the dataset's files, and
        opens the loggers.

        Args:
          step: Updates behind the checkpoint; None without one.
          size: Bytes of metrics.jsonl when it was made.
          evaluated: Whether the evaluation of that step was done by then.

        Returns:
          The finite metrics of that evaluation, on all processes, where its line came next: it stays, as the run made
          up for it. Else {}.

        Raises:
          ConfigError: The run has more updates than train.steps, or metrics.jsonl is shorter than it was.
        """
        metrics, steps = self._metrics, self._config.train.steps
        if step is not None and step > steps:
            raise ConfigError(f"{self.path} has {step} updates; expected train.steps of at least that, found {steps}")

        def accept() -> dict[str, float]:
            assert metrics is not None
            line, found = metrics.line_behind(size), {}
            if step is not None and not evaluated:
                found = evaluation_in(line).get(step, {})
            metrics.cut(size + (len(line) if found else 0))
            self._write_accepted(over=step == steps and (evaluated or bool(found)))
            return found

        found = processes.broadcast_one_to_all(accept)
        if metrics is not None and self._config.run.loggers and not self._config.run.dry_run:
            rows = loggers.rows_of((self.path / "metrics.jsonl").read_bytes())
            self._loggers = loggers.Loggers(self._config.run.loggers, self.path, flatten(self._config), rows)
            self._files.push(self._close_loggers)
        return found

    def _close_loggers(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._loggers is not None:
            self._loggers.close(error)

    def _write_accepted(self, *, over: bool) -> None:
        """Writes what was compared. Where nothing is left to do, `eval` stays what the run was measured with."""
        now, rules = flatten(self._config), resume_rules(type(self._config))
        if over:
            saved = as_written_today(read_flat(self.path), rules)
            measured = {name: value for name, value in saved.items() if name.startswith("eval.")}
            now = {name: value for name, value in now.items() if name in measured or not name.startswith("eval.")}
            now |= measured
        if self._listed is not None:
            with storage_error(self.path, dataset_files.NAME):
                dataset_files.write(self.path, self._listed)
        with storage_error(self.path, "config.json"):
            write_json(self.path / "config.json", now)

    def finish(self, line: dict[str, Any]) -> None:
        """Writes done.json."""
        if processes.is_primary():
            with storage_error(self.path, "done.json"):
                write_json(self.path / "done.json", line, indent=None)


class Appender:
    """A file of JSON lines that only grows, except when it is cut back on resume."""

    def __init__(self, file: FileIO) -> None:
        """Takes a file without a buffer, which on a full disk would fail once more when it is closed."""
        self._file = file
        self._path = Path(file.name)

    def append(self, row: dict[str, Any]) -> None:
        """Writes one line. Raises StorageError if that fails; what was written of it is cut when the run goes on."""
        line = json.dumps(row).encode() + b"\n"
        with storage_error(self._path.parent, self._path.name):
            while line:  # a disk that is nearly full takes a part
                line = line[self._file.write(line) :]

    def sync(self) -> int:
        """Forces the lines to disk and returns the size in bytes. Raises StorageError if that fails."""
        with storage_error(self._path.parent, self._path.name):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def line_behind(self, size: int) -> bytes:
        """Returns the whole line that begins behind so many bytes; b"" where there is none."""
        with open(self._path, "rb") as file:
            file.seek(size)
            line = file.readline()
        return line if line.endswith(b"\n") else b""

    def cut(self, size: int) -> None:
        """Shortens the file to `size` bytes."""
        if self._file.tell() < size:
            raise ConfigError(
                f"{self._file.name} has {self._file.tell()} bytes, {size} when the checkpoint was made: "
                "it was changed by hand. Restore it, or start anew in another folder"
            )
        self._file.truncate(size)
        self._file.seek(size)


def _made_anew(path: Path) -> Path:
    """Makes a folder that was not there, and returns it: of that name, or with -2, -3 behind it where others began in
    the same second."""
    make_folders(path.parent)
    folder, number = path, 1
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            folder = path.with_name(f"{path.name}-{number}")
        else:
            sync_folder(path.parent)
            return folder


def _holds_run(path: Path) -> bool:
    """Whether there is anything to lose: a run that failed before its first update left a config and nothing else.

    Rollouts of a first round are: the run takes those of the same weights, whatever settings they were played with.
    """
    metrics = path / "metrics.jsonl"
    trained = (metrics.exists() and metrics.stat().st_size > 0) or (path / "done.json").exists()
    trained = trained or bool(steps_in(path / SAVES)) or any(path.glob("rollouts/*/*.npz"))
    return trained and (path / "config.json").exists()


@contextlib.contextmanager
def storage_error(run: Path, name: str = "") -> Iterator[None]:
    """Raises what the system says of the run's folder or a file in it as a StorageError that names the newest save."""
    try:
        yield
    except SYSTEM as error:
        steps: list[int] = []
        with contextlib.suppress(*SYSTEM):
            steps = steps_in(run / SAVES)
        memory = isinstance(error, MemoryError)
        said = "out of memory" if memory else error.strerror or error
        place = run / name if memory or error.filename is None else error.filename
        raise StorageError(
            f"cannot write {place}: {said}. Last durable step: {max(steps, default=None)}. "
            "Make room or mend the folder, then start it again with --run.resume"
        ) from error


def _text(path: Path) -> str:
    """What a file holds; nothing where it is not there or cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _finite(value: float) -> float | None:
    """The number, or None if it is NaN or infinite."""
    return float(value) if math.isfinite(value) else None
