"""How far predicted waypoints are from what was driven, with intervals over drives.

ADE at h seconds is the mean distance over the steps up to h, FDE the distance at h. Samples whose steps up to h are not
all known are left out of both. For the intervals whole drives are drawn again: frames of one drive are all but equal.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

SECONDS = (1.0, 2.0, 3.0, 5.0)
"""h; those that the waypoints reach."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A mean over samples and the interval of it over drives."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def measures(
    predicted: Float[np.ndarray, "b t 2"],
    truth: Float[np.ndarray, "b t 2"],
    valid: Bool[np.ndarray, "b t"],
    dt_s: float,
) -> dict[str, Float[np.ndarray, " b"]]:
    """ade_1s, fde_1s and so on for each of SECONDS, per sample, metres; NaN where a step that it needs is not known."""
    distance = np.linalg.norm(predicted - truth, axis=-1)
    out = {}
    for seconds in SECONDS:
        steps = round(seconds / dt_s)
        if not 1 <= steps <= distance.shape[1]:
            continue
        known = valid[:, :steps].all(axis=1)
        out[f"ade_{seconds:.0f}s"] = np.where(known, distance[:, :steps].mean(axis=1), np.nan)
        out[f"fde_{seconds:.0f}s"] = np.where(known, distance[:, steps - 1], np.nan)
    return out


def score(values: Float[np.ndarray, " b"], drive: Int[np.ndarray, " b"], *, draws: int, seed: int = 0) -> Score:
    """Mean of the values that are not NaN, with the interval of drives drawn with replacement.

    Args:
      values: Of each sample.
      drive: Drive that each sample is of.
      draws: Of the bootstrap.
      seed: Of the bootstrap.

    Raises:
      ValueError: If every value is NaN.
    """
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("no sample has all the steps that this measure needs")
    _, group = np.unique(drive, return_inverse=True)
    sums = np.bincount(group, np.where(known, values, 0.0))
    counts = np.bincount(group, known)
    picks = np.random.default_rng(seed).integers(0, len(sums), (draws, len(sums)))
    drawn_counts = counts[picks].sum(axis=1)
    means = sums[picks].sum(axis=1)[drawn_counts > 0] / drawn_counts[drawn_counts > 0]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Score(mean=float(sums.sum() / counts.sum()), low=float(low), high=float(high))
