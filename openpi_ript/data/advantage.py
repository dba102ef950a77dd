"""Advantages of rollouts, leave-one-out inside groups (chunkwise/data/groups.py), made safe and shaped as weights.

On robot rollouts: RIPT, arXiv:2505.17016. The sign of the raw advantage is the label of a sample; after
`negative_handling` it says nothing any more.
"""

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32

from chunkwise.errors import DataError
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.model import Optimality

EXTREME = 1e6
"""Largest advantage that is let through; beyond it this value with its sign is used."""
MIN_MAD = 1e-6
"""Share of the standard deviation below which the median absolute deviation is not divided by."""
MAD_TO_STD = 1.4826
"""Median absolute deviation times this is the standard deviation, for a normal distribution."""


def label(raw: Float[np.ndarray, " n"]) -> Int32[np.ndarray, " n"]:
    """Optimality of each raw advantage: positive above 0, negative below, none at exactly 0.

    0 is the advantage of a group without differences: that all of its rollouts failed makes none of them positive.
    """
    signed = np.where(raw > 0, Optimality.POSITIVE, Optimality.NEGATIVE)
    return np.where(raw == 0, Optimality.NONE, signed).astype(np.int32)


def process(
    advantages: Float[np.ndarray, " n"], config: AdvantageConfig
) -> tuple[Float32[np.ndarray, " n"], dict[str, int]]:
    """Shapes advantages: NaN and extreme values replaced, normalised, clipped, negatives handled, in this order.

    What goes out is finite. A constant input is normalised to 0. An infinite advantage would decide the mean and the
    deviation alone, and so flatten all others: it is refused.

    Args:
      advantages: One for each rollout (or sample); the statistics are taken over all of them.
      config: Which steps are done.

    Returns:
      The weights, and how many values were replaced: "nan" (by 0), "extreme" (by +-EXTREME), "clipped", and
      "negative" (values below 0 that negative_handling changed), "capped" (exponential weights at max_weight).

    Raises:
      DataError: An advantage is infinite.
    """
    x = advantages.astype(np.float64)
    if len(infinite := np.flatnonzero(np.isinf(x))):
        raise DataError(
            f"advantages: expected finite numbers, found {x[infinite[0]]} in row {infinite[0]} ({len(infinite)} of "
            f"{len(x)} rows); look at the rewards of that rollout"
        )
    nan = np.isnan(x)
    x = np.where(nan, 0.0, x)
    counts = {"nan": nan.sum(), "extreme": (np.abs(x) > EXTREME).sum()}
    x = _normalize(np.clip(x, -EXTREME, EXTREME), config)
    clipped = _clip(x, config)
    counts["clipped"] = (clipped != x).sum()
    weights = _handle_negatives(clipped, config)
    counts["negative"] = (clipped < 0).sum() if config.negative_handling != "none" else np.int64(0)
    exponent = clipped / config.temperature if config.negative_handling == "exponential" else np.zeros(0)
    counts["capped"] = (exponent > np.log(config.max_weight)).sum()
    return weights.astype(np.float32), {name: int(count) for name, count in counts.items()}


def _normalize(x: Float64[np.ndarray, " n"], config: AdvantageConfig) -> Float64[np.ndarray, " n"]:
    if not x.size or config.normalization == "none":
        return x
    if x.min() == x.max():
        return np.zeros_like(x)
    if config.normalization == "min_max":
        return (x - x.min()) / (x.max() - x.min())
    if config.normalization == "zero_mean":
        return x - x.mean()
    centre, spread = x.mean(), x.std(ddof=config.ddof)
    if config.normalization == "robust":
        centre = np.median(x)
        deviation = MAD_TO_STD * np.median(np.abs(x - centre))
        # More than half of the values (almost) equal, as where success is rare: the median says nothing of the spread.
        spread = deviation if deviation > MIN_MAD * spread else spread
    return (x - centre) / spread if spread > np.finfo(np.float64).tiny else np.zeros_like(x)


def _clip(x: Float64[np.ndarray, " n"], config: AdvantageConfig) -> Float64[np.ndarray, " n"]:
    if not x.size or config.clipping == "none":
        return x
    if config.clipping == "symmetric":
        return np.clip(x, -config.clip_value, config.clip_value)
    if config.clipping == "sigma":
        reach = config.clip_value * x.std(ddof=config.ddof) if len(x) > 1 else 0.0
        return np.clip(x, x.mean() - reach, x.mean() + reach)
    return np.clip(x, np.quantile(x, config.clip_quantile), np.quantile(x, 1 - config.clip_quantile))


def _handle_negatives(x: Float64[np.ndarray, " n"], config: AdvantageConfig) -> Float64[np.ndarray, " n"]:
    if config.negative_handling == "softplus":
        return np.logaddexp(0.0, x)
    if config.negative_handling == "relu":
        return np.maximum(x, 0.0)
    if config.negative_handling == "shift":
        return x - min(x.min(), 0.0) if x.size else x
    if config.negative_handling == "exponential":
        return np.exp(np.minimum(x / config.temperature, np.log(config.max_weight)))
    return x
