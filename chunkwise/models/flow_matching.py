"""Flow matching on straight paths: the path, its velocity, and an Euler sampler.

Time runs from `start` at t = 0 to `end` at t = 1 (Lipman et al. 2022, arXiv:2210.02747; rectified flow,
arXiv:2209.03003). Q-chunking flows from noise (t = 0) to action (t = 1); pi0 as published in openpi has the action
at t = 0 and noise at t = 1, and is sampled backwards. Both are calls of the same two functions.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float


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
    t_start: float = 0.0,
    t_end: float = 1.0,
) -> Float[Array, "*shape"]:
    """Integrates dx/dt = velocity(x, t) from t_start to t_end in `steps` equal Euler steps.

    Args:
      velocity: Field at a point and a scalar time of x's dtype.
      x: Sample at `t_start`.
      steps: At least 1; a larger number follows a curved field more closely.
      t_start: Time of `x`; larger than `t_end` integrates backwards.
      t_end: Time of the result.
    """
    dt = (t_end - t_start) / steps

    def advance(i: Array, x: Array) -> Array:
        t = t_start + i.astype(x.dtype) * dt
        return x + velocity(x, t) * dt

    return jax.lax.fori_loop(0, steps, advance, x)
