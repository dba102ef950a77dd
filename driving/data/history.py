"""What a frame says itself of how the car came there: Waymo E2E gives each frame the 4 s before it, at 4 Hz."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float64

MOVING_MPS = 0.5
"""Below this a velocity has no direction worth differentiating."""
STANDING_MPS = 0.1
"""A car that is slower at both ends of a step does not turn."""
COLUMNS = 6
"""x, y, velocity along both, acceleration along both; in the vehicle frame of the frame, metres and seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """States up to the frame's own, which is the last."""

    dt_s: float
    states: Float64[np.ndarray, "n 6"]
    """COLUMNS, NaN where unknown."""

    @property
    def yaw_rate_radps(self) -> float | None:
        """At the frame, from how the velocity turned in the last step; None where that is not known."""
        _, _, rate, known = motion(self.states[None], self.dt_s)
        return float(rate[0, -1]) if known.size and known[0, -1] else None


def motion(
    states: Float64[np.ndarray, "T n 6"], dt_s: float
) -> tuple[Float64[np.ndarray, "T n"], Bool[np.ndarray, "T n"], Float64[np.ndarray, "T n"], Bool[np.ndarray, "T n"]]:
    """Speed in m/s (negative in reverse) and yaw rate in rad/s at each state, each with whether it is known.

    A yaw rate is how far the velocity turned since the state before, by time; 0 of a car that stood at both.

    Args:
      states: Of T frames; see History.
      dt_s: Seconds between two states.
    """
    velocity = states[..., 2:4]
    known = np.all(np.isfinite(velocity), axis=-1, keepdims=True)[..., 0]
    x, y = np.moveaxis(np.nan_to_num(velocity), -1, 0)
    size = np.hypot(x, y)
    before, now = np.s_[:, :-1], np.s_[:, 1:]
    cross, dot = x[before] * y[now] - y[before] * x[now], x[before] * x[now] + y[before] * y[now]
    moving = (size[before] >= MOVING_MPS) & (size[now] >= MOVING_MPS)
    standing = (size[before] < STANDING_MPS) & (size[now] < STANDING_MPS)
    turned = np.where(moving, np.arctan2(cross, dot), 0.0) / dt_s
    rate, rate_known = np.zeros(x.shape), np.zeros(x.shape, bool)
    rate[now] = turned
    rate_known[now] = known[before] & known[now] & (moving | standing)
    return np.where(x < 0, -size, size), known, np.where(rate_known, rate, 0.0), rate_known
