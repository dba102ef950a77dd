"""What Waymo's formats share: camera names, conventions of its frames, and a drive from frames with their images.

Waymo's camera frame has x along the view, y left, z up; an episode's has x right, y down, z along the view. A frame's
own timestamp is the start of a LiDAR spin and its pose roughly that spin's middle; each image has its exact pose,
time and velocity (dataset.proto). So a frame's time and state are those of its front image, and where that is missing
the mean of its images' times with the pose between those that are known.
Lens distortion (k1, k2, p1, p2, k3) is left out: an episode's cameras are pinholes.
"""

import collections
import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driving.converters.episode_writer import DriveCamera, DriveFrame
from driving.converters.trajectory import Pose, Trajectory, pose_of_matrix

CAMERA_MAP: Mapping[str, str] = json.loads(Path(__file__).with_name("waymo_cameras.json").read_text())
"""CameraName.Name in the order of its numbers, which begin at 1, to the name in an episode."""
REFERENCE = "FRONT"
OPTICAL_TO_WAYMO = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]], np.float64)
"""Right, down, ahead to ahead, left, up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """One camera."""

    intrinsics: tuple[float, ...]
    """f_u, f_v, c_u, c_v."""
    extrinsics: tuple[float, ...] | None
    size: tuple[int, int] | None
    """Height, width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaymoImage:
    """One image as stored."""

    path: str | None
    time_s: float | None
    pose: Pose | None
    velocity: tuple[float, float, float] | None
    """x, y in the world in m/s, and the yaw rate."""


@dataclasses.dataclass(kw_only=True)
class WaymoFrame:
    """One frame as stored."""

    timestamp_micros: int
    pose: Pose | None = None
    """Of about the middle of the LiDAR spin."""
    images: dict[str, WaymoImage] = dataclasses.field(default_factory=dict)
    """By Waymo's camera name."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of DriveFrame that replace what the images say."""


def camera_name(value: Any) -> str | None:
    """Waymo's name of a camera from its number, from that number as text, or from its name; None for others.

    Real files hold numbers where their printed form, and some converted files, hold names.
    """
    names = list(CAMERA_MAP)
    text = value.decode() if isinstance(value, bytes) else str(value).strip()
    if text.isdecimal():
        return names[int(text) - 1] if 1 <= int(text) <= len(names) else None
    text = text.rpartition(".")[2].upper()
    return text if text in CAMERA_MAP else None


def extrinsics_of(transform: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    """Extrinsics of an episode from Waymo's camera-to-vehicle transform, both row by row."""
    matrix = np.asarray(transform, np.float64).reshape(4, 4) @ OPTICAL_TO_WAYMO
    return tuple(matrix.reshape(-1).tolist())


def exposure_time(pose_timestamp: float | None, trigger: float | None, readout_done: float | None) -> float | None:
    """When an image was taken: the time of its pose, else the middle between trigger and end of read-out."""
    if pose_timestamp:
        return pose_timestamp
    return (trigger + readout_done) / 2 if trigger and readout_done else None


def drive_frames(
    frames: Sequence[WaymoFrame], calibrations: Mapping[str, Calibration], names: Mapping[str, str]
) -> list[DriveFrame]:
    """Frames of an episode.

    Args:
      frames: Of one segment, in any order.
      calibrations: By Waymo's camera name.
      names: Waymo's camera name to the name in the episode.
    """
    trajectory = Trajectory(
        (image.time_s, image.pose)
        for frame in frames
        for image in frame.images.values()
        if image.time_s is not None and image.pose is not None
    )
    found = []
    for frame, time in zip(frames, _times(frames), strict=True):
        cameras = {
            names[name]: _camera(image, calibrations.get(name)) for name, image in frame.images.items() if name in names
        }
        speed, yaw_rate = _velocity(frame, trajectory, time)
        fields: dict[str, Any] = {
            "time_s": time,
            "cameras": cameras,
            "pose": trajectory.at(time) or frame.pose,
            "speed_mps": speed,
            "yaw_rate_radps": yaw_rate,
        }
        found.append(DriveFrame(**(fields | dict(frame.more))))
    return found


def _camera(image: WaymoImage, calibration: Calibration | None) -> DriveCamera:
    return DriveCamera(
        path=image.path,
        time_s=image.time_s,
        pose=image.pose,
        intrinsics=None if calibration is None else calibration.intrinsics,
        extrinsics=None if calibration is None else calibration.extrinsics,
    )


def _times(frames: Sequence[WaymoFrame]) -> list[float]:
    """Time of each frame; one without any image is as late after its timestamp as the others are."""
    times: list[float | None] = []
    for frame in frames:
        front = frame.images.get(REFERENCE)
        known = [image.time_s for image in frame.images.values() if image.time_s is not None]
        if front is not None and front.time_s is not None:
            times.append(front.time_s)
        else:
            times.append(statistics.fmean(known) if known else None)
    late = [time - frame.timestamp_micros * 1e-6 for time, frame in zip(times, frames, strict=True) if time is not None]
    offset = statistics.median(late) if late else 0.0
    return [
        frame.timestamp_micros * 1e-6 + offset if time is None else time
        for time, frame in zip(times, frames, strict=True)
    ]


def _velocity(frame: WaymoFrame, trajectory: Trajectory, time: float) -> tuple[float | None, float | None]:
    """Speed along the vehicle's x axis and yaw rate: as recorded with the front image or another, else from poses."""
    order = sorted(frame.images, key=lambda name: list(CAMERA_MAP).index(name))
    for name in order:
        image = frame.images[name]
        if image.velocity is not None and image.pose is not None:
            x, y, yaw_rate = image.velocity
            return float(x * np.cos(image.pose[2]) + y * np.sin(image.pose[2])), yaw_rate
    return trajectory.speed(time), trajectory.yaw_rate(time)


def repeated(frames: Sequence[WaymoFrame]) -> list[int]:
    """Timestamps that more than one frame has."""
    counts = collections.Counter(frame.timestamp_micros for frame in frames)
    return sorted(time for time, count in counts.items() if count > 1)


def valid_velocity(x: float, y: float, yaw_rate: float) -> tuple[float, float, float]:
    """The three numbers of a velocity. Raises ValueError if one is NaN or Inf."""
    if not np.isfinite([x, y, yaw_rate]).all():
        raise ValueError(f"({x}, {y}), yaw rate {yaw_rate}")
    return float(x), float(y), float(yaw_rate)


def valid_pose(transform: Sequence[float] | np.ndarray | None) -> Pose | None:
    """Pose of a transform of 16 finite numbers; None for an absent or empty one.

    Raises:
      ValueError: It has another length, or NaN or Inf in it.
    """
    if transform is None or not len(transform):
        return None
    if len(transform) != 16 or not np.isfinite(transform).all():
        raise ValueError(f"{len(transform)} numbers, {int(np.isfinite(transform).sum())} of them finite")
    return pose_of_matrix(transform)
