"""A town that somebody drives in: its traffic sees the own car and reacts to it, as far as each driver can.

Cars ahead and behind share the route's lane and follow one another, the own car among them, by the intelligent driver
model (doi:10.1103/PhysRevE.62.1805). Oncoming cars brake for what is in their lane. At junctions cars come from the
roads that the route does not take: they wait while the route has priority, cross, and brake for what is in their way.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from chunkwise.data.sampling import Purpose, generator
from driving.sim import traffic
from driving.sim.roads import JUNCTION_HALF, LANE, TURN_ANGLE, Junction, Road, Turn, branch_line, make_road
from driving.sim.traffic import CAR_LENGTH, CAR_WIDTH, GONE, HIDDEN, STEP, Car, Light, Manner, Moment, Signal
from driving.sim.vehicle import Vehicle

START = 40.0
"""s at which a drive begins, m: there is room for a car behind."""
SIGHT_M = 60.0
"""How far ahead cars and lights count as in sight, m."""
_METRES_PER_S = 12.0
"""Nobody is faster; what the road is long enough for."""
_CROSSES_S = 4.5
"""Seconds for which a crossing car wants the route's light to stay red: it has left the junction by then."""
_PRIORITY = 70.0
"""Where there is no light, a car on the route that is closer than this to the junction has priority, m."""
_ONCOMING_GAP = 45.0
"""The same for oncoming cars, which are slower."""
_PLAN_S = 0.1
"""Longest step of the expert's look ahead, s."""
_RETURN_M = 2.5
"""Metres in which the expert's way back to the lane's middle bends towards it: see `way_back`."""


class Town:
    """A road, its lights and its traffic at a time; the own car is given from outside."""

    def __init__(self, seed: int, seconds: float) -> None:
        """Makes a town and its traffic, a function of the seed, long enough to be driven in for so many seconds."""
        rng = generator(Purpose.ROUTE, seed)
        self.road = make_road(rng, START + 60 + _METRES_PER_S * seconds)
        self.signals = traffic.make_signals(rng, self.road)
        self.t = 0.0
        manner = traffic.make_manner(rng)
        profile = traffic.speed_profile(self.road, manner)
        self._me = Car(s=START, speed=0.7 * manner.speed, manner=manner, profile=profile)
        self._others = traffic.make_cars(rng, self.road, START)
        self._behind = _cars_behind(rng, self.road)
        self._oncoming = [
            Car(s=float(s), speed=0.0, manner=manner, profile=profile)
            for manner in [dataclasses.replace(traffic.make_manner(rng), speed=rng.uniform(5.0, 8.0))]
            for s in np.cumsum(rng.uniform(35, 110, 8))
        ]
        for car in self._oncoming:
            car.speed = self._oncoming_speed(car)
        self._crossing = _crossing_cars(rng, self.road, self.signals)

    def start(self) -> Vehicle:
        """Returns the own car where a drive begins: in the middle of its lane, at seven tenths of its speed."""
        x, y, heading = self.road.pose(START, -LANE / 2).tolist()
        return Vehicle(x=x, y=y, heading=heading, speed=self._me.speed)

    @property
    def count(self) -> int:
        """Cars beside the own."""
        return len(self._everybody)

    @property
    def speeds(self) -> Float64[np.ndarray, " cars"]:
        """Of the cars of a moment, m/s."""
        return np.array([car.speed for car in self._everybody])

    def moment(self, ego: Vehicle) -> Moment:
        """Returns what there is to be seen now."""
        crossed = {id(crossing.car): crossing for crossing in self._crossing}
        poses = []
        for car in self._everybody:
            if id(car) in crossed and not crossed[id(car)].merged:
                poses.append(crossed[id(car)].pose())
            elif any(car is one for one in self._oncoming):
                poses.append(self._oncoming_pose(car))
            else:
                pose = traffic.car_pose(self.road, car)
                poses.append(HIDDEN if pose is None else pose)
        return Moment(
            pose=ego.pose,
            lights=tuple(signal.state(self.t) for signal in self.signals),
            cars=np.array(poses).reshape(-1, 3),
            braking=np.array([car.braking for car in self._everybody], bool),
        )

    def command(self, ego: Vehicle) -> Turn | None:
        """Returns what the route says: where to turn at the junction ahead, or None."""
        return self.road.command_at(self.road.project(ego.pose[:2])[0])

    def vehicle_ahead(self, ego: Vehicle) -> float | None:
        """Returns the metres from the own bumper to that of the next car in its lane; None: none is in sight."""
        s = self.road.project(ego.pose[:2])[0]
        # A car that turns off blocks the lane for six more metres (traffic.advance).
        gaps = [car.s - s - CAR_LENGTH for car in [*self._others, *self._behind] if car.s > s and car.off < 6.0]
        nearest = max(min(gaps, default=np.inf), 0.0)
        return float(nearest) if nearest <= SIGHT_M else None

    def light_ahead(self, ego: Vehicle) -> Light | None:
        """Returns what the next traffic light of the route shows; None: none is in sight."""
        s = self.road.project(ego.pose[:2])[0]
        seen = [signal for signal in self.signals if 0 < signal.junction.enter - s <= SIGHT_M]
        return min(seen, key=lambda signal: signal.junction.enter).state(self.t) if seen else None

    def state(self) -> Float64[np.ndarray, " q"]:
        """Returns the time, and position and speed of every car."""
        return np.array([self.t, *(value for car in self._everybody for value in (car.s, car.speed, car.stands))])

    def advance(self, ego: Vehicle) -> None:
        """Moves everybody else by one STEP, with the own car where it is now."""
        s, offset = self.road.project(ego.pose[:2])
        towards = float(np.cos(ego.heading - self.road.pose(s, 0.0)[2]))
        self._me.s, self._me.speed = s, ego.speed
        chain = [*self._others, *self._behind]
        if offset + CAR_WIDTH / 2 > -LANE and offset - CAR_WIDTH / 2 < 0:
            chain.append(self._me)
        self._follow(chain, self.t, STEP)
        ahead = s if offset + CAR_WIDTH / 2 > 0 else -np.inf
        self._come(ahead, -towards * ego.speed)
        on_route = [s, *(car.s for car in [*self._others, *self._behind] if car.off < 30)]
        for crossing in self._crossing:
            if not crossing.merged:
                crossing.advance(self.t, on_route, [car.s for car in self._oncoming], ego)
                if crossing.merged:
                    self._oncoming.append(crossing.car)
        self.t += STEP

    def plan(self, ego: Vehicle, steps: int, dt_s: float) -> Float64[np.ndarray, "t 2"]:
        """Returns the waypoints of the town's own driver: along the lane's middle, or back to it, at its model's speed.

        It knows what no camera shows: the cycle of the lights, and how the cars ahead will drive.
        """
        s, offset = self.road.project(ego.pose[:2])
        me = dataclasses.replace(self._me, s=s, speed=ego.speed)
        chain = [me, *(dataclasses.replace(car) for car in [*self._others, *self._behind])]
        parts = int(np.ceil(dt_s / _PLAN_S - 1e-9))
        reached = []
        for k in range(steps * parts):
            self._follow(chain, self.t + k * dt_s / parts, dt_s / parts)
            if (k + 1) % parts == 0:
                reached.append(me.s)
        angle = ego.heading - float(self.road.pose(s, 0.0)[2])
        slope = np.tan(np.clip((angle + np.pi) % (2 * np.pi) - np.pi, -1.0, 1.0))
        slope *= 1 - offset * float(self.road.curvature_at(s))  # a metre of the centre line is more outside a bend
        ahead = np.array(reached)
        left = way_back(offset + LANE / 2, float(slope), ahead - s)
        away = self.road.pose(ahead, left - LANE / 2)[:, :2] - ego.pose[:2]
        cos, sin = np.cos(ego.heading), np.sin(ego.heading)
        return away @ np.array([[cos, -sin], [sin, cos]])

    @property
    def _everybody(self) -> list[Car]:
        """All cars beside the own, always in one order."""
        crossed = [crossing.car for crossing in self._crossing]
        coming = [car for car in self._oncoming if all(car is not one for one in crossed)]
        return [*self._others, *self._behind, *coming, *crossed]

    def _follow(self, chain: list[Car], t: float, step: float) -> None:
        """Moves the cars of the route's lane."""
        chain.sort(key=lambda car: -car.s)
        bends = self.road.curvature_at(np.array([car.s for car in chain]))
        traffic.advance(chain, self.signals, self.road.length, t, (1 + bends * LANE / 2).tolist(), step=step)

    def _come(self, blocked: float, blocking: float) -> None:
        """Moves the oncoming cars; `blocked` is where the own car is in their lane, `blocking` its speed their way."""
        front, front_speed = -np.inf, 0.0
        for car in sorted(self._oncoming, key=lambda car: car.s):
            gap, lead = car.s - front - CAR_LENGTH, front_speed
            if blocked < car.s and car.s - blocked - CAR_LENGTH < gap:
                gap, lead = car.s - blocked - CAR_LENGTH, blocking
            allowed = self._oncoming_speed(car)
            car.accelerating = traffic.acceleration(car.manner, car.speed, allowed, min(gap, 1e3), lead)
            before = car.speed
            car.speed = max(0.0, before + STEP * car.accelerating)
            car.s -= STEP * (before + car.speed) / 2
            front, front_speed = car.s, car.speed

    def _oncoming_speed(self, car: Car) -> float:
        """Speed at which it drives where it is; bends are taken at lower speed."""
        bend = max(abs(float(self.road.curvature_at(car.s))), 1e-3)
        return float(min(car.manner.speed, np.sqrt(3.0 / bend)))

    def _oncoming_pose(self, car: Car) -> Float64[np.ndarray, "3"]:
        if not 2 <= car.s <= self.road.length - 2:
            return HIDDEN
        return self.road.pose(car.s, LANE / 2) + np.array([0.0, 0.0, np.pi])


def way_back(left: float, slope: float, ahead: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, " t"]:
    """Returns how far to the left of its lane's middle a car is that goes back to it, critically damped.

    (left + (slope + left / r) x) exp(-x / r) at x metres ahead with r = _RETURN_M: it begins where the car is, in the
    direction in which it goes, and does not overshoot on its own.

    Args:
      left: Where the car is now, m.
      slope: Metres to the left for a metre ahead, now.
      ahead: Metres along the road.
    """
    return (left + (slope + left / _RETURN_M) * ahead) * np.exp(-ahead / _RETURN_M)


@dataclasses.dataclass(kw_only=True)
class _Crossing:
    """A car that comes to a junction by a road that the route does not take."""

    car: Car
    """Its `s` is metres since its stop line, negative before it, until it has joined the oncoming lane."""
    road: Road
    junction: Junction
    signal: Signal | None
    towards: float
    """Heading of the road by which it comes, rad."""
    angle: float
    """By which it turns, rad."""
    joins: bool
    """Whether it goes where the route comes from, in the oncoming lane."""
    going: bool = False
    merged: bool = False

    @property
    def _inside(self) -> float:
        """Metres of its way through the junction."""
        return JUNCTION_HALF * (np.pi / 2 if self.angle else 2.0)

    def pose(self, ahead: float = 0.0) -> Float64[np.ndarray, "3"]:
        """Where it is, or will be so many metres later; hidden once it has gone."""
        distance = self.car.s + ahead
        if distance > GONE:
            return HIDDEN
        if self.joins and distance > self._inside:
            beyond = self.road.pose(self.junction.enter - (distance - self._inside), LANE / 2)
            return beyond + np.array([0.0, 0.0, np.pi])
        return traffic.crossing_pose(self.junction.centre, self.towards, self.angle, distance)

    def advance(self, t: float, on_route: Sequence[float], oncoming: Sequence[float], ego: Vehicle) -> None:
        """Moves it by one STEP; once it has joined the oncoming lane, its `s` is that of the route.

        Args:
          t: Time, s.
          on_route: s of the cars on the route's lane, the own one among them.
          oncoming: s of the oncoming cars.
          ego: The own car.
        """
        car, gap = self.car, 1e3
        line = -car.s - CAR_LENGTH / 2
        self.going = self.going or line <= 0 or (line < 12 and self._free(t, on_route, oncoming))
        if self.going:
            for ahead in np.arange(0.0, 20.0, 1.0).tolist():
                if np.linalg.norm(self.pose(ahead + CAR_LENGTH / 2)[:2] - ego.pose[:2]) < CAR_WIDTH + 0.8:
                    gap = ahead
                    break
        else:
            gap = line + 0.3
        allowed = 5.0 if self.angle and -4 < car.s < self._inside else car.manner.speed
        car.accelerating = traffic.acceleration(car.manner, car.speed, allowed, gap, 0.0)
        before = car.speed
        car.speed = max(0.0, before + STEP * car.accelerating)
        car.s += STEP * (before + car.speed) / 2
        if self.joins and car.s > self._inside + CAR_LENGTH:
            car.s, self.merged = self.junction.enter - (car.s - self._inside), True

    def _free(self, t: float, on_route: Sequence[float], oncoming: Sequence[float]) -> bool:
        """Whether it may drive on into the junction."""
        enter, leave = self.junction.enter, self.junction.leave
        if self.signal is not None and {self.signal.state(t), self.signal.state(t + _CROSSES_S)} != {"red"}:
            return False
        first = enter - (_PRIORITY if self.signal is None else CAR_LENGTH / 2)
        if any(first < s < leave + 1.5 * CAR_LENGTH for s in on_route):
            return False
        return not any(enter - 1.5 * CAR_LENGTH < s < leave + _ONCOMING_GAP for s in oncoming)


def _cars_behind(rng: np.random.Generator, road: Road) -> list[Car]:
    """A car behind the own one, in two towns of three."""
    manner: Manner = traffic.make_manner(rng)
    s = START - rng.uniform(10, 25)
    if rng.random() > 2 / 3:
        return []
    return [Car(s=s, speed=0.7 * manner.speed, manner=manner, profile=traffic.speed_profile(road, manner))]


def _crossing_cars(rng: np.random.Generator, road: Road, signals: Sequence[Signal]) -> list[_Crossing]:
    """A car at most junctions that have a road beside the route's, which goes to another such road, or joins."""
    found = []
    for junction in road.junctions:
        lines: dict[Turn, np.ndarray | None] = {turn: branch_line(road, junction, turn) for turn in junction.branches}
        there: dict[Turn, np.ndarray] = {turn: line for turn, line in lines.items() if line is not None}
        chosen, drawn, where = rng.random(), rng.random(), rng.random()
        manner = dataclasses.replace(traffic.make_manner(rng), speed=rng.uniform(6.0, 8.0))
        if not there or chosen > 0.8:
            continue
        come = list(there)[int(drawn * len(there))]
        towards = junction.heading + TURN_ANGLE[come] + np.pi
        others: list[Turn] = [turn for turn in there if turn != come]
        leaves = junction.heading + (TURN_ANGLE[others[0]] if others else np.pi)
        angle = (leaves - towards + np.pi) % (2 * np.pi) - np.pi
        angle = float(np.pi / 2 * round(angle / (np.pi / 2)))
        approach = len(there[come]) * 0.5 - JUNCTION_HALF
        signal = next((one for one in signals if one.junction is junction), None)
        car = Car(s=-CAR_LENGTH - where * (approach - CAR_LENGTH), speed=3.0, manner=manner, profile=np.zeros(1))
        found.append(
            _Crossing(
                car=car, road=road, junction=junction, signal=signal, towards=towards, angle=angle, joins=not others
            )
        )
    return found
