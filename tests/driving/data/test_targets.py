"""Targets against poses of a car on a circle, whose future is known in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving.data import targets
from tests.driving.drives import SPEED, TURN, pose_at

DT, STEPS = 0.1, 20


def circle(t: np.ndarray) -> np.ndarray:
    return np.stack(pose_at(t), axis=-1)  # pyright: ignore[reportArgumentType, reportCallIssue]


def from_poses(t: np.ndarray, pose: np.ndarray, max_gap_s: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    yaw, known = targets.headings(t, pose, np.full(len(t), np.nan), max_gap_s=max_gap_s, ahead=True)
    pose = np.concatenate([pose[:, :2], yaw[:, None]], axis=1)
    placed = np.all(np.isfinite(pose[:, :2]), axis=1)
    return targets.waypoints_from_poses(t, pose, placed, known, steps=STEPS, dt_s=DT, max_gap_s=max_gap_s)


def expected_waypoints(steps: int = STEPS) -> np.ndarray:
    """On a circle the future in the vehicle frame is the same from everywhere."""
    return circle(DT * np.arange(1, steps + 1))[:, :2]


def test_waypoints_of_a_circle_and_none_past_the_end():
    t = DT * np.arange(40)
    waypoints, valid = from_poses(t, circle(t))
    for i in range(40):
        left = min(STEPS, 39 - i)
        assert valid[i].sum() == left
        assert valid[i, :left].all()
        np.testing.assert_allclose(waypoints[i, :left], expected_waypoints()[:left], atol=1e-5)
        assert (waypoints[i, left:] == 0).all()  # never the last pose again


def test_waypoints_go_by_time_where_frames_were_dropped():
    t = np.delete(DT * np.arange(40), [5, 6, 17])
    waypoints, valid = from_poses(t, circle(t))
    assert valid[0].all()
    # Linear between frames 0.3 s apart: the sagitta of the arc, v w dt^2 / 8 = 0.036 m.
    np.testing.assert_allclose(waypoints[0], expected_waypoints(), atol=0.04)
    by_index = circle(t)[1 : STEPS + 1, :2]
    assert np.abs(by_index - expected_waypoints()).max() > 1.0


def test_a_frame_whose_own_pose_is_unknown_has_no_waypoints():
    """Its future is known in the world, and nobody knows where the car stood to see it."""
    t = DT * np.arange(40)
    pose = circle(t)
    known = np.ones(40, bool)
    known[[3, 4, 20]] = False
    pose[~known] = 0.0  # as tables.py leaves them
    waypoints, valid = targets.waypoints_from_poses(t, pose, known, known, steps=STEPS, dt_s=DT, max_gap_s=0.5)
    assert not valid[[3, 4, 20]].any()
    assert (waypoints[[3, 4, 20]] == 0).all()
    assert valid[[2, 5, 19]].all(), "the frames beside it see past it"
    np.testing.assert_allclose(waypoints[5], expected_waypoints(), atol=0.04)
    no, all_of_them = np.zeros(40, bool), np.ones(40, bool)
    for placed, headed in ((no, all_of_them), (all_of_them, no)):
        none = targets.waypoints_from_poses(t, circle(t), placed, headed, steps=STEPS, dt_s=DT, max_gap_s=0.5)
        assert not none[1].any()


@pytest.mark.parametrize("recorded", [[0], [99], [50], [0, 40, 80], list(range(0, 100, 5))])
def test_a_car_in_reverse_points_as_recorded_though_no_speed_says_so(recorded: list[int]):
    """It goes back for 6 s in an arc, where its direction of travel is pi off, stands for 2 s, and drives on."""
    t = DT * np.arange(100)
    way = SPEED * DT * np.concatenate([-np.arange(60.0), np.full(20, -60.0), np.arange(20.0) - 60.0])
    yaw = 3.0 + 0.01 * way  # over pi in the world
    middle = (yaw[1:] + yaw[:-1]) / 2
    steps = np.diff(way)[:, None] * np.stack([np.cos(middle), np.sin(middle)], axis=-1)
    pose = np.concatenate([np.cumsum(np.concatenate([np.zeros((1, 2)), steps]), axis=0), yaw[:, None]], axis=1)
    kept = np.isin(np.arange(100), recorded)
    pose[~kept, 2] = np.nan
    found, known = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(targets.wrap(found - yaw), 0.0, atol=0.01)
    if recorded == [0, 40, 80]:
        np.testing.assert_allclose(targets.wrap(found[62:80] - yaw[80]), 0.0, atol=1e-9)  # while it stands: exactly
    came, known = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.5)
    first = recorded[0]
    assert np.abs(targets.wrap(came - yaw))[1 : min(first, 60)].min(initial=9.0) > 3.0, "a model is not told the future"


def test_over_a_gap_nothing_says_whether_the_car_has_turned():
    """It comes back after 9 s without a place: its direction of travel is no reverse gear."""
    t = np.concatenate([DT * np.arange(10), 10 + DT * np.arange(10)])
    pose = np.full((20, 3), np.nan)
    pose[:, 0] = np.concatenate([np.arange(10.0), 50 - np.arange(10.0)])
    pose[:, 1], pose[0, 2] = 0.0, 0.0
    yaw, known = targets.headings(t, pose, np.full(20, np.nan), max_gap_s=0.5, ahead=True)
    assert np.flatnonzero(~known).tolist() == [9, 10], "whose neighbours are too far apart"
    np.testing.assert_allclose(targets.wrap(yaw[known]), [0.0] * 9 + [np.pi] * 9, atol=1e-9)


def test_where_the_car_comes_to_needs_no_heading():
    """Of the frames ahead only the place is asked: on the circle every anchor sees its whole future, exactly."""
    t = DT * np.arange(40)
    headed = np.arange(40) % 8 == 0
    pose = circle(t)
    pose[~headed, 2] = 0.0  # as headings leaves them
    waypoints, valid = targets.waypoints_from_poses(
        t, pose, np.ones(40, bool), headed, steps=STEPS, dt_s=DT, max_gap_s=0.1
    )
    assert np.flatnonzero(valid.any(axis=1)).tolist() == [0, 8, 16, 24, 32]
    np.testing.assert_allclose(waypoints[[0, 8, 16]], np.stack([expected_waypoints()] * 3), atol=1e-5)


def test_a_heading_lies_between_recorded_ones_where_targets_ask_for_it():
    """Over +-pi too; farther apart than two gaps it is the direction of travel, and a car that stands keeps its own."""
    t = DT * np.arange(100)
    pose = circle(t)
    true = pose[:, 2].copy()
    pose[:, 2] = np.where(np.arange(100) % 5 == 0, targets.wrap(true), np.nan)
    yaw, known = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(yaw[:96], true[:96], atol=1e-9)
    np.testing.assert_allclose(yaw[96:], true[96:], atol=TURN * DT)  # as it travels, for none is recorded after
    shaken = pose + np.array([0.0, 0.3, 0.0]) * np.sin(np.arange(100) * np.pi / 2)[:, None]  # travel goes astray
    yaw, _ = targets.headings(t, shaken, np.full(100, np.nan), max_gap_s=0.5, ahead=True)
    np.testing.assert_allclose(yaw[:96], true[:96], atol=1e-9)
    _, apart = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.2, ahead=True)
    assert apart.all()
    pose[:, :2] = 3.0  # it stands, pointing where the last recorded heading says; before it, where the next one does
    pose[:, 2] = np.nan
    pose[[30, 90], 2] = 1.0, 2.0
    stood, known = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(stood, [1.0] * 90 + [2.0] * 10, atol=1e-9)


@pytest.mark.parametrize(
    ("steps", "bridged"),
    [([0.1, 0.1, 3.0], 0.5), ([0.3, 0.3, 0.3], 0.5), ([0.5, 0.65, 0.5, 0.45], 0.75), ([2.0, 2.0], 1.0), ([], 0.5)],
)
def test_a_slow_recording_bridges_its_own_steps(steps: list[float], bridged: float):
    """Of nuScenes' key frames 1.5 x 0.5 s, so that 0.65 s is no gap; never above twice the limit."""
    assert targets.bridged_s(np.cumsum([0.0, *steps]), 0.5) == pytest.approx(bridged)


def test_a_gap_is_not_bridged():
    t = np.concatenate([DT * np.arange(10), 2.0 + DT * np.arange(30)])
    waypoints, valid = from_poses(t, circle(t))
    np.testing.assert_array_equal(valid[0], (DT * np.arange(1, STEPS + 1) < 0.91) | (np.arange(STEPS) == 19))
    np.testing.assert_allclose(waypoints[0, 19], expected_waypoints()[19], atol=1e-4)  # on a frame after the gap


@given(
    st.floats(-50, 50),
    st.floats(-50, 50),
    st.floats(-10, 10),
    st.floats(-50, 50),
    st.floats(-50, 50),
    st.floats(-10, 10),
)
def test_relative_pose_is_the_inverse_of_composition(x: float, y: float, yaw: float, dx: float, dy: float, turn: float):
    origin = np.array([x, y, yaw])
    there = np.array([x + dx * np.cos(yaw) - dy * np.sin(yaw), y + dx * np.sin(yaw) + dy * np.cos(yaw), yaw + turn])
    relative = targets.relative_pose(origin, there)
    np.testing.assert_allclose(relative[:2], (dx, dy), atol=1e-9)
    assert np.isclose(np.cos(relative[2] - turn), 1)
    assert -np.pi <= relative[2] <= np.pi


def test_wrap_keeps_half_open_interval():
    np.testing.assert_allclose(
        targets.wrap(np.array([0.0, np.pi, -np.pi, 3 * np.pi, 4.0])), [0, np.pi, np.pi, np.pi, 4 - 2 * np.pi]
    )


def test_yaw_is_continuous_over_pi_and_so_is_its_rate():
    t = DT * np.arange(100)
    pose = circle(t)
    assert pose[-1, 2] > np.pi
    pose[:, 2] = targets.wrap(pose[:, 2])
    yaw, known = targets.headings(t, pose, np.full(100, np.nan), max_gap_s=0.5)
    np.testing.assert_allclose(yaw, TURN * t, atol=1e-9)
    rate, valid = targets.rate(t, yaw, known, np.maximum(np.arange(100) - 1, 0), max_gap_s=0.5)
    assert valid.tolist() == [False] + [True] * 99  # nothing lies before the first
    np.testing.assert_allclose(rate, [0.0] + [TURN] * 99, atol=1e-9)


def test_a_yaw_rate_is_of_two_headings_of_one_kind():
    """Recorded ones, or directions of travel that do not jump; between one kind and the other nothing has turned."""
    yaw = np.array([0.0, 0.1, 0.3, 0.6, 2.6, 2.7])
    recorded = np.array([True, True, False, False, False, True])
    every = np.ones(6, bool)
    rate, valid, unbelieved = targets.yaw_rates(np.arange(6.0), yaw, every, recorded, every, max_gap_s=1.5)
    assert valid.tolist() == [False, True, False, True, False, False]
    assert unbelieved.tolist() == [False, False, True, False, True, True]
    np.testing.assert_allclose(rate, [0.0, 0.1, 0.0, 0.3, 0.0, 0.0], atol=1e-12)


def test_a_yaw_rate_passes_over_frames_that_say_nothing():
    """GPS in every second frame gives one there; a frame with a place whose heading is not known still breaks it."""
    t, yaw = 0.1 * np.arange(8), 0.05 * np.arange(8)
    known = np.arange(8) % 2 == 0
    for placed, valid in ((known, [2, 4, 6]), (np.ones(8, bool), [])):
        rate, found, _ = targets.yaw_rates(t, yaw, known, known, placed, max_gap_s=0.5)
        assert found.nonzero()[0].tolist() == valid
        np.testing.assert_allclose(rate[valid], 0.5)


def test_a_standing_car_has_no_heading_of_a_frame_without_a_place():
    """A yaw of 60 s ago, at no place; then it stands for 2 s, and drives off to the north."""
    t = np.concatenate([[0.0], 60.0 + 0.1 * np.arange(40)])
    pose = np.full((41, 3), np.nan)
    pose[0, 2] = 0.0
    pose[1:, 0], pose[1:, 1] = 0.0, np.maximum(np.arange(40) - 20, 0.0)
    yaw, known = targets.headings(t, pose, np.full(41, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(yaw[1:], np.pi / 2)


def test_interpolated_yaw_takes_the_short_way():
    t = np.array([0.0, 0.1])
    pose = np.array([[0.0, 0.0, np.pi - 0.1], [0.0, 0.0, -np.pi + 0.1]])
    yaw, known = targets.headings(t, pose, np.full(2, np.nan), max_gap_s=0.5)
    pose[:, 2] = yaw
    middle, valid = targets.interpolate_poses(t, pose, known, np.array([0.05]), max_gap_s=0.5)
    assert valid.all()
    assert np.isclose(np.abs(targets.wrap(middle[0, 2])), np.pi)


def test_heading_from_positions_where_yaw_is_not_recorded():
    t = DT * np.arange(30)
    pose = circle(t)
    true = pose[:, 2].copy()
    pose[:, 2] = np.nan
    yaw, known = targets.headings(t, pose, np.full(30, SPEED), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(yaw[1:-1], true[1:-1], atol=1e-3)
    np.testing.assert_allclose(yaw, true, atol=TURN * DT)  # one-sided at the ends
    reverse, _ = targets.headings(t, pose, np.full(30, -SPEED), max_gap_s=0.5, ahead=True)
    assert np.allclose(np.cos(reverse - yaw), -1)
    came, known = targets.headings(t, pose, np.full(30, SPEED), max_gap_s=0.5)
    assert known.tolist() == [False] + [True] * 29
    np.testing.assert_allclose(came[1:], true[1:] - TURN * DT / 2, atol=1e-9)  # the chord's direction


def test_a_heading_is_derived_until_one_is_recorded():
    """Before that nobody knows that one will be."""
    t = DT * np.arange(6)
    pose = circle(t)
    pose[[0, 1, 2, 4], 2] = np.nan
    yaw, known = targets.headings(t, pose, np.full(6, np.nan), max_gap_s=0.5)
    assert known.tolist() == [False, True, True, True, False, True]
    np.testing.assert_allclose(yaw[[1, 2]], TURN * DT * np.array([0.5, 1.5]), atol=1e-9)
    np.testing.assert_allclose(yaw[[3, 5]], TURN * t[[3, 5]], atol=1e-9)
    ahead, known = targets.headings(t, pose, np.full(6, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(ahead[[3, 4, 5]], TURN * t[[3, 4, 5]], atol=1e-9)
    np.testing.assert_allclose(ahead[[1, 2]], TURN * t[[1, 2]], atol=1e-9)  # the chord over both neighbours


def test_a_standing_car_keeps_its_heading_and_a_car_that_never_moved_has_none():
    t = DT * np.arange(30)
    pose = np.full((30, 3), np.nan)
    pose[:, 0] = np.concatenate([np.zeros(10), np.arange(1, 11), np.full(10, 10.0)])
    pose[:, 1] = 0.0
    yaw, known = targets.headings(t, pose, np.full(30, np.nan), max_gap_s=0.5, ahead=True)
    assert known.all()
    np.testing.assert_allclose(yaw, 0.0, atol=1e-12)
    yaw, known = targets.headings(t, pose, np.full(30, np.nan), max_gap_s=0.5)
    assert known.tolist() == [False] * 10 + [True] * 20, "where it will drive off to is not known before it does"
    np.testing.assert_allclose(yaw, 0.0, atol=1e-12)
    pose[:, 0] = 3.0
    assert not targets.headings(t, pose, np.full(30, np.nan), max_gap_s=0.5)[1].any()


def test_a_place_that_jumps_aside_takes_no_heading_from_its_neighbours():
    """From 0 to 0.3 m and back to 0.05: too far from either to stand there, too near between both to move."""
    pose = np.full((7, 3), np.nan)
    pose[:, 0], pose[:, 1] = [-2.0, -1.0, 0.0, 0.3, 0.05, 0.05, 0.05], 0.0
    known = targets.headings(DT * np.arange(7), pose, np.full(7, np.nan), max_gap_s=0.5, ahead=True)[1]
    assert known.tolist() == [True, True, True, False, True, True, True]


def test_speed_from_positions():
    t = DT * np.arange(30)
    speed, valid = targets.speeds(t, circle(t)[:, :2], max_gap_s=0.5)
    assert valid.tolist() == [False] + [True] * 29
    np.testing.assert_allclose(speed[1:], SPEED, rtol=1e-3)
    speed, valid = targets.speeds(t, circle(t)[:, :2], max_gap_s=0.5, ahead=True)
    assert valid.all()
    np.testing.assert_allclose(speed, SPEED, rtol=1e-3)
    alone, valid = targets.speeds(t[:1], circle(t)[:1, :2], max_gap_s=0.5)
    assert not valid.any()
    assert alone.tolist() == [0.0]


def listed(rows: list[list[tuple[float, float]]]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_listed_waypoints_at_the_same_step_are_taken_as_they_are():
    rows = np.random.default_rng(0).normal(size=(5, STEPS, 2)).astype(np.float32)
    out, valid = targets.waypoints_from_expert(DT * np.arange(5), rows, DT, steps=STEPS, dt_s=DT, moving_at_end=False)
    np.testing.assert_array_equal(out, rows)
    assert valid.all()


def test_listed_waypoints_at_another_step_are_interpolated_from_the_origin():
    # 4 Hz, as in Waymo's end-to-end set: 0.25 s a place, 2 m apart.
    rows = listed([[(2.0 * (j + 1), float(j + 1)) for j in range(4)]])
    out, valid = targets.waypoints_from_expert(np.zeros(1), rows, 0.25, steps=12, dt_s=0.1, moving_at_end=False)
    np.testing.assert_array_equal(valid[0], [True] * 10 + [False] * 2)  # the list ends after 1 s
    np.testing.assert_allclose(out[0, :10, 0], 0.8 * np.arange(1, 11), rtol=1e-6)
    np.testing.assert_allclose(out[0, :10, 1], 0.4 * np.arange(1, 11), rtol=1e-6)
    assert (out[0, 10:] == 0).all()


def test_a_list_filled_up_with_the_last_place_is_masked_there():
    t = DT * np.arange(4)
    rows = listed([[(min(i + j + 1, 3) - float(i), 0.0) for j in range(5)] for i in range(4)])
    out, valid = targets.waypoints_from_expert(t, rows, DT, steps=5, dt_s=DT, moving_at_end=True)
    np.testing.assert_array_equal(valid.sum(1), [3, 2, 1, 0])
    assert (out[~valid] == 0).all()
    standing = targets.waypoints_from_expert(t, rows, DT, steps=5, dt_s=DT, moving_at_end=False)[1]
    assert standing.all()  # a car that stands at the end may well stand on


def test_repeats_before_the_end_are_a_car_that_stands():
    t = DT * np.arange(30)
    rows = np.zeros((30, 5, 2), np.float32)
    valid = targets.waypoints_from_expert(t, rows, DT, steps=5, dt_s=DT, moving_at_end=True)[1]
    assert valid[:24].all()
    assert not valid[29].any()


@pytest.mark.parametrize(("step_m", "repeats"), [(0.0, True), (0.9e-6, True), (1.5e-6, False), (0.01, False)])
def test_a_place_repeats_within_a_micrometre(step_m: float, repeats: bool):
    """So much that arithmetic on poses may change; in float64, since float32 tells no micrometres at 1 m."""
    x = [-1.0, *(step_m * np.arange(4))]
    knots = np.stack([x, np.zeros(5)], axis=-1)[None]
    found = targets._filled_up(np.zeros(1), knots, DT)
    assert found[0].tolist() == [False, False] + [repeats] * 3


@pytest.mark.parametrize(("moved", "known"), [(0.099, False), (0.101, True)])
def test_a_direction_needs_a_decimetre_of_way(moved: float, known: bool):
    """From the frame before to the one after."""
    pose = np.full((3, 3), np.nan)
    pose[:, :2] = np.array([[0.0, 0.0], [0.0, moved / 2], [0.0, moved]])
    yaw, found = targets.headings(DT * np.arange(3), pose, np.full(3, np.nan), max_gap_s=0.5, ahead=True)
    assert found[1] == known
    assert yaw[1] == (pytest.approx(np.pi / 2) if known else 0.0)
    yaw, found = targets.headings(DT * np.arange(3), pose, np.full(3, np.nan), max_gap_s=0.5)
    assert found.tolist() == [False, known, known], "from the frame before alone, half of it"


def test_interpolation_needs_a_known_frame_on_either_side_and_near():
    t = np.array([0.0, 1.0, 1.5])
    pose = np.array([[0.0, 0.0, 0.0], [4.0, 2.0, 1.0], [5.0, 2.0, 1.0]])
    query = np.array([-2e-6, -0.5e-6, 0.25, 1.0, 1.25, 1.5 + 0.5e-6, 1.5 + 2e-6])
    for gap, inside in ((1.0, True), (0.9, False)):
        found, valid = targets.interpolate_poses(t, pose, np.ones(3, bool), query, max_gap_s=gap)
        assert valid.tolist() == [False, True, inside, True, True, True, False]
        np.testing.assert_allclose(found[2], [1.0, 0.5, 0.25] if inside else 0.0)
        np.testing.assert_allclose(found[4], [4.5, 2.0, 1.0])
        np.testing.assert_array_equal(found[~valid], 0.0)
    alone, valid = targets.interpolate_poses(t[:1], pose[1:2], np.ones(1, bool), np.array([0.0, 0.1]), max_gap_s=1.0)
    assert valid.tolist() == [True, False]
    assert alone.tolist() == [[4.0, 2.0, 1.0], [0.0, 0.0, 0.0]]
    none, valid = targets.interpolate_poses(t, pose, np.zeros(3, bool), query, max_gap_s=1.0)
    assert none.shape == (7, 3)
    assert not valid.any()


def test_of_two_frames_that_are_equally_near_the_earlier_is_taken():
    t = np.arange(200) * 0.1  # for a third of them the last bits would say 0.2 s before
    rows, near = targets.nearest_frames(t, np.array([-0.25, 0.25]), tolerance_s=0.1)
    np.testing.assert_array_equal(rows[3:, 0], np.arange(3, 200) - 3)
    np.testing.assert_array_equal(rows[:-3, 1], np.arange(197) + 2)
    assert near[3:-3].all()


@pytest.mark.parametrize(
    ("offset", "nearest", "valid"), [(0.5, 5, True), (0.52, 5, True), (0.56, 6, True), (9.0, 29, False)]
)
def test_frames_are_chosen_by_time(offset: float, nearest: int, valid: bool):
    t = DT * np.arange(30)
    rows, near = targets.nearest_frames(t, np.array([offset]), tolerance_s=0.05)
    assert (rows[0, 0], near[0, 0]) == (nearest, valid)


def test_frames_before_the_start_and_in_a_gap_are_masked():
    t = np.delete(DT * np.arange(30), [10, 11])
    rows, near = targets.nearest_frames(t, np.array([-0.3, 0.0]), tolerance_s=0.05)
    np.testing.assert_array_equal(near[:4, 0], [False, False, False, True])
    assert near[:, 1].all()
    np.testing.assert_array_equal(rows[:, 1], np.arange(28))
    after = int(np.flatnonzero(np.isclose(t, 1.4))[0])  # 0.3 s before it lies 1.1 s, which was dropped
    assert not near[after, 0]


@pytest.mark.parametrize(("gap", "near"), [(0.9, True), (1.1, False)])
def test_a_difference_is_not_taken_across_a_gap(gap: float, near: bool):
    """Frames at 0, 0.1, and after a gap of the recording: two neighbours may be 2 x 0.5 s apart, no more."""
    t = np.array([0.0, 0.1, gap, gap + 0.1])
    step, known = targets.differences(t, np.arange(4.0)[:, None], max_gap_s=0.5, ahead=True)
    np.testing.assert_array_equal(step[:, 0], [1, 2, 2, 1])
    assert known.tolist() == [True, near, near, True]


@pytest.mark.parametrize(("gap", "near"), [(0.99, True), (1.01, False)])
def test_a_difference_backwards_spans_as_much(gap: float, near: bool):
    t = np.array([0.0, 0.1, 0.1 + gap, 0.2 + gap])
    step, known = targets.differences(t, np.arange(4.0)[:, None], max_gap_s=0.5)
    np.testing.assert_array_equal(step[:, 0], [0, 1, 1, 1])
    assert known.tolist() == [False, True, near, True]
