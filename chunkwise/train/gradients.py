"""The gradient of a loss that is a weighted sum of means: of the whole batch at once, or summed over micro-batches."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.train.metrics import Mean

Loss = Callable[[PyTree, Any, Key[Array, ""]], tuple[Float[Array, ""], dict[str, Mean]]]
"""(params, batch, key) -> the loss, which is `weighted` of the metrics, and the metrics."""


def weighted(metrics: Mapping[str, Mean], weights: Mapping[str, float]) -> Float[Array, ""]:
    """Sum of weight * mean over those of the metrics that have a weight."""
    return sum((weights[name] * one.value() for name, one in metrics.items() if name in weights), start=jnp.zeros(()))


def gradient(
    loss: Loss, weights: Mapping[str, float], params: PyTree, batch: Any, key: Key[Array, ""], micro_batches: int
) -> tuple[PyTree, dict[str, Mean]]:
    """Gradient of the loss of a batch in `params`, and its metrics, with the memory of one micro-batch at a time.

    With micro-batches m the gradient is that of

        sum_j weight_j (sum_m S_jm) / (sum_m C_jm),    S_jm and C_jm sum and count of mean j on micro-batch m

    so a masked mean divides by what counts in the whole batch, however it is spread. The counts come first, in a pass
    of their own from which the compiler drops all that they do not depend on: usually everything but the masks.

    Micro-batch m of n has the rows m, m + n, m + 2 n, ...: every device keeps the rows it has, and each micro-batch is
    spread over all of them. Its key is fold_in(key, m): what is drawn differs from the draws for the whole batch, and
    is distributed as they are.

    Args:
      loss: As `Loss` says. Anything that compares rows with one another (InfoNCE) is no such mean: refuse it.
      weights: Weight of each mean that the loss consists of, by its name among the metrics.
      params: Differentiated.
      batch: Arrays with a leading axis of rows, divisible by micro_batches.
      key: For the draws of this update.
      micro_batches: 1 takes the batch at once, with `key` itself.

    Raises:
      ValueError: The batch's rows are not divisible by micro_batches.
    """
    if micro_batches == 1:
        return jax.grad(loss, has_aux=True)(params, batch, key)
    parts = jax.tree.map(lambda x: _split(x, micro_batches), batch)
    keys = jax.vmap(lambda m: jax.random.fold_in(key, m))(jnp.arange(micro_batches, dtype=jnp.uint32))

    def counts_of(part: Any, key: Key[Array, ""]) -> dict[str, Array]:
        _, metrics = loss(params, part, key)
        return {name: metrics[name].count for name in weights}

    _, each = jax.lax.scan(lambda _, xs: (None, counts_of(*xs)), None, (parts, keys))
    shares = {name: weights[name] / jnp.maximum(count.sum(), 1) for name, count in each.items()}

    def share(params: PyTree, part: Any, key: Key[Array, ""]) -> tuple[Array, dict[str, Mean]]:
        _, metrics = loss(params, part, key)
        return sum((shares[name] * metrics[name].sum for name in weights), start=jnp.zeros(())), metrics

    def add(total: Any, xs: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, widened(jax.grad(share, has_aux=True)(params, *xs))), None

    first = jax.tree.map(lambda x: x[0], (parts, keys))
    shapes = jax.eval_shape(lambda *xs: widened(jax.grad(share, has_aux=True)(*xs)), params, *first)
    total, _ = jax.lax.scan(add, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), (parts, keys))
    return total


def widened(tree: PyTree) -> PyTree:
    """The same numbers, those of fewer than 32 bits in float32, in which sums of them lose nothing worth it."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, tree)


def _split(x: Array, parts: int) -> Array:
    """Rows m, m + parts, m + 2 parts, ... as entry m of a new leading axis."""
    if x.shape[0] % parts:
        raise ValueError(f"a batch of {x.shape[0]} rows; expected a multiple of train.grad_accum_steps, {parts}")
    return jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)
