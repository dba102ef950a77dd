"""Paths and Euler steps against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.models.flow_matching import euler, straight_path


def test_path_and_velocity_by_hand():
    start, end = jnp.array([[0.0, 2.0], [1.0, 1.0]]), jnp.array([[4.0, 0.0], [1.0, -1.0]])
    x, u = straight_path(start, end, jnp.array([[0.25], [1.0]]))
    np.testing.assert_array_equal(x, [[1.0, 1.5], [1.0, -1.0]])
    np.testing.assert_array_equal(u, [[4.0, -2.0], [0.0, -2.0]])


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_straight_field_is_followed_exactly(steps):
    start, end = jnp.array([1.0, -1.0]), jnp.array([0.5, 3.0])
    np.testing.assert_allclose(euler(lambda x, t: end - start, start, steps=steps), end, rtol=1e-6)
    back = euler(lambda x, t: end - start, end, steps=steps, t_start=1.0, t_end=0.0)
    np.testing.assert_allclose(back, start, rtol=1e-6)


def test_steps_of_a_linear_field():
    """dx/dt = x in n Euler steps multiplies by (1 + 1/n)^n."""
    found = euler(lambda x, t: x, jnp.array([2.0]), steps=4)
    np.testing.assert_allclose(found, [2 * 1.25**4], rtol=1e-6)


def test_times_are_those_at_the_start_of_each_step():
    """dx/dt = t: the sum of i / n / n for i below n, forwards, and of (n - i) / n / -n backwards."""
    zero = jnp.zeros(())
    np.testing.assert_allclose(euler(lambda x, t: t, zero, steps=5), 0.4, rtol=1e-6)
    np.testing.assert_allclose(euler(lambda x, t: t, zero, steps=5, t_start=1.0, t_end=0.0), -0.6, rtol=1e-6)
