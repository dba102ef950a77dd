"""Weights in 8 bits: whole numbers from -127 to 127 and, for each output channel, what one of them is worth.

    weight ~ int8 * step,    step = max |weight| over the channel's inputs / 127

so that no weight moves by more than half a step. Such a matrix takes the place of its array in the tree of weights as
{"int8": ..., "step": ...}, and is made whole again one layer at a time, where the layer computes: products are those of
`model.dtype` with rounded weights. Only what does not train is kept so.

Google's qwix does more (products of integers, calibrated activations, quantised training). It finds weights by putting
its own functions in the place of jax's while a model runs, and looks for an operand among the module's parameters;
here they are cast, sliced and gathered in a mapped layer before any product sees them, and need none of that.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Float

from chunkwise.train.sharding import all_gather_params

INT8, STEP = "int8", "step"
LARGEST = 127
_MATRICES = {"w", "gating_einsum", "linear", "kernel", "input_embedding"}
_PARTS = {"layers", "encoderblock", "embedder"}
_AXES = {"input_embedding": -1, "query": -3, "key": -3, "value": -3}
"""Inputs of a channel, where they are not the last axis but one. A row of the table is a channel of its own."""


def can_be(path: tuple[str, ...]) -> bool:
    """Whether a parameter is a matrix that a layer, or the table of embeddings, makes whole again."""
    return path[0] == "PaliGemma" and path[-1] in _MATRICES and bool(_PARTS & set(path))


def quantised(path: tuple[str, ...], weight: Any) -> dict[str, Any]:
    """A matrix as whole numbers and steps, f32.

    Args:
      path: Of the parameter, which `can_be`; an axis of layers comes first, but in the table.
      weight: A numpy array, or one of jax, traced or not; of floats.
    """
    numbers: Any = np if isinstance(weight, np.ndarray) else jnp
    axis = next((_AXES[name] for name in reversed(path) if name in _AXES), -2)
    wide = weight.astype(np.float32)
    step = abs(wide).max(axis=axis, keepdims=True) / np.float32(LARGEST)
    safe = numbers.where(step == 0, np.float32(1), step)  # a channel of zeros
    return {INT8: numbers.rint(wide / safe).astype(np.int8), STEP: step}


def is_quantised(tree: Any) -> bool:
    """Whether a node of a tree of weights is a matrix in 8 bits."""
    return isinstance(tree, Mapping) and set(tree) == {INT8, STEP}


def whole(tree: Any, dtype: Any) -> Any:
    """The tree with its matrices in 8 bits as arrays of a dtype; the rest as it is."""
    if is_quantised(tree):
        return (tree[INT8].astype(jnp.float32) * tree[STEP]).astype(dtype)
    return {name: whole(part, dtype) for name, part in tree.items()} if isinstance(tree, Mapping) else tree


def gathered(tree: Any, dtype: str) -> Any:
    """A layer's weights whole: out of 8 bits, and of the parts on several devices; for products of a dtype."""
    return all_gather_params(whole(tree, dtype), dtype=dtype)


def rows(table: Any, index: Any) -> Float[Array, "... d"]:
    """Rows of a table of embeddings, f32, whichever way it is kept."""
    if is_quantised(table):
        return table[INT8][index].astype(jnp.float32) * table[STEP][index]
    return table[index].astype(jnp.float32)


def kept_in(params: Any, dtype: str, put: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    """Weights for use alone, kept in a dtype; matrices that are in 8 bits already stay so.

    Args:
      params: A tree of arrays of numpy or jax, or traced.
      dtype: float32, bfloat16, or int8: matrices in 8 bits, all else in bfloat16.
      put: Takes each array when it is made, such as to a device.
    """
    flat: Any = traverse_util.flatten_dict(params)

    def kept(path: tuple[str, ...], leaf: Any) -> Any:
        if path[-1] in (INT8, STEP):
            return put(leaf)
        if dtype == "int8" and can_be(path):
            return {name: put(part) for name, part in quantised(path, leaf).items()}
        return put(leaf.astype(jnp.dtype("bfloat16" if dtype == "int8" else dtype), copy=False))

    return traverse_util.unflatten_dict({path: kept(path, leaf) for path, leaf in flat.items()})
