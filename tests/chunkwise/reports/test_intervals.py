import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from chunkwise.reports.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998 (Statistics in Medicine 17, 857-872), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_equals_scipy(n: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, n))
    expected = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_ends_are_exact() -> None:
    assert wilson(0, 50)[0] == 0.0
    assert wilson(50, 50)[1] == 1.0


@pytest.mark.parametrize(("successes", "n", "confidence"), [(0, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)])
def test_refuses_impossible_counts(successes: int, n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"n is|successes is|confidence is"):
        wilson(successes, n, confidence)
