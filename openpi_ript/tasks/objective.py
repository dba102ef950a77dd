"""What an update minimises: the flow-matching loss of a batch, plain or guided by advantages."""

from typing import Any

from jaxtyping import Array, Float, Key

from chunkwise.arrays import PyTree
from chunkwise.train.metrics import Mean
from openpi_ript.config.experiment import GuidanceConfig
from openpi_ript.model.guidance import guided_loss
from openpi_ript.model.pi0 import Observation, Pi0, flow_loss


def objective_name(guidance: GuidanceConfig | None) -> str:
    """Returns the name of the loss among the metrics of `loss_of`."""
    return "flow_loss" if guidance is None else "guided_loss"


def loss_of(
    model: Pi0, params: PyTree, batch: Any, key: Key[Array, ""], guidance: GuidanceConfig | None
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Returns the loss of model inputs (openpi_ript/data/inputs.py), and means, the loss among them.

    Args:
      model: With `config.optimality` where `guidance` is set.
      params: Its weights.
      batch: A `ModelBatch`.
      key: For noise, time, and the dropout of labels.
      guidance: None: imitation.
    """
    seen, actions, is_pad = Observation(**batch["observation"]), batch["actions"], batch["action_is_pad"]
    if guidance is None:
        return flow_loss(model, params, seen, actions, is_pad, key)
    label, advantage = batch["optimality"], batch["advantages"]
    return guided_loss(model, params, seen, actions, is_pad, label, advantage, guidance, key)
