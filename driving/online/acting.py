"""Who drives between updates: the policy that trains, which draws one of its modes by its probability."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32, Float64

from chunkwise.arrays import PyTree
from chunkwise.envs.collect import Draw
from chunkwise.envs.environment import Observation
from chunkwise.errors import NonFiniteError
from driving.config import DrivingConfig
from driving.policies.policy import WaypointPolicy
from driving.policies.town import named

MODE, LOG_PROB = "mode", "log_prob"
"""What is noted of each decision: the mode that was drawn, and the log of its probability."""


class DrawingPolicy:
    """A policy whose weights are replaced, and that draws a mode by its probability; a NotingActor of the collector.

    It is asked for one car at a time, so that no batch rounds otherwise.
    """

    def __init__(self, config: DrivingConfig, *, shrunk: tuple[str, ...] = ()) -> None:
        """Has no weights yet; `use` gives them. `shrunk` is as of `WaypointPolicy`."""
        assert config.rollout is not None
        self.config, self._keep, self._shrunk = config, config.rollout.keep, shrunk
        self.step, self.weights = 0, ""
        self._policy: WaypointPolicy | None = None

    def use(self, params: PyTree, step: int) -> None:
        """Takes the weights that `step` updates made; they must live as long as they are used."""
        self._policy = WaypointPolicy(self.config, params, step=step, shrunk=self._shrunk)
        self.step, self.weights = step, self._policy.digest()

    def release(self) -> None:
        """Forgets the weights, before the next update takes their memory."""
        self._policy = None

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        return self.noted(observations, draws, prompts)[0]

    def noted(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> tuple[Float32[np.ndarray, "b t a"], Mapping[str, np.ndarray]]:
        assert self._policy is not None
        plans, modes, log_probs = [], [], []
        for row, draw in enumerate(draws):
            if draw is None:  # fills the batch
                row, draw = 0, draws[0]
                assert draw is not None
            seen = {name: value[row, None] for name, value in observations.items()}
            places, logits = self._policy.modes(self._policy.prepare(named(self._policy, seen)).inputs)
            if not np.isfinite(logits[0]).all():
                raise NonFiniteError(
                    f"step {self.step}: the probabilities of the policy's modes are NaN or Inf; lower "
                    "optim.learning_rate or rollout.weight, or set optim.clip_norm"
                )
            *rollout, number = draw
            mode, log_prob = drawn(logits[0].astype(np.float64), (*rollout, number // self._keep))
            plans.append(places[0, mode].reshape(1, -1))
            modes.append(mode)
            log_probs.append(log_prob)
        return np.stack(plans), {MODE: np.array(modes, np.int32), LOG_PROB: np.array(log_probs, np.float32)}


def drawn(logits: Float64[np.ndarray, " m"], draw: Draw) -> tuple[int, float]:
    """Returns a mode that is drawn by its probability, a function of the draw, and the log of the probability."""
    log_probability = logits - logits.max()
    log_probability = log_probability - np.log(np.exp(log_probability).sum())
    ends = np.cumsum(np.exp(log_probability))
    mode = int(np.searchsorted(ends, np.random.default_rng(draw).random() * ends[-1], side="right"))
    return mode, float(log_probability[mode])
