"""Which moments a figure shows, and its cameras in which order."""

import numpy as np
import pytest

from driving.eval import plot
from tests.driving.test_evaluate import DT, make_states


def test_the_moments_are_bends_and_changes_of_speed():
    """Five drives on a straight road but for one: to the left, to the right, braking, speeding up, as it was."""
    ends = np.array([[4.0, 0.0], [4.0, 2.0], [4.0, -2.0], [1.0, 0.0], [7.0, 0.0]], np.float32)
    waypoints = ends[:, None] * np.arange(1, 5, dtype=np.float32)[:, None] / 4
    motion = np.tile(np.array([4.0 / (4 * DT), 0.0], np.float32), (5, 1))
    states = make_states(5, waypoints=waypoints, motion=motion, drive=np.arange(5))
    assert plot.moments(states, 4, DT).tolist() == [1, 2, 3, 4]
    assert sorted(plot.moments(states, 9, DT).tolist()) == [0, 1, 2, 3, 4]


def test_a_speed_that_nobody_knows_is_no_speeding_up():
    """Car 4 drives on at 10 m/s, and its speed is not recorded; car 3 speeds up a little, car 2 brakes a little."""
    ends = np.array([[8.0, 2.0], [8.0, -2.0], [7.0, 0.0], [9.0, 0.0], [20.0, 0.0]], np.float32)
    waypoints = ends[:, None] * np.arange(1, 5, dtype=np.float32)[:, None] / 4
    motion = np.tile(np.array([8.0 / (4 * DT), 0.0], np.float32), (5, 1))
    known = np.ones((5, 8), bool)
    motion[4], known[4, 0] = 0.0, False
    states = make_states(5, waypoints=waypoints, motion=motion, known=known, drive=np.arange(5))
    assert plot.moments(states, 4, DT).tolist() == [0, 1, 2, 3]


def looks(*degrees: float) -> np.ndarray:
    """Extrinsics of cameras that look so far to the left."""
    out = np.tile(np.eye(4, dtype=np.float32), (len(degrees), 1, 1))
    angle = np.deg2rad(np.array(degrees))
    out[:, 0, 2], out[:, 1, 2] = np.cos(angle), np.sin(angle)
    return out


@pytest.mark.parametrize(
    ("known", "order"),
    [
        ([[1, 1, 1], [1, 1, 1]], [2, 0, 1]),
        ([[0, 1, 1], [1, 1, 1]], [2, 0, 1]),
        ([[0, 1, 1], [0, 1, 1]], [2, 1, 0]),
        ([[0, 0, 0], [0, 0, 0]], [0, 1, 2]),
    ],
)
def test_cameras_stand_from_left_to_right_and_those_of_unknown_direction_last(known: list[list[int]], order: list[int]):
    extrinsics = np.stack([looks(0, -60, 60)] * 2)
    extrinsics[~np.array(known, bool)] = np.eye(4)  # as batches leave them
    assert plot._left_to_right(extrinsics, np.array(known, bool)) == order
