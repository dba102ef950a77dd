"""The road that a car follows through a town: bends of many radii, junctions, and the branches it does not take.

A town is made around one route. Positions on it are metres `s` along the road's centre line and metres `offset` to the
left of it; traffic keeps right, so the route's own lane lies at offset -LANE / 2.
"""

import dataclasses
import functools
from typing import Literal

import numpy as np
from jaxtyping import Float64

Turn = Literal["left", "straight", "right"]

SPACING = 0.25
"""Metres between two points of a centre line."""
LANE = 3.6
"""Width of a lane, m."""
JUNCTION_HALF = 11.0
"""Metres from a junction's middle to the stop lines; also the radius of the centre line of a turn."""
BRANCH = 55.0
"""Length of a road that the route does not take, from the junction's middle, m."""
EASE = 3.0
"""Metres over which curvature changes from one bend to the next."""
CLEARANCE = 34.0
"""Least distance between parts of the route that are far apart along it, m."""
ANNOUNCED = 40.0
"""Metres before a junction from which on the route says where to turn."""
TURN_ANGLE: dict[Turn, float] = {"left": np.pi / 2, "straight": 0.0, "right": -np.pi / 2}
"""By which a route turns at a junction, rad."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Junction:
    """A crossing that the route passes."""

    enter: float
    """s of the stop line, m."""
    leave: float
    """s at which the crossing ends, m."""
    turn: Turn
    """Where the route goes."""
    centre: Float64[np.ndarray, "2"]
    heading: float
    """Of the road that leads in, rad."""
    branches: tuple[Turn, ...]
    """Roads that exist beside the one that leads in; the route's own is among them."""
    signal: bool
    """Whether it has traffic lights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Road:
    """Centre line of a route, a point every SPACING metres, and its junctions in order."""

    points: Float64[np.ndarray, "n 2"]
    heading: Float64[np.ndarray, " n"]
    """rad, unwrapped."""
    curvature: Float64[np.ndarray, " n"]
    """1/m, positive to the left."""
    junctions: tuple[Junction, ...]

    @property
    def length(self) -> float:
        """Metres."""
        return SPACING * (len(self.points) - 1)

    @functools.cached_property
    def branch_lines(self) -> list[Float64[np.ndarray, "n 2"]]:
        """Centre lines of all roads that the route does not take, as `branch_line`."""
        lines = [branch_line(self, junction, turn) for junction in self.junctions for turn in junction.branches]
        return [line for line in lines if line is not None]

    def pose(
        self, s: float | Float64[np.ndarray, "*q"], offset: float | Float64[np.ndarray, "*q"]
    ) -> Float64[np.ndarray, "*q 3"]:
        """x, y and heading at metres `s` along the centre line and `offset` to its left; beyond the ends, the ends."""
        s, offset = np.broadcast_arrays(np.asarray(s, np.float64), np.asarray(offset, np.float64))
        grid = np.arange(len(self.points)) * SPACING
        heading = np.interp(s, grid, self.heading)
        x = np.interp(s, grid, self.points[:, 0]) - offset * np.sin(heading)
        y = np.interp(s, grid, self.points[:, 1]) + offset * np.cos(heading)
        return np.stack([x, y, heading], axis=-1)

    def curvature_at(self, s: float | Float64[np.ndarray, "*q"]) -> Float64[np.ndarray, "*q"]:
        """Curvature of the centre line, 1/m."""
        return np.asarray(np.interp(s, np.arange(len(self.points)) * SPACING, self.curvature))

    def command_at(self, s: float) -> Turn | None:
        """Returns what the route says at `s`: where to turn at the junction ahead, or None."""
        for junction in self.junctions:
            if junction.enter - ANNOUNCED <= s < junction.leave:
                return junction.turn
        return None

    def project(self, point: Float64[np.ndarray, "2"]) -> tuple[float, float]:
        """Returns `s` of the place on the centre line that is nearest to a point, and the point's `offset` there."""
        nearest = int(np.square(self.points - point).sum(axis=1).argmin())
        away = point - self.points[nearest]
        cos, sin = np.cos(self.heading[nearest]), np.sin(self.heading[nearest])
        along = np.clip(cos * away[0] + sin * away[1], -SPACING / 2, SPACING / 2)
        return float(np.clip(nearest * SPACING + along, 0.0, self.length)), float(cos * away[1] - sin * away[0])


def make_road(rng: np.random.Generator, length: float) -> Road:
    """A road of at least `length` metres that never comes near itself.

    Legs of bends and straights alternate with junctions. Legs that would come too close to what lies behind are drawn
    again, and after several failures the whole road is.
    """
    while True:
        pieces: list[np.ndarray] = [np.zeros(round(20 / SPACING))]
        junctions: list[tuple[int, Turn]] = []
        failures = 0
        while failures < 12:
            leg, turn = _leg(rng)
            start = sum(map(len, pieces)) + len(leg)
            crossing = _crossing(turn)
            trial = np.concatenate([*pieces, leg, crossing])
            if not _clear(_integrate(_eased(trial))[0]):
                failures += 1
                continue
            pieces += [leg, crossing]
            junctions.append((start, turn))
            if SPACING * len(trial) >= length:
                return _assemble(rng, np.concatenate([*pieces, np.zeros(round(40 / SPACING))]), junctions)


def _leg(rng: np.random.Generator) -> tuple[Float64[np.ndarray, " n"], Turn]:
    """Curvature of the bends up to the next junction, and where the route goes there."""
    curvature = []
    turned = 0.0
    remaining = rng.uniform(60, 130)
    while remaining > 0:
        if rng.random() < 0.2:
            piece = np.zeros(round(rng.uniform(6, 16) / SPACING))
        else:
            radius = float(np.exp(rng.uniform(np.log(11), np.log(45))))
            angle = min(rng.uniform(0.4, 1.4), 24 / radius)
            sign = -np.sign(turned) if abs(turned) > 1.0 else rng.choice([-1.0, 1.0])
            turned += sign * angle
            piece = np.full(max(round(radius * angle / SPACING), round(6 / SPACING)), sign / radius)
        curvature.append(piece)
        remaining -= SPACING * len(piece)
    curvature.append(np.zeros(round(rng.uniform(8, 25) / SPACING)))
    turns: tuple[Turn, ...] = ("left", "straight", "right")
    return np.concatenate(curvature), turns[int(rng.choice(3, p=[0.37, 0.26, 0.37]))]


def _crossing(turn: Turn) -> Float64[np.ndarray, " n"]:
    """Curvature from one stop line of a junction to the other side, with a straight stretch behind it."""
    radius = JUNCTION_HALF
    inside = 2 * radius if turn == "straight" else np.pi / 2 * radius
    points = round(inside / SPACING)
    return np.concatenate([np.full(points, TURN_ANGLE[turn] / (points * SPACING)), np.zeros(round(8 / SPACING))])


def _eased(curvature: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Curvature as a steering wheel can follow it: a moving mean over EASE metres."""
    width = round(EASE / SPACING)
    return np.convolve(
        np.pad(curvature, (width // 2, width - 1 - width // 2), mode="edge"), np.ones(width) / width, "valid"
    )


def _integrate(curvature: Float64[np.ndarray, " n"]) -> tuple[Float64[np.ndarray, "m 2"], Float64[np.ndarray, " m"]]:
    """Points and headings of a line that starts at the origin along x; m = n + 1."""
    heading = np.concatenate([[0.0], np.cumsum(curvature) * SPACING])
    middle = (heading[1:] + heading[:-1]) / 2
    steps = SPACING * np.stack([np.cos(middle), np.sin(middle)], axis=-1)
    return np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)]), heading


def _clear(points: Float64[np.ndarray, "n 2"]) -> bool:
    """Whether parts more than 70 m apart along the line stay CLEARANCE apart."""
    coarse = points[:: round(2 / SPACING)]
    distance = np.linalg.norm(coarse[:, None] - coarse[None], axis=-1)
    apart = np.abs(np.arange(len(coarse))[:, None] - np.arange(len(coarse))[None]) * 2 > 70
    return not np.any(apart & (distance < CLEARANCE))


def _assemble(rng: np.random.Generator, curvature: Float64[np.ndarray, " n"], turns: list[tuple[int, Turn]]) -> Road:
    """Road of a curvature profile, with what else there is at its junctions."""
    eased = _eased(curvature)
    points, heading = _integrate(eased)
    junctions = []
    for start, turn in turns:
        every: tuple[Turn, ...] = ("left", "straight", "right")
        others: list[Turn] = [other for other in every if other != turn and rng.random() < 0.75]
        if not others:
            others = ["left" if turn == "straight" else "straight"]
        ahead = direction(float(heading[start]))
        inside = len(_crossing(turn)) - round(8 / SPACING)
        junctions.append(
            Junction(
                enter=start * SPACING,
                leave=(start + inside) * SPACING,
                turn=turn,
                centre=points[start] + JUNCTION_HALF * ahead,
                heading=float(heading[start]),
                branches=tuple(sorted({turn, *others})),
                signal=bool(rng.random() < 0.75),
            )
        )
    return Road(points=points, heading=heading, curvature=np.append(eased, eased[-1]), junctions=tuple(junctions))


def branch_line(road: Road, junction: Junction, turn: Turn) -> Float64[np.ndarray, "n 2"] | None:
    """Centre line, from the junction's middle outwards, of a road that the route does not take.

    At most BRANCH metres long, a point every 0.5 m; cut where it would come within 16 m of the route's other parts.
    None of the route's own road, and where less than the junction itself is left.
    """
    if turn == junction.turn:
        return None
    s = np.arange(len(road.points)) * SPACING
    elsewhere = road.points[(s < junction.enter - 30) | (s > junction.leave + 30)][::4]
    line = junction.centre + np.arange(0, BRANCH, 0.5)[:, None] * direction(junction.heading + TURN_ANGLE[turn])
    near = np.linalg.norm(line[:, None] - elsewhere[None], axis=-1).min(axis=1) < 16
    line = line[: int(near.argmax()) if near.any() else len(line)]
    return line if len(line) > 2 * JUNCTION_HALF / 0.5 else None


def direction(heading: float) -> Float64[np.ndarray, "2"]:
    """Unit vector along a heading in rad."""
    return np.array([np.cos(heading), np.sin(heading)])
