"""Interquartile mean, bootstrap and probability of improvement beside rliable's numbers, and by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from chunkwise.reports.aggregate import bootstrap, interquartile_mean, probability_of_improvement, sign_flip_p

FIXTURE = Path(__file__).parents[2] / "fixtures/rliable/numbers.json"


@pytest.fixture
def recorded() -> dict[str, Any]:
    found = json.loads(FIXTURE.read_text())
    return found | {name: [np.array(task) for task in found[name]] for name in "ab"}


def test_point_estimates_are_rliables(recorded: dict[str, Any]):
    for name in "ab":
        assert interquartile_mean(recorded[name]) == pytest.approx(recorded["iqm"][name], abs=1e-12)
    found = probability_of_improvement(recorded["a"], recorded["b"])
    assert found == pytest.approx(recorded["improvement"], abs=1e-12)


def test_intervals_are_rliables_but_for_its_draws(recorded: dict[str, Any]):
    for name in "ab":
        assert bootstrap(interquartile_mean, recorded[name]) == pytest.approx(
            tuple(recorded["iqm_interval"][name]), abs=0.01
        )
    found = bootstrap(probability_of_improvement, recorded["a"], recorded["b"], draws=5000)
    assert found == pytest.approx(tuple(recorded["improvement_interval"]), abs=0.02)


@pytest.mark.parametrize("n", range(1, 13))
def test_the_middle_half_is_scipys(n: int):
    x = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean([x]) == pytest.approx(scipy.stats.trim_mean(x, 0.25))


def test_ties_count_half_and_tasks_alike():
    one, two = np.array([1.0, 2.0]), np.array([2.0, 3.0, 0.0, 2.0])
    # 1 beats 0; 2 beats 0 and ties with two: (1 + 1 + 0.5 + 0.5) / 8.
    assert probability_of_improvement([one], [two]) == 3 / 8
    assert probability_of_improvement([one, one], [two, two - 9]) == (3 / 8 + 1) / 2


def test_runs_are_drawn_within_their_task():
    scores = [np.array([0.0, 0.0]), np.array([1.0, 1.0])]
    assert bootstrap(interquartile_mean, scores, draws=50) == (0.5, 0.5)
    low, high = bootstrap(interquartile_mean, [np.array([0.0, 1.0])], draws=2000)
    assert (low, high) == (0.0, 1.0)
    assert bootstrap(interquartile_mean, [np.array([0.0, 1.0, 5.0])], draws=300) == bootstrap(
        interquartile_mean, [np.array([0.0, 1.0, 5.0])], draws=300
    )


def test_flipped_signs_are_scipys():
    rng = np.random.default_rng(0)
    for n in (3, 5, 8):
        x = rng.normal(0.5, 1, n)
        expected = scipy.stats.permutation_test((x,), np.mean, permutation_type="samples", n_resamples=10**6).pvalue
        assert sign_flip_p(x) == pytest.approx(expected)
    assert sign_flip_p(np.array([0.1, 0.2, 0.3])) == 0.25
    assert sign_flip_p(np.zeros(4)) == 1
    many = np.random.default_rng(0).normal(0.3, 1.0, 24)
    drawn = scipy.stats.permutation_test(
        (many,), np.mean, permutation_type="samples", n_resamples=100_000, rng=np.random.default_rng(1)
    )
    assert sign_flip_p(many) == pytest.approx(drawn.pvalue, abs=0.01)
    assert sign_flip_p(many) == sign_flip_p(many)
    assert sign_flip_p(np.ones(40)) == pytest.approx(1 / (1 + 2**16)), "what was found counts as one of the choices"


def test_differences_that_cancel_have_a_p_of_1_whatever_their_rounding():
    """0.4, 0.5, -0.4 and -0.5: their sum is 0, and no choice of signs is nearer to it."""
    differences = np.array([0.6, 0.5, 0.3, 0.1]) - np.array([0.2, 0.0, 0.7, 0.6])
    assert differences.sum() != 0, "the rounding that the test is about"
    assert sign_flip_p(differences) == 1
    # 0.7, 0.1, -0.2: sums of 0.6, 0.8, 1.0 and 0.4, each with both signs; three of four are as far from 0 as 0.6.
    assert sign_flip_p(np.array([0.9, 0.3, 0.1]) - np.array([0.2, 0.2, 0.3])) == 0.75
