"""Validation loss: what training minimises, on episodes that it never saw (data.holdout)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from chunkwise.arrays import PyTree
from chunkwise.data.holdout import spaced
from chunkwise.train.held_out import HeldOutMeans
from chunkwise.train.metrics import Mean
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.batch import to_training_batch
from openpi_ript.data.dataset import TrainingData
from openpi_ript.data.inputs import ToModel
from openpi_ript.model.pi0 import Pi0
from openpi_ript.tasks.objective import loss_of, objective_name


def means_of(config: OpenpiRiptConfig) -> Callable[[PyTree, Any, Key[Array, ""]], dict[str, Mean]]:
    """Returns what training minimises, and means beside it, as a function of weights, model inputs and key.

    guidance.dropout counts as 0: a label that is dropped at random is a part of training.
    """
    model = Pi0(config.model)
    guidance = config.guidance
    if guidance is not None and guidance.loss == "label_dropout":
        guidance = dataclasses.replace(guidance, dropout=0.0)

    def means(params: PyTree, batch: Any, key: Key[Array, ""]) -> dict[str, Mean]:
        return loss_of(model, params, batch, key, guidance)[1]

    return means


class HeldOut:
    """Measures weights on the same windows at every evaluation, with the same noise and times for every seed."""

    def __init__(self, config: OpenpiRiptConfig, data: TrainingData, inputs: ToModel) -> None:
        """Reads nothing yet.

        Args:
          config: Of the run.
          data: With rows held out.
          inputs: Makes its inputs.
        """
        self._data, self._inputs = data, inputs
        rows = config.train.batch_size // config.train.grad_accum_steps  # as many as an update takes at once
        self.rows = data.held_rows[spaced(len(data.held_rows), rows)]
        """Rows of the table that are measured, a line a batch."""
        self.episodes = len(np.unique(data.episodes_of(data.held_rows)))
        self._objective = objective_name(config.guidance)
        self._means = HeldOutMeans(means_of(config))

    def measure(self, params: PyTree) -> dict[str, float]:
        """Returns means over all real steps of all windows, by name.

        `holdout/loss`: what training minimises. With guidance also `holdout/flow_loss_<condition>`: of the samples
        that count under it; left out where none does.

        Raises:
          DataError: An image cannot be read.
        """
        batches = (
            self._inputs(to_training_batch([self._data.sample(row) for row in rows.tolist()])) for rows in self.rows
        )
        total = self._means(params, batches)
        values = {name: mean for name, mean in jax.device_get(total).items() if mean.count > 0}
        names = {name: "loss" if name == self._objective else name for name in values}
        return {f"holdout/{names[name]}": float(mean.value()) for name, mean in values.items()}

    def summary(self, metrics: Mapping[str, float]) -> str:
        """Returns the line that a run prints."""
        found = ", ".join(f"{name.removeprefix('holdout/')} {value:.4g}" for name, value in metrics.items())
        return f"held out, {self.episodes} episodes, {self.rows.size} windows: {found}"
