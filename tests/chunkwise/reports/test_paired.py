import numpy as np
import pytest
from scipy.stats import binomtest

from chunkwise.reports.paired import compare


def outcomes(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[bool], list[bool]]:
    pairs = [(True, True)] * both + [(True, False)] * only_a + [(False, True)] * only_b + [(False, False)] * neither
    order = np.random.default_rng(0).permutation(len(pairs))
    a, b = zip(*(pairs[i] for i in order), strict=True)
    return list(a), list(b)


def test_counts_and_the_exact_p_value():
    found = compare(*outcomes(40, 1, 9, 50))
    assert (found.both, found.only_a, found.only_b, found.neither, found.episodes) == (40, 1, 9, 50, 100)
    assert found.p_value == 22 / 1024  # 2 (1 + 10) / 2^10
    assert "warning" not in str(found)
    assert "A: 41 of 100, 41.0% (31.9% to 50.8%)" in str(found)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (0, 1), (3, 3), (5, 9), (0, 30), (40, 22)])
def test_p_values_are_the_binomial_tests(only_a: int, only_b: int):
    expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert compare(*outcomes(10, only_a, only_b, 5)).p_value == pytest.approx(expected)


def test_too_few_episodes_are_said():
    found = compare(*outcomes(4, 1, 4, 1))
    assert found.p_value == pytest.approx(0.375)
    assert "warning: 10 episodes cannot tell A and B apart" in str(found)
    assert found.detectable == pytest.approx((1.959964 + 0.841621) * np.sqrt(0.5 / 10), rel=1e-6)


def test_only_equal_lists_are_compared():
    with pytest.raises(ValueError, match="found 1 and 2"):
        compare([True], [True, False])
