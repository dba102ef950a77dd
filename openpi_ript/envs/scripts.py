"""Scripts for robosuite's Lift, Stack, Door, NutAssemblySquare and PickPlaceCan: what demonstrates there.

Each sees where things are, which an observation of robosuite's says, and moves the hand from one goal to the next. A
plan is a generator: it yields actions and is sent what is seen after each. Actions are before noise, and a plan goes on
by where the hand and the thing are, so that it makes up for noise as far as the grasp allows.
"""

import functools
from collections.abc import Callable, Generator, Mapping

import numpy as np
from jaxtyping import Float64

from chunkwise.envs.environment import Observation

Script = Callable[[Observation], Float64[np.ndarray, " a"]]
"""An expert of one episode: the next action, before noise."""
Plan = Generator[Float64[np.ndarray, "7"], Observation, None]
Part = Generator[Float64[np.ndarray, "7"], Observation, Observation]
"""A part of a plan; it returns what was seen last."""
Place = Callable[[Observation], Float64[np.ndarray, "3"]]
Angle = Callable[[Observation], float | None]
METRES = 0.05
"""What an action of 1 moves the gripper by in one step, as OSC_POSE is set up."""
RADIANS = 0.5
"""What an action of 1 turns it by."""
ABOVE = 0.05
"""Height (m) above a cube at which the gripper comes over it."""
NEAR = 0.012
"""Distance (m) from a goal that counts as there."""
LEVEL = 0.08
"""Difference (rad) from an angle that counts as turned."""
CLOSING = 6
"""Steps for which the fingers close before the arm lifts."""
GAIN = 0.6
"""Share of the way to the goal that an action asks for."""
OPEN, CLOSED = -1.0, 1.0
MOST = 80
"""Steps after which a part of a plan is given up and the next one begins."""
CARRIED = 0.12
"""Height (m) above the other things at which one is carried."""
CUBE = 0.045
"""Height (m) of a cube that is let go of above the centre of the other: half of both, and a little."""
HANDLE = np.array([0.06, 0.0, -0.005])
"""Where the square nut's handle is held, in its own frame (m)."""
PEG = np.array([0.23, 0.10, 0.85])
"""Of the square nut, in the world (m)."""
CAN_BIN = np.array([0.1975, 0.4025, 0.80])
"""Centre of the can's place on the floor of the second bin, in the world (m)."""


class LiftScript:
    """One episode's plan."""

    def __init__(self) -> None:
        self._lowering = False
        self._closed = 0

    def __call__(self, observation: Observation) -> Float64[np.ndarray, "7"]:
        """The next action, before noise."""
        hand, cube = observation["robot0_eef_pos"].astype(float), observation["cube_pos"].astype(float)
        way = cube - hand
        self._lowering = self._lowering or bool(np.linalg.norm(way[:2]) < NEAR)
        if self._lowering and (self._closed or abs(way[2]) < NEAR):
            self._closed += 1
        goal = cube if self._lowering else cube + np.array([0, 0, ABOVE])
        if self._closed > CLOSING:
            goal = hand + np.array([0, 0, METRES])
        move = np.zeros(3) if 0 < self._closed <= CLOSING else np.clip(GAIN * (goal - hand) / METRES, -1, 1)
        return np.concatenate([move, np.zeros(3), [1.0 if self._closed else -1.0]])


class Planned:
    """A plan as a script; at its end the hand rests with open fingers."""

    def __init__(self, plan: Callable[[Observation], Plan]) -> None:
        """Begins nothing yet."""
        self._plan, self._going = plan, None

    def __call__(self, observation: Observation) -> Float64[np.ndarray, "7"]:
        """The next action, before noise."""
        try:
            if self._going is None:
                self._going = self._plan(observation)
                return next(self._going)
            return self._going.send(observation)
        except StopIteration:
            return _action(np.zeros(3), np.zeros(3), OPEN)


def stack(seen: Observation) -> Plan:
    """Cube A is gripped by two of its sides, lifted, put onto cube B and let go of."""
    cube, other = place("cubeA_pos"), place("cubeB_pos")
    across = turned("cubeA_quat", quarter=True)
    seen = yield from grasp(seen, cube, across, above=0.08)
    offset = cube(seen) - hand(seen)  # how the cube lies in the hand
    seen = yield from reach(seen, lambda s: with_height(hand(s), other(s)[2] + CARRIED), CLOSED, lambda s: None)
    on = functools.partial(_over, other, offset)
    seen = yield from reach(seen, lambda s: on(s, CARRIED), CLOSED, lambda s: None, near=0.008)
    seen = yield from reach(seen, lambda s: on(s, CUBE), CLOSED, lambda s: None, near=0.006)
    seen = yield from rest(seen, OPEN, 5)
    yield from reach(seen, lambda s: with_height(hand(s), other(s)[2] + 2 * CARRIED), OPEN, lambda s: None)


def nut(seen: Observation) -> Plan:
    """The square nut is gripped by its handle, carried over the peg, turned square to it, and let go of."""
    centre = place("SquareNut_pos")

    def held(s: Observation) -> Float64[np.ndarray, "3"]:
        return centre(s) + matrix(s["SquareNut_quat"]) @ HANDLE

    seen = yield from grasp(seen, held, turned("SquareNut_quat", by=np.pi / 2), above=0.08, near=0.008, closing=12)
    seen = yield from reach(seen, lambda s: with_height(hand(s), PEG[2] + CARRIED + 0.05), CLOSED, lambda s: None)
    square = _squared("SquareNut_quat")

    def over(height: float) -> Place:
        return lambda s: hand(s) + (PEG + np.array([0, 0, height]) - centre(s))

    seen = yield from reach(seen, over(CARRIED), CLOSED, square, near=0.006, most=2 * MOST)
    seen = yield from reach(seen, over(0.0), CLOSED, square, near=0.03)
    seen = yield from rest(seen, OPEN, 5)
    yield from reach(seen, lambda s: with_height(hand(s), PEG[2] + 2 * CARRIED), OPEN, lambda s: None)


def can(seen: Observation) -> Plan:
    """The can is gripped from above, carried over its place in the second bin and let go of."""
    thing = place("Can_pos")
    seen = yield from grasp(seen, thing, lambda s: np.pi / 2, above=0.10)
    seen = yield from reach(seen, lambda s: with_height(hand(s), 1.10), CLOSED, lambda s: None)
    seen = yield from reach(seen, lambda s: with_height(CAN_BIN, 1.10), CLOSED, lambda s: None)
    seen = yield from reach(seen, lambda s: with_height(CAN_BIN, 0.92), CLOSED, lambda s: None, near=0.02)
    seen = yield from rest(seen, OPEN, 5)
    yield from reach(seen, lambda s: with_height(hand(s), 1.10), OPEN, lambda s: None)


def door(seen: Observation) -> Plan:
    """The handle is gripped from above, pressed down, and drawn away from the frame."""
    handle = place("handle_pos")
    seen = yield from grasp(seen, handle, lambda s: np.pi / 2, above=0.08, near=0.03)
    for _ in range(MOST):
        turn = float(seen["handle_qpos"][0])
        if turn > 1.3:
            break
        along = np.array([np.sin(turn), 0, -np.cos(turn)])
        seen = yield _towards(seen, hand(seen) + 0.06 * along, CLOSED, None)
    while True:
        seen = yield _towards(seen, hand(seen) + np.array([0.0, 0.08, 0.0]), CLOSED, None)


SCRIPTS: Mapping[str, Callable[[], Script]] = {
    "Lift": LiftScript,
    "Stack": functools.partial(Planned, stack),
    "Door": functools.partial(Planned, door),
    "NutAssemblySquare": functools.partial(Planned, nut),
    "PickPlaceCan": functools.partial(Planned, can),
}
"""By robosuite's names: what makes the script of one episode."""


def grasp(
    seen: Observation, thing: Place, angle: Angle, *, above: float, near: float = NEAR, closing: int = CLOSING
) -> Part:
    """Comes over a thing with open fingers, goes down to it, and closes them."""
    up = np.array([0, 0, above])
    seen = yield from reach(seen, lambda s: thing(s) + up, OPEN, angle, near=near)
    seen = yield from reach(seen, thing, OPEN, angle, near=near)
    return (yield from rest(seen, CLOSED, closing))


def reach(
    seen: Observation, goal: Place, fingers: float, angle: Angle, *, near: float = NEAR, most: int = MOST
) -> Part:
    """Moves the hand to a goal, and turns its fingers to an angle, both of what is seen then."""
    for _ in range(most):
        turn = angle(seen)
        level = turn is None or np.linalg.norm(_turn(seen, turn)) < LEVEL
        if level and np.linalg.norm(goal(seen) - hand(seen)) < near:
            break
        seen = yield _towards(seen, goal(seen), fingers, turn)
    return seen


def rest(seen: Observation, fingers: float, steps: int) -> Part:
    """Leaves the hand where it is."""
    for _ in range(steps):
        seen = yield _action(np.zeros(3), np.zeros(3), fingers)
    return seen


def hand(seen: Observation) -> Float64[np.ndarray, "3"]:
    """Where the hand is (m)."""
    return seen["robot0_eef_pos"].astype(float)


def place(name: str) -> Place:
    """Where a thing is (m)."""
    return lambda seen: seen[name].astype(float)


def with_height(point: Float64[np.ndarray, "3"], height: float) -> Float64[np.ndarray, "3"]:
    """The point at another height."""
    return np.array([point[0], point[1], height])


def turned(name: str, *, by: float = 0.0, quarter: bool = False) -> Angle:
    """The angle of the x axis of a thing's frame plus `by`; with `quarter`, of that side which is nearest to the
    fingers."""

    def angle(seen: Observation) -> float:
        axis = matrix(seen[name])[:, 0]
        found = float(np.arctan2(axis[1], axis[0])) + by
        if not quarter:
            return found
        fingers = _fingers(seen)
        return fingers + float(_wrapped(found - fingers, np.pi / 2))

    return angle


def matrix(quaternion: np.ndarray) -> Float64[np.ndarray, "3 3"]:
    """The rotation of a unit quaternion x, y, z, w."""
    x, y, z, w = quaternion.astype(float)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def _squared(name: str) -> Angle:
    """The angle at which the fingers hold a thing so that its frame is square to the world's."""

    def angle(seen: Observation) -> float:
        axis = matrix(seen[name])[:, 0]
        return _fingers(seen) - float(_wrapped(np.arctan2(axis[1], axis[0]), np.pi / 2))

    return angle


def _over(other: Place, offset: Float64[np.ndarray, "3"], seen: Observation, height: float) -> Float64[np.ndarray, "3"]:
    """Where the hand is when what it holds is so far above the centre of another thing."""
    return other(seen) + np.array([0, 0, height]) - offset


def _fingers(seen: Observation) -> float:
    """The angle of the line through both fingers, in the plane of the table."""
    axis = matrix(seen["robot0_eef_quat"])[:, 1]
    return float(np.arctan2(axis[1], axis[0]))


def _wrapped(angle: float, period: float) -> float:
    """The same angle, from minus half a period to half a period."""
    return (angle + period / 2) % period - period / 2


def _turn(seen: Observation, angle: float) -> Float64[np.ndarray, "3"]:
    """What is left to turn (rad, about each axis) until the hand points down and its fingers lie at an angle, modulo a
    half turn."""
    now = matrix(seen["robot0_eef_quat"])
    fingers = _fingers(seen)
    angle = fingers + _wrapped(angle - fingers, np.pi)
    y, z = np.array([np.cos(angle), np.sin(angle), 0]), np.array([0, 0, -1.0])
    goal = np.stack([np.cross(y, z), y, z], axis=1)
    return np.cross(now.T, goal.T).sum(axis=0) / 2


def _towards(seen: Observation, goal: Float64[np.ndarray, "3"], fingers: float, angle: float | None) -> np.ndarray:
    """The action towards a goal and an angle of the fingers."""
    turn = np.zeros(3) if angle is None else _turn(seen, angle) / RADIANS
    return _action(GAIN * (goal - hand(seen)) / METRES, GAIN * turn, fingers)


def _action(move: Float64[np.ndarray, "3"], turn: Float64[np.ndarray, "3"], fingers: float) -> Float64[np.ndarray, "7"]:
    return np.concatenate([np.clip(move, -1, 1), np.clip(turn, -1, 1), [fingers]])
