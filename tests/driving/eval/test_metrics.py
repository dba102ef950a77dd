"""Errors, intervals, the rater feedback score, and predictors that see nothing."""

import numpy as np
import pytest

from driving.data.rater import rater_feedback_score
from driving.eval.metrics import measures, score
from driving.eval.plot import project
from driving.sim.scene import camera_to_vehicle, intrinsics


def test_measures_by_hand():
    truth = np.zeros((2, 20, 2), np.float32)
    predicted = np.zeros((2, 20, 2), np.float32)
    predicted[0, :, 0] = np.arange(1, 21)
    valid = np.ones((2, 20), bool)
    valid[1, 12:] = False
    found = measures(predicted, truth, valid, 0.1)
    assert found["ade_1s"][0] == pytest.approx(5.5)
    assert found["fde_1s"][0] == pytest.approx(10)
    assert found["ade_2s"][0] == pytest.approx(10.5)
    assert found["fde_2s"][0] == pytest.approx(20)
    assert found["ade_1s"][1] == 0
    assert np.isnan(found["ade_2s"][1])  # cut off after 1.2 s
    assert set(measures(predicted[:, :15], truth[:, :15], valid[:, :15], 0.1)) == {"ade_1s", "fde_1s"}
    # The same places 0.25 s apart reach 5 s: 12 steps in 3 s.
    slow = measures(predicted, truth, valid, 0.25)
    assert list(slow) == [f"{name}_{seconds}s" for seconds in (1, 2, 3, 5) for name in ("ade", "fde")]
    assert slow["fde_1s"][0] == 4
    assert slow["ade_3s"].tolist() == [6.5, 0]
    assert slow["fde_5s"][0] == 20


def test_a_hole_before_the_horizon_leaves_a_sample_out():
    valid = np.ones((2, 20), bool)
    valid[0, 3] = False
    found = measures(np.ones((2, 20, 2)), np.zeros((2, 20, 2)), valid, 0.1)
    for name in ("ade_1s", "fde_1s", "ade_2s", "fde_2s"):
        assert np.isnan(found[name][0])
        assert found[name][1] == pytest.approx(np.sqrt(2))


def test_an_interval_is_the_same_each_time():
    values, drive = np.random.default_rng(0).normal(size=60), np.repeat(np.arange(6), 10)
    one = score(values, drive, draws=50)
    assert one == score(values, drive, draws=50)
    assert one != score(values, drive, draws=50, seed=1)


def test_the_interval_is_over_drives():
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(1.0, 0.5, 12), 100)  # all the spread is between drives
    drive = np.repeat(np.arange(12), 100)
    found = score(level + rng.normal(0, 0.01, 1200), drive, draws=4000)
    standard_error = level[::100].std() / np.sqrt(12)
    assert found.mean == pytest.approx(level.mean(), abs=0.01)
    assert found.high - found.low == pytest.approx(2 * 1.96 * standard_error, rel=0.15)
    with_gaps = np.where(np.arange(1200) % 2, np.nan, level)
    assert score(with_gaps, drive, draws=10).mean == pytest.approx(level.mean())


def test_the_mean_is_over_samples_and_the_interval_over_drives_of_any_length():
    """A drive of three samples of 1 m and one of a single sample of 9 m: 3 m, where drives alike would give 5 m."""
    values, drive = np.array([1.0, 1.0, 9.0, 1.0, np.nan]), np.array([4, 4, 7, 4, 7])
    found = score(values, drive, draws=1000)
    assert found.mean == 3
    assert (found.low, found.high) == (1, 9)  # either drive drawn twice


def path(speed: float, lateral: float = 0.0) -> np.ndarray:
    t = np.arange(1, 21) / 4
    return np.stack([speed * t, np.full(20, lateral)], axis=-1)


def test_rater_feedback_score():
    rated, scores = np.stack([path(12), path(6)]), np.array([8.0, 5.0])
    fast = {"speed_mps": 12.0}
    assert rater_feedback_score(path(12), rated, scores, **fast) == 8
    assert rater_feedback_score(path(12, 0.9), rated, scores, **fast) == 8  # inside 1.0 m and 1.8 m
    assert rater_feedback_score(path(6), rated, scores, **fast) == 5
    # 1.9 m beside: d = 1.9 at 3 s, 1.9 / 1.8 at 5 s.
    expected = np.mean([8 * 0.1**0.9, 8 * 0.1 ** (1.9 / 1.8 - 1)])
    assert rater_feedback_score(path(12, 1.9), rated, scores, **fast) == pytest.approx(max(expected, 4.0))
    assert rater_feedback_score(path(12, 20.0), rated, scores, **fast) == 4
    # Slow: regions of half the size, so 0.9 m is outside at 3 s.
    slow = rater_feedback_score(path(12, 0.9), rated, scores, speed_mps=1.0)
    assert slow == pytest.approx(np.mean([8 * 0.1**0.8, 8.0]))
    # A trajectory in the region of a rater who thought little of it is not lifted to the floor.
    assert rater_feedback_score(path(6), rated, np.array([8.0, 1.0]), **fast) == 1
    with pytest.raises(ValueError, match="20 places"):
        rater_feedback_score(path(6)[:12], rated[:, :12], scores, **fast)


def test_ahead_and_beside_are_seen_along_the_raters_way():
    """12 m/s straight on, and to the left from the fourth second on: 5 m too far along the way is inside 7.2 m, 5 m
    beside it outside 1.8 m."""
    t = np.arange(1, 21) / 4
    rated = np.stack([12 * np.minimum(t, 4), 12 * np.maximum(t - 4, 0)], axis=-1)
    along, beside = rated.copy(), rated.copy()
    along[-1, 1] += 5
    beside[-1, 0] += 5
    for other in (path(6), rated):
        raters, scores = np.stack([rated, other]), np.array([9.0, 9.0 if other is rated else 1.0])
        assert rater_feedback_score(along, raters, scores, speed_mps=12.0) == 9
        expected = np.mean([9, 9 * 0.1 ** (5 / 1.8 - 1)])
        assert rater_feedback_score(beside, raters, scores, speed_mps=12.0) == pytest.approx(expected)


def test_a_standing_rater_has_a_direction():
    rated = np.zeros((1, 20, 2))
    assert rater_feedback_score(np.zeros((20, 2)), rated, np.array([9.0]), speed_mps=0.0) == 9
    beside = rater_feedback_score(path(0, 0.6), rated, np.array([9.0]), speed_mps=0.0)
    assert beside == pytest.approx(np.mean([9 * 0.1**0.2, 9.0]))


def test_points_ahead_fall_into_the_middle_of_the_front_image():
    fx, fy, cx, cy = intrinsics(64, 96)
    matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    far = project(np.array([[1000.0, 0.0], [10.0, 2.0], [-5.0, 0.0]]), matrix, camera_to_vehicle("front"))
    horizon = cy - fy * np.tan(np.deg2rad(5))
    np.testing.assert_allclose(far[0], [cx, horizon], atol=0.3)
    assert far[1][0] < cx  # to the left
    assert far[1][1] > horizon
    assert np.isnan(far[2]).all()
    left = project(np.array([[0.4, 20.0]]), matrix, camera_to_vehicle("side_left"))
    assert abs(left[0][0] - cx) < 10
