"""The distribution of a value, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from openpi_ript.model.value import FARTHEST, ValueNetwork, cross_entropy, expected_value, two_hot


def test_two_hot_by_hand():
    got = two_hot(jnp.array([-1.0, -0.75, -0.6, 0.0, -0.1, -3.0, 0.5]), 5)
    expected = [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0.4, 0.6, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0.4, 0.6],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_its_mean_is_the_value():
    values = jnp.linspace(-1, 0, 1234)
    for bins in (2, 7, 201):
        weights = two_hot(values, bins)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-4)
        np.testing.assert_allclose(weights @ np.linspace(-1, 0, bins), values, atol=1e-5)
        assert ((weights > 0).sum(-1) <= 2).all()


def test_expected_value_and_cross_entropy_against_numpy():
    rng = np.random.default_rng(0)
    logits, value = rng.normal(size=(6, 5)).astype(np.float32), np.array([0, -0.25, -0.3, -1, -0.9, -0.5], np.float32)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(expected_value(jnp.asarray(logits)), p @ [-1, -0.75, -0.5, -0.25, 0], rtol=1e-5)
    low = [4, 3, 2, 0, 0, 2]
    share = np.array([1, 1, 0.2, 1, 0.6, 1])  # of the lower bin
    by_hand = [
        -s * np.log(row[i]) - (1 - s) * np.log(row[min(i + 1, 4)]) for row, i, s in zip(p, low, share, strict=True)
    ]
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(value))
    np.testing.assert_allclose(got, by_hand, rtol=1e-4)


@pytest.mark.parametrize("cameras", [0, 2])
def test_the_network_sees_all_that_it_is_given(cameras: int):
    network = ValueNetwork(bins=11, tasks=3, width=8)
    rng = np.random.default_rng(1)
    state, task = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32), jnp.array([0, 2])
    images = jnp.asarray(rng.integers(0, 256, (2, cameras, 28, 28, 3)), jnp.uint8) if cameras else None
    params = network.init(jax.random.key(0), state, task, images)
    logits = np.asarray(network.apply(params, state, task, images))
    assert logits.shape == (2, 11)
    shapes = jax.tree.map(lambda leaf: leaf.shape, params["params"])
    seen = 4 + 3 + cameras * 2 * 2 * 32  # state, task, four halvings of 28 pixels
    assert shapes["head"]["layer_0"]["kernel"] == (seen, 8)
    channels = [shapes[f"conv_{number}"]["bias"] for number in range(4 if cameras else 0)]
    assert channels == [(16,), (32,), (32,), (32,)][: len(channels)], "a run that goes on has these"
    others = [(state.at[:, 3].add(1.0), task, images), (state, task - task + 1, images)]
    if images is not None:
        others.append((state, task, images.at[:, 1, 20:].set(0)))
    for other in others:
        assert (np.abs(np.asarray(network.apply(params, *other)) - logits).max(-1) > 1e-4).all()
    far, farther = (network.apply(params, jnp.full((2, 4), size), task, images) for size in (FARTHEST, 1e6))
    np.testing.assert_array_equal(np.asarray(far), np.asarray(farther))
