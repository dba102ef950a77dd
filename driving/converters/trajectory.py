"""Where a vehicle was at any time of a recording, and how fast, from poses at known times."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from driving.data.targets import relative_pose

Pose = tuple[float, float, float]
"""x and y in metres, yaw in radians counter-clockwise, in a world frame fixed for the recording."""

MAX_GAP_S = 0.6
"""Poses farther apart are not interpolated; nuScenes' key frames are 0.5 s apart."""
WINDOW_S = 0.2
"""Speeds are differences over this time before, less at the start; where the last pose is older, there is none."""
MIN_WINDOW_S = 1e-3
"""Over less, rounding of the positions would be the speed."""


def pose_of_matrix(matrix: Sequence[float] | np.ndarray) -> Pose:
    """Pose of a 4 x 4 vehicle-to-world transform, row by row."""
    m = np.asarray(matrix, np.float64).reshape(4, 4)
    return float(m[0, 3]), float(m[1, 3]), math.atan2(m[1, 0], m[0, 0])


def rotation_of_quaternion(quaternion: Sequence[float] | np.ndarray) -> Float64[np.ndarray, "3 3"]:
    """Rotation of a quaternion w, x, y, z, which need not have unit length but must not be 0."""
    w, x, y, z = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


class Trajectory:
    """Poses by time; of several poses at one time the first counts."""

    def __init__(self, points: Iterable[tuple[float, Pose]]) -> None:
        """Takes (seconds, pose) in any order."""
        listed = sorted(points, key=lambda point: point[0])
        times = np.array([time for time, _ in listed], np.float64)
        poses = np.array([pose for _, pose in listed], np.float64).reshape(-1, 3)
        self._times, first = np.unique(times, return_index=True)
        self._poses = poses[first]
        self._poses[:, 2] = np.unwrap(self._poses[:, 2])

    def at(self, time: float) -> Pose | None:
        """Pose at a time, interpolated; None outside the recording, and in a gap of more than MAX_GAP_S."""
        pose = self._at(time)
        return None if pose is None else (float(pose[0]), float(pose[1]), math.remainder(float(pose[2]), math.tau))

    def ahead(self, time: float, *, steps: int, dt_s: float) -> list[tuple[float, float]] | None:
        """Places dt_s, 2 dt_s, ... after a time, in the vehicle frame of that time, as far as `at` knows them.

        None where the pose at that time is not known.
        """
        here = self._at(time)
        if here is None:
            return None
        places: list[tuple[float, float]] = []
        for step in range(1, steps + 1):
            there = self._at(time + step * dt_s)
            if there is None:
                break
            x, y, _ = relative_pose(here, there).tolist()
            places.append((x, y))
        return places

    def speed(self, time: float) -> float | None:
        """Metres a second along the vehicle's x axis, negative in reverse; None where `velocity` is."""
        moved = self._moved(time)
        if moved is None:
            return None
        (x, y, _), yaw = moved
        return x * math.cos(yaw) + y * math.sin(yaw)

    def yaw_rate(self, time: float) -> float | None:
        """Radians a second, counter-clockwise; None where `velocity` is."""
        velocity = self.velocity(time)
        return None if velocity is None else velocity[2]

    def velocity(self, time: float) -> tuple[float, float, float] | None:
        """Change of x, y and yaw a second, over WINDOW_S as far as there are poses: no pose after `time` is looked at.

        None where no pose lies within WINDOW_S before `time`, and where there is but one, or a gap before it.
        """
        moved = self._moved(time)
        return None if moved is None else moved[0]

    def _moved(self, time: float) -> tuple[tuple[float, float, float], float] | None:
        """Velocity, and the yaw in the middle of the way that it was taken over."""
        times = self._times
        last = int(times.searchsorted(time, side="right")) - 1
        if last < 0 or time - times[last] > WINDOW_S:
            return None
        start = float(times[last]) - WINDOW_S
        from_pose = self._at(start)
        if from_pose is None:
            first = int(times.searchsorted(start))
            start, from_pose = float(times[first]), self._poses[first]
        seconds = float(times[last]) - start
        if seconds < MIN_WINDOW_S:
            return None
        x, y, yaw = ((self._poses[last] - from_pose) / seconds).tolist()
        return (x, y, yaw), float(self._poses[last][2] + from_pose[2]) / 2

    def _at(self, time: float) -> Float64[np.ndarray, "3"] | None:
        times = self._times
        after = int(times.searchsorted(time))
        if after < len(times) and times[after] == time:
            return self._poses[after]
        if after in (0, len(times)) or times[after] - times[after - 1] > MAX_GAP_S:
            return None
        share = (time - times[after - 1]) / (times[after] - times[after - 1])
        return self._poses[after - 1] + share * (self._poses[after] - self._poses[after - 1])
