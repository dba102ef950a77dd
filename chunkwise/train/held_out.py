"""Means of a loss over batches that training never saw."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from chunkwise.arrays import PyTree
from chunkwise.train import rngs
from chunkwise.train.metrics import Mean


class HeldOutMeans:
    """Measures weights with the same random draws at every evaluation and for every seed of a run."""

    def __init__(self, means: Callable[[PyTree, Any, Key[Array, ""]], dict[str, Mean]]) -> None:
        """Compiles nothing yet; `means` are those of a batch under weights, with a key for what is drawn."""
        self._means = jax.jit(means)

    def __call__(self, params: PyTree, batches: Iterable[Any]) -> dict[str, Mean]:
        """Returns the means over all batches, which have equal shapes; batch i draws from key i."""
        total: dict[str, Mean] = {}
        for number, batch in enumerate(batches):
            found = self._means(params, jax.device_put(batch), rngs.key(0, "holdout", number))
            total = jax.tree.map(jnp.add, total, found) if total else found
        return total
