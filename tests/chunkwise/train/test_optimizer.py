"""Optimisers against Adam written out in numpy, and schedules against their formula."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.config.experiment import OptimConfig
from chunkwise.errors import ConfigError
from chunkwise.train.optimizer import learning_rate, make_optimiser

START = np.array([1.0, -2.0, 3.0])
GRADIENTS = np.array([[3.0, 0.5, -4.0], [1.0, -1.0, 2.0], [-0.1, 0.0, 0.3]])


def trained(config: OptimConfig, dtype: str = "float32") -> np.ndarray:
    """Weights after the three gradients, which come in a dtype."""
    optimiser = make_optimiser(config, len(GRADIENTS))
    params: Any = {"w": jnp.asarray(START, jnp.float32)}
    state = optimiser.init(params)
    for gradient in GRADIENTS:
        updates, state = jax.jit(optimiser.update)({"w": jnp.asarray(gradient, dtype)}, state, params)
        assert updates["w"].dtype == jnp.float32
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


def rates(config: OptimConfig, total_steps: int, updates: Iterable[int]) -> np.ndarray:
    """Learning rates of some updates."""
    rate: Any = learning_rate(config, total_steps)
    return np.array([rate(i) for i in updates])


def adamw(config: OptimConfig, gradients: np.ndarray = GRADIENTS) -> np.ndarray:
    """The same in float64: clipping, Adam with bias correction, decoupled decay."""
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    steps = len(gradients)
    for i, (g, rate) in enumerate(zip(gradients, rates(config, steps, range(steps)), strict=True)):
        if config.clip_norm is not None:
            g = g * min(1, config.clip_norm / np.linalg.norm(g))
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g**2
        m_hat, v_hat = m / (1 - config.beta1 ** (i + 1)), v / (1 - config.beta2 ** (i + 1))
        w = w - rate * (m_hat / (np.sqrt(v_hat) + config.epsilon) + config.weight_decay * w)
    return w


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"weight_decay": 0.1},
        {"clip_norm": 0.7},
        {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
        {"schedule": "cosine", "warmup_steps": 1},
    ],
    ids=str,
)
def test_weights_after_three_updates(change):
    config = dataclasses.replace(OptimConfig(learning_rate=0.01), **change)
    np.testing.assert_allclose(trained(config), adamw(config), rtol=1e-6)


def test_gradients_in_16_bits_are_widened_before_anything_else():
    """Before they are clipped by their norm, too."""
    exact = np.asarray(jnp.asarray(GRADIENTS, jnp.bfloat16), np.float64)
    assert not np.array_equal(exact, GRADIENTS), "0.1 and 0.3 are rounded"
    config = OptimConfig(learning_rate=0.01, clip_norm=0.7, epsilon=0.1)
    np.testing.assert_allclose(trained(config, "bfloat16"), adamw(config, exact), rtol=1e-6)


def test_constant_rate_after_a_warm_up_that_wastes_no_update():
    found = rates(OptimConfig(learning_rate=0.4, warmup_steps=3), 100, (0, 1, 2, 3, 50))
    np.testing.assert_allclose(found, [0.1, 0.2, 0.3, 0.4, 0.4], rtol=1e-6)


@pytest.mark.parametrize("warmup", [0, 4])
def test_cosine_ends_at_zero_with_the_last_step(warmup):
    found = rates(OptimConfig(learning_rate=0.4, warmup_steps=warmup, schedule="cosine"), 20, range(warmup, 21))
    expected = [0.2 * (1 + math.cos(math.pi * (i - warmup) / (20 - warmup))) for i in range(warmup, 21)]
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_a_warm_up_that_leaves_no_cosine_is_refused():
    with pytest.raises(ConfigError, match=r"optim\.warmup_steps is 20 and train\.steps is 20"):
        make_optimiser(OptimConfig(warmup_steps=20, schedule="cosine"), 20)


def orthogonal(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Five steps of Newton and Schulz, of a matrix with no more rows than columns."""
    x = x / (np.linalg.norm(x) + epsilon)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def muon(w: np.ndarray, gradients: list[np.ndarray], config: OptimConfig) -> np.ndarray:
    """Muon with Nesterov's momentum in float64, for a matrix with no more rows than columns."""
    moment, b = np.zeros_like(w), config.beta1
    for i, g in enumerate(gradients):
        moment = b * moment + (1 - b) * g
        ahead = b * moment / (1 - b ** (i + 2)) + (1 - b) * g / (1 - b ** (i + 1))
        step = 0.2 * math.sqrt(max(w.shape)) * orthogonal(ahead, config.epsilon)
        w = w - config.learning_rate * (step + config.weight_decay * w)
    return w


def test_muon_takes_a_head_and_a_neighbourhood_for_a_matrix():
    """Of two layers each: attention's maps are of 4 to 3 heads of 2 numbers and back, of a head for itself; a
    convolution of 2 x 1 places with 3 channels has matrices of 6 by 5."""
    config = OptimConfig(method="muon", learning_rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1)
    shapes = dict.fromkeys(("query", "key", "value"), (2, 4, 3, 2)) | {"out": (2, 3, 2, 4), "conv": (2, 2, 1, 3, 5)}
    rng = np.random.default_rng(1)
    start, gradient = ({name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(2))
    params, given = ({n: {"kernel": jnp.asarray(x, jnp.float32)} for n, x in one.items()} for one in (start, gradient))
    optimiser = make_optimiser(config, 3)
    updates, _ = optimiser.update(given, optimiser.init(params), params)
    found: Any = optax.apply_updates(params, updates)
    for layer in range(2):
        for name in ("query", "key", "value", "out"):
            for head in range(3):
                at = (layer, head) if name == "out" else (layer, slice(None), head)
                one = muon(start[name][at], [gradient[name][at]], config)
                np.testing.assert_allclose(found[name]["kernel"][at], one, rtol=2e-4, atol=2e-6, err_msg=name)
        one = muon(start["conv"][layer].reshape(6, 5), [gradient["conv"][layer].reshape(6, 5)], config)
        np.testing.assert_allclose(found["conv"]["kernel"][layer].reshape(6, 5), one, rtol=2e-4, atol=2e-6)


def test_muon_moves_matrices_and_adam_the_rest():
    config = OptimConfig(method="muon", learning_rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1)
    rng = np.random.default_rng(0)
    others = ("norm_scale", "input_embedding", "position", "camera", "missing", "mask_token")
    shapes = {"kernel": (2, 3), "layers": (2, 2, 3), "bias": (3,)} | dict.fromkeys(others, (2, 3))
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(3)]
    params: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start)
    optimiser = make_optimiser(config, 3)
    state = optimiser.init(params)
    for gradient in gradients:
        given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), gradient)
        updates, state = jax.jit(optimiser.update)(given, state, params)
        params = optax.apply_updates(params, updates)
    expected = {"kernel": muon(start["kernel"], [g["kernel"] for g in gradients], config)}
    each = [muon(start["layers"][k], [g["layers"][k] for g in gradients], config) for k in range(2)]
    expected["layers"] = np.stack(each)
    for name in ("bias", *others):
        w, m, v = start[name], 0.0, 0.0
        for i, g in enumerate(gradients):
            m, v = 0.8 * m + 0.2 * g[name], 0.9 * v + 0.1 * g[name] ** 2
            m_hat = 0.8 * m / (1 - 0.8 ** (i + 2)) + 0.2 * g[name] / (1 - 0.8 ** (i + 1))  # Nesterov's
            v_hat = v / (1 - 0.9 ** (i + 1))
            w = w - 0.01 * (m_hat / (np.sqrt(v_hat) + 1e-3) + 0.1 * w)
        expected[name] = w
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=2e-5, err_msg=name)
    moments = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert moments - 3 == 6 + 12 + 2 * (3 + 6 * 6), "three coefficients; one moment of a matrix, two of the others"


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_a_first_moment_in_bfloat16_takes_half_and_moves_weights_little(method: Any):
    config = OptimConfig(method=method, learning_rate=0.01)
    half = dataclasses.replace(config, first_moment="bfloat16")
    params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    dtypes = [
        sorted(leaf.dtype.name for leaf in jax.tree.leaves(make_optimiser(one, 1).init(params)) if leaf.size in (3, 6))
        for one in (config, half)
    ]
    moments = 4 if method == "adamw" else 3
    assert dtypes[0].count("float32") - dtypes[1].count("float32") == 2
    assert dtypes[1].count("bfloat16") == 2
    assert dtypes[0].count("float32") == moments + (method == "muon")  # and Muon's three coefficients
    first, second = trained(config), trained(half)
    assert 0 < np.abs(first - second).max() < 0.02 * np.abs(first - START).max()
