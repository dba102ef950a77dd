"""Records drives through MuJoCo towns as episodes: five cameras, speed, heading, pose and route command at 10 Hz.

    python -m driving.record --path datasets/driving/town --episodes 44

    episode_00000.json                        one drive, in the format of episode.schema.json
    images/episode_00000/000000_front.jpg     its pictures
    _dataset.json                             what made the folder; `_recording.json` until the last episode is there

Each drive has a town of its own. A picture that is missing is null where a single one is, and absent where a camera was
out for a while, as in real logs. The episodes list no waypoints: they follow from the poses.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import importlib.metadata
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from core.errors import BusyError, ConfigError, RunError, StorageError
from core.images import encode_jpeg
from driving.config import CAMERAS, RecordConfig

PICTURES_PER_SECOND = 90  # of one process on one core, for the estimate at the start
REPORT_EVERY = 10.0  # seconds between two lines where there is no terminal for a bar


def record(config: RecordConfig, path: str | Path, *, report: Callable[[str], None] = print) -> None:
    """Records the episodes that `path` lacks; a dataset that is complete is left as it is.

    Episode e is a function of (config.seed, e), and its JSON appears when all its pictures are there, so that a
    recording that was killed goes on with exactly the missing episodes and ends with the same files.

    Args:
      config: What to record, and with how many processes.
      path: Folder of the dataset; made if missing.
      report: Takes one line of text at the start, at the end, and every 10 s where there is no terminal.

    Raises:
      ConfigError: The folder holds another recording (the message names the field) or other files, or MuJoCo is not
        installed.
      BusyError: Another process records into the folder.
      StorageError: An episode could not be written.
      RunError: A worker process died.
    """
    path = Path(path)
    _require_simulator()
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if not _claim(config, path):
            return
        missing = [e for e in range(config.episodes) if not episode_path(path, e).exists()]
        pictures = round(config.seconds * config.rate_hz) * len(CAMERAS)
        processes = max(1, min(config.processes, len(missing)))
        seconds = len(missing) * pictures / (PICTURES_PER_SECOND * min(processes, os.cpu_count() or 1))
        report(
            f"recording {len(missing)} of {config.episodes} drives of {config.seconds:g} s, {pictures} pictures each, "
            f"into {path} with {processes} processes; about {seconds:.0f} s"
        )
        rate = _show(_share_out(missing, config, path, processes), len(missing), pictures, report)
        (path / "_recording.json").rename(path / "_dataset.json")
        report(f"recorded {len(missing) * pictures} pictures, {rate:.0f} a second")


def episode_path(path: Path, episode: int) -> Path:
    """File of one episode."""
    return path / f"episode_{episode:05d}.json"


def record_episode(config: RecordConfig, path: Path, episode: int) -> None:
    """Drives, renders and writes one episode, the JSON last."""
    os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported, here for the first time
    from driving.town import scene
    from driving.town.driver import drive

    drove = drive(config.seed, episode, seconds=config.seconds, rate=config.rate_hz)
    height, width = config.image_size
    seen = pictures_taken(config, episode, len(drove.t))
    name = episode_path(path, episode).stem
    folder = path / "images" / name
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    town = scene.build(drove, np.random.default_rng([config.seed, episode, 1]), height=height, width=width)
    with contextlib.closing(town):
        for i in range(len(drove.t)):
            cameras: dict[str, Any] = {}
            shot = town.render(i, tuple(camera for camera, taken in zip(CAMERAS, seen[i], strict=True) if taken == 1))
            for camera, picture in shot.items():
                file = folder / f"{i:06d}_{camera}.jpg"
                file.write_bytes(encode_jpeg(picture, quality=config.jpeg_quality))
                cameras[camera] = {
                    "image_path": file.relative_to(path).as_posix(),
                    "intrinsics": scene.intrinsics(height, width),
                    "extrinsics": np.round(scene.camera_to_vehicle(camera), 9).ravel().tolist(),
                }
            cameras |= {camera: None for camera, taken in zip(CAMERAS, seen[i], strict=True) if taken == 0}
            frames.append(_frame(drove, i, cameras))
    episode_json = {
        "episode_id": f"town-{config.seed}-{episode:05d}",
        "domain": "driving",
        "source": {"dataset": "chunkwise town", "scene_id": f"{config.seed}-{episode:05d}"},
        "cameras": list(CAMERAS),
        "frames": frames,
    }
    part = episode_path(path, episode).with_suffix(".part")
    part.write_text(json.dumps(episode_json))
    part.rename(episode_path(path, episode))


def pictures_taken(config: RecordConfig, episode: int, frames: int) -> Int64[np.ndarray, "frames k"]:
    """Per frame and camera: 1 a picture, 0 a picture that was lost, -1 the camera was out; see RecordConfig.missing."""
    rng = np.random.default_rng([config.seed, episode, 2])
    share = config.missing / 2
    taken = np.where(rng.random((frames, len(CAMERAS))) < share, 0, 1)
    taken[_outages(rng, frames, share, config.rate_hz)] = -1
    return taken


def _outages(rng: np.random.Generator, frames: int, share: float, rate: float) -> Bool[np.ndarray, "frames k"]:
    """Stretches of 1 to 3 s that cover about `share` of all pictures."""
    out = np.zeros((frames, len(CAMERAS)), bool)
    for camera in range(len(CAMERAS)):
        for start in np.flatnonzero(rng.random(frames) < share / (2.0 * rate)):
            out[start : start + round(rng.uniform(1.0, 3.0) * rate), camera] = True
    return out


def _frame(drove: Any, i: int, cameras: dict[str, Any]) -> dict[str, Any]:
    """One frame of the JSON; angles as the format wants them, numbers rounded to what is meant."""
    x, y, yaw = drove.pose[i]
    state = {
        "speed_mps": drove.speed[i],
        "yaw_rad": (yaw + np.pi) % (2 * np.pi) - np.pi,
        "yaw_rate_radps": drove.yaw_rate[i],
        "x_m": x,
        "y_m": y,
    }
    return {
        "t": float(drove.t[i]),
        "observations": {
            "cameras": cameras,
            "state": {name: round(float(value), 6) for name, value in state.items()},
            "route_command": drove.command[i],
        },
    }


def _work(config: RecordConfig, path: Path, episode: int) -> int:
    """Records one episode in a worker and returns its number."""
    try:
        record_episode(config, path, episode)
    except OSError as error:
        raise StorageError(f"{episode_path(path, episode)} could not be written: {error}") from error
    return episode


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, which would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _share_out(episodes: list[int], config: RecordConfig, path: Path, processes: int) -> Iterator[int]:
    """Yields each episode when it is on disk."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    try:
        tasks = [pool.submit(_work, config, path, episode) for episode in episodes]
        for task in concurrent.futures.as_completed(tasks):
            yield task.result()
    except BrokenProcessPool as error:
        raise RunError(
            "a worker died while it recorded; run the same command again to record what is missing, with fewer "
            "processes if memory is short"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _show(done: Iterator[int], episodes: int, pictures: int, report: Callable[[str], None]) -> float:
    """Follows the recording on a bar, or by lines where there is no terminal; returns pictures per second."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("drives, {task.fields[rate]:.0f} pictures/s,"))
    start = said = time.monotonic()
    rate = 0.0
    with Progress(TextColumn("recording"), *columns, TimeRemainingColumn(), TextColumn("left")) as bar:
        bar.disable = not bar.console.is_terminal
        task = bar.add_task("", total=episodes, rate=0.0)
        for count, _ in enumerate(done, start=1):
            now = time.monotonic()
            rate = count * pictures / (now - start)
            bar.update(task, advance=1, rate=rate)
            if bar.disable and now - said > REPORT_EVERY:
                left = (episodes - count) * pictures / rate
                report(f"recorded {count} of {episodes} drives, {rate:.0f} pictures a second, {left:.0f} s left")
                said = now
    return rate


def _require_simulator() -> None:
    if importlib.util.find_spec("mujoco") is None:
        raise ConfigError("recording needs MuJoCo, which is not installed: pip install -e '.[sim]'")


def _claim(config: RecordConfig, path: Path) -> bool:
    """Compares the folder's own settings with `config`, or writes them; False if the dataset is complete."""
    settings = json.loads(json.dumps(dataclasses.asdict(config)))
    del settings["processes"]
    for name in ("_dataset.json", "_recording.json"):
        if (path / name).exists():
            made = json.loads((path / name).read_text())["config"]
            differing = [key for key in settings if made.get(key) != settings[key]]
            if differing:
                fields = "; ".join(f"record.{key} is {settings[key]!r}, there {made.get(key)!r}" for key in differing)
                raise ConfigError(
                    f"{path} holds a recording with other settings: {fields}. Change them back, or choose another path"
                )
            return name == "_recording.json"
    if any(path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no recording; record into another folder")
    made = {
        "made_by": "driving.record",
        "config": settings,
        "versions": {"mujoco": importlib.metadata.version("mujoco")},
    }
    part = path / "_recording.json.part"
    part.write_text(json.dumps(made, indent=2) + "\n")
    part.rename(path / "_recording.json")
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RecordConfig):
    """Record drives through MuJoCo towns. A recording that was stopped goes on where it was."""

    path: str
    """Folder of the dataset."""


def main() -> int:
    """Command line."""
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
