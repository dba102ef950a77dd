"""Confidence intervals of measured shares and means."""

import math
from statistics import NormalDist

import numpy as np
from jaxtyping import Float64
from scipy.special import stdtrit


def of_mean(values: Float64[np.ndarray, " n"], confidence: float = 0.95) -> tuple[float, float] | None:
    """Returns the interval of a mean by Student's distribution, m +- t s / sqrt(n); None of fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a success rate; unlike p ± 1.96 s it stays in [0, 1] and is never empty at 0 or n.

    With p = successes / n and z the normal quantile of (1 + confidence) / 2, the bounds are
    (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)      (Wilson 1927, doi:10.1080/01621459.1927.10502953)

    Args:
      successes: Trials that succeeded, 0 to n.
      n: Trials in all, at least 1.
      confidence: Share of repetitions whose interval holds the true rate, inside (0, 1).

    Returns:
      Lower and upper bound, as shares.

    Raises:
      ValueError: If n is below 1, successes outside 0..n, or confidence outside (0, 1).
    """
    if n < 1:
        raise ValueError(f"n is {n}; an interval needs at least one trial")
    if not 0 <= successes <= n:
        raise ValueError(f"successes is {successes}; expected 0 to n = {n}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; expected a number inside (0, 1)")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and n one bound is 0 or 1 exactly; rounding would leave it at 1e-17 beside.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return low, high
