"""Randomness by name: a key is a function of (seed, name, step), never a chain of splits kept on the host."""

import zlib

import jax
from jaxtyping import Array, Int, Key


def key(seed: int, name: str, step: int | Int[Array, ""] = 0) -> Key[Array, ""]:
    """Key for one purpose at one step; equal arguments give equal keys, in and outside jit.

    Args:
      seed: The run's seed, 0 to 2^63 - 1.
      name: What the key is for, e.g. "agent"; two names give unrelated streams.
      step: Update, episode or round number; may be traced.
    """
    base = jax.random.key(seed % (1 << 32))
    if seed >= 1 << 32:  # jax's key would leave the upper bits out: seeds 0 and 2^32 would be one
        base = jax.random.fold_in(base, seed >> 32)
    named = jax.random.fold_in(base, zlib.crc32(name.encode()))
    return jax.random.fold_in(named, step)
