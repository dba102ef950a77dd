"""How far predicted waypoints are from what was driven, with intervals over drives.

ADE at h seconds is the mean distance over the steps up to h, FDE the distance at h. Of several trajectories minADE is
the least ADE at h of any of them, whatever their probabilities (MultiPath, arXiv:1910.05449): the trajectory may be
another one at another h. Samples whose steps up to h are not
all known are left out of both. Intervals are over drives, since frames of one drive are all but equal. Episodes that
are cuts of one recording count as one drive.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from driving.data.validation import reached

CONFIDENCE = 0.95
LEAST_DRIVES = 5
"""Fewer say too little of how drives differ, whatever is computed from them: no interval is given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A mean over samples and the interval of it over drives; None where there are fewer than LEAST_DRIVES."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def measures(
    predicted: Float[np.ndarray, "b t 2"],
    truth: Float[np.ndarray, "b t 2"],
    valid: Bool[np.ndarray, "b t"],
    dt_s: float,
) -> dict[str, Float[np.ndarray, " b"]]:
    """ade_1s, fde_1s and so on for each of SCORED_S at which a waypoint lies, per sample, metres.

    NaN where a step that it needs is not known.
    """
    distance = np.linalg.norm(predicted - truth, axis=-1)
    out = {}
    for seconds, steps in reached(distance.shape[1], dt_s).items():
        known = valid[:, :steps].all(axis=1)
        out[f"ade_{seconds:.0f}s"] = np.where(known, distance[:, :steps].mean(axis=1), np.nan)
        out[f"fde_{seconds:.0f}s"] = np.where(known, distance[:, steps - 1], np.nan)
    return out


def least(
    modes: Float[np.ndarray, "b m t 2"],
    truth: Float[np.ndarray, "b t 2"],
    valid: Bool[np.ndarray, "b t"],
    dt_s: float,
) -> dict[str, Float[np.ndarray, " b"]]:
    """min_ade_1s and so on, as `measures`, of several trajectories."""
    each = [measures(modes[:, mode], truth, valid, dt_s) for mode in range(modes.shape[1])]
    names = [name for name in each[0] if name.startswith("ade")]
    return {f"min_{name}": np.min([one[name] for one in each], axis=0) for name in names}


def score(values: Float[np.ndarray, " b"], drive: Int[np.ndarray, " b"]) -> Score:
    """Mean of the values that are not NaN, with an interval over drives.

    With s_i the sum and c_i the number of the values of drive i of n, m = sum s_i / sum c_i is the mean, the squared
    standard error n / (n - 1) sum (s_i - m c_i)^2 / (sum c_i)^2 (that of a ratio of two means; Cochran, Sampling
    Techniques, 1977, section 2.11), and the interval m +- t standard errors, t the quantile of Student's distribution
    with n - 1 degrees of freedom.

    Args:
      values: Of each sample.
      drive: Drive that each sample is of.

    Raises:
      ValueError: If every value is NaN.
    """
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("no sample has all the steps that this measure needs")
    _, group = np.unique(drive[known], return_inverse=True)
    sums, counts = np.bincount(group, values[known]), np.bincount(group)
    n, mean = len(sums), float(sums.sum() / counts.sum())
    if n < LEAST_DRIVES:
        return Score(mean=mean, low=None, high=None)
    error = np.sqrt(n / (n - 1) * np.square(sums - mean * counts).sum()) / counts.sum()
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) * error)
    return Score(mean=mean, low=mean - half, high=mean + half)
