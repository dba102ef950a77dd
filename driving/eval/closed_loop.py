"""What a drive in closed loop is worth: infractions, progress, comfort, and one score of them.

The measures are those of nuPlan (nuplan-devkit, docs/metrics_description.md) and NAVSIM (arXiv:2406.15349; navsim,
docs/metrics.md and pdm_scorer.py), with their bounds; where this differs it says so. The score is NAVSIM's PDM score
with the two multipliers that its version 2 adds, DDC and TLC (arXiv:2506.04218), and nuPlan's of making progress, MP,
without which one who stands has seven twelfths:

  score = NC DAC DDC TLC MP (5 TTC + 5 EP + 2 C) / 12
"""

import dataclasses
import functools
from typing import Literal

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float64

from chunkwise.envs.rollout import Rollout
from driving.sim.roads import LANE, Road
from driving.sim.traffic import CAR_LENGTH, CAR_WIDTH, Light, Signal

STANDS_MPS = 0.05
"""Slower is standing, as in nuPlan's kinds of collision."""
EDGE_M = 0.4
"""Asphalt beside a lane."""
OUTSIDE_M = 0.3
"""By which a corner may leave the road: nuPlan's max_violation_threshold."""
WRONG_WAY_S, WRONG_WAY_M = 1.0, (2.0, 6.0)
"""Metres off the route's lanes within a second from which on DDC is 1/2 and 0: NAVSIM's."""
TTC_S = 0.95
"""nuPlan's least_min_ttc."""
_REACH_M = CAR_LENGTH + 2 * 13.0 * TTC_S
"""Cars farther away meet nobody within that, at 13 m/s each."""
LEAST_PROGRESS_M, LEAST_PROGRESS = 0.1, 0.2
"""nuPlan's score_progress_threshold, and its min_progress_threshold: MP is 0 below."""
BOUNDS = {
    "longitudinal acceleration": (-4.05, 2.40),
    "lateral acceleration": (-4.89, 4.89),
    "yaw acceleration": (-1.93, 1.93),
    "yaw rate": (-0.95, 0.95),
    "longitudinal jerk": (-4.13, 4.13),
    "jerk": (-8.37, 8.37),
}
"""Of comfort, nuPlan's and NAVSIM's alike: m/s^2, rad/s^2, rad/s, m/s^3."""
_LEAST_FRAMES = 5
"""Fewer have no yaw acceleration by the filter of nuPlan; such a drive counts as comfortable."""
WEIGHTS = {"ttc": 5.0, "progress": 5.0, "comfort": 2.0}
MULTIPLIERS = ("no_fault_collision", "drivable_area", "driving_direction", "traffic_light")

Collision = Literal["stopped ego", "stopped other", "rear", "front", "side"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened in a drive: T frames, the first where the policy begins."""

    road: Road
    signals: tuple[Signal, ...]
    dt_s: float
    pose: Float64[np.ndarray, "T 3"]
    """Of the own car's middle: x, y in metres and heading in rad, unwrapped."""
    speed: Float64[np.ndarray, " T"]
    acceleration: Float64[np.ndarray, " T"]
    """Along the car, m/s^2."""
    yaw_rate: Float64[np.ndarray, " T"]
    cars: Float64[np.ndarray, "T cars 3"]
    """Of the others; heading NaN once one has gone."""
    car_speed: Float64[np.ndarray, "T cars"]
    lights: tuple[tuple[Light, ...], ...]
    """Of each frame, what each signal shows."""

    @functools.cached_property
    def places(self) -> Float64[np.ndarray, "T 2"]:
        """`s` and `offset` of the car's middle on the road, m."""
        return self._projected(self.pose[:, :2])

    @functools.cached_property
    def front(self) -> Float64[np.ndarray, "T 2"]:
        """`s` and `offset` of the middle of the car's front, m."""
        ahead = np.stack([np.cos(self.pose[:, 2]), np.sin(self.pose[:, 2])], axis=-1) * CAR_LENGTH / 2
        return self._projected(self.pose[:, :2] + ahead)

    @functools.cached_property
    def in_lane(self) -> Bool[np.ndarray, " T"]:
        """Whether the whole car is within the route's own lane; 0.1 m more on either side is left to it."""
        offsets = self._projected(corners(self.pose).reshape(-1, 2))[:, 1].reshape(-1, 4)
        return np.asarray(((offsets > -LANE - 0.1) & (offsets < 0.1)).all(axis=1))

    @functools.cached_property
    def outside(self) -> Float64[np.ndarray, " T"]:
        """Metres by which the farthest corner of the car is off the road; 0 on it.

        The road is all asphalt of the town: every lane, also of roads that the route does not take, and the junctions.
        """
        lines = np.concatenate([self.road.points, *self.road.branch_lines])
        points = corners(self.pose)
        away = np.array([np.sqrt(np.square(four[:, None] - lines).sum(axis=-1).min(axis=-1)) for four in points])
        away -= LANE + EDGE_M
        for junction in self.road.junctions:
            away = np.minimum(away, np.linalg.norm(points - junction.centre, axis=-1) - (LANE + EDGE_M + 3.0))
        return np.maximum(away.max(axis=1), 0.0)

    def part(self, first: int, last: int) -> "Trace":
        """Returns the frames from one to before another, with what is already known of each."""
        rows = slice(first, last)
        names = ("pose", "speed", "acceleration", "yaw_rate", "cars", "car_speed", "lights")
        part = dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})
        known = [name for name in ("places", "front", "in_lane", "outside") if name in vars(self)]
        vars(part).update({name: getattr(self, name)[rows] for name in known})
        return part

    def _projected(self, points: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "n 2"]:
        return np.array([self.road.project(point) for point in points])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What a drive is worth: each 0 to 1, higher is better, but for `metres`."""

    no_fault_collision: float
    """NC: 0 after a collision that is the own car's fault."""
    drivable_area: float
    """DAC: 0 where a corner of the car left the road by more than 0.3 m."""
    driving_direction: float
    """DDC: 1/2 and 0 where the car drove 2 and 6 m within a second outside the route's lanes."""
    traffic_light: float
    """TLC: 0 where the car's front passed a stop line while the light was red."""
    ttc: float
    """0 where less than 0.95 s were left to a collision."""
    comfort: float
    """1 where all of BOUNDS were kept."""
    metres: float
    """Along the route."""

    @classmethod
    def read(cls, numbers: Float[np.ndarray, " fields"]) -> "Result":
        """Returns a result of its fields' numbers in their order, as the town shows it."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**dict(zip(names, numbers.astype(np.float64).tolist(), strict=True)))

    @property
    def infractions(self) -> tuple[str, ...]:
        """Multipliers that are not 1."""
        return tuple(name for name in MULTIPLIERS if getattr(self, name) < 1)

    def progress(self, expert_metres: float) -> float:
        """EP: progress along the route by that of the expert, within 0 and 1, as nuPlan's ratio."""
        return float(min(1.0, max(self.metres, LEAST_PROGRESS_M) / max(expert_metres, LEAST_PROGRESS_M)))

    def score(self, expert_metres: float, *, least_progress: float = LEAST_PROGRESS) -> float:
        """The PDM score of the module's formula; MP is 0 below `least_progress`."""
        progress = self.progress(expert_metres)
        multiplied = float(np.prod([getattr(self, name) for name in MULTIPLIERS])) * (progress >= least_progress)
        parts = {"ttc": self.ttc, "progress": progress, "comfort": self.comfort}
        return multiplied * sum(WEIGHTS[name] * value for name, value in parts.items()) / sum(WEIGHTS.values())


def result_of(rollout: Rollout) -> Result:
    """Returns what a drive in a town with measured=True was worth."""
    return Result.read(rollout.observations["result"][-1])


def measure(trace: Trace) -> Result:
    """Returns what a drive is worth."""
    s, offset = trace.places.T
    return Result(
        no_fault_collision=0.0 if any(at_fault for _, _, at_fault in collisions(trace)) else 1.0,
        drivable_area=0.0 if (trace.outside > OUTSIDE_M).any() else 1.0,
        driving_direction=_driving_direction(trace, s, offset),
        traffic_light=0.0 if passes_red(trace) else 1.0,
        ttc=0.0 if _too_close(trace) else 1.0,
        comfort=float(all(within_bounds(trace).values())),
        metres=max(0.0, float(s[-1] - s[0])),
    )


def corners(pose: Float64[np.ndarray, "*n 3"]) -> Float64[np.ndarray, "*n 4 2"]:
    """Front left, front right, rear right, rear left corner of cars."""
    half = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * np.array([CAR_LENGTH / 2, CAR_WIDTH / 2])
    cos, sin = np.cos(pose[..., 2, None]), np.sin(pose[..., 2, None])
    x, y = half[:, 0], half[:, 1]
    return pose[..., None, :2] + np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def collisions(trace: Trace) -> list[tuple[int, Collision, bool]]:
    """Frame, kind, and whether it is the own car's fault, of the first contact with each other car.

    At fault as in nuPlan: with a car that stands, with the front, or at the side while the own car is not within its
    lane; never while the own car stands, nor where it is hit from behind.
    """
    found: list[tuple[int, Collision, bool]] = []
    for car in range(trace.cars.shape[1]):
        for frame in _near(trace.pose, trace.cars[:, car]):
            own, other = trace.pose[frame], trace.cars[frame, car]
            if not overlap(own, other):
                continue
            kind = _kind(own, float(trace.speed[frame]), other, float(trace.car_speed[frame, car]))
            fault = kind in ("stopped other", "front") or (kind == "side" and not trace.in_lane[frame])
            found.append((frame, kind, fault))
            break
    return sorted(found, key=lambda one: one[0])


def overlap(
    one: Float64[np.ndarray, "3"], other: Float64[np.ndarray, "3"], *, length: float = CAR_LENGTH, front: float = 0.0
) -> bool:
    """Whether a car and another touch; `length` and `front`, metres ahead of its middle, make a part of the first."""
    ahead = np.array([np.cos(one[2]), np.sin(one[2])]) * front
    first, second = (0.0, 0.0), other[:2] - one[:2] - ahead  # beside the first: float32 has few digits far away
    boxes = [
        (first, (length, CAR_WIDTH), float(np.rad2deg(one[2]))),
        (tuple(second.tolist()), (CAR_LENGTH, CAR_WIDTH), float(np.rad2deg(other[2]))),
    ]
    return bool(cv2.rotatedRectangleIntersection(*boxes)[0] != cv2.INTERSECT_NONE)


def passes_red(trace: Trace) -> bool:
    """Whether the car's front came to the other side of a stop line while its light was red.

    NAVSIM asks whether the car is in a lane of the junction whose light is red, which is also so for one that came in
    time and has not left.
    """
    front = trace.front.tolist()
    for i, signal in enumerate(trace.signals):
        line = signal.junction.enter
        for frame in range(1, len(front)):
            passes = front[frame - 1][0] <= line < front[frame][0] and abs(front[frame][1]) < 2 * LANE
            if passes and trace.lights[frame][i] == "red":
                return True
    return False


def within_bounds(trace: Trace) -> dict[str, bool]:
    """Whether each of BOUNDS was kept throughout.

    Derivatives by the filters of nuPlan (scipy's savgol_filter of order 2): accelerations smoothed over 8 frames, jerk
    the slope over 15 frames of what was smoothed, yaw rate the slope of the heading over 5, yaw acceleration the second
    derivative, of order 3, over 5. The jerk is that of the acceleration's magnitude.
    """
    frames = len(trace.pose)
    if frames < _LEAST_FRAMES:
        return dict.fromkeys(BOUNDS, True)
    across = trace.speed * trace.yaw_rate
    along, sideways, whole = (
        _filtered(x, 8) for x in (trace.acceleration, across, np.hypot(trace.acceleration, across))
    )
    dt = trace.dt_s
    values = {
        "longitudinal acceleration": along,
        "lateral acceleration": sideways,
        "yaw acceleration": _filtered(trace.pose[:, 2], 5, order=3, derivative=2, dt_s=dt),
        "yaw rate": _filtered(trace.pose[:, 2], 5, derivative=1, dt_s=dt),
        "longitudinal jerk": _filtered(along, 15, derivative=1, dt_s=dt),
        "jerk": _filtered(whole, 15, derivative=1, dt_s=dt),
    }
    return {name: bool(((values[name] > low) & (values[name] < high)).all()) for name, (low, high) in BOUNDS.items()}


def _filtered(
    x: Float[np.ndarray, " T"], window: int, *, order: int = 2, derivative: int = 0, dt_s: float = 1.0
) -> Float64[np.ndarray, " T"]:
    from scipy.signal import savgol_filter  # not above: importing it takes 0.8 s, and only drives are judged by it

    return np.asarray(savgol_filter(x, min(window, len(x)), order, deriv=derivative, delta=dt_s))


def _driving_direction(trace: Trace, s: Float64[np.ndarray, " T"], offset: Float64[np.ndarray, " T"]) -> float:
    """DDC: by how far the car's middle drove within a second while it was not in the route's lane.

    Within a junction there are no markings: there it is the route's as long as it is less than a lane beside its lane.
    """
    crossing = np.zeros(len(s), bool)
    for junction in trace.road.junctions:
        crossing |= (junction.enter < s) & (s < junction.leave)
    beside = np.abs(offset + LANE / 2)
    off = beside > np.where(crossing, LANE, LANE / 2)
    driven = np.concatenate([[0.0], np.linalg.norm(np.diff(trace.pose[:, :2], axis=0), axis=1)]) * off
    frames = round(WRONG_WAY_S / trace.dt_s)
    most = max(driven[max(0, i - frames) : i + 1].sum() for i in range(len(driven)))
    return 1.0 if most < WRONG_WAY_M[0] else 0.5 if most < WRONG_WAY_M[1] else 0.0


def _too_close(trace: Trace) -> bool:
    """Whether less than TTC_S were left to a collision, were the own car to go on as it does at a frame.

    As in nuPlan others count that are ahead, within 30 degrees, and where the own car is not within its lane all but
    those behind; a car that stands closes in on nobody. As in NAVSIM the others are where they came to be. The own car
    goes on at its speed and its yaw rate, where both projects take it straight on: in bends of 11 m radius, which
    their roads lack, a straight line meets the oncoming cars of the town within 0.95 s.
    """
    after = np.arange(round(TTC_S / trace.dt_s + 0.5))
    own = trace.pose[:, None] + _driven(trace.speed, trace.yaw_rate, trace.pose[:, 2], after * trace.dt_s)
    last, speed = trace.cars[-1], trace.car_speed[-1]
    beyond = last[:, None] + _driven(speed, np.zeros_like(speed), last[:, 2], after[1:] * trace.dt_s)
    others = np.concatenate([trace.cars, beyond.swapaxes(0, 1)])  # behind the end they drive straight on
    for car in range(trace.cars.shape[1]):
        for frame in _near(trace.pose, trace.cars[:, car], reach=_REACH_M):
            bearing = abs(_bearing(trace.pose[frame], trace.cars[frame, car]))
            if trace.speed[frame] < STANDS_MPS or bearing > (np.pi / 6 if trace.in_lane[frame] else np.deg2rad(150)):
                continue
            for k in after.tolist():
                other = others[frame + k, car]
                if not np.isnan(other[2]) and overlap(own[frame, k], other):
                    return True
    return False


def _driven(
    speed: Float64[np.ndarray, " T"],
    yaw_rate: Float64[np.ndarray, " T"],
    heading: Float64[np.ndarray, " T"],
    seconds: Float64[np.ndarray, " n"],
) -> Float64[np.ndarray, "T n 3"]:
    """Change of the pose after so many seconds at constant speed and yaw rate."""
    turned = yaw_rate[:, None] * seconds
    chord = speed[:, None] * seconds * np.sinc(turned / 2 / np.pi)
    along = heading[:, None] + turned / 2
    return np.stack([chord * np.cos(along), chord * np.sin(along), turned], axis=-1)


def _bearing(own: Float64[np.ndarray, "3"], other: Float64[np.ndarray, "3"]) -> float:
    """Direction in which the other is seen, rad to the left of straight ahead."""
    away = other[:2] - own[:2]
    return float((np.arctan2(away[1], away[0]) - own[2] + np.pi) % (2 * np.pi) - np.pi)


def _kind(
    own: Float64[np.ndarray, "3"], speed: float, other: Float64[np.ndarray, "3"], other_speed: float
) -> Collision:
    """Kind of a collision, in nuPlan's order; behind is more than 150 degrees to either side."""
    if speed <= STANDS_MPS:
        return "stopped ego"
    if other_speed <= STANDS_MPS:
        return "stopped other"
    if abs(_bearing(own, other)) > np.deg2rad(150):
        return "rear"
    bumper = 0.05
    return "front" if overlap(own, other, length=bumper, front=(CAR_LENGTH - bumper) / 2) else "side"


def _near(
    own: Float64[np.ndarray, "T 3"], other: Float64[np.ndarray, "T 3"], reach: float = CAR_LENGTH + 1.0
) -> list[int]:
    """Frames at which another car is there and near."""
    with np.errstate(invalid="ignore"):
        near = np.linalg.norm(own[:, :2] - other[:, :2], axis=1) < reach
    return np.flatnonzero(near & ~np.isnan(other[:, 2])).tolist()
