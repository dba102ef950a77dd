import math

import numpy as np
import pytest

from driving.converters.trajectory import Trajectory, pose_of_matrix, rotation_of_quaternion


def circle(times: list[float], *, speed: float = 8.0, turn: float = 0.4) -> Trajectory:
    radius = speed / turn
    return Trajectory((t, (radius * math.sin(turn * t), radius * (1 - math.cos(turn * t)), turn * t)) for t in times)


def test_poses_are_exact_where_known_and_interpolated_between():
    line = Trajectory([(1.0, (0.0, 0.0, 0.2)), (0.0, (-2.0, 4.0, 0.0))])
    assert line.at(1.0) == pytest.approx((0.0, 0.0, 0.2))
    assert line.at(0.0) == pytest.approx((-2.0, 4.0, 0.0))
    assert line.at(0.5) is None  # farther apart than MAX_GAP_S
    line = Trajectory([(1.0, (0.0, 0.0, 0.2)), (0.5, (-2.0, 4.0, 0.0))])
    assert line.at(0.625) == pytest.approx((-1.5, 3.0, 0.05))
    assert line.at(0.4) is None
    assert line.at(1.1) is None


def test_yaw_is_interpolated_the_short_way():
    line = Trajectory([(0.0, (0.0, 0.0, math.pi - 0.1)), (0.5, (0.0, 0.0, -math.pi + 0.1))])
    middle = line.at(0.25)
    assert middle is not None
    assert abs(middle[2]) == pytest.approx(math.pi)
    assert line.yaw_rate(0.5) == pytest.approx(0.4)


def test_speeds_of_a_circle():
    line = circle(np.arange(0, 2.01, 0.1).tolist())
    for time in (0.1, 0.5, 0.55, 1.95, 2.0, 2.19):
        assert line.speed(time) == pytest.approx(8.0, rel=2e-3)
        assert line.yaw_rate(time) == pytest.approx(0.4)
    assert line.speed(0.0) is line.speed(0.05) is None, "nothing came before"
    assert line.speed(2.21) is None, "the last pose is too old"


def test_speeds_look_backwards_alone():
    """A car that stands until 1 s and then takes 4 m/s^2: nothing of it before, and each later time lags by 0.1 s."""
    times = np.arange(0, 2.01, 0.05)
    line = Trajectory((t, (2 * max(t - 1, 0.0) ** 2, 0.0, 0.3 * max(t - 1, 0.0))) for t in times.tolist())
    for time in (0.5, 0.9, 0.99, 1.0, 1.04):
        assert line.speed(time) == 0.0
        assert line.yaw_rate(time) == 0.0
    assert line.velocity(1.5) == pytest.approx((4 * 0.4, 0.0, 0.3))
    assert line.velocity(1.52) == line.velocity(1.5), "1.55 s is still to come"


def test_reverse_is_negative():
    line = Trajectory([(0.0, (0.0, 0.0, 0.0)), (0.1, (-0.5, 0.0, 0.0))])
    assert line.speed(0.1) == pytest.approx(-5.0)


def test_no_speed_across_a_gap_or_from_one_pose():
    line = circle([0.0, 0.1, 0.2, 3.0, 3.1])
    assert line.speed(1.5) is None
    assert line.speed(0.2) == pytest.approx(8.0, rel=2e-3)
    assert line.speed(3.0) is None
    assert line.speed(3.1) == pytest.approx(8.0, rel=2e-3)
    assert circle([1.0]).speed(1.0) is None
    assert circle([1.0]).at(1.0) is not None
    assert Trajectory([]).speed(0.0) is None


def test_matrices_and_quaternions():
    half = math.radians(30) / 2
    turn = rotation_of_quaternion([2 * math.cos(half), 0.0, 0.0, 2 * math.sin(half)])
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turn, (4, 5, 6)
    assert pose_of_matrix(matrix) == pytest.approx((4, 5, math.radians(30)))
    np.testing.assert_allclose(turn @ [1, 0, 0], [math.cos(2 * half), math.sin(2 * half), 0], atol=1e-12)
    tilt = rotation_of_quaternion([math.cos(half), math.sin(half), 0.0, 0.0])
    np.testing.assert_allclose(tilt @ [0, 1, 0], [0, math.cos(2 * half), math.sin(2 * half)], atol=1e-12)


@pytest.mark.parametrize(("apart", "known"), [(0.0015, True), (0.0005, False)])
def test_positions_within_a_millisecond_give_no_speed(apart: float, known: bool):
    line = Trajectory([(0.0, (0.0, 0.0, 0.0)), (apart, (10 * apart, 0.0, 0.0))])
    assert line.speed(apart) == (pytest.approx(10.0) if known else None)
