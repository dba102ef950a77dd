"""chunkwise/data/holdout.py: which episodes are held out, and which of their frames are measured."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkwise.data.holdout import ROWS, held_out, spaced


def test_the_least_hashes_are_held_out_of_each_group():
    """SHA-256 of d, f, c, b, e, a begins 18, 25, 2e, 3e, 3f, ca."""
    names = list("abcdef")
    digests = [hashlib.sha256(name.encode()).hexdigest()[:2] for name in names]
    assert digests == ["ca", "3e", "2e", "18", "3f", "25"]
    assert held_out(names, 0.5).tolist() == [False, False, True, True, False, True]
    by_turns = ["x", "y"] * 3  # a, c, e and b, d, f
    assert held_out(names, 0.34, groups=by_turns).tolist() == [False, False, True, True, False, False]
    assert held_out(names, 0.5, groups=by_turns).tolist() == [False, False, True, True, True, True]
    assert held_out(names, 0.5, groups=["x"] * 5 + ["y"]).tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.24, 1), (0.26, 1), (0.38, 2), (0.99, 4)])
def test_at_least_one_is_held_out_and_one_stays(share: float, count: int):
    assert held_out(list("abcde"), share).sum() == count
    assert held_out(["a"], share).sum() == 0


@given(st.sets(st.text(min_size=1), min_size=3, max_size=30), st.floats(0.05, 0.95))
def test_one_name_more_moves_at_most_one(names: set[str], share: float):
    *some, more = sorted(names)
    before = {name for name, held in zip(some, held_out(some, share), strict=True) if held}
    everyone = [more, *some]
    after = {name for name, held in zip(everyone, held_out(everyone, share), strict=True) if held}
    assert len(before - after) <= 1


def test_frames_are_spaced_over_all_of_them_in_full_batches():
    assert spaced(10, 4).tolist() == [[0, 1, 3, 4], [5, 6, 8, 9]]  # 9/7 k, rounded; two batches of 4 fit into 10
    assert spaced(3, 4).tolist() == [[0, 1, 2]]
    assert spaced(1, 4).tolist() == [[0]]
    many = spaced(100_000, 100)
    assert many.shape == (5, 100)
    assert (many[0, 0], many[-1, -1]) == (0, 99_999)
    assert spaced(100_000, 1000).shape == (1, ROWS)
    np.testing.assert_array_equal(np.unique(np.diff(spaced(ROWS, 64).ravel())), [1])
