"""Settings of PPO on the flow's own likelihood, as a frozen dataclass. No jax here."""

import dataclasses
from typing import Literal

from chunkwise.config.experiment import require_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """PPO (arXiv:1707.06347) on a flow that is sampled with noise: Flow-SDE of pi_RL, arXiv:2510.25889."""

    noise: float = 0.5
    """Level of the noise with which rollouts sample a chunk: the standard deviation of the first of the sampler's K
    steps, in normalised actions; that of the k-th after it is noise sqrt((K - k) / (k K)). pi_RL's number."""
    sample_steps: int = 5
    """K, steps from noise to a chunk, of rollouts, of evaluation and of the policy that a run leaves."""
    clip: float = 0.2
    """A ratio of likelihoods that moved farther than this from 1, where the advantage would have it so, has no
    gradient."""
    epochs: int = 4
    """Passes over the chunks of a round, in equal parts over its updates. Where chunks times passes are more than
    rollout.updates batches of train.batch_size rows, as many passes are made as fit; the run says so. Where they are
    fewer than rollout.updates, some updates have no chunk: their gradient is 0, and what the optimiser keeps of the
    updates before (its momentum, weight decay) and the moving average still move the weights."""
    learning_rate_scale: float = 0.02
    """The updates on rollouts are so many times what optim.learning_rate makes them. That of imitation is far too much:
    where `approx_kl` passes 0.1 in the first round, lower it."""
    evaluate: Literal["ode", "sde"] = "ode"
    """How evaluation samples. ode: without noise, as a served policy does. sde: as rollouts do."""

    def __post_init__(self) -> None:
        require_positive(self, "noise", "sample_steps", "clip", "epochs", "learning_rate_scale")
