"""Masked means against numpy: the divisor is the number of entries that count."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkwise.train.metrics import Mean, mean_of


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100, width=32), st.booleans()), min_size=1, max_size=20))
def test_a_masked_mean_is_the_mean_of_the_entries_kept(entries):
    x, mask = (np.array(column) for column in zip(*entries, strict=True))
    expected = x[mask].mean() if mask.any() else 0.0
    for kept in (mask, mask.astype(np.float32)):
        found = mean_of(jnp.asarray(x, jnp.float32), jnp.asarray(kept)).value()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_a_mean_without_a_mask_counts_every_entry():
    x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    assert [float(part) for part in mean_of(x)] == [15, 6]
    assert float(mean_of(x).value()) == 2.5


def test_nan_under_the_mask_reaches_neither_value_nor_gradient():
    x, mask = jnp.array([1.0, jnp.nan, 3.0]), jnp.array([1.0, 0.0, 1.0])
    value, gradient = jax.value_and_grad(lambda x: mean_of(x, mask).value())(x)
    assert float(value) == 2
    np.testing.assert_array_equal(gradient, [0.5, 0, 0.5])


def test_sums_of_pairs_are_the_mean_of_ragged_parts():
    """Two batches of 1 and 3 entries: the mean of their means would be 4.5."""
    parts = [mean_of(jnp.array([7.0])), mean_of(jnp.array([1.0, 2.0, 3.0]))]
    total = jax.tree.map(jnp.add, *parts)
    assert isinstance(total, Mean)
    assert float(jax.jit(Mean.value)(total)) == 13 / 4
