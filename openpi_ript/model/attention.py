"""Attention whose scores exist for a block of queries at a time."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Finite, so that a query without any key gets a uniform average and no NaN. Gemma's own value.
MASKED = -2.3819763e38

Source = tuple[Float[Array, "b _n k h"], Float[Array, "b _n k h"]]
"""Keys and values of some tokens."""


def attend(
    q: Float[Array, "b t k g h"], sources: Sequence[Source], mask: Bool[Array, "b #t _n"], block: int | None
) -> Float[Array, "b t k g h"]:
    """Returns each query's average of the values of all sources, weighted by the softmax of its scores in f32.

    In blocks the scores are computed again for the backward pass, a block at a time, instead of kept (arXiv:2112.05682,
    whose second loop, over keys, would need a running maximum and saves nothing at a thousand keys). A query's numbers
    are those of the whole; gradients of keys and values are summed over blocks in f32.

    Args:
      q: Queries, scaled; g of them share a key head k.
      sources: One after the other; they are not concatenated, which under vmap over one would copy the others.
      mask: True where a query (axis 1, of size 1 if all are alike) may attend to a key.
      block: Queries at a time, at most; None: all at once.
    """
    t = q.shape[1]
    if block is None or t <= block:
        return _attend(q, sources, mask)
    count = -(-t // block)
    size = -(-t // count)
    wide = [tuple(x.astype(jnp.float32) for x in source) for source in sources]

    def blocks(x: Array) -> Array:
        """Axis 1 in equal parts, along a new leading axis; what fills the last one up is dropped below."""
        padded = jnp.pad(x, [(0, count * size - t) if axis == 1 else (0, 0) for axis in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(x.shape[0], count, size, *x.shape[2:]), 1, 0)

    def one(_: None, part: tuple[Array, Array | None]) -> tuple[None, Array]:
        queries, seen = part
        narrow = [(k.astype(q.dtype), v.astype(q.dtype)) for k, v in wide]
        return None, _attend(queries, narrow, mask if seen is None else seen)

    own = None if mask.shape[1] == 1 else blocks(mask)
    _, reads = jax.lax.scan(jax.checkpoint(one, prevent_cse=False), None, (blocks(q), own))
    return jnp.moveaxis(reads, 0, 1).reshape(q.shape[0], count * size, *q.shape[2:])[:, :t]


def _attend(
    q: Float[Array, "b t k g h"], sources: Sequence[Source], mask: Bool[Array, "b #t _n"]
) -> Float[Array, "b t k g h"]:
    """As `attend`, all at once."""
    logits = [jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) for k, _ in sources]
    masked = jnp.where(mask[:, None, None], jnp.concatenate(logits, axis=-1), MASKED)
    probs = jax.nn.softmax(masked, axis=-1).astype(q.dtype)
    parts = [probs] if len(sources) == 1 else jnp.split(probs, [sources[0][0].shape[1]], axis=-1)
    reads = [jnp.einsum("bkgts,bskh->btkgh", p, v) for p, (_, v) in zip(parts, sources, strict=True)]
    return reads[0] if len(sources) == 1 else reads[0] + reads[1]
