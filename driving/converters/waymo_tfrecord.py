"""Waymo's TFRecord files, read field by field: Perception v1 (`Frame` records) and End-to-End (`E2EDFrame` records).

Source: dataset.proto and protos/end_to_end_driving_data.proto of github.com/waymo-research/waymo-open-dataset;
arXiv:2510.26125 for the End-to-End set. Field numbers stand where they are used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.errors import DataError
from chunkwise.files.links import Bounds
from driving.converters.episode_writer import ConvertSettings, Counts, Drive, EpisodeWriter, camera_names
from driving.converters.protobuf import Message
from driving.converters.refused import Refused
from driving.converters.tfrecord import Rest, read_records
from driving.converters.trajectory import Pose
from driving.converters.waymo_frames import (
    CAMERA_MAP,
    Calibration,
    WaymoFrame,
    WaymoImage,
    camera_name,
    drive_frames,
    exposure_time,
    extrinsics_of,
    repeated,
    valid_pose,
    valid_velocity,
)
from driving.converters.waymo_segments import Segment, as_tree, of_tree, segment_of, split_of
from driving.data.history import History
from driving.data.rater import MAX_SCORE, Rated

E2E_STEP_S = 0.25
E2E_STEPS = 20
UNRATED = -1.0
ROUTE_COMMANDS = {1: "straight", 2: "left", 3: "right"}
"""EgoIntent.Intent; 0 is unknown."""


class WaymoTfrecordConverter:
    """Converts v1 segments, a file each, into episodes; of E2E files the frames of one segment, wherever they are."""

    def __init__(self, source: Path, settings: ConvertSettings, *, end_to_end: bool) -> None:
        """Lists *.tfrecord and *.tfrecord-00000-of-00001 files, through links to folders as well.

        Raises:
          DataError: There are none, or a link leads out of the source.
          ConfigError: The settings name a camera that there is not.
        """
        self._names = camera_names(CAMERA_MAP, settings)
        self._end_to_end = end_to_end
        bounds = Bounds(source, settings.allow_links_to)
        found = bounds.walk(None) if source.is_dir() else ()
        names = [source.name] if source.is_file() else [name for name in found if ".tfrecord" in Path(name).name]
        self._folder = bounds.root.resolve().name  # SOURCE may itself be validation/
        self._files = {name: Path(bounds.path(name)) for name in names}
        if not self._files:
            raise DataError(f"{source}: expected files *.tfrecord or *.tfrecord-*, found none")
        self._segments: dict[str, Segment] = {}

    @property
    def units(self) -> list[str]:
        return sorted(self._files)

    def files(self, unit: str) -> list[Path]:
        return [self._files[unit]]

    def convert(self, unit: str, writer: EpisodeWriter) -> Counts:
        """Converts the records of a file; of an end-to-end one, what `fragments` says is left to `join`."""
        self._segments.clear()
        read = bad = 0
        try:
            for where, payload in read_records(self._files[unit]):
                problems, images = len(writer.problems), writer.image_count
                read += 1
                found = None
                try:
                    if isinstance(payload, Refused):
                        raise payload
                    found = self._frame(where, payload, unit, writer)
                except Refused as error:
                    writer.problems.append(error.problem)
                if found is None or len(writer.problems) > problems:
                    bad += 1
                    writer.discard_images(after=images)
                else:
                    name, calibrations, frame = found
                    split = split_of(f"{self._folder}/{unit}")
                    segment = self._segments.setdefault(name, Segment(unit, where, split))
                    segment.add(calibrations, [frame])
        except Rest as error:  # what comes after damage in the framing cannot be found
            writer.problems.append(error.problem)
            read, bad = read + error.lost, bad + error.lost
        if not self._end_to_end:
            bad += self._write(self._segments, writer)
        return Counts(read=read, bad=bad)

    def fragments(self) -> dict[str, Any]:
        """What the file that was converted last has of each segment, as JSON values; nothing where it has it all."""
        if not self._end_to_end:
            return {}
        return {name: as_tree(segment) for name, segment in sorted(self._segments.items())}

    def join(
        self, fragments: Mapping[int, Mapping[str, Any]], writer: EpisodeWriter
    ) -> tuple[int, dict[int, set[str]]]:
        """Writes the episodes whose frames are spread over files.

        Args:
          fragments: Of each unit.
          writer: Without images, which are written already.

        Returns:
          Records that are bad, and by unit the drives whose images there are left out.
        """
        bad = 0
        segments: dict[str, Segment] = {}
        where: dict[str, list[int]] = {}
        left_out: dict[int, set[str]] = {number: set() for number in fragments}
        for number, trees in sorted(fragments.items()):
            for name, tree in trees.items():
                one = of_tree(tree)
                first = segments.get(name)
                if first is not None and first.split != one.split:
                    found = f"{first.split!r} in {first.source}, {one.split!r} here"
                    writer.problem(one.where, name, "a segment in files of one split", found)
                elif writer.claim(name, one.source if first is None else first.source):
                    if first is None:
                        segments[name] = one
                    else:
                        first.add(one.calibrations, one.frames)
                    where.setdefault(name, []).append(number)
                    continue
                bad += len(one.frames)
                left_out[number].add(name)
        for name, segment in segments.items():
            if lost := self._write({name: segment}, writer):
                bad += lost
                for number in where[name]:
                    left_out[number].add(name)
        return bad, left_out

    def _write(self, segments: Mapping[str, Segment], writer: EpisodeWriter) -> int:
        """Writes the episodes of segments whose frames have all been seen; returns frames of those that are bad."""
        bad = 0
        for name, segment in sorted(segments.items()):
            twice = repeated(segment.frames)
            for time in twice:
                writer.problem(segment.source, name, "each frame once", f"timestamp {time} twice")
            drive = Drive(
                id=name,
                dataset="waymo_e2e" if self._end_to_end else "waymo_perception_v1",
                scene_id=name,
                split=segment.split,
                frames=drive_frames(segment.frames, segment.calibrations, self._names),
                waypoint_dt_s=E2E_STEP_S if self._end_to_end else None,
                waypoint_steps=E2E_STEPS if self._end_to_end else None,
            )
            if not writer.add_drive(drive, source=segment.source) or twice:
                bad += len(segment.frames)
                writer.discard(name)
        return bad

    def _frame(
        self, where: str, payload: bytes, unit: str, writer: EpisodeWriter
    ) -> tuple[str, dict[str, Calibration], WaymoFrame] | None:
        """Segment, calibrations and frame of a record; None for a segment that is another file's."""
        record = Message(payload, where)
        message = record.message(1) if self._end_to_end else record
        context = None if message is None else message.message(1)
        name = None if context is None else context.text(1)
        time = None if message is None else message.integer(2)
        if message is None or context is None or not name or time is None:
            raise Refused(where, "", "context.name and timestamp_micros", "none; is the format right?")
        segment_name = segment_of(name) if self._end_to_end else name
        if not writer.claim(segment_name, unit):
            return None
        if segment_name in self._segments and time in (f.timestamp_micros for f in self._segments[segment_name].frames):
            writer.problem(unit, segment_name, "each frame once", f"timestamp {time} twice")
            return None
        calibrations = _calibrations(context, where)
        known = self._segments[segment_name].calibrations if segment_name in self._segments else {}
        sizes = {camera: one.size for camera, one in {**known, **calibrations}.items()}
        frame = WaymoFrame(
            timestamp_micros=time,
            pose=None if self._end_to_end else _pose(message.message(3), where),
            more=_e2e_fields(record, name, where) if self._end_to_end else {},
        )
        for image in message.messages(4):
            number = image.integer(1)
            camera = camera_name(number)
            if camera is None:
                raise Refused(where, "images[].name", "1 to 8", f"{number}")
            if camera not in self._names:
                continue
            if camera in frame.images:
                raise Refused(where, "images[].name", "each camera once in a frame", f"a second {camera}")
            frame.images[camera] = self._image(image, where, segment_name, time, camera, sizes.get(camera), writer)
        return segment_name, calibrations, frame

    def _image(
        self,
        image: Message,
        where: str,
        segment_name: str,
        time: int,
        camera: str,
        size: tuple[int, int] | None,
        writer: EpisodeWriter,
    ) -> WaymoImage:
        data = image.data(2)
        if data is None:
            raise Refused(where, "images[].image", f"an image of {camera}", "none")
        path = writer.add_image(
            segment_name,
            f"{time}_{self._names[camera]}",
            data,
            source=f"{where}, {camera}",
            size=size,
        )
        time_s = exposure_time(image.number(5), image.number(7), image.number(8))
        if self._end_to_end:  # whose poses are the identity: its worlds are taken away
            return WaymoImage(path=path, time_s=time_s, pose=None, velocity=None)
        return WaymoImage(
            path=path,
            time_s=time_s,
            pose=_pose(image.message(3), f"{where}, {camera}"),
            velocity=_velocity(image.message(4), f"{where}, {camera}"),
        )


def _velocity(velocity: Message | None, where: str) -> tuple[float, float, float] | None:
    """x and y in the world, and the yaw rate; a field that is absent is 0."""
    if velocity is None:
        return None
    try:
        return valid_velocity(*(velocity.number(number) or 0.0 for number in (1, 2, 6)))
    except ValueError as error:
        raise Refused(where, "velocity", "finite numbers", str(error)) from error


def _pose(transform: Message | None, where: str) -> Pose | None:
    try:
        return None if transform is None else valid_pose(transform.numbers(1))
    except ValueError as error:
        raise Refused(where, "pose", "16 finite numbers", str(error)) from error


def _calibrations(context: Message, where: str) -> dict[str, Calibration]:
    found = {}
    for message in context.messages(2):
        camera = camera_name(message.integer(1))
        intrinsic, extrinsic = message.numbers(2), message.message(3)
        transform = None if extrinsic is None else extrinsic.numbers(1)
        if camera is None or len(intrinsic) < 4 or (transform is not None and len(transform) not in (0, 16)):
            numbers = 0 if transform is None else len(transform)
            found_words = f"name {message.integer(1)}, {len(intrinsic)} and {numbers} numbers"
            expected = "a name of 1 to 8, 9 intrinsics and 16 extrinsics"
            raise Refused(where, "context.camera_calibrations", expected, found_words)
        width, height = message.integer(4), message.integer(5)
        found[camera] = Calibration(
            intrinsics=tuple(intrinsic[:4].tolist()),
            extrinsics=extrinsics_of(transform) if transform is not None and len(transform) else None,
            size=(height, width) if height and width else None,
        )
    return found


def _e2e_fields(record: Message, name: str, where: str) -> Mapping[str, Any]:
    """History, state, intent, future and rated trajectories of an E2EDFrame, as fields of a DriveFrame."""
    fields: dict[str, Any] = {"name": name}
    past, future = record.message(6), record.message(5)
    history = None if past is None else _history(past, where)
    if history is not None:
        forward = float(history.states[-1, 2])  # along x of the vehicle now, the last of the history
        fields |= {"history": history, "yaw_rate_radps": history.yaw_rate_radps}
        fields["speed_mps"] = forward if np.isfinite(forward) else None
    if future is not None and (waypoints := _waypoints(future, where, "future_states")):
        fields["waypoints"] = waypoints
    command = ROUTE_COMMANDS.get(record.integer(7) or 0)
    if command is not None:
        fields["route_command"] = command
    rated = [_rated(message, where, i) for i, message in enumerate(record.messages(8))]
    fields["rated"] = [one for one in rated if one is not None]
    return fields


def _history(past: Message, where: str) -> History | None:
    """Position, velocity and acceleration of the past states; None where there are none."""
    columns = [past.packed_floats(number) for number in (1, 2, 4, 5, 6, 7)]
    count = len(columns[0])
    for i, name in enumerate(("pos", "vel", "accel")):
        values, key = columns[2 * i : 2 * i + 2], f"past_states.{name}_x, {name}_y"
        lengths = {len(value) for value in values}
        if lengths != {count} and (name == "pos" or lengths != {0}):
            found = f"{len(values[0])} and {len(values[1])}"
            raise Refused(where, key, f"{count} of both, as of pos_x", found)
        if not all(np.isfinite(value).all() for value in values):
            raise Refused(where, key, "finite numbers", "NaN or Inf")
    if not count:
        return None
    states = [value if len(value) else np.full(count, np.nan) for value in columns]
    return History(dt_s=E2E_STEP_S, states=np.stack(states, axis=-1))


def _rated(states: Message, where: str, i: int) -> Rated | None:
    """A trajectory that people rated; None for one without a score, or with -1, which means that nobody did."""
    key, score = f"preference_trajectories[{i}]", states.number(8)
    if score is None or score == UNRATED:
        return None
    if not 0 <= score <= MAX_SCORE:
        raise Refused(where, f"{key}.preference_score", f"0 to {MAX_SCORE:g}, or {UNRATED:g} for none", f"{score:g}")
    waypoints = _waypoints(states, where, key)
    if not waypoints:
        raise Refused(where, f"{key}.pos_x, pos_y", "at least one place of a rated trajectory", "none")
    return Rated(waypoints=np.array(waypoints, np.float64), dt_s=E2E_STEP_S, score=score)


def _waypoints(states: Message, where: str, key: str) -> list[tuple[float, float]]:
    x, y = states.packed_floats(1), states.packed_floats(2)
    if len(x) != len(y):
        raise Refused(where, f"{key}.pos_x, pos_y", "as many of both", f"{len(x)} and {len(y)}")
    bad = np.flatnonzero(~(np.isfinite(x) & np.isfinite(y)))
    if len(bad):
        found = f"({x[bad[0]]}, {y[bad[0]]}) at place {bad[0]}"
        raise Refused(where, f"{key}.pos_x, pos_y", "finite numbers", found)
    return list(zip(x.tolist(), y.tolist(), strict=True))
