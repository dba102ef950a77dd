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
    assert found.shown in str(found)


@pytest.mark.parametrize(
    ("only_a", "only_b", "states"),
    [(0, 0, 100), (2, 2, 100), (20, 15, 100), (2, 1, 300), (0, 0, 50), (1, 0, 30), (1, 1, 20), (0, 0, 10)],
)
def test_what_so_many_states_show_is_shown_four_times_in_five(only_a: int, only_b: int, states: int):
    """Played 4,000 times, at the difference that is said and at one a quarter smaller, with scipy's own test."""
    said = compare(*outcomes(3, only_a, only_b, states - 3 - only_a - only_b)).detectable
    assert said is not None
    rng = np.random.default_rng(0)
    for difference, expected in ((said, True), (0.75 * said, False)):
        share = max((only_a + only_b) / states, difference)
        kinds = [(share + difference) / 2, (share - difference) / 2, 1 - share]
        drawn = rng.multinomial(states, np.clip(kinds, 0, 1), size=4000)
        pairs, counts = np.unique(drawn[:, :2], axis=0, return_counts=True)
        tests = [sum(pair) > 0 and binomtest(int(pair[0]), int(sum(pair))).pvalue < 0.05 for pair in pairs]
        found = float(counts[np.array(tests)].sum()) / 4000
        assert found == pytest.approx(0.8, abs=0.06) if expected else found < 0.74


@pytest.mark.parametrize("states", [1, 3, 5])
def test_fewer_than_six_states_show_nothing(states: int):
    """2 / 2^5 is above 0.05."""
    found = compare([True] * states, [False] * states)
    assert found.detectable is None
    assert "no difference, however large, would show" in str(found)


def test_only_equal_lists_are_compared():
    with pytest.raises(ValueError, match="found 1 and 2"):
        compare([True], [True, False])
