"""Flow matching on straight paths: the path, its velocity, an Euler sampler, and inpainting by guidance.

Time runs from `start` at t = 0 to `end` at t = 1 (Lipman et al. 2022, arXiv:2210.02747; rectified flow,
arXiv:2209.03003). Q-chunking flows from noise (t = 0) to action (t = 1). pi0 as published in openpi has the action at
t = 0 and noise at t = 1: its path is this one from action to noise, its sampler one of its own, which runs backwards
(openpi_ript/model/pi0.py:integrate).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

MAX_GUIDANCE = 5.0
"""Largest weight of the guidance of `inpainting`; real-time chunking's beta (arXiv:2506.07339)."""


def straight_path(
    start: Float[Array, "*shape"], end: Float[Array, "*shape"], t: Float[Array, "*time"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Point and velocity of the straight path: x_t = (1 - t) start + t end, u_t = end - start.

    Args:
      start: Sample at t = 0.
      end: Sample at t = 1.
      t: In [0, 1], of the rank of `start` (its axes 1 where one time serves many entries).
    """
    return (1 - t) * start + t * end, end - start


def euler(
    velocity: Callable[[Float[Array, "*shape"], Float[Array, ""]], Float[Array, "*shape"]],
    x: Float[Array, "*shape"],
    *,
    steps: int,
) -> Float[Array, "*shape"]:
    """Integrates dx/dt = velocity(x, t) from t = 0 to 1 in `steps` equal Euler steps.

    Args:
      velocity: Field at a point and a scalar time of x's dtype.
      x: Sample at t = 0.
      steps: At least 1; a larger number follows a curved field more closely.
    """
    dt = 1.0 / steps

    def advance(i: Array, x: Array) -> Array:
        return x + velocity(x, jnp.asarray(i, x.dtype) * dt) * dt  # an int without jit, as in debugging

    return jax.lax.fori_loop(0, steps, advance, x)


def inpainting(
    velocity: Callable[[Float[Array, "*shape"], Float[Array, "*time"]], Float[Array, "*shape"]],
    known: Float[Array, "*#shape"],
    weights: Float[Array, "*#shape"],
    *,
    max_guidance: float = MAX_GUIDANCE,
) -> Callable[[Float[Array, "*shape"], Float[Array, "*time"]], Float[Array, "*shape"]]:
    """Returns a velocity that leads to samples which agree with what is known of them (arXiv:2506.07339, equation 2).

    Pseudo-inverse guidance, for flows arXiv:2310.04432: with e(x) = x + (1 - t) v(x, t), where x would arrive if it
    went straight on,

        v(x, t) + min(max_guidance, (t^2 + (1 - t)^2) / (t (1 - t))) de/dx^T [weights (known - e(x))]

    Args:
      velocity: From noise at t = 0 to the sample at t = 1; of a point, and a time for all rows or one for each.
      known: What the sample should be.
      weights: Of each number, 0 to 1; 0 where nothing is known.
      max_guidance: The guidance's weight is infinite at t = 0 without it.
    """

    def guided(x: Array, t: Array) -> Array:
        time = jnp.asarray(t).reshape(jnp.shape(t) + (1,) * (x.ndim - jnp.ndim(t)))
        left = 1 - time

        def arrival(x: Array) -> tuple[Array, Array]:
            v = velocity(x, t)
            return x + left * v, v

        end, pull_back, v = jax.vjp(arrival, x, has_aux=True)
        (correction,) = pull_back(weights * (known - end))
        squares = time**2 + left**2
        return v + squares / jnp.maximum(time * left, squares / max_guidance) * correction

    return guided
