"""Keys by seed, name and step."""

import zlib

import jax
import numpy as np
import pytest

from chunkwise.train import rngs


def test_a_key_by_hand():
    """Seed, name and step folded in one after the other; without a step it is 0. Runs go on only with the same ones."""
    named = jax.random.fold_in(jax.random.key(3), zlib.crc32(b"init"))
    for step, given in ((0, ()), (0, (0,)), (7, (7,))):
        wanted = jax.random.key_data(jax.random.fold_in(named, step))
        np.testing.assert_array_equal(jax.random.key_data(rngs.key(3, "init", *given)), wanted)


@pytest.mark.parametrize("seed", [0, 3, (1 << 31) + 5, (1 << 32) - 1])
def test_a_seed_of_32_bits_is_jaxs_own(seed: int):
    wanted = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"init")), 7)
    np.testing.assert_array_equal(jax.random.key_data(rngs.key(seed, "init", 7)), jax.random.key_data(wanted))


def test_the_upper_bits_of_a_seed_count():
    """By hand: the upper word is folded in before the name. Of seeds equal modulo 2^32 all keys are different."""
    above = jax.random.fold_in(jax.random.key(3), 5)
    wanted = jax.random.fold_in(jax.random.fold_in(above, zlib.crc32(b"init")), 7)
    found = rngs.key(5 * (1 << 32) + 3, "init", 7)
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(wanted))
    seeds = (3, 3 + (1 << 32), 3 + (1 << 33), (1 << 63) - 1 - ((1 << 32) - 4))
    keys = {tuple(jax.random.key_data(rngs.key(seed, "init")).tolist()) for seed in seeds}
    assert {seed % (1 << 32) for seed in seeds} == {3}
    assert len(keys) == len(seeds)
