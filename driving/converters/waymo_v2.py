"""Waymo Perception v2: parquet files, one a component and segment, read with pyarrow.

  <split>/camera_image/<segment>.parquet        a row a frame and camera: JPEG, pose, velocity, times
  <split>/vehicle_pose/<segment>.parquet        a row a frame
  <split>/camera_calibration/<segment>.parquet  a row a camera

Source: https://waymo.com/open/data/perception, and the components' definitions in waymo_open_dataset/v2/perception.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from chunkwise.errors import DataError
from chunkwise.files.links import Bounds
from chunkwise.files.parquet import iter_batches, open_parquet
from driving.converters.episode_writer import ConvertSettings, Drive, EpisodeWriter, camera_names
from driving.converters.waymo_frames import (
    CAMERA_MAP,
    Calibration,
    WaymoFrame,
    WaymoImage,
    camera_name,
    drive_frames,
    exposure_time,
    extrinsics_of,
    valid_pose,
    valid_velocity,
)
from driving.converters.waymo_segments import split_of

SEGMENT, TIME, CAMERA = "key.segment_context_name", "key.frame_timestamp_micros", "key.camera_name"
IMAGE, CALIBRATION, POSE = "[CameraImageComponent]", "[CameraCalibrationComponent]", "[VehiclePoseComponent]"
_ROWS_READ = 16  # images in memory at a time
_VELOCITY = tuple(
    f"{IMAGE}.velocity.{name}" for name in ("linear_velocity.x", "linear_velocity.y", "angular_velocity.z")
)
_TIMES = tuple(
    f"{IMAGE}.{name}"
    for name in (
        "pose_timestamp",
        "rolling_shutter_params.camera_trigger_time",
        "rolling_shutter_params.camera_readout_done_time",
    )
)


COMPONENTS = ("camera_image", "vehicle_pose", "camera_calibration")
"""Folders that are read, each with a file a segment."""


class WaymoV2Converter:
    """Converts each segment into an episode."""

    def __init__(self, source: Path, settings: ConvertSettings) -> None:
        """Lists the segments below a folder that holds the components, or splits of them.

        Raises:
          DataError: There are none, or a link leads out of the source.
          ConfigError: The settings name a camera that there is not.
        """
        self._names = camera_names(CAMERA_MAP, settings)
        bounds = Bounds(source, settings.allow_links_to)
        found = list(bounds.walk({".parquet"})) if source.is_dir() else []
        by_component = {
            kind: [name for name in found if Path(name).parent.name == kind and name.count("/") <= 2]
            for kind in COMPONENTS
        }
        self._files = {name: Path(bounds.path(name)) for name in by_component["camera_image"]}
        places = {_place(name) for name in self._files}
        self.left_out = sorted(
            {_place(name) for names in by_component.values() for name in names if _place(name) not in places}
        )
        """Segments of which there are other components and no images."""
        if not self._files:
            raise DataError(
                f"{source}: expected camera_image/<segment>.parquet, or such a folder in each split, found none"
            )

    @property
    def units(self) -> list[str]:
        return sorted(self._files)

    def convert(self, unit: str, writer: EpisodeWriter) -> None:
        file = self._files[unit]
        root = file.parent.parent
        segments: dict[str, str] = {}
        calibrations = self._calibrations(root / "camera_calibration" / file.name, segments, writer)
        frames = self._frames(root / "vehicle_pose" / file.name, segments, writer)
        segment = self._images(file, unit, frames, calibrations, segments, writer)
        if len(segments) > 1:
            found = "; ".join(f"{name} ({place})" for name, place in sorted(segments.items())[:3])
            writer.problem(unit, SEGMENT, "one segment a file, and the same in all three components", found)
        if segment is None:
            return
        drive = Drive(
            id=segment,
            dataset="waymo_perception_v2",
            scene_id=segment,
            split=root.name if split_of(root.name) else None,
            frames=drive_frames(list(frames.values()), calibrations, self._names),
        )
        writer.add_drive(drive, source=unit)

    def files(self, unit: str) -> list[Path]:
        file = self._files[unit]
        return [file.parent.parent / name / file.name for name in COMPONENTS]

    def _calibrations(self, path: Path, segments: dict[str, str], writer: EpisodeWriter) -> dict[str, Calibration]:
        columns = [CAMERA, *(f"{CALIBRATION}.intrinsic.{name}" for name in ("f_u", "f_v", "c_u", "c_v"))]
        columns += [f"{CALIBRATION}.{name}" for name in ("extrinsic.transform", "width", "height")]
        found: dict[str, Calibration] = {}
        for row, values in _rows(path, columns, writer, [SEGMENT]):
            where = f"{path.parent.name}/{path.name}"
            _note_segment(values, f"{where}, row {row}", segments)
            name = camera_name(values[CAMERA])
            try:
                transform = values[f"{CALIBRATION}.extrinsic.transform"]
                valid_pose(transform)
                calibration = Calibration(
                    intrinsics=tuple(float(values[column]) for column in columns[1:5]),
                    extrinsics=extrinsics_of(transform),
                    size=(int(values[f"{CALIBRATION}.height"]), int(values[f"{CALIBRATION}.width"])),
                )
            except (TypeError, ValueError) as error:
                writer.problem(where, f"row {row}", "a whole calibration", str(error))
                continue
            if name is None:
                writer.problem(where, f"row {row}, {CAMERA}", "1 to 8, or a camera's name", f"{values[CAMERA]!r}")
                continue
            if name in found:
                writer.problem(where, f"row {row}, {CAMERA}", "each camera once", f"a second {name}")
                continue
            found[name] = calibration
        return found

    def _frames(self, path: Path, segments: dict[str, str], writer: EpisodeWriter) -> dict[int, WaymoFrame]:
        column = f"{POSE}.world_from_vehicle.transform"
        frames: dict[int, WaymoFrame] = {}
        for row, values in _rows(path, [TIME, column], writer, [SEGMENT]):
            where = f"{path.parent.name}/{path.name}"
            _note_segment(values, f"{where}, row {row}", segments)
            time = values[TIME]
            if not isinstance(time, int) or time in frames:
                expected, found = "a time that no other row has", f"{time!r}"
                writer.problem(where, f"row {row}, {TIME}", expected, found)
                continue
            try:
                frames[time] = WaymoFrame(timestamp_micros=time, pose=valid_pose(values[column]))
            except ValueError as error:
                writer.problem(where, f"row {row}, {column}", "16 finite numbers", str(error))
        return frames

    def _images(
        self,
        path: Path,
        unit: str,
        frames: dict[int, WaymoFrame],
        calibrations: Mapping[str, Calibration],
        segments: dict[str, str],
        writer: EpisodeWriter,
    ) -> str | None:
        """Writes the images and adds them to their frames; returns the segment's name."""
        columns = [SEGMENT, TIME, CAMERA, f"{IMAGE}.image"]
        optional = [f"{IMAGE}.pose.transform", *_VELOCITY, *_TIMES]
        claimed: set[str] = set()
        for row, values in _rows(path, columns, writer, optional):
            name, time, segment = camera_name(values[CAMERA]), values[TIME], values[SEGMENT]
            where = f"row {row}"
            if name is None:
                writer.problem(unit, f"{where}, {CAMERA}", "1 to 8, or a camera's name", f"{values[CAMERA]!r}")
            elif time not in frames:
                writer.problem(unit, f"{where}, {TIME}", "a frame of vehicle_pose", f"{time!r}")
            elif not isinstance(segment, str) or not isinstance(values[f"{IMAGE}.image"], bytes):
                writer.problem(unit, where, "a segment's name and an image", f"{segment!r}, or no image")
            elif name in frames[time].images:
                writer.problem(unit, f"{where}, {CAMERA}", "each camera once in a frame", f"a second {name}")
            elif writer.claim(segment, unit):
                claimed.add(segment)
                _note_segment(values, f"{unit}, {where}", segments)
                if name in self._names:
                    image = self._image(values, name, f"{unit}, {where}, {name}", calibrations.get(name), writer)
                    frames[time].images[name] = image
        return min(claimed, default=None)

    def _image(
        self,
        values: Mapping[str, Any],
        name: str,
        source: str,
        calibration: Calibration | None,
        writer: EpisodeWriter,
    ) -> WaymoImage:
        path = writer.add_image(
            values[SEGMENT],
            f"{values[TIME]}_{self._names[name]}",
            values[f"{IMAGE}.image"],
            source=source,
            size=None if calibration is None else calibration.size,
        )
        pose = None
        try:
            pose = valid_pose(values.get(f"{IMAGE}.pose.transform"))
        except ValueError as error:
            writer.problem(source, f"{IMAGE}.pose.transform", "16 finite numbers", str(error))
        velocity = None
        x, y, yaw_rate = (values.get(column) for column in _VELOCITY)
        if x is not None and y is not None and yaw_rate is not None:
            try:
                velocity = valid_velocity(x, y, yaw_rate)
            except ValueError as error:
                writer.problem(source, f"{IMAGE}.velocity", "finite numbers", str(error))
        return WaymoImage(
            path=path,
            time_s=exposure_time(*(values.get(column) for column in _TIMES)),
            pose=pose,
            velocity=velocity,
        )


def _place(name: str) -> str:
    """A component's file without its component: the split, where there is one, and the segment's file."""
    path = Path(name)
    return (path.parent.parent / path.name).as_posix()


def _note_segment(values: Mapping[str, Any], where: str, segments: dict[str, str]) -> None:
    """Notes where a segment's name was read first."""
    if isinstance(name := values.get(SEGMENT), str):
        segments.setdefault(name, where)


def _rows(
    path: Path, columns: list[str], writer: EpisodeWriter, optional: list[str] | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and values of each row; what keeps the file from being read is noted, and ends it."""
    where = f"{path.parent.name}/{path.name}"
    try:
        file = open_parquet(path)
        names = file.schema_arrow.names
        missing = [column for column in columns if column not in names]
        if missing:
            writer.problem(where, "", f"the columns {missing}", f"{names[:30]}")
            return
        wanted = columns + [column for column in optional or [] if column in names]
        row = 0
        for batch in iter_batches(path, file, wanted, rows=_ROWS_READ):
            for values in batch.to_pylist():
                yield row, values
                row += 1
    except FileNotFoundError:
        writer.problem(where, "", "this component of the segment", "no such file")
    except (OSError, pa.ArrowException) as error:
        writer.problem(where, "", "a whole parquet file", f"{error}")
