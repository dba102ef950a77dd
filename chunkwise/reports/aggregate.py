"""Scores of a few runs: interquartile mean, bootstrap intervals, probability of improvement.

As Agarwal et al. 2021 define them (arXiv:2108.13264) and their package rliable computes them: tasks are the strata of
the bootstrap, runs are drawn with replacement within each. Here a score is a list of arrays, one of runs a task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float64

from chunkwise.data.sampling import Purpose, generator

Scores = Sequence[Float64[np.ndarray, " _"]]
"""A score for each run, task by task."""
DRAWS = 20_000
MOST_SIGNS = 16
"""Differences of which all choices of signs are gone through; of more 2^16 are drawn."""


def interquartile_mean(scores: Scores) -> float:
    """Returns the mean of the middle half of all runs of all tasks: a quarter of them is cut off at either end.

    Of n runs int(n / 4) at each end, as scipy.stats.trim_mean, which rliable calls; of up to three it is the mean.
    """
    ordered = np.sort(np.concatenate([np.asarray(task, np.float64) for task in scores]))
    cut = int(0.25 * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def probability_of_improvement(a: Scores, b: Scores) -> float:
    """Returns how likely a run of A is better than one of B on the same task, ties counting half; mean over tasks."""
    shares = []
    for ours, theirs in zip(a, b, strict=True):
        difference = np.asarray(ours, np.float64)[:, None] - np.asarray(theirs, np.float64)[None, :]
        shares.append(float(((difference > 0) + 0.5 * (difference == 0)).mean()))
    return float(np.mean(shares))


def bootstrap(
    statistic: Callable[..., float], *groups: Scores, confidence: float = 0.95, draws: int = DRAWS
) -> tuple[float, float]:
    """Returns the percentile interval of a statistic over runs drawn with replacement within each task.

    A function of the scores alone. With three seeds it is narrower than the truth, as every bootstrap of three is.

    Args:
      statistic: Of as many Scores as there are groups.
      groups: Drawn independently of one another.
      confidence: Share of the draws within the interval.
      draws: How many.
    """
    rng = generator(Purpose.STUDY_BOOTSTRAP, len(groups))
    values = np.empty(draws)
    for i in range(draws):
        drawn = [[task[rng.integers(0, len(task), len(task))] for task in scores] for scores in groups]
        values[i] = statistic(*drawn)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def sign_flip_p(differences: Float64[np.ndarray, " n"]) -> float:
    """Returns the two-sided p-value of paired differences: the share of all 2^n choices of signs whose mean is as far
    from 0. With n = 3 it is never below 1/4, with 6 never below 1/32.

    Of more than MOST_SIGNS differences so many choices are drawn, and those that were found counted as one of them, as
    usual: (1 + as far) / (1 + drawn).
    """
    differences = np.asarray(differences, np.float64)
    n = len(differences)
    if n <= MOST_SIGNS:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = generator(Purpose.STUDY_SIGNS, n).choice(np.array([1, -1], np.int8), (2**MOST_SIGNS, n))
    sums = np.abs(signs @ differences)
    rounding = 1e-9 * np.abs(differences).sum()  # of the terms: of a sum near 0 it would be none
    far = sums >= np.abs(differences.sum()) - rounding
    return float(far.mean() if n <= MOST_SIGNS else (1 + far.sum()) / (1 + len(far)))
