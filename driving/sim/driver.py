"""Drives a route through a town and keeps what happened: where the car was, what the others did, what was lit."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64

from chunkwise.data.sampling import Purpose, generator
from driving.sim import traffic
from driving.sim.roads import LANE, SPACING, Road, Turn, make_road
from driving.sim.traffic import STEP, Car, Light, Signal

HIDDEN = np.array([0.0, 0.0, np.nan])
"""Pose of a car that has gone: its heading is NaN."""
_ANNOUNCED = 40.0
"""Metres before a junction from which on the route says where to turn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """What there is to be seen at one time."""

    pose: Float64[np.ndarray, "3"]
    """Of the own car: x, y in metres and heading in rad."""
    lights: tuple[Light, ...]
    """What each signal shows."""
    cars: Float64[np.ndarray, "cars 3"]
    """Poses of the others that move; heading NaN once a car has gone."""
    braking: Bool[np.ndarray, " cars"]
    """Whether its brake lights are lit: it slows down, or stands."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drive:
    """One drive of T frames through one town."""

    road: Road
    signals: tuple[Signal, ...]
    t: Float64[np.ndarray, " T"]
    """Seconds since the start."""
    pose: Float64[np.ndarray, "T 3"]
    """x, y in metres and heading in rad, unwrapped."""
    speed: Float64[np.ndarray, " T"]
    yaw_rate: Float64[np.ndarray, " T"]
    """rad/s."""
    command: tuple[Turn | None, ...]
    """What the route says: where to turn at the junction ahead, or None."""
    lights: tuple[tuple[Light, ...], ...]
    """Per frame, what each signal shows."""
    cars: Float64[np.ndarray, "T cars 3"]
    """Poses of the others that move; heading NaN once a car has gone."""
    braking: Bool[np.ndarray, "T cars"]
    """Whether its brake lights are lit: it slows down, or stands."""

    def moment(self, frame: int) -> Moment:
        """What there is to be seen at a frame."""
        return Moment(
            pose=self.pose[frame], lights=self.lights[frame], cars=self.cars[frame], braking=self.braking[frame]
        )


def drive(seed: int, episode: int, *, seconds: float, rate: float) -> Drive:
    """A drive through a town of its own, a function of (seed, episode).

    The car follows its lane exactly but for a slow weaving of at most 0.2 m, keeps its distance, stops at red lights
    and behind those who stand, and slows down for bends. Its motion is kinematic: the pose is the integral of speed and
    yaw rate.

    Args:
      seed: Of the data set.
      episode: Number of the drive.
      seconds: Length of the drive.
      rate: Frames a second; 1 / rate must be a whole multiple of STEP.

    Raises:
      ValueError: If it is not.
    """
    every = round(1 / rate / STEP)
    if abs(every * STEP * rate - 1) > 1e-9:
        raise ValueError(f"rate is {rate} frames a second; expected a whole number of steps of {STEP} s between frames")
    rng = generator(Purpose.DRIVE, seed, episode)
    road = make_road(rng, 60 + 12 * seconds)
    manner = traffic.make_manner(rng)
    start = 8.0
    me = Car(s=start, speed=0.7 * manner.speed, manner=manner, profile=traffic.speed_profile(road, manner))
    signals = traffic.make_signals(rng, road)
    others = traffic.make_cars(rng, road, start)
    oncoming = _Oncoming(rng, road)
    weave = _Weave(rng)
    frames = []
    for step in range(round(seconds / STEP)):
        t = step * STEP
        if step % every == 0:
            frames.append(_Frame.of(road, me, others, oncoming, signals, weave, t))
        scale = [1 - float(road.curvature_at(car.s)) * -LANE / 2 for car in others]
        mine = 1 - float(road.curvature_at(me.s)) * (weave.offset(me.s) - LANE / 2)
        traffic.advance([*others, me], signals, road.length, t, [*scale, mine])
        oncoming.advance()
    return _collect(road, signals, frames, every * STEP)


class _Weave:
    """How far a driver strays to the left of the lane's middle: two slow waves along the road."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.length = rng.uniform([35, 15], [70, 35])
        self.phase = rng.uniform(0, 2 * np.pi, 2)
        self.size = rng.uniform([0.05, 0.0], [0.14, 0.05])

    def offset(self, s: float) -> float:
        """Metres."""
        return float((self.size * np.sin(2 * np.pi * s / self.length + self.phase)).sum())

    def slope(self, s: float) -> float:
        """Metres to the left a metre ahead."""
        return float((self.size * 2 * np.pi / self.length * np.cos(2 * np.pi * s / self.length + self.phase)).sum())


class _Oncoming:
    """Cars in the other lane, which drive the route the other way round."""

    def __init__(self, rng: np.random.Generator, road: Road) -> None:
        gaps = rng.uniform(35, 110, 8)
        self.s = np.cumsum(gaps)
        self.speed = rng.uniform(4.0, 8.0)  # one speed for all: nobody runs into the next
        self.road = road

    def advance(self) -> None:
        """One STEP; bends are taken at lower speed."""
        limit = np.sqrt(3.0 / np.maximum(np.abs(self.road.curvature_at(self.s)), 1e-3))
        self.s = self.s - STEP * np.minimum(self.speed, limit)

    def poses(self) -> Float64[np.ndarray, "cars 3"]:
        """Where they are; hidden outside the road."""
        poses = self.road.pose(self.s, LANE / 2) + np.array([0.0, 0.0, np.pi])
        outside = (self.s < 2) | (self.s > self.road.length - 2)
        return np.where(outside[:, None], HIDDEN, poses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Frame:
    """One frame of a drive; fields as in Drive, `yaw_rate` excepted, which needs the frames beside."""

    pose: Float64[np.ndarray, "3"]
    speed: float
    yaw_rate: float
    command: Turn | None
    lights: tuple[Light, ...]
    cars: Float64[np.ndarray, "cars 3"]
    braking: Bool[np.ndarray, " cars"]

    @staticmethod
    def of(
        road: Road,
        me: Car,
        others: list[Car],
        oncoming: _Oncoming,
        signals: Sequence[Signal],
        weave: _Weave,
        t: float,
    ) -> "_Frame":
        poses = [traffic.car_pose(road, car) for car in others]
        going = np.array([HIDDEN if pose is None else pose for pose in poses]).reshape(-1, 3)
        coming = oncoming.poses()
        return _Frame(
            pose=_my_pose(road, me.s, weave),
            speed=me.speed,
            yaw_rate=me.speed * _path_curvature(road, me.s, weave),
            command=command_at(road, me.s),
            lights=tuple(signal.state(t) for signal in signals),
            cars=np.concatenate([going, coming]),
            braking=np.array([is_braking(car) for car in others] + [False] * len(coming)),
        )


def _my_pose(road: Road, s: float, weave: _Weave) -> Float64[np.ndarray, "3"]:
    offset = weave.offset(s) - LANE / 2
    pose = road.pose(s, offset)
    scale = 1 - float(road.curvature_at(s)) * offset
    return pose + np.array([0.0, 0.0, np.arctan(weave.slope(s) / scale)])


def _path_curvature(road: Road, s: float, weave: _Weave) -> float:
    """Change of heading for a metre driven, by a central difference over 0.5 m."""
    behind, ahead = (_my_pose(road, s + d, weave) for d in (-SPACING, SPACING))
    return float((ahead[2] - behind[2]) / np.linalg.norm(ahead[:2] - behind[:2]))


def command_at(road: Road, s: float) -> Turn | None:
    """What the route says at `s`: where to turn at the junction ahead, or None."""
    for junction in road.junctions:
        if junction.enter - _ANNOUNCED <= s < junction.leave:
            return junction.turn
    return None


def is_braking(car: Car) -> bool:
    """Whether a car's brake lights are lit."""
    return car.accelerating < -0.5 or car.speed < 0.1


def _collect(road: Road, signals: tuple[Signal, ...], frames: list[_Frame], dt: float) -> Drive:
    return Drive(
        road=road,
        signals=signals,
        t=np.round(np.arange(len(frames)) * dt, 6),
        pose=np.array([frame.pose for frame in frames]),
        speed=np.array([frame.speed for frame in frames]),
        yaw_rate=np.array([frame.yaw_rate for frame in frames]),
        command=tuple(frame.command for frame in frames),
        lights=tuple(frame.lights for frame in frames),
        cars=np.array([frame.cars for frame in frames]),
        braking=np.array([frame.braking for frame in frames]),
    )
