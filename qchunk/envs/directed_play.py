"""Play directed at a task: the next target of an OGBench scene that brings one of its objects to the task's goal.

OGBench's play draws targets at random, and a task of several objects is hardly ever solved by chance: in 40 episodes
of 1,001 steps task 2 of cube-double once. Here a target is drawn again until it is one that the task needs. The goals
are OGBench's own, and so are the oracles that move the objects. `record.directed` has the settings, and
docs/qchunk.md a command; qchunk/envs/play.py calls it.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites import ogbench
from chunkwise.errors import ConfigError
from qchunk.data.relabel import base_env

# Metres; OGBench counts an object within 0.04 m (a drawer or window within 0.04 of its travel) as at its goal.
AT_GOAL = 0.03
CUBE = 0.04  # m, edge of a cube
DRAWER_OPEN, DRAWER_CENTRE = -0.16, (0.33, -0.24, 0.066)  # m; travel of OGBench's drawer, and its middle when open
DRAWER_Y = -0.15  # m; a cube beyond it lies in the drawer, since those on the table stay above -0.07
_CUBE_KEY = re.compile(r"privileged/block_\d+_pos")
DRAWS = 1000  # a wanted target comes up with a probability of at least 1/24, so that none in 1,000 means none at all


@dataclasses.dataclass(frozen=True)
class Target:
    """What an oracle is to move next."""

    kind: str
    """cube, button, drawer or window."""
    index: int = 0
    """Of the cube or button."""
    position: tuple[float, ...] | None = None
    """Where the cube goes, in m."""

    def is_set(self, info: Mapping[str, Any]) -> bool:
        """Tells whether the scene's target is this one, but for a cube's place."""
        if info["privileged/target_task"] != self.kind:
            return False
        key = {"cube": "privileged/target_block", "button": "privileged/target_button"}.get(self.kind)
        return key is None or info[key] == self.index


class DirectedPlay:
    """Sets targets that one task needs."""

    def __init__(self, scene: Any, task: str) -> None:
        """Reads the task's goal.

        Args:
          scene: OGBench's environment for play.
          task: OGBench's name of a single task in this scene.

        Raises:
          ConfigError: OGBench has no such task, or it is one of another scene.
        """
        name = scene.spec.id
        if base_env(task) != name:
            raise ConfigError(
                f"record.directed.task is {task!r}; expected a task of record.env {name!r}, "
                f"such as {name.replace('-v0', '-play-singletask-task2-v0')}"
            )
        self._scene = scene.unwrapped
        self._goal = _goal(task)
        grid = re.search(r"(\d+)x(\d+)", name)
        self._grid = (int(grid[1]), int(grid[2])) if grid else None

    def set_target(self, rng: np.random.Generator, p_stack: float) -> tuple[np.ndarray, dict[str, Any]]:
        """Sets the scene's next target, one that the task needs; where there is none, a random one.

        Args:
          rng: Chooses among the targets that the task needs.
          p_stack: Probability of stacking a cube, for a random target.

        Returns:
          Observation and info, as of OGBench's set_new_target.
        """
        state, info = self._scene.set_new_target(p_stack=p_stack)
        needed = self.needed(info)
        if not needed:
            return state, info
        target = needed[rng.integers(len(needed))]
        for _ in range(DRAWS):
            if target.is_set(info):
                break
            state, info = self._scene.set_new_target(p_stack=p_stack)
        else:
            raise RuntimeError(f"OGBench drew no {target} in {DRAWS} targets")
        if target.position is not None:  # the oracle reads it here
            info["privileged/target_block_pos"] = np.asarray(target.position)
        return state, info

    def needed(self, info: Mapping[str, Any]) -> list[Target]:
        """Lists the targets of which each brings the scene nearer to the goal and can be reached now.

        Args:
          info: Where everything is, as OGBench says it.

        Returns:
          None of them if the task is solved, or something else has to happen first, as where a cube lies in another's
          place.
        """
        if "goal_xyzs" in self._goal:
            return needed_cubes(_positions(info), self._goal["goal_xyzs"])
        if self._grid is not None:
            wrong = info["button_states"] != self._goal["goal_button_states"]
            return [Target("button", button) for button in presses(wrong, *self._grid) or []]
        return needed_in_scene(info, self._goal["goal"])

    def solvable(self, info: Mapping[str, Any]) -> bool:
        """Tells whether the task can be solved from here: of 4 x 4 buttons only 1 in 16 patterns can."""
        if self._grid is None:
            return True
        return presses(info["button_states"] != self._goal["goal_button_states"], *self._grid) is not None


@functools.cache
def _goal(task: str) -> Mapping[str, Any]:
    """Where OGBench's task wants each object; read once a process from its environment (about 1 s)."""
    env = ogbench.make(EnvSpec(suite="ogbench", task=task))
    try:
        env.reset(0)
        return env.gym.unwrapped.cur_task_info
    finally:
        env.close()


def needed_cubes(positions: Float[np.ndarray, "cubes 3"], goals: Float[np.ndarray, "cubes 3"]) -> list[Target]:
    """Lists the cubes that are not at their goals and carry no other, and whose place is free, on the cube of below.

    Args:
      positions: Centres of the cubes, in m.
      goals: Where they belong; a goal above another one's is that of a stacked cube.
    """
    needed = []
    for i, (position, goal) in enumerate(zip(positions, goals, strict=True)):
        others = np.delete(positions, i, axis=0)
        carries = (np.linalg.norm(others[:, :2] - position[:2], axis=1) < CUBE) & (
            others[:, 2] > position[2] + CUBE / 2
        )
        taken = np.linalg.norm(others - goal, axis=1) < 0.75 * CUBE  # one that lies below is a whole edge away
        below = np.linalg.norm(goals - (goal - [0, 0, CUBE]), axis=1) < CUBE / 2
        stands = (np.linalg.norm(positions - goals, axis=1)[below] <= AT_GOAL).all()
        if np.linalg.norm(position - goal) > AT_GOAL and stands and not carries.any() and not taken.any():
            needed.append(Target("cube", i, tuple(goal)))
    return needed


def presses(wrong: Bool[np.ndarray, " buttons"], rows: int, columns: int) -> list[int] | None:
    """Solves a lights-out puzzle, in which a press turns a button and its neighbours.

    Each button is pressed once or not at all, in any order, so that the presses solve a linear system modulo 2.

    Args:
      wrong: Whether a button differs from its goal, row by row.
      rows: Of the grid.
      columns: Of the grid.

    Returns:
      Buttons to press; none if nothing is wrong. None: no presses lead to the goal.
    """
    row, column = np.divmod(np.arange(rows * columns), columns)
    near = np.abs(row[:, None] - row) + np.abs(column[:, None] - column) <= 1
    system = np.concatenate([near, wrong[:, None]], axis=1)
    pivots: list[int] = []
    for button in range(rows * columns):
        found = np.flatnonzero(system[len(pivots) :, button])
        if not len(found):
            continue
        at, other = len(pivots), len(pivots) + found[0]
        system[[at, other]] = system[[other, at]]
        rest = system[:, button].copy()
        rest[at] = False
        system[rest] ^= system[at]
        pivots.append(button)
    if system[len(pivots) :, -1].any():
        return None
    return [button for button, pressed in zip(pivots, system[:, -1], strict=False) if pressed]


def needed_in_scene(info: Mapping[str, Any], goal: Mapping[str, Any]) -> list[Target]:
    """Lists what a scene of cube, drawer, window and the buttons that unlock both still needs, in an order that works.

    A drawer or window moves while its button's state is 1. A cube goes into the open drawer alone, which closes after
    that; the oracle cannot take it out.
    """
    cube, cube_goal = info["privileged/block_0_pos"], goal["block_xyzs"][0]
    inside, belongs_inside = cube[1] < DRAWER_Y, cube_goal[1] < DRAWER_Y
    to_be_filled = belongs_inside and not inside
    needed = []
    travels = (
        ("drawer", info["privileged/drawer_pos"][0], DRAWER_OPEN if to_be_filled else goal["drawer_pos"]),
        ("window", info["privileged/window_pos"][0], goal["window_pos"]),
    )
    for button, (kind, now, wanted) in enumerate(travels):
        unlocked = info["button_states"][button] == 1
        if abs(now - wanted) > AT_GOAL:
            needed.append(Target(kind) if unlocked else Target("button", button))
        elif kind == "drawer" and to_be_filled:
            needed.append(Target("cube", 0, DRAWER_CENTRE))
        elif unlocked != (goal["button_states"][button] == 1):
            needed.append(Target("button", button))
    if not belongs_inside and not inside and np.linalg.norm(cube - cube_goal) > AT_GOAL:
        needed.append(Target("cube", 0, tuple(cube_goal)))
    return needed


def _positions(info: Mapping[str, Any]) -> Float[np.ndarray, "cubes 3"]:
    """Centres of all cubes, in m."""
    return np.stack([info[f"privileged/block_{i}_pos"] for i in range(len([*filter(_CUBE_KEY.match, info)]))])
