"""The lines of metrics.jsonl for those who look at runs elsewhere: TensorBoard, W&B, trackio, by run.loggers.

A logger is a tail of metrics.jsonl. When a run goes on, that file is cut back to the restored step, and then a logger
is opened with the lines that stand in it: one whose files lie in the run folder writes them anew, one that keeps its
own steps gets those that it lacks. So no line is there twice, and a logger switched on late has all of them.

Nothing depends on a logger: one that fails is named, and the run goes on without. The value `loss` of a line of split
`train` is called train/loss there.
"""

import importlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chunkwise.config.installed import pip_install
from chunkwise.errors import ConfigError, one_line
from chunkwise.files.durable import write_durably
from chunkwise.printable import say

Row = Mapping[str, Any]
"""A line of metrics.jsonl."""

PACKAGES = {"tensorboard": ("tensorboardX", "tb"), "wandb": ("wandb", "wandb"), "trackio": ("trackio", "trackio")}
"""Module and extra of each logger."""
ID = "logger_id"
"""File of the run folder with the name under which services know the run, and where the folder lay then."""
_STOPS = (Exception, SystemExit)


class Logger(Protocol):
    """A tail of metrics.jsonl."""

    def write(self, row: Row) -> None:
        """Takes the next line."""
        ...

    def close(self) -> None:
        """Hands over what is under way."""
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

    def close(self) -> None:
        """Closes all of them."""
        for name, logger in list(self._loggers.items()):
            self._attempt(name, logger.close)
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


def run_id(run: Path) -> str:
    """Returns the name under which services know a run, made at its first use, and anew for a copy of its folder.

    Beside it stands the folder's own path: where that is another folder, and one of the same name is there, this is a
    copy, which would write into the other's run. A folder that was moved keeps its name.
    """
    path, here = run / ID, str(run.resolve())
    name, of = _named_in(path)
    if name and of and not _same(run, of) and _named_in(Path(of) / ID)[0] == name:
        say(f"run.loggers: {run} is a copy of {of}, and has a name of its own from now on")
        name = ""
    if not name or of != here:
        name = name or secrets.token_hex(8)
        write_durably(path, f"{name} {json.dumps(here)}\n")  # of names that are no UTF-8, too
    return name


def _same(run: Path, other: str) -> bool:
    """Whether a path leads to the run's folder, perhaps by a link or another mount."""
    try:
        return os.path.samefile(run, other)
    except OSError:
        return False


def _named_in(path: Path) -> tuple[str, str]:
    """Name and folder in a file of the name; "" for what it lacks, and where nobody lets us look."""
    try:
        name, _, of = path.read_text().strip().partition(" ")
        return (name, json.loads(of) if of else "") if re.fullmatch(r"[0-9a-f]{16}", name) else ("", "")
    except (OSError, ValueError):
        return "", ""


class _TensorBoard:
    """Event files in RUN/tensorboard, written anew at each start; times are those of the writing."""

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        from tensorboardX import SummaryWriter

        folder = run / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))
        for row in rows:
            self.write(row)

    def write(self, row: Row) -> None:
        for name, value in named(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _Service:
    """A run of a service that numbers its lines itself, and has those of earlier starts."""

    _run: Any
    _first: int
    """Step of the first line that it lacks."""

    def write(self, row: Row) -> None:
        if row["step"] >= self._first:
            self._run.log(named(row), step=row["step"])

    def close(self) -> None:
        self._run.finish()


class _WandB(_Service):
    """A run of W&B, in the mode that WANDB_MODE says.

    Its files lie where W&B puts them (WANDB_DIR): one is a link out of the folder, which a run must not have. Offline
    each start makes a folder that has all lines, and removes the run's earlier ones.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  (an extra)

        name = run_id(run)
        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(
            project="chunkwise",
            id=name,
            name=run.name,
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


class _Trackio(_Service):
    """A run of trackio, in its database on this machine or where TRACKIO_SPACE_ID says."""

    _last: int | None = None
    """Step of the last line that there was at the start."""

    def __init__(self, run: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  (an extra)

        self._run = trackio.init(
            project="chunkwise",
            name=f"{run.name}-{run_id(run)}",
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


_OPENERS: dict[str, Callable[[Path, Mapping[str, Any], Sequence[Row]], Logger]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
}


def rows_of(content: bytes) -> list[Row]:
    """Returns the lines of a metrics.jsonl, which this project wrote."""
    return [json.loads(line) for line in content.splitlines()]
