"""Errors, intervals, the rater feedback score, and predictors that see nothing."""

import numpy as np
import pytest

from driving.data.rater import rater_feedback_score
from driving.data.validation import between, scored
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


@pytest.mark.parametrize(
    ("dt_s", "expected"),
    [(0.4, {"fde_2s": 20.0}), (0.3, {"fde_3s": 30.0}), (0.333, {"fde_1s": 9.99, "fde_2s": 19.98, "fde_3s": 29.97})],
)
def test_nothing_is_measured_where_no_waypoint_lies(dt_s: float, expected: dict[str, float]):
    """At 10 m/s, against one who stands: 1 s is no multiple of 0.4 s, whose nearest step is at 0.8 s."""
    path = np.stack([10 * dt_s * np.arange(1, 12), np.zeros(11)], axis=-1)[None]
    found = measures(np.zeros_like(path), path, np.ones((1, 11), bool), dt_s)
    finals = {name: float(value[0]) for name, value in found.items() if name.startswith("fde")}
    assert finals == pytest.approx(expected)
    assert scored(np.ones((1, 11), bool), dt_s) == {float(name[4]): 1.0 for name in expected}
    missed = {0.4: "1, 3", 0.3: "1, 2", 0.333: ""}[dt_s]
    assert between(11, dt_s).startswith(f"no score at {missed} s: " if missed else "")
    assert bool(between(11, dt_s)) == bool(missed)


def test_a_hole_before_the_horizon_leaves_a_sample_out():
    valid = np.ones((2, 20), bool)
    valid[0, 3] = False
    found = measures(np.ones((2, 20, 2)), np.zeros((2, 20, 2)), valid, 0.1)
    for name in ("ade_1s", "fde_1s", "ade_2s", "fde_2s"):
        assert np.isnan(found[name][0])
        assert found[name][1] == pytest.approx(np.sqrt(2))


def test_an_interval_by_hand():
    """Five drives of a sample each: 3 +- t se, se = sqrt(2.5 / 5), t = 2.7764 of four degrees of freedom (tables)."""
    found = score(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([7, 1, 3, 9, 0]))
    assert found.mean == 3
    assert (found.low, found.high) == pytest.approx((3 - 2.7764 * np.sqrt(0.5), 3 + 2.7764 * np.sqrt(0.5)), abs=1e-4)
    assert str(found) == "3.000 (1.037 to 4.963)"


@pytest.mark.parametrize("repeat", [1, 50])
def test_there_is_none_below_five_drives(repeat: int):
    """However many frames they have; a drive without a known value is none."""
    values, drive = np.array([1.0, 2.0, 3.0, 4.0, np.nan]), np.arange(5)
    found = score(np.repeat(values, repeat), np.repeat(drive, repeat))
    assert (found.mean, found.low, found.high) == (2.5, None, None)
    assert str(found) == "2.500"


@pytest.mark.parametrize("drives", [5, 11])
def test_an_interval_covers_as_often_as_it_says(drives: int):
    """95 % of 4,000 draws of a few drives of unequal length; drawing drives again covered 82 to 90 %."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(80, 121, drives)
    drive = np.repeat(np.arange(drives), lengths)
    scores = [score(level[drive], drive) for level in rng.normal(1.0, 0.5, (4000, drives))]
    covered = np.mean([one.low < 1.0 < one.high for one in scores if one.low is not None and one.high is not None])
    assert 0.935 < covered < 0.965


def test_the_mean_is_over_samples_and_the_interval_over_drives_of_any_length():
    """A drive of three samples of 1 m and one of a single sample of 9 m: 3 m, where drives alike would give 5 m.

    Of six such drives in turn, residuals are -6 and 6: se = sqrt(6 / 5 * 6 * 36) / 12, t = 2.5706.
    """
    values, drive = np.array([1.0, 1.0, 9.0, 1.0, np.nan]), np.array([4, 4, 7, 4, 7])
    assert score(values, drive).mean == 3
    many = score(np.tile(values, 3), np.concatenate([drive + 10 * i for i in range(3)]))
    assert many.mean == 3
    half = 2.5706 * np.sqrt(6 / 5 * 6 * 36) / 12
    assert (many.low, many.high) == pytest.approx((3 - half, 3 + half), abs=1e-4)


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
    assert rater_feedback_score(path(12, 0.9), rated, scores, speed_mps=-12.0) == 8  # backwards as fast
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
