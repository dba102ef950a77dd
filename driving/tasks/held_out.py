"""Validation loss of a pretraining: its objectives on the validation drives, without augmentation."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Key

from chunkwise.arrays import PyTree
from chunkwise.data.holdout import spaced
from chunkwise.train.gradients import weighted
from chunkwise.train.held_out import HeldOutMeans
from chunkwise.train.metrics import Mean
from driving.data.batches import DrivingData
from driving.tasks import objectives
from driving.tasks.pretrain import PretrainTask, inputs


def means_of(task: PretrainTask) -> Callable[[PyTree, Any, Key[Array, ""]], dict[str, Mean]]:
    """Returns the means of the objectives as a function of weights, a batch and the key of hidden tokens and crops."""
    return lambda params, batch, key: task.loss(params, task.followed(params), batch, key)[1]


class HeldOut:
    """Measures weights on the same samples at every evaluation, with the same hidden tokens for every seed."""

    def __init__(self, task: PretrainTask, data: DrivingData) -> None:
        """Reads nothing yet.

        Args:
          task: What is trained.
          data: The validation drives.
        """
        config = task.config
        anchors = data.anchors[:: config.eval.every]
        batches = spaced(len(anchors), config.train.batch_size // config.train.grad_accum_steps)
        # Dealt out, not cut: InfoNCE takes its negatives from the batch, so each has samples of all drives.
        self.rows = anchors[batches.reshape(batches.shape[1], -1).T]
        """Frames (rows of the index), a line a batch."""
        self._data = data
        self._weights = objectives.weights(task.settings)
        self._means = HeldOutMeans(means_of(task))

    def measure(self, params: PyTree) -> dict[str, float]:
        """Returns means over all batches, by name: `holdout/loss`, and `holdout/<name>` of each that training logs.

        What is hidden or cropped is predicted against what the encoder itself makes of the whole images, not the slowly
        moving one, since an evaluation has the weights alone.

        Raises:
          DataError: An image cannot be read.
        """
        total = self._means(params, (inputs(self._data.batch(rows), self._data) for rows in self.rows))
        values = {"loss": float(weighted(total, self._weights))}
        values |= {name: float(mean.value()) for name, mean in total.items() if float(mean.count) > 0}
        return {f"holdout/{name}": value for name, value in values.items()}
