"""The flow's sampler as a chain of Gaussians, which gives what it sampled a likelihood; an ODE has none.

From noise (t = 1) to action (t = 0), the ODE dx = v dt and the SDE

    dx = [v + sigma_t^2 / (2 t) (x + (1 - t) v)] dt + sigma_t dw,      sigma_t = level sqrt(t / (1 - t))

give x_t = t noise + (1 - t) action the same distribution at every t where v is the flow's exact velocity: its score
is then -(x + (1 - t) v) / t (Flow-GRPO, arXiv:2505.05470; for pi0 Flow-SDE in pi_RL, arXiv:2510.25889). In K Euler
steps, the one from t = 1 - k / K is a Gaussian whose numbers are independent of one another:

    x_{k+1} ~ N(x_k - [v + sigma^2 / (2 t) (x_k + (1 - t) v)] / K,  sigma^2 / K)

In sigma 1 - t counts as 1 / K at least, or it were infinite at t = 1: the first step's standard deviation is `level`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from openpi_ript.model.pi0 import Field


class Chain(NamedTuple):
    """Chunks that were sampled, and every point on the way to them."""

    points: Float32[Array, "b points t a"]
    """From the noise to the action: one more than there are steps."""
    log_prob: Float32[Array, "b k t"]
    """Of each step of the sampler and of the chunk: the sum over the action dimensions that count."""


def schedule(level: float, steps: int) -> tuple[Float32[np.ndarray, " k"], Float32[np.ndarray, " k"]]:
    """Returns t and sigma at the beginning of each step.

    Args:
      level: Above 0.
      steps: K.
    """
    time = 1 - np.arange(steps) / steps
    sigma = level * np.sqrt(time / np.maximum(1 - time, 1 / steps))
    return time.astype(np.float32), sigma.astype(np.float32)


def sample_chain(field: Field, noise: Float32[Array, "b points t a"], *, level: float, dims: int) -> Chain:
    """Samples chunks by the SDE.

    Args:
      field: Velocity at a point and a time per sample.
      noise: Of a standard normal distribution: where the chain starts, then what each step adds; K + 1 of them.
      level: Of the noise.
      dims: Action dimensions that count in the log-probability, the first ones.
    """
    b, steps = noise.shape[0], noise.shape[1] - 1
    time, sigma = schedule(level, steps)

    def advance(x: Array, step: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        t, s, drawn = step
        mean = _mean(x, field(x, jnp.full((b,), t)), t, s, steps)
        std = s / math.sqrt(steps)
        after = mean + std * drawn
        return after, (after, _log_density(after, mean, std, dims))

    inputs = (jnp.asarray(time), jnp.asarray(sigma), jnp.moveaxis(noise[:, 1:], 1, 0))
    _, (points, log_prob) = jax.lax.scan(advance, noise[:, 0], inputs)
    points = jnp.concatenate([noise[:, :1], jnp.moveaxis(points, 0, 1)], axis=1)
    return Chain(points, jnp.moveaxis(log_prob, 0, 1))


def chain_log_prob(
    field: Field, points: Float32[Array, "b points t a"], *, level: float, dims: int
) -> Float32[Array, "b k t"]:
    """Returns the log-probability of each step of a chain that was sampled, given where the step began.

    That of where the chain began is left out: it depends on no weights.

    Args:
      field: Velocity at a point and a time per sample.
      points: Of a `Chain`.
      level: Of the noise with which it was sampled.
      dims: Action dimensions that count, the first ones. The others were sampled too, and are part of where a step
        begins.
    """
    b, steps = points.shape[0], points.shape[1] - 1
    before, after = points[:, :-1], points[:, 1:]
    time, sigma = (jnp.asarray(values) for values in schedule(level, steps))

    def velocity_at(x: Array, t: Array) -> Array:
        return field(x, jnp.full((b,), t))

    v = jax.vmap(velocity_at, in_axes=(1, 0), out_axes=1)(before, time)
    t, s = time[None, :, None, None], sigma[None, :, None, None]
    return _log_density(after, _mean(before, v, t, s, steps), s / math.sqrt(steps), dims)


def _mean(
    x: Float32[Array, "*b t a"],
    v: Float32[Array, "*b t a"],
    time: Float[Array, "..."],
    sigma: Float[Array, "..."],
    steps: int,
) -> Float32[Array, "*b t a"]:
    """Where a step of 1 / steps from x arrives in the mean."""
    return x - (v + sigma**2 / (2 * time) * (x + (1 - time) * v)) / steps


def _log_density(
    x: Float32[Array, "*b t a"], mean: Float32[Array, "*b t a"], std: Float[Array, "..."], dims: int
) -> Float32[Array, "*b t"]:
    """Of independent normal distributions, summed over the first `dims` of the last axis."""
    each = -0.5 * jnp.square((x - mean) / std) - jnp.log(std) - 0.5 * math.log(2 * math.pi)
    return each[..., :dims].sum(axis=-1)
