"""Randomness by name: a key is a function of (seed, name, step), never a chain of splits kept on the host."""

import zlib

import jax
from jaxtyping import Array, Int, Key


def key(seed: int, name: str, step: int | Int[Array, ""] = 0) -> Key[Array, ""]:
    """Key for one purpose at one step; equal arguments give equal keys, in and outside jit.

    Args:
      seed: The run's seed.
      name: What the key is for, e.g. "agent"; two names give unrelated streams.
      step: Update, episode or round number; may be traced.
    """
    named = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(named, step)
