"""Driving sets in LeRobot's format, v2.1 and v3.0, by chunkwise/data/lerobot/meta.py.

The format has no fixed names for a vehicle's state, so columns are chosen: `--state speed_mps=KEY:INDEX:FACTOR`, of
the quantities in QUANTITIES. For yaak-ai/L2D they are known, as are its cameras: names of its meta/info.json, units by
its published rows, where a speed of 30.9 goes with 0.85 m in a tenth of a second (km/h) and a heading of 274 with a
drive to the west (a compass).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.images import encode_jpeg
from chunkwise.data.lerobot.meta import LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import EpisodeTable, iter_tables
from chunkwise.data.lerobot.video import LeRobotImages, file_names
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.links import Bounds
from chunkwise.files.strict_json import read_json
from driving.converters.episode_writer import (
    ConvertSettings,
    Drive,
    DriveCamera,
    DriveFrame,
    EpisodeWriter,
    camera_names,
)
from driving.converters.trajectory import Pose, Trajectory

QUANTITIES = (
    "speed_mps",
    "yaw_rate_radps",
    "x_m",
    "y_m",
    "yaw_rad",
    "heading_deg",
    "latitude_deg",
    "longitude_deg",
)
"""heading_deg is a compass's, clockwise from north. Positions in degrees become metres east and north of the episode's
first frame, and yaw is then counter-clockwise from east."""
SAME = (("heading_deg", "yaw_rad"), ("latitude_deg", "x_m"), ("longitude_deg", "y_m"))
"""Quantities of which a frame has one or the other."""
EARTH_RADIUS_M = 6371008.8
L2D_CAMERAS = {
    "front_left": "front",
    "left_forward": "front_left",
    "right_forward": "front_right",
    "left_backward": "side_left",
    "right_backward": "side_right",
    "rear": "rear",
    "map": "",
}
"""L2D's camera names; "front_left" is the left one of its two windscreen cameras. `map` is a drawing, no camera."""
_L2D_STATE, _L2D_AXES = "observation.state.vehicle", ("speed", "heading", "hp_loc_latitude", "hp_loc_longitude")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One number of a frame."""

    key: str
    index: int
    factor: float = 1.0


class LerobotConverter:
    """Converts each LeRobot episode into an episode; its parquet table is read whole, its video frame by frame."""

    def __init__(self, source: Path, settings: ConvertSettings) -> None:
        """Opens the dataset and reads its tables; what is wrong with an episode is said when it is converted.

        Raises:
          DataError: With every problem in meta/.
          ConfigError: A column, quantity or camera is unknown, or nothing says where the state is.
        """
        root = source.resolve()
        self._meta = read_meta(root, bounds=Bounds(root, settings.allow_links_to))
        self._quality, self._images = settings.quality, settings.images
        known = _is_l2d(self._meta)
        depth = self._meta.depth_maps  # they stay out unless --camera names them
        own = {key: "" if key in depth else _default_name(key, l2d=known) for key in self._meta.cameras}
        self._names = camera_names(own, settings)
        asked = _parse_columns(settings.state)
        for name, other in SAME:
            if {name, other} <= asked.keys():
                raise ConfigError(f"--state: {name} and {other} say the same; expected one of them")
        replaced = {name for name, other in SAME if other in asked}
        l2d = _l2d_columns(source) if known else {}
        self._columns = {name: column for name, column in l2d.items() if name not in replaced} | asked
        if not self._columns:
            vectors = {key: feature.shape for key, feature in self._meta.features.items() if len(feature.shape) == 1}
            raise ConfigError(
                f"{source}: say where the vehicle's state is: --state speed_mps=KEY:INDEX:FACTOR, quantities "
                f"{', '.join(QUANTITIES)}; the dataset has {vectors}"
            )
        self._check_columns(source)
        cameras = tuple(self._names) if self._images else ()
        self._reader = LeRobotImages(self._meta, cameras)
        keys = tuple(dict.fromkeys(column.key for column in self._columns.values()))
        self._tables = {table.meta.index: table for table in iter_tables(self._meta, keys)}

    @property
    def units(self) -> list[str]:
        return [f"episode {episode.index}" for episode in self._meta.episodes]

    def convert(self, unit: str, writer: EpisodeWriter) -> None:
        index = int(unit.rpartition(" ")[2])
        table = self._tables[index]
        problems = (*table.problems, *(self._reader.check(index) if table.columns else ()))
        writer.problems += problems
        if problems:
            return
        length = table.meta.length
        values = {name: _values(table, column) for name, column in self._columns.items()}
        name = f"{self._meta.root.name}_{index:06d}"
        frames = []
        state = _state(values, np.arange(length) / self._meta.fps)
        for frame in range(length):
            time = frame / self._meta.fps
            cameras = self._cameras(index, frame, name, writer)
            frames.append(DriveFrame(time_s=time, cameras=cameras, **state[frame]))
        drive = Drive(id=name, dataset=self._meta.root.name, scene_id=name, split=None, frames=frames)
        writer.add_drive(drive, source=unit)

    def files(self, unit: str) -> list[Path]:
        """All that the conversion reads: meta/, tables, and films or images of the cameras that are kept."""
        return self._sources

    @functools.cached_property
    def _sources(self) -> list[Path]:
        return [self._meta.root / name for name in dict.fromkeys(file_names(self._meta, self._reader.cameras))]

    def _cameras(self, episode: int, frame: int, name: str, writer: EpisodeWriter) -> dict[str, DriveCamera]:
        if not self._images:
            return {camera: DriveCamera(path=None) for camera in self._names.values()}
        source = f"episode {episode}, row {frame}"
        try:
            images = self._reader.read(episode, frame)
        except DataError as error:
            writer.problem(source, "", "images", str(error))
            return {}
        return {
            camera: DriveCamera(
                path=writer.add_image(
                    name,
                    f"{frame:06d}_{camera}",
                    encode_jpeg(images[key], quality=self._quality),
                    source=f"{source}, {key}",
                )
            )
            for key, camera in self._names.items()
        }

    def _check_columns(self, source: Path) -> None:
        for name, column in self._columns.items():
            feature = self._meta.features.get(column.key)
            if feature is None or len(feature.shape) > 1 or column.index >= (*feature.shape, 1)[0]:
                found = "no such feature" if feature is None else f"shape {feature.shape}"
                raise ConfigError(f"{source}: --state {name}={column.key}:{column.index}: found {found}")
        for one, other in (("x_m", "y_m"), ("latitude_deg", "longitude_deg")):
            if (one in self._columns) != (other in self._columns):
                raise ConfigError(f"--state: {one} and {other} are needed together")


def _values(table: EpisodeTable, column: Column) -> np.ndarray:
    x = table.columns[column.key]
    return (x[:, None] if x.ndim == 1 else x)[:, column.index].astype(np.float64) * column.factor


def _state(values: Mapping[str, np.ndarray], times: np.ndarray) -> list[dict[str, Any]]:
    """Fields of a DriveFrame for each frame."""
    found = dict(values)
    if "latitude_deg" in found:
        latitude, longitude = np.radians(found["latitude_deg"]), found["longitude_deg"]
        east = np.radians((longitude - longitude[0] + 180) % 360 - 180)  # 180 and -180 degrees are one place
        found["x_m"] = EARTH_RADIUS_M * east * math.cos(latitude[0])
        found["y_m"] = EARTH_RADIUS_M * (latitude - latitude[0])
    if "heading_deg" in found:
        found["yaw_rad"] = np.radians(90.0 - found["heading_deg"])
    count = len(times)
    fields: list[dict[str, Any]] = [
        {name: float(found[name][i]) for name in ("speed_mps", "yaw_rate_radps", "yaw_rad") if name in found}
        for i in range(count)
    ]
    if "x_m" not in found:
        return fields
    yaws = found.get("yaw_rad", np.zeros(count))
    poses: list[Pose] = [
        (float(x), float(y), float(a)) for x, y, a in zip(found["x_m"], found["y_m"], yaws, strict=True)
    ]
    trajectory = Trajectory(zip(times.tolist(), poses, strict=True))
    for field, time, pose in zip(fields, times.tolist(), poses, strict=True):
        if "yaw_rad" in found:
            field["pose"] = pose
            field.setdefault("speed_mps", trajectory.speed(time))
            field.setdefault("yaw_rate_radps", trajectory.yaw_rate(time))
        else:  # which way the vehicle looks is not known, so neither is whether it reverses
            velocity = trajectory.velocity(time)
            field["position"] = pose[:2]
            field.setdefault("speed_mps", None if velocity is None else math.hypot(*velocity[:2]))
    return fields


def _parse_columns(state: Mapping[str, str]) -> dict[str, Column]:
    columns = {}
    for name, text in state.items():
        key, _, rest = text.partition(":")
        index, _, factor = rest.partition(":")
        try:
            column = Column(key=key, index=int(index), factor=float(factor or 1))
        except ValueError as error:
            raise ConfigError(f"--state {name}={text}: expected KEY:INDEX or KEY:INDEX:FACTOR") from error
        if name not in QUANTITIES or column.index < 0:
            raise ConfigError(f"--state {name}={text}: expected one of {', '.join(QUANTITIES)}, and an index from 0")
        if not math.isfinite(column.factor):
            raise ConfigError(f"--state {name}={text}: expected a finite factor, found {factor}")
        columns[name] = column
    return columns


def _is_l2d(meta: LeRobotMeta) -> bool:
    ends = {key.rpartition(".")[2] for key in meta.cameras}
    return _L2D_STATE in meta.features and {"front_left", "left_forward", "right_forward"} <= ends


def _l2d_columns(source: Path) -> dict[str, Column]:
    names = read_json(source / "meta" / "info.json")["features"][_L2D_STATE].get("names")
    axes = names.get("axes") if isinstance(names, dict) else names
    if not isinstance(axes, list) or any(axis not in axes for axis in _L2D_AXES):
        raise DataError(f"{source}/meta/info.json: expected the axes {_L2D_AXES} of {_L2D_STATE}, found {names!r}")
    factors = (1 / 3.6, 1.0, 1.0, 1.0)
    quantities = ("speed_mps", "heading_deg", "latitude_deg", "longitude_deg")
    return {
        quantity: Column(key=_L2D_STATE, index=axes.index(axis), factor=factor)
        for quantity, axis, factor in zip(quantities, _L2D_AXES, factors, strict=True)
    }


def _default_name(key: str, *, l2d: bool) -> str:
    name = key.rpartition(".")[2]
    return L2D_CAMERAS.get(name, name) if l2d else name
