"""Other cars and traffic lights, and how fast whoever follows the route drives."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64

from driving.sim.roads import JUNCTION_HALF, LANE, SPACING, TURN_ANGLE, Junction, Road, Turn, direction

CAR_LENGTH, CAR_WIDTH = 4.4, 1.9
"""Metres."""
STEP = 0.02
"""Seconds of one step of the simulation."""
_COMFORT = 3.2
"""Deceleration that drivers choose, m/s^2."""
GONE = 60.0
"""Metres behind a junction at which a car that left the route disappears."""

HIDDEN = np.array([0.0, 0.0, np.nan])
"""Pose of a car that has gone: its heading is NaN."""

Light = Literal["green", "yellow", "red"]


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
class Signal:
    """The lights of one junction: a cycle of green, yellow and red."""

    junction: Junction
    green: float
    yellow: float
    red: float
    """Seconds of each."""
    phase: float
    """Seconds into the cycle at time 0."""

    def state(self, t: float) -> Light:
        """What is lit at time t, seconds."""
        into = (t + self.phase) % (self.green + self.yellow + self.red)
        return "green" if into < self.green else "yellow" if into < self.green + self.yellow else "red"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manner:
    """How a driver drives."""

    speed: float
    """On a free straight road, m/s."""
    acceleration: float
    lateral: float
    """Lateral acceleration at which bends are taken, m/s^2."""
    headway: float
    """Seconds to the car ahead."""


def make_manner(rng: np.random.Generator) -> Manner:
    """Manners of drivers who differ little, so that what they do next follows from what they see."""
    return Manner(
        speed=rng.uniform(10.5, 11.5),
        acceleration=rng.uniform(2.3, 2.7),
        lateral=rng.uniform(4.2, 4.8),
        headway=rng.uniform(0.9, 1.1),
    )


def speed_profile(road: Road, manner: Manner) -> Float64[np.ndarray, " n"]:
    """Highest speed at each point of the centre line that lets a driver brake in time for the bends ahead, m/s."""
    bends = np.sqrt(manner.lateral / np.maximum(np.abs(road.curvature), 1e-4))
    square = np.minimum(bends, manner.speed) ** 2
    for i in range(len(square) - 2, -1, -1):
        square[i] = min(square[i], square[i + 1] + 2 * _COMFORT * SPACING)
    return np.sqrt(square)


def acceleration(manner: Manner, speed: float, allowed: float, gap: float, lead_speed: float) -> float:
    """Intelligent driver model (Treiber, Hennecke, Helbing 2000, doi:10.1103/PhysRevE.62.1805).

    a (1 - (v / v0)^4 - (s* / s)^2) with s* = 2 m + v T + v (v - v_lead) / (2 sqrt(a b)), kept above -6 m/s^2; above
    the speed that the road allows a driver brakes to reach it within 0.4 s.

    Args:
      manner: Of the driver.
      speed: v, m/s.
      allowed: v0, m/s.
      gap: s, metres to the car, or to the stop line, ahead.
      lead_speed: Its speed, m/s.
    """
    a = manner.acceleration
    wanted = 2.0 + speed * manner.headway + speed * (speed - lead_speed) / (2 * np.sqrt(a * _COMFORT))
    interaction = (max(wanted, 0.0) / max(gap, 0.1)) ** 2
    free = 1 - (speed / max(allowed, 0.1)) ** 4 if speed <= allowed else min((allowed - speed) / 0.4 / a, 0.0)
    return float(np.clip(a * (free - interaction), -6.0, a))


@dataclasses.dataclass(kw_only=True)
class Car:
    """A car on the route's lane; it may stand for a while, and may leave the route at a junction."""

    s: float
    speed: float
    manner: Manner
    profile: Float64[np.ndarray, " n"]
    leaves: Junction | None = None
    leaves_towards: Turn = "straight"
    stands: float = 0.0
    """Seconds for which it goes on standing once somebody waits behind it."""
    accelerating: float = 0.0
    """m/s^2."""

    @property
    def off(self) -> float:
        """Metres behind the stop line at which it left the route; negative on the route."""
        return -1.0 if self.leaves is None else self.s - self.leaves.enter

    @property
    def braking(self) -> bool:
        """Whether its brake lights are lit."""
        return self.accelerating < -0.5 or self.speed < 0.1


def advance(
    cars: Sequence[Car],
    signals: Sequence[Signal],
    ahead_of_all: float,
    t: float,
    scale: Sequence[float],
    *,
    step: float = STEP,
) -> None:
    """Moves the cars of one lane by one step, the foremost first.

    Args:
      cars: Ordered from front to back.
      signals: Of the route's junctions.
      ahead_of_all: s that nobody passes, m.
      t: Time, s.
      scale: For each car, metres that it drives for one metre of the centre line.
      step: Seconds.
    """
    front, front_speed = ahead_of_all, 0.0
    for i, car in enumerate(cars):
        gap, lead = front - car.s - CAR_LENGTH, front_speed
        for signal in signals:
            distance = signal.junction.enter - car.s - CAR_LENGTH / 2
            state = signal.state(t)
            late = state == "yellow" and distance < car.speed**2 / (2 * 3.0)
            if state != "green" and not late and 0 < distance + 0.3 < gap:
                gap, lead = distance + 0.3, 0.0
        allowed = float(np.interp(car.s + 0.2 * car.speed, np.arange(len(car.profile)) * SPACING, car.profile))
        car.accelerating = acceleration(car.manner, car.speed, allowed, gap, lead)
        if car.stands > 0:
            waiting = i + 1 < len(cars) and car.s - cars[i + 1].s < 9.5
            car.stands -= step * waiting
            car.accelerating = 0.0
        before = car.speed
        car.speed = max(0.0, car.speed + step * car.accelerating)
        car.s += step * (before + car.speed) / 2 / scale[i]
        if car.off < 6.0:  # whoever turned off no longer blocks the lane
            front, front_speed = car.s, car.speed


def car_pose(road: Road, car: Car) -> Float64[np.ndarray, "3"] | None:
    """x, y, heading of a car on the route or on the branch by which it left it; None once it has gone."""
    if car.off < 0:
        return road.pose(car.s, -LANE / 2)
    assert car.leaves is not None
    if car.off >= GONE:
        return None
    return crossing_pose(car.leaves.centre, car.leaves.heading, TURN_ANGLE[car.leaves_towards], car.off)


def crossing_pose(
    centre: Float64[np.ndarray, "2"], towards: float, angle: float, distance: float
) -> Float64[np.ndarray, "3"]:
    """Pose in the right-hand lane of whoever crosses a junction.

    Args:
      centre: Of the junction.
      towards: Heading of the road that leads in, rad.
      angle: By which the way turns there, rad: a TURN_ANGLE.
      distance: Metres driven since the stop line; negative before it.
    """
    ahead, left = direction(towards), direction(towards + np.pi / 2)
    start = centre - JUNCTION_HALF * ahead
    inside = JUNCTION_HALF * (np.pi / 2 if angle else 2.0)
    if distance < 0:
        return np.array([*(start + distance * ahead - LANE / 2 * left), towards])
    part = min(distance / inside, 1.0)
    heading = towards + angle * part
    if angle:
        sign = np.sign(angle)
        middle = start + sign * JUNCTION_HALF * left
        point = middle - sign * JUNCTION_HALF * direction(heading + np.pi / 2)
    else:
        point = start + part * inside * ahead
    point = point + max(distance - inside, 0.0) * direction(heading) - LANE / 2 * direction(heading + np.pi / 2)
    return np.array([*point, heading])


def make_signals(rng: np.random.Generator, road: Road) -> tuple[Signal, ...]:
    """Lights at the junctions that have them."""
    return tuple(
        Signal(
            junction=junction,
            green=rng.uniform(4, 8),
            yellow=1.5,
            red=rng.uniform(4, 7),
            phase=rng.uniform(0, 20),
        )
        for junction in road.junctions
        if junction.signal
    )


def make_cars(rng: np.random.Generator, road: Road, start: float) -> list[Car]:
    """Cars ahead of `start` on the route's lane, from front to back: some drive, some stand until somebody waits."""
    cars = []
    s = start + rng.uniform(25, 70)
    while s < road.length - 30:
        inside = any(junction.enter - 12 < s < junction.leave + 5 for junction in road.junctions)
        if not inside:
            manner = make_manner(rng)
            stands = bool(rng.random() < 0.55)
            ahead = [junction for junction in road.junctions if junction.enter > s + 5 and len(junction.branches) > 1]
            # A car that stands goes where it can at the next junction, so that the road ahead is free again.
            leaves = ahead[0] if ahead and rng.random() < 0.8 else None
            others: list[Turn] = [turn for turn in leaves.branches if turn != leaves.turn] if leaves else ["straight"]
            cars.append(
                Car(
                    s=s,
                    speed=0.0 if stands else 0.7 * manner.speed,
                    manner=manner,
                    profile=speed_profile(road, manner),
                    leaves=leaves,
                    leaves_towards=others[int(rng.integers(len(others)))],
                    stands=rng.uniform(1.0, 3.5) if stands else 0.0,
                )
            )
        s += rng.uniform(40, 110)
    return cars[::-1]
