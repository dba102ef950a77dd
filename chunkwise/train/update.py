"""Updates on the device: several in one dispatch, each applied only if it is finite."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int32

from chunkwise.arrays import NumpyTree
from chunkwise.state import TrainState, part_like
from chunkwise.train.metrics import Mean
from chunkwise.train.sharding import on_mesh


def jit_updates(
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Mean]]],
    mesh: Mesh,
    shardings: Any,
    *,
    ema: float | None,
) -> Callable[[TrainState, Any, Array], tuple[TrainState, dict[str, Mean]]]:
    """`run_updates` compiled for a mesh, its state donated and given back as `shardings` say."""
    return jax.jit(
        functools.partial(run_updates, on_mesh(step, mesh), ema=ema),
        donate_argnums=0,
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
    )


def run_updates(
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Mean]]],
    state: TrainState,
    batches: Any,
    count: Int32[Array, ""],
    *,
    ema: float | None = None,
) -> tuple[TrainState, dict[str, Mean]]:
    """Applies `step` to each of the batches in turn, in one dispatch.

    An update whose metrics are not all finite leaves everything but the step as it was.

    A loop whose length the compiler does not know, rather than `lax.scan`: XLA inlines a scan of length 1 and fuses it
    in another way, which changes the last bits, and the result must not depend on how many updates a call has.

    Args:
      step: One update.
      state: Before the first batch.
      batches: Stacked along a leading axis.
      count: How many of them to take, as an array.
      ema: Share of its old value that the moving average of the weights keeps at each update; None where there is none.

    Returns:
      The state after the last of them, and the metrics of each update along a leading axis, 0 for those not made.
    """

    def body(i: Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
        state, collected = carry
        batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)
        # A call of one update has one batch, the same in every turn of the loop: the compiler would compute what
        # depends on it alone before the loop, in another order than for several batches.
        batch, i = jax.lax.optimization_barrier((batch, i))
        new, metrics = step(state, batch)
        new = new.replace(ema=_moved(state.ema, new.params, ema))
        # The metrics are known before the optimiser's elementwise work, into which this choice is compiled: it costs no
        # pass of its own over the weights.
        sound = _all_finite(metrics)
        kept = jax.tree.map(lambda after, before: jnp.where(sound, after, before), new, state)
        state = kept.replace(step=new.step)
        return state, jax.tree.map(lambda every, one: every.at[i].set(one), collected, metrics)

    length = jax.tree.leaves(batches)[0].shape[0]
    _, metrics = jax.eval_shape(step, state, jax.tree.map(lambda x: x[0], batches))
    empty = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), metrics)
    return jax.lax.fori_loop(0, count, body, (state, empty))


def _moved(average: Any, params: Any, keep: float | None) -> Any:
    """keep * old + (1 - keep) * new, for the weights of which there is an average."""
    if keep is None:
        return average
    return jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, average, part_like(params, average))


def _all_finite(metrics: dict[str, Mean]) -> Bool[Array, ""]:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics)], bool).all()


def stack(batches: list[NumpyTree], length: int) -> NumpyTree:
    """Batches along a new leading axis, the last one repeated up to `length`; a single one is not copied."""
    if length == 1:
        return jax.tree.map(lambda leaf: leaf[None], batches[0])
    padded = batches + batches[-1:] * (length - len(batches))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
