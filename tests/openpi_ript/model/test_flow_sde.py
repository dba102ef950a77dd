"""The flow's sampler as a chain of Gaussians, against scipy and against flows whose answer is known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from openpi_ript.model.flow_sde import chain_log_prob, sample_chain, schedule
from openpi_ript.model.pi0 import Field, Pi0, encode, integrate, velocity
from tests.openpi_ript.toy_policy import compiled, make_model, make_observation, random_params


def curved(x: jax.Array, time: jax.Array) -> jax.Array:
    """A velocity of no meaning, other in every step of a chunk and dimension."""
    t = time[:, None, None]
    return jnp.sin(2 * x[:, ::-1]) * t + x.sum(axis=-1, keepdims=True) * (1 - t) - 0.3


def gaussian_flow(mean: float, std: float) -> Any:
    """The exact velocity of the flow from a standard normal noise to actions of N(mean, std^2)."""

    def field(x: Any, time: Any) -> Any:
        t = time[:, None, None] if np.ndim(x) == 3 else time
        off = (x - (1 - t) * mean) / ((1 - t) ** 2 * std**2 + t**2)
        return t * off - (mean + (1 - t) * std**2 * off)

    return field


def weights_of(t: float, level: float, steps: int) -> tuple[float, float, float]:
    """Of what the flow takes for the action and for the noise in the mean of a step, and the step's deviation.

    The same law, written as what arrives: (1 - t') action + t' noise at the next time t' less a share of the noise.
    """
    variance = level**2 * t / (1 - t if t < 1 else 1 / steps) / steps
    later = t - 1 / steps
    return 1 - later, later - variance / (2 * t), np.sqrt(variance)


@pytest.mark.parametrize(("level", "steps"), [(0.5, 5), (0.2, 3), (1.0, 1)])
def test_the_log_probability_is_that_of_scipy(level: float, steps: int):
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((4, steps + 1, 3, 5), np.float32)
    points, log_prob = sample_chain(curved, jnp.asarray(noise), level=level, dims=2)
    points = np.asarray(points, np.float64)
    np.testing.assert_array_equal(points[:, 0], noise[:, 0])
    for k in range(steps):
        t = 1 - k / steps
        x = points[:, k]
        v = np.asarray(curved(jnp.asarray(x, jnp.float32), jnp.full(4, t, jnp.float32)), np.float64)
        of_action, of_noise, std = weights_of(t, level, steps)
        mean = of_action * (x - t * v) + of_noise * (x + (1 - t) * v)
        np.testing.assert_allclose(points[:, k + 1], mean + std * noise[:, k + 1], rtol=2e-5, atol=2e-5)
        expected = norm.logpdf(points[:, k + 1], mean, std)[..., :2].sum(axis=-1)
        np.testing.assert_allclose(log_prob[:, k], expected, rtol=1e-4, atol=1e-4)
    again = chain_log_prob(curved, jnp.asarray(points, jnp.float32), level=level, dims=2)
    np.testing.assert_allclose(again, log_prob, rtol=1e-4, atol=1e-4)


def test_the_schedule_by_hand():
    """sqrt(t / (1 - t)), with 1/4 for 0: 2, sqrt 3, 1, sqrt(1/3)."""
    time, sigma = schedule(0.5, 4)
    assert time.tolist() == [1, 0.75, 0.5, 0.25]
    np.testing.assert_allclose(sigma, [1, 0.5 * np.sqrt(3), 0.5, 0.5 / np.sqrt(3)], rtol=1e-6)
    for k in (1, 5, 10):
        assert schedule(0.3, k)[1][0] / np.sqrt(k) == pytest.approx(0.3), "the first step's deviation is the level"


def test_with_almost_no_noise_it_is_the_ode():
    noise = np.random.default_rng(0).standard_normal((6, 6, 3, 2), np.float32)
    points, _ = sample_chain(curved, jnp.asarray(noise), level=1e-4, dims=2)
    np.testing.assert_allclose(points[:, -1], integrate(curved, jnp.asarray(noise[:, 0]), 5), atol=1e-3)


@pytest.mark.parametrize("level", [0.3, 0.8])
def test_a_gaussian_flow_arrives_as_the_exact_recursion_says(level: float):
    """Each step is x' = c x + d + std z with numbers c, d; so mean and variance have a recursion, solved in float64."""
    mean, std, steps, rows = 1.5, 0.4, 8, 40_000
    field, m, variance = gaussian_flow(mean, std), 0.0, 1.0
    for k in range(steps):
        t = 1 - k / steps
        of_action, of_noise, deviation = weights_of(t, level, steps)

        def arrives(x: float, t: float = t, a: float = of_action, b: float = of_noise) -> float:
            v = float(field(np.float64(x), np.float64(t)))
            return a * (x - t * v) + b * (x + (1 - t) * v)

        slope = arrives(1.0) - arrives(0.0)
        m, variance = slope * m + arrives(0.0), slope**2 * variance + deviation**2
    noise = jax.random.normal(jax.random.key(1), (rows, steps + 1, 1, 1))
    sampled = np.asarray(sample_chain(field, noise, level=level, dims=1).points[:, -1], np.float64).ravel()
    assert sampled.mean() == pytest.approx(m, abs=4 * np.sqrt(variance / rows))
    assert sampled.var() == pytest.approx(variance, rel=4 * np.sqrt(2 / rows))


def test_the_sde_has_the_odes_marginals_at_every_time():
    """Of a Gaussian flow they are known: N((1 - t) mean, (1 - t)^2 std^2 + t^2). In 400 steps little is missing."""
    mean, std, steps, rows = 1.5, 0.4, 400, 20_000
    noise = jax.random.normal(jax.random.key(2), (rows, steps + 1, 1, 1))
    points = np.asarray(sample_chain(gaussian_flow(mean, std), noise, level=0.7, dims=1).points, np.float64)[..., 0, 0]
    for k in (100, 200, 300, 400):
        t = 1 - k / steps
        variance = (1 - t) ** 2 * std**2 + t**2
        assert points[:, k].mean() == pytest.approx((1 - t) * mean, abs=4 * np.sqrt(variance / rows) + 0.01)
        assert points[:, k].var() == pytest.approx(variance, rel=0.06)
    ode = np.asarray(integrate(gaussian_flow(mean, std), noise[:, 0], steps), np.float64)
    assert ode.std() == pytest.approx(std, rel=0.03)
    moved = np.corrcoef(ode.ravel(), points[:, -1])[0, 1]
    assert moved < 0.6, "it arrives elsewhere than the ODE, though as often"


@pytest.mark.parametrize("kind", ["pi0", pytest.param("pi05", marks=pytest.mark.long)])
def test_a_chain_of_the_model_has_the_likelihood_with_which_it_was_sampled(kind: Any):
    model = make_model(kind)
    params, observation = random_params(model), make_observation(model.config)
    horizon, width = model.config.action_horizon, model.config.action_dim
    noise = np.random.default_rng(5).standard_normal((3, 5, horizon, width), np.float32)

    def of(params: Any, observation: Any) -> Field:
        context = encode(model, params, observation)
        return lambda x, time: velocity(model, params, context, x, time, None)

    sampled = compiled(lambda p, o, n: sample_chain(of(p, o), n, level=0.5, dims=3))(params, observation, noise)
    again = compiled(lambda p, o, x: chain_log_prob(of(p, o), x, level=0.5, dims=3))(
        params, observation, sampled.points
    )
    np.testing.assert_allclose(again, sampled.log_prob, atol=2e-4)
    other = compiled(lambda p, o, x: chain_log_prob(of(p, o), x, level=0.5, dims=3))(
        random_params(Pi0(model.config), 1), observation, sampled.points
    )
    assert np.abs(np.asarray(other) - np.asarray(sampled.log_prob)).max() > 1
