"""Means as (sum, count), so that a mean over devices, updates and ragged batches is the mean over its entries."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Mean(NamedTuple):
    """A mean not yet divided. Sums of sums and sums of counts are again a mean: add with `jax.tree.map(jnp.add)`."""

    sum: Float[Array, "*shape"]
    """Sum of the entries that count, f32."""
    count: Float[Array, "*shape"]  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count is not used)
    """Number of those entries, f32."""

    def value(self) -> Float[Array, "*shape"]:
        """sum / count, and 0 where nothing was counted."""
        return self.sum / jnp.maximum(self.count, 1)


def mean_of(x: Float[Array, "*shape"], mask: Float[Array, "*shape"] | Bool[Array, "*shape"] | None = None) -> Mean:
    """Sum and count of the entries of `x` where `mask` is not 0; of all entries without a mask.

    An entry that is masked out may be anything, NaN included, and gets a gradient of 0.

    Args:
      x: Entries.
      mask: 0 or 1 (or bool) per entry, of x's own shape: broadcast it first, so that the count is of entries.
    """
    x = x.astype(jnp.float32)
    if mask is None:
        return Mean(x.sum(), jnp.full((), x.size, jnp.float32))
    kept = mask.astype(bool)
    return Mean(jnp.where(kept, x, 0).sum(), kept.sum(dtype=jnp.float32))
