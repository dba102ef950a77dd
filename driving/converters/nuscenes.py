"""nuScenes: the JSON tables of a version folder, and the JPEG files that they name.

  v1.0-*/scene.json              name, first_sample_token
  v1.0-*/sample.json             timestamp (micros), next, scene_token
  v1.0-*/sample_data.json        a row an image or sweep: sample_token, ego_pose_token, calibrated_sensor_token,
                                 timestamp, is_key_frame, filename, height, width
  v1.0-*/ego_pose.json           translation, rotation (w, x, y, z); z is 0
  v1.0-*/calibrated_sensor.json  sensor_token, translation, rotation, camera_intrinsic (3 x 3)
  v1.0-*/sensor.json             channel, modality

Six cameras fire one after another at 12 Hz; key frames are 2 Hz. A frame's time and state are those of its CAM_FRONT.
Speeds, and where the car goes in the next seconds at 10 Hz, come from the poses of all camera images, sweeps included.
Source: nuscenes.org/nuscenes, and github.com/nutonomy/nuscenes-devkit, docs/schema_nuscenes.md.
"""

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.problems import Problem, refuse
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
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
from driving.converters.trajectory import Pose, Trajectory, pose_of_matrix, rotation_of_quaternion

CAMERA_MAP = {
    "CAM_FRONT": "front",
    "CAM_FRONT_LEFT": "front_left",
    "CAM_FRONT_RIGHT": "front_right",
    "CAM_BACK_LEFT": "side_left",
    "CAM_BACK_RIGHT": "side_right",
    "CAM_BACK": "rear",
}
"""The rear side cameras look 110 degrees from ahead; of the canonical cameras those at 90 degrees are the nearest."""
REFERENCE = "CAM_FRONT"
SWEEP_TOLERANCE_S = 0.05
"""With sweeps, an image belongs to the nearest CAM_FRONT image if that is so near; the cameras' period is 0.083."""
WAYPOINT_STEPS, WAYPOINT_DT_S = 50, 0.1
"""Places ahead of each frame, also of key frames, which are 0.5 s apart and more: 5 s, as far as any score looks."""
UNIT_TOLERANCE = 1e-3
"""Of a quaternion's length; nuScenes' own have 1 to the last digits."""
_TABLES: Mapping[str, tuple[str, ...]] = {
    "scene": ("token", "name", "first_sample_token"),
    "sample": ("token", "timestamp", "next", "scene_token"),
    "sensor": ("token", "channel", "modality"),
    "calibrated_sensor": ("token", "sensor_token", "translation", "rotation", "camera_intrinsic"),
    "ego_pose": ("token", "translation", "rotation"),
    "sample_data": (
        "token",
        "sample_token",
        "ego_pose_token",
        "calibrated_sensor_token",
        "timestamp",
        "is_key_frame",
        "filename",
        "height",
        "width",
    ),
}
_MATRICES = ("translation", "rotation", "camera_intrinsic")

Row = Mapping[str, Any]


class NuscenesConverter:
    """Converts each scene into an episode."""

    def __init__(self, source: Path, settings: ConvertSettings) -> None:
        """Reads the tables.

        Args:
          source: Folder of the version (v1.0-mini) or the one above it, which holds samples/ and sweeps/.
          settings: What may be chosen.

        Raises:
          DataError: A table is missing or bad, or an image is of no sample.
          ConfigError: There are several versions in the folder, or a camera is unknown.
        """
        self._names = camera_names(CAMERA_MAP, settings)
        self._sweeps, self._images = settings.sweeps, settings.images
        tables = _version_folder(source)
        self._bounds = Bounds(tables.parent, settings.allow_links_to)
        self._version = tables.name
        self._table_files = [tables / f"{name}.json" for name in _TABLES]
        rows = {name: _read_table(tables / f"{name}.json", keys) for name, keys in _TABLES.items()}
        self._scenes = {row["name"]: row for row in rows["scene"].values()}
        if len(self._scenes) < len(rows["scene"]):
            raise DataError(f"{tables / 'scene.json'}: expected a name for each scene, found some names twice")
        self._samples, self._poses = rows["sample"], rows["ego_pose"]
        self._calibrated, self._sensors = rows["calibrated_sensor"], rows["sensor"]
        self._samples_of: dict[str, set[str]] = {row["token"]: set() for row in rows["scene"].values()}
        for token, row in self._samples.items():
            self._samples_of.setdefault(row["scene_token"], set()).add(token)
        self._unknown: dict[str, list[Problem]] = {}
        """Of rows whose camera is not known, by sample."""
        self._rows_by_sample = self._camera_rows(rows["sample_data"])

    @property
    def units(self) -> list[str]:
        return sorted(self._scenes)

    def convert(self, unit: str, writer: EpisodeWriter) -> None:
        source = f"{self._version}/scene.json"
        if not writer.claim(unit, source):
            return
        samples, broken = self._sample_chain(self._scenes[unit])
        if broken:
            writer.problem(f"{self._version}/sample.json", unit, "a chain of samples by `next`", broken)
        for token in samples:
            writer.problems.extend(self._unknown.get(token, ()))
        rows = [row for token in samples for row in self._rows_by_sample.get(token, ())]
        poses = {row["token"]: self._pose(row, unit, writer) for row in rows}
        trajectory = Trajectory(
            (row["timestamp"] * 1e-6, pose) for row in rows if (pose := poses[row["token"]]) is not None
        )
        if self._sweeps:
            groups = self._by_front(rows)
        else:
            groups = [[row for row in self._rows_by_sample.get(token, ()) if row["is_key_frame"]] for token in samples]
        frames = [
            self._frame(group, None if self._sweeps else samples[number], trajectory, poses, unit, writer)
            for number, group in enumerate(groups)
        ]
        drive = Drive(
            id=unit,
            dataset="nuscenes",
            scene_id=unit,
            split=self._version,
            frames=frames,
            waypoint_dt_s=WAYPOINT_DT_S,
            waypoint_steps=WAYPOINT_STEPS,
        )
        writer.add_drive(drive, source=source)

    def files(self, unit: str) -> list[Path]:
        """The tables, and the images that are copied."""
        if not self._images:
            return self._table_files
        samples, _ = self._sample_chain(self._scenes[unit])
        names = [
            row["filename"]
            for token in samples
            for row in self._rows_by_sample.get(token, ())
            if (self._sweeps or row["is_key_frame"]) and self._channel(row) in self._names
        ]
        return [*self._table_files, *(Path(self._bounds.path(n)) for n in names if not self._bounds.refusal(n))]

    def _camera_rows(self, rows: Mapping[str, Row]) -> Mapping[str, list[Row]]:
        """Rows of cameras by sample, in time; raises DataError for those of no sample, which are of no scene either."""
        found, file = collections.defaultdict(list), f"{self._version}/sample_data.json"
        for token, row in rows.items():
            if row["sample_token"] not in self._samples:
                raise DataError(f"{file}: {token}: expected the token of a sample, found {row['sample_token']!r}")
            calibrated = self._calibrated.get(row["calibrated_sensor_token"])
            if calibrated is None or calibrated["sensor_token"] not in self._sensors:
                text, expected = f"token {row['calibrated_sensor_token']!r}", "a calibrated_sensor with a sensor"
                lost = Problem(file=file, key=token, expected=expected, found=text)
                self._unknown.setdefault(row["sample_token"], []).append(lost)
            elif self._sensors[calibrated["sensor_token"]]["modality"] == "camera":
                found[row["sample_token"]].append(row)
        return {token: sorted(group, key=lambda row: row["timestamp"]) for token, group in found.items()}

    def _sample_chain(self, scene: Row) -> tuple[list[str], str]:
        """Samples of a scene in order, and where their chain breaks off, in words; empty where it does not."""
        chain: dict[str, None] = {}
        token, own = scene["first_sample_token"], self._samples_of[scene["token"]]
        while token:
            if token not in self._samples or token in chain:
                return list(chain), f"{token!r} {'twice' if token in chain else 'nowhere in the table'}"
            if token not in own:
                return list(chain), f"{token!r}, which is of scene {self._samples[token]['scene_token']!r}"
            chain[token] = None
            token = self._samples[token]["next"]
        if missed := own - set(chain):
            return list(chain), f"an end at {len(chain)} of {len(own)} samples, without {min(missed)!r}"
        return list(chain), ""

    def _channel(self, row: Row) -> str:
        return self._sensors[self._calibrated[row["calibrated_sensor_token"]]["sensor_token"]]["channel"]

    def _pose(self, row: Row, unit: str, writer: EpisodeWriter) -> Pose | None:
        ego = self._poses.get(row["ego_pose_token"])
        try:
            if ego is None:
                raise ValueError("no such row")
            return pose_of_matrix(_matrix(ego))
        except (TypeError, ValueError) as error:
            writer.problem(f"{self._version}/ego_pose.json", f"{unit}, {row['ego_pose_token']}", "a pose", str(error))
            return None

    def _by_front(self, rows: Sequence[Row]) -> list[list[Row]]:
        """A group a CAM_FRONT image: of each other camera the image nearest in time.

        Where CAM_FRONT lacks an image, those that the others took then are a group without it.
        """
        fronts = [row for row in rows if self._channel(row) == REFERENCE]
        groups = [[front] for front in fronts]
        times = np.array([front["timestamp"] for front in fronts], np.int64)
        nearest: dict[tuple[int, str], tuple[int, Row]] = {}
        left: list[Row] = []
        for row in rows:
            channel = self._channel(row)
            if channel == REFERENCE:
                continue
            index = int(np.abs(times - row["timestamp"]).argmin()) if len(times) else 0
            distance = abs(int(times[index]) - row["timestamp"]) if len(times) else math.inf
            before = nearest.get((index, channel))
            if distance > SWEEP_TOLERANCE_S * 1e6:
                left.append(row)
            elif before is None or distance < before[0]:
                nearest[index, channel] = int(distance), row
                left += [] if before is None else [before[1]]
            else:
                left.append(row)
        for (index, _), (_, row) in sorted(nearest.items()):
            groups[index].append(row)
        return [*groups, *self._without_front(left)]

    def _without_front(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Groups of images that belong to no CAM_FRONT image, one after another.

        An image alone is none: it is one too many of its camera, as where two are nearest to one CAM_FRONT image.
        """
        groups: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: row["timestamp"]):
            group = groups[-1] if groups else []
            near = group and row["timestamp"] - group[0]["timestamp"] <= SWEEP_TOLERANCE_S * 1e6
            if near and self._channel(row) not in map(self._channel, group):
                group.append(row)
            else:
                groups.append([row])
        return [group for group in groups if len(group) > 1]

    def _time(self, rows: Sequence[Row]) -> float:
        """Time of a frame in seconds: its CAM_FRONT image's, else the mean of its images'."""
        times = {self._channel(row): row["timestamp"] * 1e-6 for row in rows}
        return times[REFERENCE] if REFERENCE in times else statistics.fmean(times.values())

    def _frame(
        self,
        rows: Sequence[Row],
        sample: str | None,
        trajectory: Trajectory,
        poses: Mapping[str, Pose | None],
        unit: str,
        writer: EpisodeWriter,
    ) -> DriveFrame:
        """One frame of the images `rows`; `sample` gives its time where there are none."""
        channels = [self._channel(row) for row in rows]
        for place, (row, channel) in enumerate(zip(rows, channels, strict=True)):
            if channel in channels[:place] and (channel in self._names or channel == REFERENCE):
                file, found = f"{self._version}/sample_data.json", f"another of {channel}"
                writer.problem(file, f"{unit}, {row['token']}", "one image of each camera a frame", found)
        time = self._time(rows) if rows else self._samples[sample or ""]["timestamp"] * 1e-6
        cameras = {
            self._names[channel]: self._camera(row, poses[row["token"]], unit, channel, writer)
            for row in rows
            if (channel := self._channel(row)) in self._names
        }
        return DriveFrame(
            time_s=time,
            cameras=cameras,
            pose=trajectory.at(time),
            speed_mps=trajectory.speed(time),
            yaw_rate_radps=trajectory.yaw_rate(time),
            waypoints=trajectory.ahead(time, steps=WAYPOINT_STEPS, dt_s=WAYPOINT_DT_S),
        )

    def _camera(self, row: Row, pose: Pose | None, unit: str, channel: str, writer: EpisodeWriter) -> DriveCamera:
        calibrated = self._calibrated[row["calibrated_sensor_token"]]
        intrinsics = extrinsics = None
        try:
            extrinsics = _matrix(calibrated).reshape(-1).tolist()
            k = np.asarray(calibrated["camera_intrinsic"], np.float64).reshape(3, 3)
            intrinsics = [k[0, 0], k[1, 1], k[0, 2], k[1, 2]]
        except (TypeError, ValueError) as error:
            file = f"{self._version}/calibrated_sensor.json"
            writer.problem(file, f"{unit}, {row['calibrated_sensor_token']}", "a camera's calibration", str(error))
        return DriveCamera(
            path=self._copy(row, unit, channel, writer),
            time_s=row["timestamp"] * 1e-6,
            pose=pose,
            intrinsics=intrinsics,
            extrinsics=extrinsics,
        )

    def _copy(self, row: Row, unit: str, channel: str, writer: EpisodeWriter) -> str | None:
        if not self._images:
            return None
        name = row["filename"]
        if reason := self._bounds.refusal(name):
            table, key = f"{self._version}/sample_data.json", f"{row['token']}.filename"
            writer.problem(table, key, "a path inside the dataset", f"{name!r}: {reason}")
            return None
        try:
            data = budget.read_bytes(Path(self._bounds.path(name)), "image_mib")
        except OSError as error:
            writer.problem(name, "", "an image that sample_data names", error.strerror or str(error))
            return None
        size = row["height"], row["width"]
        return writer.add_image(unit, f"{row['timestamp']}_{self._names[channel]}", data, source=name, size=size)


def _version_folder(source: Path) -> Path:
    if (source / "sample_data.json").is_file():
        return source
    folders = sorted(path.parent for path in source.glob("*/sample_data.json"))
    if not folders:
        raise DataError(f"{source}: expected a folder with v1.0-*/sample_data.json, found none")
    if len(folders) > 1:
        names = [folder.name for folder in folders]
        raise ConfigError(f"{source}: there are several versions, {names}; name one as SOURCE: {folders[0]}")
    return folders[0]


def _read_table(path: Path, keys: Sequence[str]) -> dict[str, Row]:
    """Rows by token with the keys that are needed; one error lists what is wrong with the first bad rows."""
    table = read_json(path)
    if not isinstance(table, list):
        raise DataError(f"{path}: expected a list of rows, found {type(table).__name__}")
    found: dict[str, Row] = {}
    bad = []
    for number, row in enumerate(table):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing or not isinstance(row["token"], str) or row["token"] in found:
            what = f"no {missing}" if missing else f"token {row['token']!r}, which is no text or is there twice"
            bad.append(Problem(file=path.name, row=number, expected=f"the keys {list(keys)}", found=what))
            continue
        wrong = {key: repr(row[key])[:80] for key in keys if not _fits(key, row[key])}
        if wrong:
            expected = "values of nuScenes' own types"
            bad.append(Problem(file=path.name, row=number, expected=expected, found=str(wrong)))
            continue
        found[row["token"]] = {key: row[key] for key in keys}
    if bad:
        raise refuse(bad, what=str(path))
    return found


def _fits(key: str, value: Any) -> bool:
    """Whether a value is of the type that its column has; matrices are looked at where they are used."""
    if key in ("timestamp", "height", "width"):
        return type(value) is int and 0 <= value < 2**62
    if key == "is_key_frame":
        return isinstance(value, bool)
    return key in _MATRICES or isinstance(value, str)


def _matrix(row: Row) -> np.ndarray:
    """4 x 4 transform of a row's rotation and translation.

    Raises:
      ValueError: They are not 4 and 3 finite numbers, or the quaternion has no length of 1.
    """
    rotation, translation = np.asarray(row["rotation"], np.float64), np.asarray(row["translation"], np.float64)
    good = rotation.shape == (4,) and translation.shape == (3,) and np.isfinite(translation).all()
    length = math.hypot(*rotation.tolist()) if good else math.nan
    if not abs(length - 1) <= UNIT_TOLERANCE:  # NaN as well
        found = f"{row['rotation']!r:.120} of length {length:g}, translation {row['translation']!r:.120}"
        raise ValueError(f"rotation {found}; expected a quaternion of length 1 and 3 finite numbers")
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation_of_quaternion(rotation), translation
    return matrix
