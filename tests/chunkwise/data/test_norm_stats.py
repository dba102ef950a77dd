import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chunkwise.data import norm_stats
from chunkwise.data.norm_stats import NormStats, RunningStats
from chunkwise.errors import DataError


def computed(*pieces: np.ndarray) -> NormStats:
    running = RunningStats()
    for piece in pieces:
        running.update(piece)
    return running.result()


@settings(deadline=None)
@given(
    x=hnp.arrays(np.float32, st.tuples(st.integers(2, 60), st.just(2)), elements=st.floats(-1e3, 1e3, width=32)),
    cut=st.integers(0, 60),
)
def test_pieces_give_the_statistics_of_the_whole(x: np.ndarray, cut: int):
    found = computed(x[:cut], x[cut:])
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.std, wide.std(0), rtol=1e-6, atol=1e-6)
    for name, q in (("q01", 0.01), ("q99", 0.99)):
        found_q = getattr(found, name)
        # Between the order statistics on either side of the rank, give or take one bin.
        bin_width = np.maximum(np.ptp(wide, axis=0) / (norm_stats.BINS / 2), 1e-9)
        lower = np.quantile(wide, q, axis=0, method="lower") - bin_width
        upper = np.quantile(wide, q, axis=0, method="higher") + bin_width
        assert (lower <= found_q).all()
        assert (found_q <= upper).all()


def test_quantiles_hold_while_the_range_grows_a_thousandfold():
    rng = np.random.default_rng(0)
    pieces = [rng.normal(scale=scale, size=(4000, 1)) for scale in (0.01, 1.0, 10.0)]
    whole = np.concatenate(pieces)
    found = computed(*pieces)
    bin_width = np.ptp(whole) / (norm_stats.BINS / 2)
    for found_q, q in ((found.q01, 0.01), (found.q99, 0.99)):
        assert np.quantile(whole, q, method="lower") - bin_width <= found_q[0]
        assert found_q[0] <= np.quantile(whole, q, method="higher") + bin_width


def test_a_constant_dimension_is_exact():
    found = computed(np.full((10, 1), 3.7), np.full((5, 1), 3.7))
    np.testing.assert_allclose([found.mean[0], found.q01[0], found.q99[0]], 3.7)
    assert found.std[0] < 1e-12


@pytest.mark.parametrize(("top", "width"), [(8191.0, 1.0), (8192.0, 2.0), (4096.0, 1.0), (4095.0, 0.5)])
def test_quantiles_are_linear_inside_bins_of_a_power_of_two(top: float, width: float):
    """By hand: of 0, 98 times 0.25 and `top`, 99 lie in the first of at most 8,192 bins, evenly for all it knows."""
    x = np.concatenate([[0.0], np.full(98, 0.25), [top]])[:, None]
    for pieces in ((x,), (x[:60], x[60:]), (x[::-1][:1], x[::-1][1:])):
        found = computed(*pieces)
        np.testing.assert_allclose([found.q01[0], found.q99[0]], [width / 99, width], rtol=1e-12)


def test_a_quantile_is_never_outside_of_what_there_is():
    """By hand: bins are 2 wide, so that shares of 1 and 99 % lie at 0.03 and 10,001.94."""
    found = computed(np.array([[0.6], [0.6], [1e4]]))
    assert (found.q01.tolist(), found.q99.tolist()) == ([0.6], [1e4])


def test_a_mixture_of_equal_weights_a_row_is_the_whole():
    """A part three times and another once weigh as 0.75 and 0.25 of the two, whatever the parts' lengths and ranges."""
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(40, 3)), rng.normal(5.0, 30.0, size=(40, 3))
    near[:, 2] = far[:, 2] = 1.5
    whole, first, second = RunningStats(), RunningStats(), RunningStats()
    for x in (near, far, near, near):
        whole.update(x)
    first.update(np.concatenate([near, near]))
    second.update(far)
    found, expected = norm_stats.mixed([first, second], [0.75, 0.25]), whole.result()
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-12, atol=1e-12)
    assert found.q01 is not None
    assert found.q99 is not None
    bins = np.ptp(far, axis=0) / (norm_stats.BINS / 2)
    assert (np.abs(found.q01 - expected.q01) <= bins).all()
    assert (np.abs(found.q99 - expected.q99) <= bins).all()
    np.testing.assert_array_equal(found.min, expected.min)
    np.testing.assert_array_equal(found.max, expected.max)


def test_no_rows_are_an_error():
    with pytest.raises(ValueError, match="no rows"):
        computed(np.zeros((0, 2)))


def example() -> NormStats:
    two = np.array([1.0, 2.0])
    return NormStats(mean=two, std=np.array([0.5, 0.0]), q01=two - 1, q99=np.array([4.0, 1.0]))


def test_mean_std_by_hand_and_the_floored_dimension_is_named():
    affine, notes = norm_stats.normalizer(example(), "mean_std", "action")
    x = np.array([[2.0, 2.001]], np.float32)
    np.testing.assert_allclose(affine.apply(x), [[2.0, 1.0]], rtol=1e-3)
    np.testing.assert_allclose(affine.invert(affine.apply(x)), x, rtol=1e-6)
    assert notes == ("action, dimension 1: scale 0 is below 0.001, which is used instead",)


def test_quantiles_become_minus_one_and_one():
    affine, notes = norm_stats.normalizer(example(), "quantile", "state")
    np.testing.assert_allclose(affine.apply(np.array([[0.0, 1.0], [4.0, 1.0]])), [[-1.0, 0.0], [1.0, 0.0]])
    assert len(notes) == 1


def test_the_range_becomes_minus_one_and_one_whatever_the_pieces():
    found = computed(np.array([[3.0], [-1.0]]), np.array([[2.0]]), np.array([[7.0], [0.0]]))
    affine, notes = norm_stats.normalizer(found, "min_max", "action")
    np.testing.assert_array_equal(affine.apply(np.array([[-1.0], [3.0], [7.0]])), [[-1.0], [0.0], [1.0]])
    assert notes == ()


def test_identity_keeps_the_bits():
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    np.testing.assert_array_equal(norm_stats.identity(3).apply(x), x)


def test_json_has_openpis_layout_and_comes_back(tmp_path: Path):
    file = tmp_path / "norm_stats.json"
    norm_stats.save(file, {"state": example(), "actions": example()})
    tree = json.loads(file.read_text())
    assert tree["norm_stats"]["actions"] == {"mean": [1, 2], "std": [0.5, 0], "q01": [0, 1], "q99": [4, 1]}
    back = norm_stats.load(file)["state"]
    for name in ("mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(getattr(back, name), getattr(example(), name))
    assert [p.name for p in tmp_path.iterdir()] == ["norm_stats.json"]


def test_the_range_comes_back_and_without_it_the_text_is_that_of_earlier_versions(tmp_path: Path):
    file = tmp_path / "norm_stats.json"
    whole = computed(np.array([[3.0], [-1.0]]))
    norm_stats.save(file, {"actions": whole})
    back = norm_stats.load(file)["actions"]
    assert back.min is not None
    assert back.max is not None
    assert (back.min.tolist(), back.max.tolist()) == ([-1.0], [3.0])
    text = norm_stats.to_json(norm_stats.without_range({"actions": whole}))
    assert list(json.loads(text)["norm_stats"]["actions"]) == ["mean", "std", "q01", "q99"]
    with pytest.raises(DataError, match="expected min and max for min_max normalisation, found none"):
        norm_stats.normalizer(example(), "min_max", "action")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        '{"norm_stats": {"state": {"mean": [1]}}}',
        '{"norm_stats": {"state": {"mean": [NaN], "std": [1], "q01": [0], "q99": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1, 2], "std": [1], "q01": [0], "q99": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": null, "q99": null}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [-0.1], "q01": [0], "q99": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [true], "q01": [0], "q99": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": [2], "q99": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": [0], "q99": [4e38]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": [0], "q99": [1], "min": [0]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": [0], "q99": [1], "min": [2], "max": [1]}}}',
        '{"norm_stats": {"state": {"mean": [1], "std": [1], "q01": [0], "q99": [1], "min": [0], "max": [4e38]}}}',
        '{"norm_stats": {"state": {"mean": [1' + "0" * 400 + '], "std": [1], "q01": [0], "q99": [1]}}}',
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: str):
    file = tmp_path / "norm_stats.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"norm_stats\.json: expected"):
        norm_stats.load(file)


def test_a_missing_file_is_refused_by_name(tmp_path: Path):
    with pytest.raises(DataError, match=r"data\.norm_stats"):
        norm_stats.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "text", ["{", '{"norm_stats": {"state": {"mean": ["a"], "std": [1], "q01": [0], "q99": [1]}}}']
)
def test_a_file_that_holds_no_statistics_says_so_in_words(tmp_path: Path, text: str):
    path = tmp_path / "norm_stats.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"expected \{.norm_stats.*, found: ") as refused:
        norm_stats.load(path)
    assert "Error(" not in str(refused.value)
