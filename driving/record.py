"""Records drives through MuJoCo towns as episodes: five cameras, speed, heading, pose and route command at 10 Hz.

    python -m driving.record --path datasets/driving/town --episodes 44

    episode_00000.json                        one drive, in the format of episode.schema.json
    images/episode_00000/000000_front.jpg     its images
    _dataset.json                             what made the folder; `_recording.json` until the last episode is there

Each drive has a town of its own. An image that is missing is null where a single one is, and absent where a camera was
out for a while, as in real logs. The episodes list no waypoints: they follow from the poses.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.cli import command as cli
from chunkwise.data.images import encode_jpeg
from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs import recorder
from chunkwise.envs.recorder import MetadataFiles, Recorder
from chunkwise.errors import ConfigError
from chunkwise.files.durable import make_folders, sync_tree, write_durably
from driving.config import CAMERAS, RecordConfig

MADE_BY = "driving.record"
METADATA = MetadataFiles(unfinished="_recording.json", finished="_dataset.json")
IMAGES_PER_SECOND = 90.0  # of one process on one core, for the estimate at the start


def record(config: RecordConfig, path: str | Path, *, report: Callable[[str], None] = print) -> None:
    """Records the episodes that `path` lacks; a dataset that is complete is left as it is.

    Episode e is a function of (config.seed, e), and its JSON appears when all its images are there, so that a
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
      PreemptedError: On SIGTERM.
      RunError: A worker process died.
    """
    path = Path(path)
    _require_simulator()
    images = round(config.seconds * config.rate_hz) * len(CAMERAS)
    dataset = recorder.Dataset(
        made_by=MADE_BY,
        metadata=METADATA,
        packages=("mujoco",),
        settings={name: value for name, value in dataclasses.asdict(config).items() if name != "processes"},
        episodes=config.episodes,
        processes=config.processes,
        missing=lambda: [e for e in range(config.episodes) if not episode_path(path, e).exists()],
        opener=functools.partial(_open, config, path),
        words=f"drives of {config.seconds:g} s, {images} images each",
        holds=(float(images), "images"),
        per_second=IMAGES_PER_SECOND,
    )
    recorder.record(dataset, path, report=report)


def episode_path(path: Path, episode: int) -> Path:
    """File of one episode."""
    return path / f"episode_{episode:05d}.json"


def record_episode(config: RecordConfig, path: Path, episode: int) -> None:
    """Drives, renders and writes one episode, the JSON last."""
    from driving.sim import scene
    from driving.sim.driver import drive

    drove = drive(config.seed, episode, seconds=config.seconds, rate=config.rate_hz)
    height, width = config.image_size
    seen = images_taken(config, episode, len(drove.t))
    name = episode_path(path, episode).stem
    folder = path / "images" / name
    make_folders(folder)
    frames = []
    colours = generator(Purpose.TOWN, config.seed, episode)
    town = scene.build(drove.road, drove.signals, drove.cars.shape[1], colours, height=height, width=width)
    with contextlib.closing(town):
        for i in range(len(drove.t)):
            cameras: dict[str, Any] = {}
            on = tuple(camera for camera, taken in zip(CAMERAS, seen[i], strict=True) if taken == 1)
            shot = town.render(drove.moment(i), on)
            for camera, image in shot.items():
                file = folder / f"{i:06d}_{camera}.jpg"
                file.write_bytes(encode_jpeg(image, quality=config.jpeg_quality))
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
    sync_tree(folder)  # the JSON vouches for the images
    write_durably(episode_path(path, episode), json.dumps(episode_json))


def images_taken(config: RecordConfig, episode: int, frames: int) -> Int64[np.ndarray, "frames k"]:
    """Per frame and camera: 1 an image, 0 an image that was lost, -1 the camera was out; see RecordConfig.missing."""
    rng = generator(Purpose.LOST_IMAGES, config.seed, episode)
    share = config.missing / 2
    taken = np.where(rng.random((frames, len(CAMERAS))) < share, 0, 1)
    taken[_outages(rng, frames, share, config.rate_hz)] = -1
    return taken


def _outages(rng: np.random.Generator, frames: int, share: float, rate: float) -> Bool[np.ndarray, "frames k"]:
    """Stretches of 1 to 3 s that cover about `share` of all images."""
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


def _open(config: RecordConfig, path: Path) -> Recorder:
    """A worker's recorder."""
    return functools.partial(record_episode, config, path)


def _require_simulator() -> None:
    if importlib.util.find_spec("mujoco") is None:
        raise ConfigError("recording needs MuJoCo, which is not installed: pip install mujoco")


def main() -> int:
    """Command line."""
    return recorder.command_line(
        RecordConfig,
        record,
        "python -m driving.record",
        "Record drives through MuJoCo towns. A recording that was stopped goes on where it was.",
    )


if __name__ == "__main__":
    cli.run(main)
