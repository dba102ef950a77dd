"""The lines of metrics.jsonl for those who look at runs elsewhere: TensorBoard, W&B, trackio, by run.loggers.

A logger is a tail of metrics.jsonl. When a run goes on, that file is cut back to the restored step, and then a logger
is opened with the lines that stand in it: one whose files lie on this machine writes them anew, a service on the
network gets those of the steps that it lacks. So no line is there twice, and a logger switched on late has all of them.

Nothing depends on a logger: one that fails is named, and the run goes on without. The value `loss` of a line of split
`train` is called train/loss there.
"""

import dataclasses
import importlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError, PreemptedError, one_line
from chunkwise.files.durable import write_durably
from chunkwise.printable import say

Row = Mapping[str, Any]
"""A line of metrics.jsonl."""

PACKAGES = {"tensorboard": ("tensorboardX", "tb"), "wandb": ("wandb", "wandb"), "trackio": ("trackio", "trackio")}
"""Module and extra of each logger."""
ID = "logger_id"
"""File of the run folder with what services know the run by."""
_STOPS = (Exception, SystemExit)


class Logger(Protocol):
    """A tail of metrics.jsonl."""

    def write(self, row: Row) -> None:
        """Takes the next line."""
        ...

    def close(self, exit_code: int) -> None:
        """Hands over what is under way, and how the run ended: 0, or the exit code of what ended it."""
        ...


def require(names: Sequence[str]) -> None:
    """Imports the packages of loggers. Raises ConfigError for one that is not there, with the extra that brings it."""
    for name in names:
        module, extra = PACKAGES[name]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"run.loggers: {name} needs the package {module}, which Python cannot import ({error}); "
                f"{pip_install(extra)}, or leave {name} out"
            ) from error


class Loggers:
    """The loggers of one start of a run, behind one face."""

    def __init__(self, names: Sequence[str], run: Path, config: Mapping[str, Any], rows: Iterable[Row]) -> None:
        """Opens each logger and hands it the lines that there are.

        Args:
          names: As of run.loggers; `require` has found their packages.
          run: Folder of the run.
          config: Fields by dotted name, for services that show them.
          rows: Lines of metrics.jsonl so far.
        """
        rows = list(rows)
        self._loggers: dict[str, Logger] = {}
        for name in names:
            if (logger := self._attempt(name, lambda name=name: _OPENERS[name](run, config, rows))) is not None:
                self._loggers[name] = logger

    def write(self, row: Row) -> None:
        """Hands a line to all of them."""
        for name, logger in list(self._loggers.items()):
            self._attempt(name, lambda logger=logger: logger.write(row))

    def close(self, error: BaseException | None = None) -> None:
        """Closes all of them. `error`: what ended the run, where something did."""
        exit_code = 0 if error is None else getattr(error, "exit_code", 1)
        for name, logger in list(self._loggers.items()):
            self._attempt(name, lambda logger=logger: logger.close(exit_code))
        self._loggers.clear()

    def _attempt(self, name: str, act: Callable[[], Any]) -> Any:
        """What `act` returns; None where it fails, and the logger is left out from then on."""
        try:
            return act()
        except _STOPS as error:
            self._loggers.pop(name, None)
            say(f"run.loggers: {name} failed and is left out until the next start; metrics.jsonl has all:")
            say(f"  {type(error).__name__}: {one_line(error)}")
            return None


def named(row: Row) -> dict[str, float]:
    """Returns the numbers of a line by their names in a logger; null, which stands for NaN and Inf, is left out."""
    split = row["split"]
    return {f"{split}/{k}": v for k, v in row.items() if k not in ("step", "split") and v is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What services know a run by, as its folder has it in `ID`."""

    name: str
    """16 hexadecimal digits."""
    folder: str
    """Where the folder lay; "" in files of the first versions."""
    inode: int | None = None
    """Its number on its file system, which a folder keeps that is moved there, and no copy has; None in older files."""
    label: str = ""
    """Name of the folder at the first use; "" in older files."""


def identity(run: Path) -> Identity:
    """Returns what services know a run by, made at its first use, and anew for a copy of its folder.

    A folder that was moved keeps it. Another one, which has the name of a folder that is there too, is a copy, which
    would write into the other's run; so is one of another inode where the folder that had it is gone, or that one was
    moved to another file system: nobody can tell, and a second run loses nothing, since it gets all lines.
    """
    path, here, inode = run / ID, str(run.resolve()), run.stat().st_ino
    known = _identity_in(path)
    if known is not None and known.folder and not _same(run, known.folder):
        there = _identity_in(Path(known.folder) / ID)
        if there is not None and there.name == known.name:
            say(f"run.loggers: {run} is a copy of {known.folder}, and has a name of its own from now on")
            known = None
        elif known.inode not in (None, inode):
            say(
                f"run.loggers: {run} is a copy of {known.folder}, which is gone, or was moved from another file "
                "system; it has a name of its own from now on"
            )
            known = None
    made = Identity(name=secrets.token_hex(8), folder=here) if known is None else known
    made = dataclasses.replace(made, folder=here, inode=inode, label=made.label or run.resolve().name)
    if made != known:
        place = json.dumps([made.folder, made.inode, made.label])  # of names that are no UTF-8, too
        write_durably(path, f"{made.name} {place}\n")
    return made


def _same(run: Path, other: str) -> bool:
    """Whether a path leads to the run's folder, perhaps by a link or another mount."""
    try:
        return os.path.samefile(run, other)
    except OSError:
        return False


def _identity_in(path: Path) -> Identity | None:
    """What a file has; None without one, where nobody lets us look, and where it is none."""
    try:
        name, _, place = path.read_text().strip().partition(" ")
        read = json.loads(place) if place else ""
    except (OSError, ValueError):
        return None
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        return None
    if isinstance(read, str):  # until 2026-11-30
        return Identity(name=name, folder=read)
    try:
        folder, inode, label = read
        return Identity(name=name, folder=str(folder), inode=int(inode), label=str(label))
    except (TypeError, ValueError):
        return None


class _TensorBoard:
    """An event file in RUN/tensorboard, written anew at each start; times are those of the writing.

    It is written in this thread. tensorboardX's SummaryWriter has one of its own, which a full disk ends: ten values
    later the next one waits for ever.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder = run / "tensorboard"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._file = EventsWriter(str(folder / "events"))
        for row in rows:
            self._add(row)
        self._file.flush()

    def write(self, row: Row) -> None:
        self._add(row)
        self._file.flush()

    def _add(self, row: Row) -> None:
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        messages: Any = event_pb2  # its names are made at import
        for name, value in named(row).items():
            self._file.write_event(messages.Event(wall_time=time.time(), step=row["step"], summary=scalar(name, value)))

    def close(self, exit_code: int) -> None:
        self._file.close()


class _Service:
    """A run of a service that numbers its lines itself, and has those of earlier starts."""

    _run: Any
    _first: int
    """Step of the first line that it lacks."""

    def write(self, row: Row) -> None:
        if row["step"] >= self._first:
            self._run.log(named(row), step=row["step"])


class _WandB(_Service):
    """A run of W&B, in the mode that WANDB_MODE says; WANDB_PROJECT and WANDB_NAME say where, and its name.

    Its files lie where W&B puts them (WANDB_DIR): one is a link out of the folder, which a run must not have. Offline
    each start makes a folder that has all lines, and removes the run's earlier ones.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  (an extra)

        name = identity(run).name
        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "chunkwise",
            id=name,
            name=os.environ.get("WANDB_NAME") or run.resolve().name,
            resume="allow",
            config=dict(config),
            settings=settings,
        )
        own = Path(self._run.dir).parent
        if own.name.startswith("offline-run-"):
            for old in set(own.parent.glob(f"offline-run-*-{name}")) - {own}:
                shutil.rmtree(old)
        # Online the service has the lines up to this step, from which a resume makes the same ones.
        self._first = self._run.step
        for row in rows:
            self.write(row)

    def close(self, exit_code: int) -> None:
        if exit_code == PreemptedError.exit_code:
            self._run.mark_preempting()
        self._run.finish(exit_code=exit_code)


class _Trackio(_Service):
    """A run of trackio, in its database on this machine or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says.

    In the database of this machine all lines are written anew at each start.
    """

    _last: int | None = None
    """Step of the last line that there was at the start."""

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  (an extra)

        known = identity(run)
        project, name = "chunkwise", f"{known.label}-{known.name}"
        if not os.environ.get("TRACKIO_SPACE_ID") and not os.environ.get("TRACKIO_SERVER_URL"):
            try:
                runs = list(trackio.Api().runs(project))
            except ValueError:  # no run has been logged yet
                runs = []
            for old in runs:
                if old.name == name:
                    old.delete()
        self._run = trackio.init(
            project=project,
            name=name,
            resume="allow",
            config=dict(config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._first = self._run._next_step  # there is no public word for it
        for row in rows:
            self.write(row)
        self._last = rows[-1]["step"] if rows else None

    def write(self, row: Row) -> None:
        """A line of the last line's step is the evaluation that a stop broke off, and the run made up for."""
        if row["step"] >= self._first or row["step"] == self._last:
            self._run.log(named(row), step=row["step"])

    def close(self, exit_code: int) -> None:
        self._run.finish()


_OPENERS: dict[str, Callable[[Path, Mapping[str, Any], Sequence[Row]], Logger]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
}


def rows_of(content: bytes) -> list[Row]:
    """Returns the lines of a metrics.jsonl, which this project wrote."""
    return [json.loads(line) for line in content.splitlines()]
