"""PPO on the flow's own likelihood: updates on chunks that were sampled with noise (model/flow_sde.py).

Each step of the sampler is an action of its own, drawn from a Gaussian whose density is known, and gets the advantage
of its rollout: the inner level of pi_RL's two-level decision process (arXiv:2510.25889; for images DDPO,
arXiv:2305.13301). With r the ratio of a step's density to that under the policy that sampled it,

    L = mean over steps of the sampler of  -min(r A, clip(r, 1 - e, 1 + e) A)

(arXiv:1707.06347). The density is that of the robot's own dimensions in the steps of the chunk that were executed. What
the others drew has a part in where the next step of the sampler begins, and none in the ratio, as in pi_RL's code.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, TypeGuard

import jax
import numpy as np
import optax
from jaxtyping import Array, Float

from chunkwise.arrays import PyTree
from chunkwise.state import TrainState
from chunkwise.train import rngs
from chunkwise.train.clipped_ratio import clipped_loss
from chunkwise.train.gradients import widened
from chunkwise.train.metrics import Mean, mean_of
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.ppo import PpoConfig
from openpi_ript.data.inputs import ModelBatch, ObservationArrays
from openpi_ript.model.flow_sde import chain_log_prob
from openpi_ript.model.lora import only_where, stop_frozen, trained_gradient
from openpi_ript.model.pi0 import Observation, Pi0, encode, gathered_outside_layers, velocity
from openpi_ript.ript.passes import ChunkBatch
from openpi_ript.tasks.supervised import Imitation


class PpoBatch(TypedDict):
    """What an update on chunks takes."""

    observation: ObservationArrays
    advantages: np.ndarray
    """[b] float32."""
    chain: np.ndarray
    log_prob: np.ndarray
    valid: np.ndarray
    """These three as `ChunkBatch` has them."""


def is_ppo(batch: Mapping[str, Any]) -> TypeGuard[ChunkBatch]:
    """Whether a batch holds chunks, and not windows that are imitated."""
    return "chain" in batch


def ppo_inputs(batch: ChunkBatch, inputs: ModelBatch) -> PpoBatch:
    """Returns what an update takes of a batch of chunks, and of its model inputs."""
    return {
        "observation": inputs["observation"],
        "advantages": inputs["advantages"],
        "chain": batch["chain"],
        "log_prob": batch["log_prob"],
        "valid": batch["valid"],
    }


def ppo_loss(
    model: Pi0, params: PyTree, batch: Any, config: PpoConfig, dims: int
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Returns the loss of a `PpoBatch`, and the means of `clipped_loss`.

    Args:
      model: Without `config.optimality`.
      params: Its weights.
      batch: A `PpoBatch`.
      config: The noise with which the chunks were sampled, and the clipping.
      dims: Action dimensions of the robot.
    """
    context = encode(model, params, Observation(**batch["observation"]))
    log_prob = chain_log_prob(
        lambda x, time: velocity(model, params, context, x, time, None), batch["chain"], level=config.noise, dims=dims
    )
    return clipped_loss(log_prob, batch["log_prob"], batch["advantages"], batch["valid"], config.clip)


class Ppo:
    """The updates on a round's chunks."""

    def __init__(
        self, config: OpenpiRiptConfig, model: Pi0, trains: PyTree, optimiser: optax.GradientTransformation
    ) -> None:
        """Compiles nothing yet.

        Args:
          config: Of the run, whose rollout.objective is ppo.
          model: What is trained.
          trains: Which of its weights train.
          optimiser: The run's; its moments go on.
        """
        assert config.rollout is not None
        self._config, self._ppo, self._model, self._trains = config, config.rollout.ppo, model, trains
        self._optimiser = _scaled(optimiser, self._ppo.learning_rate_scale)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """Makes one update of the weights that train, on a `PpoBatch`."""
        key = rngs.key(self._config.run.seed, "loss", state.step)  # nothing is drawn
        parts, dtype = self._config.train.grad_accum_steps, self._config.model.dtype
        weights = {"ppo_loss": 1.0}
        gradient, metrics = trained_gradient(self._loss, weights, state.params, self._trains, batch, key, parts, dtype)
        metrics["gradient_norm"] = mean_of(optax.tree.norm(widened(only_where(gradient, self._trains))))
        return state.apply_gradients(gradient, self._optimiser), metrics

    def _loss(self, params: PyTree, batch: Any, key: Any) -> tuple[Float[Array, ""], dict[str, Mean]]:
        params = stop_frozen(gathered_outside_layers(params), self._trains)
        return ppo_loss(self._model, params, batch, self._ppo, self._config.data.robot.action_dim)


class PpoUpdate(Imitation):
    """The update by PPO, as a function of batches that come from anywhere."""

    def __init__(self, config: OpenpiRiptConfig) -> None:
        """Compiles nothing yet."""
        super().__init__(config)
        self._ppo = Ppo(config, self.model, self._trains, self._optimiser)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """Makes one update on a `PpoBatch`."""
        return self._ppo.step(state, batch)


def _scaled(optimiser: optax.GradientTransformation, scale: float) -> optax.GradientTransformation:
    """The optimiser with updates so many times as large, and the same state."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimiser.update(updates, state, params)
        return jax.tree.map(lambda one: one * scale, updates), state

    return optax.GradientTransformation(optimiser.init, update)
