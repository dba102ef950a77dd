"""What a recorder of episodes needs besides its simulator: a folder that is claimed and locked, workers, a command.

Episode e is written by some worker as a function of (settings, e), and appears under its name only when it is whole, so
a recording that was stopped in any way goes on with exactly the missing episodes and ends with the same files.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from chunkwise.errors import BusyError, ConfigError, PreemptedError, RunError, StorageError
from chunkwise.files.durable import sweep, write_durably
from chunkwise.files.strict_json import read_json

Settings = TypeVar("Settings")

MAX_DEATHS = 3
"""Workers that one episode may cost before a recording, or a collection of rollouts, ends."""

Recorder = Callable[[int], None]
"""Plays one episode and writes it; an OSError means that it could not be written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    """Names of the file in a dataset's folder that says what made it."""

    unfinished: str
    """While episodes are missing."""
    finished: str


def to_be_recorded(path: Path, notes: Notes, made_by: str) -> bool:
    """Tells whether a folder is missing or holds a recording of this program, finished or not.

    Anything else is a dataset of the user's own, also where a converter left a note of the same name.

    Args:
      path: Folder of the dataset.
      notes: Names of the recording's notes.
      made_by: As given to `claim`.

    Raises:
      DataError: The note of a finished recording is no JSON.
    """
    if not path.exists() or (path / notes.unfinished).exists():
        return True
    if not (path / notes.finished).exists():
        return False
    tree = read_json(path / notes.finished)
    return isinstance(tree, dict) and tree.get("made_by") == made_by


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a folder for this process. Raises BusyError if another one holds it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(f"another process is recording into {path}; wait for it, or stop it") from error
    else:
        yield
    finally:
        os.close(folder)


def claim(path: Path, notes: Notes, settings: Mapping[str, Any], *, made_by: str, packages: tuple[str, ...]) -> bool:
    """Compares the folder's own settings with these, or writes them; False if the dataset is complete.

    Args:
      path: Folder, locked.
      notes: Names of its notes.
      settings: JSON values on which the episodes depend.
      made_by: Program that records, for people.
      packages: Whose versions are noted beside the settings.

    Raises:
      ConfigError: The folder holds a recording with other settings (the message names them), or other files.
    """
    settings = json.loads(json.dumps(settings))  # as they come back from the file
    sweep(path)
    for name in (notes.finished, notes.unfinished):
        if (path / name).exists():
            tree = read_json(path / name)
            made = tree.get("config") if isinstance(tree, dict) else None
            if not isinstance(made, dict):
                raise ConfigError(
                    f"{path / name}: expected the settings of a recording, found none; choose another path"
                )
            differing = [key for key in settings if made.get(key) != settings[key]]
            if differing:
                fields = "; ".join(f"record.{key} is {settings[key]!r}, there {made.get(key)!r}" for key in differing)
                raise ConfigError(
                    f"{path} holds a recording with other settings: {fields}. Change them back, or choose another path"
                )
            return name == notes.unfinished
    if any(path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no recording; record into another folder")
    versions = {package: importlib.metadata.version(package) for package in packages}
    made = {"made_by": made_by, "config": settings, "versions": versions}
    write_durably(path / notes.unfinished, json.dumps(made, indent=2) + "\n")
    return True


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


def share_out(episodes: list[int], opener: Callable[[], Recorder], processes: int) -> Generator[int, None, None]:
    """Yields each episode when it is on disk.

    A worker gets its next one when it is done with the last; closing the generator ends the workers, and the death of
    this process closes their pipes, which ends them too.

    Args:
      episodes: Numbers of those that are missing.
      opener: Makes a worker's recorder; pickled.
      processes: Workers.

    Raises:
      StorageError: An episode could not be written.
      RunError: Several workers died in one episode, or a recorder failed.
    """
    context = multiprocessing.get_context("spawn")
    waiting = iter(episodes)
    busy: dict[Any, tuple[BaseProcess, int]] = {}
    deaths: dict[int, int] = {}

    def begin(episode: int) -> None:
        here, there = context.Pipe()
        worker = context.Process(target=_work, args=(there, opener), daemon=True)
        worker.start()
        there.close()
        busy[here] = (worker, episode)
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is received
            here.send(episode)

    idle: list[BaseProcess] = []
    try:
        for episode in itertools.islice(waiting, processes):
            begin(episode)
        while busy:
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, episode = busy.pop(pipe)
                try:
                    failure = pipe.recv()
                except (EOFError, OSError) as error:
                    worker.join()
                    deaths[episode] = deaths.get(episode, 0) + 1
                    if deaths[episode] < MAX_DEATHS:
                        print(f"\na worker died ({_exit_reason(worker.exitcode)}); episode {episode} is recorded again")
                        begin(episode)
                        continue
                    raise RunError(
                        f"{MAX_DEATHS} workers died while they recorded episode {episode} "
                        f"({_exit_reason(worker.exitcode)}); run the same command again to record what is missing, "
                        "with fewer processes if memory is short"
                    ) from error
                if failure is not None:
                    idle.append(worker)
                    raise failure
                if (following := next(waiting, None)) is None:
                    idle.append(worker)
                else:
                    busy[pipe] = (worker, following)
                    with contextlib.suppress(OSError):
                        pipe.send(following)
                yield episode
    finally:
        workers = idle + [worker for worker, _ in busy.values()]
        for worker in workers:
            worker.kill()  # also one that has been stopped; episodes get their names when they are whole
        for worker in workers:
            worker.join()


def _work(pipe: Connection, opener: Callable[[], Recorder]) -> None:
    """Body of a worker: records each episode it is sent and answers None or the error, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    recorder = opener()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is done, or gone
        while True:
            pipe.send(_record_one(pipe.recv(), recorder))


def _record_one(episode: int, recorder: Recorder) -> RunError | None:
    """Plays and writes one episode; the error instead of raising it, since it has to travel."""
    try:
        recorder(episode)
    except OSError as error:
        return StorageError(f"episode {episode} could not be written: {error}")
    except Exception as error:  # anything a simulator raises: unsent, the parent would only see that the worker died
        return RunError(f"episode {episode} failed: {type(error).__name__}: {error}")
    return None


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}, its message is above"


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
