"""The MLP against numpy, and its initial values; attention against flax's."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.models.layers import MLP, attention
from tests.qchunk.numpy_networks import mlp


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden", [(), (7,), (8, 5, 6)])
def test_output_is_numpys(hidden, layer_norm):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(4, width)), jnp.float32) for width in (3, 2))
    network = MLP(hidden, 2, layer_norm)
    params = network.init(jax.random.key(1), x, y)["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), params)
    expected = mlp(params, np.concatenate([x, y], axis=-1))
    np.testing.assert_allclose(np.asarray(network.apply({"params": params}, x, y)), expected, rtol=1e-5, atol=1e-5)


def test_inputs_broadcast_as_if_repeated():
    rng = np.random.default_rng(0)
    s, a, t = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, 4, 3), (6, 4, 2), (1, 1, 1)))
    network = MLP((8,), 2)
    params = network.init(jax.random.key(1), s, a, t)["params"]
    joined = np.concatenate([np.broadcast_to(x, (6, 4, x.shape[-1])) for x in (s, a, t)], axis=-1)
    found = np.asarray(network.apply({"params": params}, s, a, t))
    np.testing.assert_allclose(found, mlp(params, joined), rtol=1e-5, atol=1e-5)


def test_kernels_start_uniform_with_the_mean_of_both_fans():
    """Uniform within sqrt(6 / (in + out)), where the inputs count together; biases 0."""
    params: Any = MLP((300,), 200).init(jax.random.key(0), jnp.zeros((1, 60)), jnp.zeros((1, 40)))["params"]
    for name, fans in (("layer_0", 400), ("layer_1", 500)):
        limit = np.sqrt(6 / fans)
        kernel = np.asarray(params[name]["kernel"])
        assert np.abs(kernel).max() <= limit
        np.testing.assert_allclose(kernel.std(), limit / np.sqrt(3), rtol=0.02)
        assert not params[name]["bias"].any()


class Attends(nn.Module):
    """One layer of attention, the project's or flax's own."""

    own: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        make = functools.partial(attention, self) if self.own else nn.MultiHeadDotProductAttention
        return make(2, name="attention")(x)  # pyright: ignore[reportCallIssue]


def test_attention_is_flaxs_but_for_the_gradient_of_the_keys_bias():
    x = jax.random.normal(jax.random.key(0), (3, 5, 8))
    params: Any = Attends(own=True).init(jax.random.key(1), x)
    params = jax.tree.map(lambda leaf: leaf + 0.3, params)

    def loss(params: Any, own: bool) -> Any:
        output: Any = Attends(own=own).apply(params, x)
        return (output**2).sum()

    (ours, found), (flaxs, expected) = (jax.value_and_grad(loss)(params, own) for own in (True, False))
    np.testing.assert_array_equal(ours, flaxs)
    assert not found["params"]["attention"]["key"]["bias"].any()
    rounding = expected["params"]["attention"]["key"].pop("bias")
    assert np.abs(rounding).max() < 1e-3 * np.abs(expected["params"]["attention"]["key"]["kernel"]).max()
    del found["params"]["attention"]["key"]["bias"]
    jax.tree.map(np.testing.assert_array_equal, found, expected)
