"""What identifies a tree of arrays: its leaves' names, dtypes and shapes, a checksum of each, a digest of all."""

import hashlib
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chunkwise.distributed.host import to_host
from chunkwise.errors import require_equal
from chunkwise.state import TrainState


def digest(state: TrainState, position: dict[str, Any]) -> str:
    """SHA-256 over params, optimiser state, target and ema (sorted path, dtype, shape, bytes) and the data position."""
    parts = {"params": state.params, "opt_state": state.opt_state, "target": state.target, "ema": state.ema}
    hasher = _hashed(parts)
    hasher.update(json.dumps(position, sort_keys=True).encode())
    return hasher.hexdigest()


def tree_digest(tree: Any) -> str:
    """SHA-256 over the leaves alone: sorted path, dtype, shape and bytes of each."""
    return _hashed(tree).hexdigest()


def _hashed(tree: Any) -> Any:
    hasher = hashlib.sha256()
    for path, leaf in sorted(named_leaves(tree).items()):
        array = np.asarray(to_host(leaf))
        hasher.update(f"{path} {array.dtype} {array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def tree_spec(tree: dict[str, Any]) -> dict[str, str]:
    """Dtype and shape of each leaf by path; Orbax itself casts a changed dtype silently."""
    return {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in named_leaves(tree).items()}


def require_same_tree(saved: dict[str, str], tree: dict[str, Any]) -> None:
    """Compares a checkpoint's `tree_spec` with the tree that it is to be read into.

    Raises:
      MismatchError: Leaves differ. The message names them, and jax's setting where one of the two has 64 bits by it.
    """
    now, said = tree_spec(tree), "the checkpoint holds another tree of arrays"
    wide, here = (any(re.match(r"u?int64|float64|complex128", one) for one in spec.values()) for spec in (saved, now))
    if wide != here:
        on = ("off", "on")
        said += f" (JAX_ENABLE_X64 was {on[wide]} where it was made and is {on[here]} here: turn it {on[wide]})"
    require_equal(saved, now, said)


def checksums(tree: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Checksum of each leaf by path, and the paths of leaves that hold NaN or infinity."""
    named = named_leaves(tree)
    results = jax.device_get(_checksum_leaves(list(named.values())))
    sums = {path: int(total) for path, (total, _) in zip(named, results, strict=True)}
    return sums, [path for path, (_, finite) in zip(named, results, strict=True) if not finite]


@jax.jit
def _checksum_leaves(leaves: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Position-weighted uint32 sum of each leaf's bits, computed where the leaf lies.

    Element i has the weight 2 i + 1. Odd weights are invertible modulo 2^32, so every change of one element changes
    the sum; integer sums do not depend on the order, so the result does not depend on the sharding.
    """
    return [(_weighted_sum(leaf), jnp.all(jnp.isfinite(leaf))) for leaf in leaves]


def _weighted_sum(leaf: jax.Array) -> jax.Array:
    """Checksum of one leaf; one of 64 bits counts as two elements of 32."""
    if leaf.dtype.itemsize == 8:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    elif jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
    flat = leaf.astype(jnp.uint32).reshape(-1)
    weights = jnp.arange(flat.size, dtype=jnp.uint32) * jnp.uint32(2) + jnp.uint32(1)
    return jnp.sum(flat * weights, dtype=jnp.uint32)
