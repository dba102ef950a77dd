"""Errors in the plan that a car follows while it is recorded, so that the recording shows how to come back from them.

This is DART (arXiv:1703.09327): noise goes into what is done, while what is recorded is what the driver would do from
there. Its noise is drawn anew at each step; that of a policy's errors lasts, and so does this one.
"""

import numpy as np
from jaxtyping import Float64

from driving.config import NoiseConfig
from driving.sim.vehicle import CONTROL_S


class Noise:
    """Turns and stretches one plan after another, every CONTROL_S, by two Ornstein-Uhlenbeck processes."""

    def __init__(self, config: NoiseConfig, rng: np.random.Generator) -> None:
        """Draws how large the errors of this drive are, 0 to twice what the config says, and the first of them."""
        self._rng = rng
        self._size = rng.uniform(0.0, 2.0) * np.array([config.turn_rad, config.stretch])
        self._kept = float(np.exp(-CONTROL_S / config.seconds))
        self._now = rng.normal(size=2)

    def disturbed(self, plan: Float64[np.ndarray, "t 2"]) -> Float64[np.ndarray, "t 2"]:
        """Returns a plan, turned by an angle and stretched by a factor: it goes elsewhere, at another speed."""
        turn, stretch = self._size * self._now
        self._now = self._kept * self._now + np.sqrt(1 - self._kept**2) * self._rng.normal(size=2)
        cos, sin = np.cos(turn), np.sin(turn)
        return np.exp(stretch) * plan @ np.array([[cos, sin], [-sin, cos]])
