"""robosuite's scripts: the geometry by hand-computed numbers, and that they solve their tasks."""

from typing import Any

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec, make
from openpi_ript.envs.scripts import SCRIPTS, Planned, matrix, reach, rest, turned

DOWN = np.array([1.0, 0, 0, 0], np.float32)  # half a turn about x: z points down, y backwards
HALF = np.sqrt(0.5)


def seen(**changes: Any) -> dict[str, np.ndarray]:
    """A hand that points down at the origin, and a thing."""
    found = {"robot0_eef_pos": np.zeros(3, np.float32), "robot0_eef_quat": DOWN, "thing_quat": np.array([0, 0, 0, 1.0])}
    return found | {name: np.asarray(value, np.float32) for name, value in changes.items()}


def about_z(angle: float) -> np.ndarray:
    return np.array([0, 0, np.sin(angle / 2), np.cos(angle / 2)])


def test_a_quaternion_is_a_rotation():
    np.testing.assert_allclose(matrix(np.array([0, 0, HALF, HALF])), [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(matrix(np.array([HALF, 0, 0, HALF])), [[1, 0, 0], [0, 0, -1], [0, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(matrix(DOWN), np.diag([1, -1, -1]), atol=1e-12)


def test_the_hand_moves_towards_its_goal_and_stops_there():
    goal = np.array([0.03, -0.5, 0.0])
    part = reach(seen(), lambda s: goal, 1.0, lambda s: None)
    np.testing.assert_allclose(next(part), [0.6 * 0.03 / 0.05, -1, 0, 0, 0, 0, 1.0], atol=1e-6)
    with pytest.raises(StopIteration):
        part.send(seen(robot0_eef_pos=[0.035, *goal[1:]]))


def test_the_hand_turns_about_the_axis_that_points_up():
    """Fingers lie along y. To lie along 60 degrees they turn by minus 30, the shorter way: the sine is 0.5."""
    part = reach(seen(), lambda s: np.zeros(3), -1.0, lambda s: np.pi / 3)
    np.testing.assert_allclose(next(part), [0, 0, 0, 0, 0, -0.6, -1], atol=1e-6)
    tilted = np.array([np.cos(0.1), 0, np.sin(0.1), 0])  # half a turn about an axis 0.1 from x: 0.2 about y
    part = reach(seen(robot0_eef_quat=tilted), lambda s: np.zeros(3), -1.0, lambda s: np.pi / 2)
    np.testing.assert_allclose(next(part), [0, 0, 0, 0, 0.6 * np.sin(0.2) / 0.5, 0, -1], atol=1e-6)


def test_of_a_cubes_sides_the_nearest_is_gripped():
    for angle, expected in ((0.1, -np.pi / 2 + 0.1), (1.5, -np.pi / 2 + 1.5 - np.pi / 2), (0.7, -np.pi / 2 + 0.7)):
        got = turned("thing_quat", quarter=True)(seen(thing_quat=about_z(angle)))
        assert got == pytest.approx(expected, abs=1e-6)
    assert turned("thing_quat", by=np.pi / 2)(seen(thing_quat=about_z(0.3))) == pytest.approx(0.3 + np.pi / 2, abs=1e-6)


def test_a_plan_that_is_over_rests_with_open_fingers():
    script = Planned(lambda first: _resting(first))
    assert [script(seen())[-1] for _ in range(4)] == [1, 1, -1, -1]


def _resting(first: Any) -> Any:
    yield from rest(first, 1.0, 2)


@pytest.mark.filterwarnings("ignore")  # the simulator's own
@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ("Stack", 120),
        pytest.param("Door", 120, marks=pytest.mark.long),
        pytest.param("NutAssemblySquare", 400, marks=pytest.mark.long),
        pytest.param("PickPlaceCan", 220, marks=pytest.mark.long),
        pytest.param("Lift", 60, marks=pytest.mark.long),
    ],
)
def test_scripts_solve_their_tasks(task: str, steps: int):
    env = make(EnvSpec(suite="robosuite", task=task))
    for seed in range(100, 101 if task == "Stack" else 104):
        shown, script, success = env.reset(seed), SCRIPTS[task](), False
        for _ in range(steps):
            step = env.step(env.clip(script(shown)))
            shown, success = step.observation, step.success
            if success:
                break
        assert success, f"seed {seed}"
    env.close()
