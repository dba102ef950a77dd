"""Keys by seed, name and step."""

import zlib

import jax
import numpy as np

from chunkwise.train import rngs


def test_a_key_by_hand():
    """Seed, name and step folded in one after the other; without a step it is 0. Runs go on only with the same ones."""
    named = jax.random.fold_in(jax.random.key(3), zlib.crc32(b"init"))
    for step, given in ((0, ()), (0, (0,)), (7, (7,))):
        wanted = jax.random.key_data(jax.random.fold_in(named, step))
        np.testing.assert_array_equal(jax.random.key_data(rngs.key(3, "init", *given)), wanted)
