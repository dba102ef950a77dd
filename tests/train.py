"""What tests/pod.py trains where only the processes matter: launch.py --config tests/train.py. Seconds, not minutes."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from core.arrays import NumpyTree
from core.config import CheckpointConfig, TrainConfig
from core.loop import fit
from core.run_folder import RunFolder
from core.state import TrainState
from tests.core.toy import ToyConfig, ToyTask, toy_config

OUTPUTS = 8
# Leaves time to be killed, and none to be busy.
SECONDS_A_BATCH = 0.03


class MatrixTask(ToyTask):
    """Least squares with several outputs: a matrix, which can be split over devices."""

    def init(self, key: Any) -> TrainState:
        params = {"w": jax.random.normal(key, (self.config.width, OUTPUTS))}
        return TrainState.create(params, self.optimiser, params)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        for batch in super().batches(start_step, shard=shard, num_shards=num_shards):
            time.sleep(SECONDS_A_BATCH)
            yield {"x": batch["x"], "y": np.repeat(batch["y"][:, None], OUTPUTS, axis=1)}


def get_config() -> ToyConfig:
    """60 updates of 16 rows."""
    train = TrainConfig(steps=60, batch_size=16, log_every=5, updates_per_call=2, eval_every=20)
    return dataclasses.replace(
        toy_config(Path("runs/toy")), train=train, checkpoint=CheckpointConfig(every=3), width=64
    )


def main(config: ToyConfig, name: str) -> None:
    """Trains in a run folder named after `name`."""
    with RunFolder(config, name) as folder:
        fit(config, MatrixTask(config), folder)
