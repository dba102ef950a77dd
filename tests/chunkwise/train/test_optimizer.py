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


def trained(config: OptimConfig) -> np.ndarray:
    """Weights after the three gradients."""
    optimiser = make_optimiser(config, len(GRADIENTS))
    params: Any = {"w": jnp.asarray(START, jnp.float32)}
    state = optimiser.init(params)
    for gradient in GRADIENTS:
        updates, state = jax.jit(optimiser.update)({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


def rates(config: OptimConfig, total_steps: int, updates: Iterable[int]) -> np.ndarray:
    """Learning rates of some updates."""
    rate: Any = learning_rate(config, total_steps)
    return np.array([rate(i) for i in updates])


def adamw(config: OptimConfig) -> np.ndarray:
    """The same in float64: clipping, Adam with bias correction, decoupled decay."""
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    steps = len(GRADIENTS)
    for i, (g, rate) in enumerate(zip(GRADIENTS, rates(config, steps, range(steps)), strict=True)):
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
