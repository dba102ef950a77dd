"""Records drives through MuJoCo towns as episodes: cameras, motion, route command, what is ahead, plans to follow.

    python -m driving.record --path datasets/driving/town --episodes 64

    episode_00000.json                        one drive, in the format of episode.schema.json
    images/episode_00000/000000_front.jpg     its images
    _dataset.json                             what made the folder; `_recording.json` until the last episode is there

Each drive has a town of its own, and is played in the environment of closed loop (driving/sim/environment.py), so that
what is recorded is what a policy will see there. Errors in what the car follows (record.noise), or a policy that drives
(record.driver), take it off the path of the town's own driver, whose waypoints from there are what is to be learnt.
They are listed, and are not where the car went. An image that is missing is null where a single one is, and absent
where a camera was out for a while, as in real logs.
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
from jaxtyping import Bool, Float64, Int64

from chunkwise.cli import command as cli
from chunkwise.config.experiment import FleetConfig
from chunkwise.config.installed import pip_install
from chunkwise.data.images import encode_jpeg
from chunkwise.data.sampling import Purpose, generator, seed_of
from chunkwise.envs import recorder
from chunkwise.envs.environment import EnvSpec, Observation
from chunkwise.envs.recorder import MetadataFiles, Recorder
from chunkwise.errors import ConfigError
from chunkwise.files.durable import make_folders, sync_tree, write_ahead, write_durably
from driving.config import MOTION_HZ, RecordConfig
from driving.data.episodes import ROUTE_COMMANDS
from driving.sim.noise import Noise

MADE_BY = "driving.record"
METADATA = MetadataFiles(unfinished="_recording.json", finished="_dataset.json")
WAYPOINT_STEPS = 30
"""Of the plans that are recorded: 3 s."""
IMAGES_PER_SECOND = 90.0  # of one process on one core, for the estimate at the start

Driver = Callable[[Observation], np.ndarray]
"""Gives a plan, waypoints [t, 2], for what is observed, images among it."""


def record(
    config: RecordConfig,
    path: str | Path,
    *,
    report: Callable[[str], None] = print,
    fleet: FleetConfig | None = None,
    begun: bool = False,
) -> None:
    """Records the episodes that `path` lacks; a dataset that is complete is left as it is.

    Episode e is a function of (config.seed, e), and of the weights of a run that drives. Its JSON appears when all its
    images are there, so that a recording that was killed goes on with exactly the missing episodes and ends with the
    same files.

    Args:
      config: What to record, and with how many processes.
      path: Folder of the dataset; made if missing.
      report: Takes one line of text at the start, at the end, and every 10 s where there is no terminal.
      fleet: A Ray cluster on which the processes run; None: this machine.
      begun: Whether it is for a run that goes on, which compares the files of a complete dataset itself.

    Raises:
      ConfigError: The folder holds another recording (the message names the field) or other files, MuJoCo is needed
        and not installed, or the driver's plans or cameras are not those of a recording.
      DataError: The driver has no whole checkpoint.
      BusyError: Another process records into the folder.
      StorageError: An episode could not be written.
      PreemptedError: On SIGTERM.
      RunError: A worker process died.
    """
    path = Path(path)
    if not (path / METADATA.finished).exists():  # a recording that is whole is used on machines without it, too
        _require_simulator()
    images = round(config.seconds * config.rate_hz) * len(config.cameras)
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name != "processes"}
    step = None
    if config.driver is not None:
        step, weights = _require_driver(config)
        settings["driver"] = f"{config.driver} at step {step}, {weights}"
    dataset = recorder.Dataset(
        made_by=MADE_BY,
        metadata=METADATA,
        packages=("mujoco",),
        settings=settings,
        episodes=config.episodes,
        processes=config.processes,
        missing=lambda: [e for e in range(config.episodes) if not episode_path(path, e).exists()],
        opener=functools.partial(_open, config, path, step),
        words=f"drives of {config.seconds:g} s, {images} images each",
        holds=(float(images), "images"),
        per_second=IMAGES_PER_SECOND,
    )
    recorder.record(dataset, path, report=report, fleet=fleet, begun=begun)


def episode_path(path: Path, episode: int) -> Path:
    """File of one episode."""
    return path / f"episode_{episode:05d}.json"


def record_episode(
    config: RecordConfig, path: Path, episode: int, driver: Driver | None = None, views: tuple[str, ...] = ()
) -> None:
    """Drives, renders and writes one episode, the JSON last.

    Args:
      config: What to record.
      path: Folder of the dataset.
      episode: Number of the drive.
      driver: Plans from what is observed; None: the town's own driver's, which are what is recorded in any case.
      views: That the driver sees besides the cameras of the config, such as front@-0.4.
    """
    from driving.sim.environment import TASK, WAYPOINT_DT_S, TownEnv

    spec = EnvSpec(suite="town", task=TASK, cameras=(*config.cameras, *views), image_size=config.image_size)
    count, every = round(config.seconds * MOTION_HZ), round(MOTION_HZ / config.rate_hz)
    taken = images_taken(config, episode, -(-count // every))
    folder = path / "images" / episode_path(path, episode).stem
    make_folders(folder)
    noise = Noise(config.noise, generator(Purpose.PLAN_NOISE, config.seed, episode))
    frames = []
    town = TownEnv(spec, seconds=config.seconds, waypoint_steps=WAYPOINT_STEPS, expert=True)
    with contextlib.closing(town) as env:
        observed = env.reset(seed_of(Purpose.DRIVE, config.seed, episode))
        for i in range(count):
            images = env.images() if driver is not None or i % every == 0 else {}
            written = {} if i % every else _write_images(config, path, folder, i, images, taken[i // every])
            ahead, light = env.surroundings()
            around = {"vehicle_ahead_m": None if ahead is None else round(ahead, 3), "traffic_light": light or "none"}
            frames.append(_frame(i, observed, env.state(), written) | {"surroundings": around})
            wanted = observed["expert_waypoints"] if driver is None else _padded(driver(observed | images))
            step = env.step(env.clip(noise.disturbed(wanted.astype(np.float64)).ravel()))
            observed = step.observation
            if step.terminated:
                break
    episode_json = {
        "episode_id": f"town-{config.seed}-{episode:05d}",
        "domain": "driving",
        "source": {"dataset": "chunkwise town", "scene_id": f"{config.seed}-{episode:05d}"},
        "cameras": list(config.cameras),
        "waypoint_spec": {"dt": WAYPOINT_DT_S, "frame": "ego", "units": "m", "driven": False},
        "frames": frames,
    }
    sync_tree(folder)  # the JSON vouches for the images
    write_durably(episode_path(path, episode), json.dumps(episode_json))


def _padded(plan: np.ndarray) -> np.ndarray:
    """A driver's plan with as many waypoints as are recorded: it ends where it ended, and is followed as it was."""
    return np.concatenate([plan, np.repeat(plan[-1:], WAYPOINT_STEPS - len(plan), axis=0)])


def _write_images(
    config: RecordConfig, path: Path, folder: Path, frame: int, images: Observation, taken: Int64[np.ndarray, " k"]
) -> dict[str, Any]:
    """Writes the images of a frame that were not lost; returns the frame's cameras."""
    from driving.sim import scene

    cameras: dict[str, Any] = {}
    for name, status in zip(config.cameras, taken.tolist(), strict=True):
        if status == 0:
            cameras[name] = None
        elif status == 1:
            file = folder / f"{frame:06d}_{name}.jpg"
            write_ahead(file, encode_jpeg(images[name], quality=config.jpeg_quality))
            cameras[name] = {
                "image_path": file.relative_to(path).as_posix(),
                "intrinsics": scene.intrinsics(*config.image_size),
                "extrinsics": np.round(scene.camera_to_vehicle(name), 9).ravel().tolist(),
            }
    return cameras


def images_taken(config: RecordConfig, episode: int, frames: int) -> Int64[np.ndarray, "frames k"]:
    """Per frame with images and camera: 1 an image, 0 one that was lost, -1 the camera was out; see `missing`."""
    rng = generator(Purpose.LOST_IMAGES, config.seed, episode)
    share = config.missing / 2
    taken = np.where(rng.random((frames, len(config.cameras))) < share, 0, 1)
    taken[_outages(rng, taken.shape, share, config.rate_hz)] = -1
    return taken


def _outages(
    rng: np.random.Generator, shape: tuple[int, ...], share: float, rate: float
) -> Bool[np.ndarray, "frames k"]:
    """Stretches of 1 to 3 s that cover about `share` of all images."""
    out = np.zeros(shape, bool)
    frames, cameras = shape
    for camera in range(cameras):
        for start in np.flatnonzero(rng.random(frames) < share / (2.0 * rate)):
            out[start : start + round(rng.uniform(1.0, 3.0) * rate), camera] = True
    return out


def _frame(i: int, observed: Observation, state: Float64[np.ndarray, " q"], cameras: dict[str, Any]) -> dict[str, Any]:
    """One frame of the JSON; angles as the format wants them, numbers rounded to what is meant."""
    x, y, yaw = state[:3]
    numbers = {
        "speed_mps": observed["speed_mps"],
        "yaw_rad": (yaw + np.pi) % (2 * np.pi) - np.pi,
        "yaw_rate_radps": observed["yaw_rate_radps"],
        "x_m": x,
        "y_m": y,
    }
    command = ROUTE_COMMANDS[int(observed["route_command"])]
    return {
        "t": round(i / MOTION_HZ, 6),
        "observations": {
            "cameras": cameras,
            "state": {name: round(float(value), 6) for name, value in numbers.items()},
            "route_command": None if command == "unknown" else command,
        },
        "expert": {"waypoints": np.round(observed["expert_waypoints"].astype(np.float64), 4).tolist()},
    }


def _open(config: RecordConfig, path: Path, step: int | None) -> Recorder:
    """A worker's recorder; `step` is that of the driver's weights."""
    if config.driver is None:
        return functools.partial(record_episode, config, path)
    from chunkwise.policies.load import load_policy
    from driving.eval.routes import plan_of

    policy = load_policy(config.driver, checkpoint="newest" if step is None else step)
    seen = [name.removeprefix("image/") for name in policy.spec.observation if name.startswith("image/")]
    views = tuple(name for name in seen if name not in config.cameras)
    return functools.partial(record_episode, config, path, driver=functools.partial(plan_of, policy), views=views)


def _require_driver(config: RecordConfig) -> tuple[int, str]:
    """Step and digest of the weights of the run that drives."""
    from chunkwise.policies.load import load_policy
    from driving.policies.policy import WaypointPolicy
    from driving.sim.environment import WAYPOINT_DT_S

    assert config.driver is not None
    policy = load_policy(config.driver)
    if not isinstance(policy, WaypointPolicy):
        raise ConfigError(f"record.driver {config.driver}: expected a run of driving that learnt waypoints")
    data, spec = policy.config.data, policy.spec
    if data.waypoint_steps > WAYPOINT_STEPS or data.waypoint_dt_s != WAYPOINT_DT_S:
        raise ConfigError(
            f"record.driver {config.driver}: its plans are {data.waypoint_steps} waypoints, {data.waypoint_dt_s:g} s "
            f"apart; expected at most {WAYPOINT_STEPS}, {WAYPOINT_DT_S:g} s apart, as they are recorded"
        )
    lacking = [name for name in data.cameras if f"image/{name}" in spec.observation and name not in config.cameras]
    if lacking:
        raise ConfigError(f"record.driver {config.driver} sees {', '.join(lacking)}; expected in record.cameras")
    return policy.step, policy.digest()


def _require_simulator() -> None:
    if importlib.util.find_spec("mujoco") is None:
        raise ConfigError(f"recording needs MuJoCo, which is not installed: {pip_install('sim')}, or mujoco alone")


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
