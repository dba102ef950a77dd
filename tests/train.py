"""What tools train where loop and processes alone matter: launch.py --config tests/train.py. Seconds, not minutes."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from chunkwise.arrays import NumpyTree
from chunkwise.config.experiment import CheckpointConfig, TrainConfig
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.files.durable import write_durably
from chunkwise.state import TrainState
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import Numbered, ToyConfig, ToyTask, toy_config

OUTPUTS = 8
# Leaves time to be killed, and none to be busy.
SECONDS_A_BATCH = 0.03


class World(Numbered):
    """An interaction before every tenth update: all processes bring home the mean of the weights."""

    start, every, averaged = 10, 10, True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "world.json"
        self.division = Division()

    def interact(self, state: TrainState, step: int, stopping: Callable[[], bool]) -> dict[str, list[float]] | None:
        number = float(np.mean(state.params["w"]))
        if self.division.work(lambda stopping: None if stopping() else number, stopping) is None:
            return None
        self.numbers.append(number)
        if processes.is_primary():
            write_durably(self.path, json.dumps(self.numbers))
        return {"world": [number, float(step)]}

    def rewind(self, position: dict[str, Any] | None) -> None:
        count = 0 if position is None else position["count"]
        self.numbers = json.loads(self.path.read_text())[:count] if count else []


class MatrixTask(ToyTask):
    """Least squares with several outputs: a matrix, which can be split over devices. The world shifts its targets."""

    def __init__(self, config: ToyConfig, world: World) -> None:
        super().__init__(config)
        self.world = world

    def init(self, key: Any) -> TrainState:
        params = {"w": jax.random.normal(key, (self.config.width, OUTPUTS))}
        return TrainState.create(params, self.optimiser, params)

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        for batch in super().batches(start_step, shard=shard, num_shards=num_shards):
            time.sleep(SECONDS_A_BATCH)
            shift = np.float32(self.world.numbers[-1] if self.world.numbers else 0.0)
            yield {"x": batch["x"], "y": np.repeat(batch["y"][:, None] + shift, OUTPUTS, axis=1)}


def get_config() -> ToyConfig:
    """60 updates of 16 rows."""
    train = TrainConfig(steps=60, batch_size=16, log_every=5, updates_per_call=2, eval_every=20)
    return dataclasses.replace(
        toy_config(Path("runs/toy")), train=train, checkpoint=CheckpointConfig(every=3), width=64
    )


def main(config: ToyConfig, name: str) -> None:
    """Trains in a run folder named after `name`."""
    with RunFolder(config, name) as folder:
        world = World(folder.path)
        fit(config, MatrixTask(config, world), folder, interaction=world)
