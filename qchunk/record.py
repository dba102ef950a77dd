"""Records episodes with scripted policies: OGBench's oracles at play (play.py), ALOHA's transfer cube (aloha_hdf5.py).

    python -m qchunk.record --env cube-single-v0 --episodes 100 --path data/cube-single
    python -m qchunk.record --env aloha-transfer-cube --episodes 50 --episode-length 300 --path data/aloha

One HDF5 file an episode, `episode_<i:05d>.hdf5`; what is in it stands in those two modules. The folder also holds
`dataset.json`, what made it, which is called `recording.json` until the last episode is there.
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
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from core.errors import BusyError, ConfigError, PreemptedError, RunError, StorageError
from qchunk import aloha_hdf5, aloha_sim, play
from qchunk.config import RecordConfig

REPORT_EVERY = 10.0  # seconds between two lines where there is no terminal for a bar


def record(config: RecordConfig, path: str | Path, *, report: Callable[[str], None] = print) -> None:
    """Records the episodes that `path` lacks; a dataset that is complete is left as it is.

    Episode e is a function of (config.seed, e) and appears under its name only when it is whole, so that a recording
    that was killed goes on with exactly the missing episodes and ends with the same files.

    Args:
      config: What to record, and with how many processes.
      path: Folder of the dataset; made if missing.
      report: Takes one line of text at the start, at the end, and every 10 s where there is no terminal.

    Raises:
      ConfigError: If the folder holds another recording (the message names the field) or other episodes, the
        environment is unknown, or the simulator is not installed.
      BusyError: If another process records into the folder.
      StorageError: If an episode could not be written.
      PreemptedError: On SIGTERM.
      RunError: If a worker process died.
    """
    path = Path(path)
    if not (path / "dataset.json").exists():  # a wrong name must fail here, before a folder is made and workers start
        open_recorder(config)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if not _claim(config, path):
            return
        for part in path.rglob("*.part"):
            part.unlink()
        there = {file.name for file in path.rglob("episode_*.hdf5")}
        missing = [e for e in range(config.episodes) if episode_path(path, e).name not in there]
        processes = min(config.processes, len(missing))
        rate = steps_per_second(config) * max(1, min(processes, os.cpu_count() or 1))
        seconds = len(missing) * config.episode_length / rate
        report(
            f"recording {len(missing)} of {config.episodes} episodes of {config.env}, {config.episode_length} steps "
            f"each, into {path} with {processes} processes; about {seconds:.0f} s on a desktop machine"
        )
        with _sigterm_raises(path), contextlib.closing(_share_out(missing, config, path, processes)) as done:
            rate = _show(done, len(missing), config.episode_length, report)
        (path / "recording.json").rename(path / "dataset.json")
        report(f"recorded {len(missing)} episodes, about {rate:.0f} transitions a second")


def episode_path(path: Path, episode: int) -> Path:
    """File of one episode; of aloha-transfer-cube in a folder score_<n> of `path`."""
    return path / f"episode_{episode:05d}.hdf5"


def open_recorder(config: RecordConfig) -> Callable[[int, Path], None]:
    """Makes the environment, and returns what plays an episode into a file.

    Raises:
      ConfigError: If nothing can be recorded in that environment, or the simulator is not installed.
    """
    if config.env == aloha_sim.NAME:
        return aloha_hdf5.open_recorder(config)
    return play.open_recorder(config)


def steps_per_second(config: RecordConfig) -> float:
    """Of one process on one core, for the estimate at the start."""
    if config.env == aloha_sim.NAME:
        return 1 / (0.001 + 0.04 * len(config.aloha.cameras))
    return 750.0


def _work(pipe: Connection, config: RecordConfig, path: Path) -> None:
    """Body of a worker: records each episode it is sent and answers None or the error, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    recorder = open_recorder(config)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is done, or gone
        while True:
            pipe.send(_record_one(pipe.recv(), recorder, config, path))


def _record_one(
    episode: int, recorder: Callable[[int, Path], None], config: RecordConfig, path: Path
) -> RunError | None:
    """Plays and writes one episode; the error instead of raising it, since it has to travel."""
    try:
        recorder(episode, episode_path(path, episode))
    except OSError as error:
        return StorageError(f"{episode_path(path, episode)} could not be written: {error}")
    except Exception as error:
        return RunError(f"episode {episode} of {config.env} failed: {type(error).__name__}: {error}")
    return None


def _share_out(episodes: list[int], config: RecordConfig, path: Path, processes: int) -> Generator[int, None, None]:
    """Yields each episode when it is on disk. A worker gets its next one when it is done with the last; closing the
    generator ends the workers, and the death of this process closes their pipes, which ends them too."""
    context = multiprocessing.get_context("spawn")
    waiting = iter(episodes)
    workers: list[BaseProcess] = []
    busy: dict[Any, tuple[BaseProcess, int]] = {}
    try:
        for episode in itertools.islice(waiting, processes):
            here, there = context.Pipe()
            workers.append(context.Process(target=_work, args=(there, config, path), daemon=True))
            workers[-1].start()
            there.close()
            here.send(episode)
            busy[here] = (workers[-1], episode)
        while busy:
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, episode = busy.pop(pipe)
                try:
                    failure = pipe.recv()
                    if failure is None and (following := next(waiting, None)) is not None:
                        pipe.send(following)
                        busy[pipe] = (worker, following)
                except (EOFError, OSError) as error:
                    worker.join()
                    raise RunError(
                        f"a worker died while it recorded episode {episode} ({_exit_reason(worker.exitcode)}); "
                        "run the same command again to record what is missing, with fewer processes if memory is short"
                    ) from error
                if failure is not None:
                    raise failure
                yield episode
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}, its message is above"


def _show(done: Iterator[int], episodes: int, length: int, report: Callable[[str], None]) -> float:
    """Follows the recording on a bar, or by lines where there is no terminal; returns transitions per second."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("episodes, {task.fields[rate]:.0f} transitions/s,"))
    start = said = time.monotonic()
    rate = 0.0
    with Progress(TextColumn("recording"), *columns, TimeRemainingColumn(), TextColumn("left")) as bar:
        bar.disable = not bar.console.is_terminal
        task = bar.add_task("", total=episodes, rate=0.0)
        for count, _ in enumerate(done, start=1):
            now = time.monotonic()
            rate = count * length / (now - start)
            bar.update(task, advance=1, rate=rate)
            if bar.disable and now - said > REPORT_EVERY:
                left = (episodes - count) * length / rate
                report(f"recorded {count} of {episodes} episodes, {rate:.0f} transitions a second, {left:.0f} s left")
                said = now
    return rate


def _claim(config: RecordConfig, path: Path) -> bool:
    """Compares the folder's own settings with `config`, or writes them; False if the dataset is complete."""
    unread = {"noise", "random_action"} if config.env == aloha_sim.NAME else {"aloha"}
    settings = {
        name: value
        for name, value in json.loads(json.dumps(dataclasses.asdict(config))).items()
        if name not in unread | {"processes"}
    }
    for name in ("dataset.json", "recording.json"):
        if (path / name).exists():
            made = json.loads((path / name).read_text())["config"]
            differing = [key for key in settings if made.get(key) != settings[key]]
            if differing:
                fields = "; ".join(f"record.{key} is {settings[key]!r}, there {made.get(key)!r}" for key in differing)
                raise ConfigError(
                    f"{path} holds a recording with other settings: {fields}. Change them back, or choose another path"
                )
            return name == "recording.json"
    if any(path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no recording; record into another folder")
    simulator = "gym-aloha" if config.env == aloha_sim.NAME else "ogbench"
    versions = {package: importlib.metadata.version(package) for package in (simulator, "mujoco")}
    part = path / "recording.json.part"
    part.write_text(json.dumps({"made_by": "qchunk.record", "config": settings, "versions": versions}, indent=2) + "\n")
    part.rename(path / "recording.json")
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(f"another process is recording into {path}; wait for it, or stop it") from error
    else:
        yield
    finally:
        os.close(folder)


@contextlib.contextmanager
def _sigterm_raises(path: Path) -> Iterator[None]:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RecordConfig):
    """Record episodes with scripted policies. A recording that was stopped goes on where it was."""

    path: str
    """Folder of the dataset."""


def main() -> int:
    import tyro

    command = tyro.cli(Command)
    config = RecordConfig(**{field.name: getattr(command, field.name) for field in dataclasses.fields(RecordConfig)})
    try:
        record(config, command.path)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is missing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
