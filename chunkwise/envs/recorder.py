"""What a recorder does besides its simulator: claims and locks a folder, shares out episodes, says how far it is.

Episode e is written by some worker as a function of (settings, e), and appears under its name only when it is whole, so
a recording that was stopped in any way goes on with exactly the missing episodes and ends with the same files.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from chunkwise.cli.progress import follow
from chunkwise.config.experiment import FleetConfig
from chunkwise.config.installed import pip_install
from chunkwise.config.load import parsed
from chunkwise.distributed.jobs import do_all
from chunkwise.errors import ConfigError, PreemptedError, RunError, StorageError
from chunkwise.files.durable import give_name, make_folders, sweep, write_json
from chunkwise.files.lock import locked
from chunkwise.files.new_folder import new_folder
from chunkwise.files.strict_json import read_json

Settings = TypeVar("Settings")

FLEET = f"Processes on a Ray cluster: local, auto, ray://host:port ({pip_install('fleet')})."

Recorder = Callable[[int], object]
"""Plays one episode and writes it; an OSError means that it could not be written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetadataFiles:
    """Names of the file of metadata in a dataset's folder, which says what made it."""

    unfinished: str
    """While episodes are missing."""
    finished: str


def to_be_recorded(path: Path, metadata: MetadataFiles, made_by: str) -> bool:
    """Tells whether a folder is missing or holds a recording of this program, finished or not.

    Anything else is a dataset of the user's own, also where a converter left a file of the same name.

    Args:
      path: Folder of the dataset.
      metadata: Names of the recording's metadata.
      made_by: As given to `claim`.

    Raises:
      DataError: The metadata of a finished recording are no JSON.
    """
    if not path.exists() or (path / metadata.unfinished).exists():
        return True
    if not (path / metadata.finished).exists():
        return False
    tree = read_json(path / metadata.finished)
    return isinstance(tree, dict) and tree.get("made_by") == made_by


def claim(
    path: Path,
    metadata: MetadataFiles,
    settings: Mapping[str, Any],
    *,
    made_by: str,
    packages: tuple[str, ...],
    begun: bool = False,
) -> bool:
    """Compares the folder's own settings with these, or writes them; False if the dataset is complete.

    Args:
      path: Folder, locked.
      metadata: Names of its metadata.
      settings: JSON values on which the episodes depend.
      made_by: Program that records, for people.
      packages: Whose versions are noted beside the settings.
      begun: Whether it is for a run that goes on. Of a dataset that is complete, settings that its version of this
        project did not have are not compared then: the run compares its files.

    Raises:
      ConfigError: The folder holds a recording with other settings (the message names them), or other files.
    """
    settings = json.loads(json.dumps(settings))  # as they come back from the file
    sweep(path)
    for name in (metadata.finished, metadata.unfinished):
        if (path / name).exists():
            tree = read_json(path / name)
            made = tree.get("config") if isinstance(tree, dict) else None
            if not isinstance(made, dict):
                raise ConfigError(
                    f"{path / name}: expected the settings of a recording, found none; choose another path"
                )
            whole = name == metadata.finished
            there = {key: made.get(key) for key in settings if key in made or not (begun and whole)}
            own = {key: settings[key] for key in there}
            hint = "; a training takes it as it is with --record None" if whole else ""
            _require_same(path, own, there, of="record.", hint=hint)
            return not whole
    if any(path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no recording; record into another folder")
    versions = {package: importlib.metadata.version(package) for package in packages}
    made = {"made_by": made_by, "config": settings, "versions": versions}
    write_json(path / metadata.unfinished, made, indent=2)
    return True


def _require_same(path: Path, settings: Mapping[str, Any], made: Mapping[str, Any], *, of: str, hint: str = "") -> None:
    """Raises ConfigError that names the settings with which the dataset of a folder was made otherwise."""
    differing = [key for key in {**settings, **made} if made.get(key) != settings.get(key)]
    if differing:
        fields = "; ".join(f"{of}{key} is {settings.get(key)!r}, there {made.get(key)!r}" for key in differing)
        raise ConfigError(
            f"{path} holds a recording with other settings: {fields}. Change them back, or choose another path{hint}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is recorded into a folder."""

    made_by: str
    metadata: MetadataFiles
    packages: tuple[str, ...]
    settings: Mapping[str, Any]
    """JSON values on which the episodes depend."""
    episodes: int
    processes: int
    missing: Callable[[], list[int]]
    """Finds the episodes that are not there, once the folder is this process's."""
    opener: Callable[[], Recorder]
    """Makes a worker's recorder; pickled."""
    words: str
    """Behind the number of episodes: "drives of 60 s, 3000 images each"."""
    holds: tuple[float, str]
    """How much an episode holds, and of what: (1001, "transitions")."""
    per_second: float
    """Of it, that one process records on one core of a desktop machine."""


def record(
    dataset: Dataset,
    path: Path,
    *,
    report: Callable[[str], None],
    fleet: FleetConfig | None = None,
    begun: bool = False,
) -> None:
    """Records the episodes that a folder lacks; a dataset that is complete is left as it is.

    Args:
      dataset: What to record.
      path: Folder; made if missing. Every machine of a cluster has it under this name.
      report: Takes one line of text at the start, at the end, and every 10 s where there is no terminal.
      fleet: Where the processes run; None: on this machine.
      begun: As of `claim`.

    Raises:
      ConfigError: As `claim`; there is no such cluster.
      BusyError: Another process records into the folder.
      StorageError, RunError: As `do_all`.
      PreemptedError: On SIGTERM.
    """
    make_folders(path)
    with locked(path, f"another process is recording into {path}; wait for it, or stop it"):
        made_by, packages = dataset.made_by, dataset.packages
        if not claim(path, dataset.metadata, dataset.settings, made_by=made_by, packages=packages, begun=begun):
            return
        missing = dataset.missing()
        processes = max(1, min(dataset.processes, len(missing)))
        amount, unit = dataset.holds
        at_once = processes if fleet is not None else min(processes, os.cpu_count() or 1)
        seconds = len(missing) * amount / (dataset.per_second * at_once)
        report(
            f"recording {len(missing)} of {dataset.episodes} {dataset.words}, into {path} with {processes} processes; "
            f"about {seconds:.0f} s on a desktop machine"
        )
        began = time.monotonic()
        recorded = do_all(missing, dataset.opener, workers=processes, fleet=fleet, name="episode")
        with sigterm_raises(path), contextlib.closing(recorded):
            done = "recorded {count} of {total} episodes"
            for _ in follow(recorded, len(missing), "recording", done, rate=dataset.holds, say=report):
                pass
        give_name(path / dataset.metadata.unfinished, path / dataset.metadata.finished)
        rate = len(missing) * amount / max(time.monotonic() - began, 1e-9)
        report(f"recorded {len(missing)} episodes, about {rate:.0f} {unit} a second")


def record_whole(
    path: Path,
    settings: Mapping[str, Any],
    write: Callable[[Path], str],
    made: Callable[[Path], Mapping[str, Any] | None],
    *,
    hint: str = "",
) -> None:
    """Writes a dataset that appears as a whole, if there is none, in a format that has no file an episode.

    Args:
      path: Its folder.
      settings: JSON values on which it depends.
      write: Writes it into a folder, with the settings, and returns a line about it.
      made: Reads the settings of a dataset that is there; None where it has none.
      hint: Behind the message of one that was made otherwise.

    Raises:
      ConfigError: The folder holds a dataset of other settings (the message names them), or other files.
      BusyError: Another process writes it.
      StorageError: It could not be written.
    """
    settings = json.loads(json.dumps(settings))  # as they come back from the file

    def require_same() -> None:
        found = made(path)
        if found is None:
            raise ConfigError(f"{path} is there and holds no recording; choose another path{hint}")
        _require_same(path, settings, found, of="", hint=hint)

    if path.exists():
        require_same()
        return
    try:
        with new_folder(path) as scratch:
            said = write(scratch)
    except StorageError:  # also where another process was faster; its dataset is the same
        if not path.exists():
            raise
        require_same()
        return
    print(f"{said}, in {path}", flush=True)


@contextlib.contextmanager
def sigterm_raises(path: Path) -> Iterator[None]:
    """SIGTERM ends the recording through the usual clean-up instead of leaving workers behind."""

    def stop(*_: object) -> None:
        raise PreemptedError(f"recording into {path} stopped by SIGTERM; the same command goes on with what is missing")

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command(kind: type[Settings], made: Any, record: Callable[[Settings, str], None]) -> int:
    """Records what a command line asked for; returns the exit code.

    Args:
      kind: Class of the settings.
      made: An object with their fields and `path`.
      record: Records settings into a folder.
    """
    fields: Any = dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]  (the settings are a dataclass)
    try:
        record(kind(**{field.name: getattr(made, field.name) for field in fields}), made.path)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is missing", file=sys.stderr)
        return 130
    return 0


def command_line(kind: type[Settings], record: Callable[..., None], program: str, about: str) -> int:
    """Reads settings and the folder from the process's command line, and records; returns the exit code.

    Args:
      kind: Class of the settings, a frozen dataclass of keywords.
      record: Records settings into a folder; called with fleet= where the command line names a cluster.
      program: How the command is called.
      about: What it does, in a line.
    """
    import tyro

    path = Annotated[str, tyro.conf.arg(help="Folder of the dataset; with --fleet on a disk that all nodes have.")]
    fleet = Annotated[str | None, tyro.conf.arg(help=FLEET, metavar="ADDRESS")]
    fields: list[Any] = [("path", path), ("fleet", fleet, None)]
    made = dataclasses.make_dataclass("Command", fields, bases=(kind,), frozen=True, kw_only=True)
    try:
        found: Any = parsed(made, prog=program, description=about)
        if found.fleet is not None:
            record = functools.partial(record, fleet=FleetConfig(address=found.fleet))
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return ConfigError.exit_code
    return command(kind, found, record)
