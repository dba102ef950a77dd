"""The smallest experiment that goes through the whole loop: least squares with Adam. For tests of the spine."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from chunkwise.arrays import NumpyTree
from chunkwise.config.experiment import CheckpointConfig, ExperimentConfig, RunConfig, TrainConfig
from chunkwise.state import TrainState
from chunkwise.train import rngs
from chunkwise.train.metrics import Mean, mean_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig(ExperimentConfig):
    """Least squares."""

    width: int = 3
    dataset: int = 0


def toy_config(folder: Path, **changes: Any) -> ToyConfig:
    """20 updates, saved every 6, evaluated every 8, logged every 5."""
    train = TrainConfig(steps=20, batch_size=8, log_every=5, eval_every=8)
    config = ToyConfig(run=RunConfig(dir=str(folder)), train=train, checkpoint=CheckpointConfig(every=6))
    return dataclasses.replace(config, **changes)


class ToyTask:
    """A task of the train loop. `on_batch` and `on_evaluate` are called with the step, for tests that interfere."""

    def __init__(self, config: ToyConfig, on_batch: Any = None, on_evaluate: Any = None) -> None:
        self.config = config
        self.optimiser = optax.sgd(0.05, momentum=0.9)
        self.on_batch = on_batch
        self.on_evaluate = on_evaluate

    def init(self, key: Any) -> TrainState:
        params = {"w": jax.random.normal(key, (self.config.width,))}
        return TrainState.create(params, self.optimiser, params)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        noise = jax.random.normal(rngs.key(self.config.run.seed, "noise", state.step), batch["y"].shape)

        def loss(params: Any) -> tuple[Any, Any]:
            error = mean_of((batch["x"] @ params["w"] - batch["y"] + 0.1 * noise) ** 2)
            return error.value(), error

        gradient, error = jax.grad(loss, has_aux=True)(state.params)
        updates, opt_state = self.optimiser.update(gradient, state.opt_state)
        params: Any = optax.apply_updates(state.params, updates)
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state.target, params)
        state = TrainState(step=state.step + jnp.int32(1), params=params, opt_state=opt_state, target=target)
        return state, {"loss": error, "gradient_norm": mean_of(optax.tree.norm(gradient))}

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        for step in range(start_step, 10**9):
            if self.on_batch is not None:
                self.on_batch(step)
            rng = np.random.default_rng([self.config.run.seed, step])
            x = rng.normal(size=(self.config.train.batch_size, self.config.width)).astype(np.float32)
            x = np.split(x, num_shards)[shard]
            yield {"x": x, "y": x.sum(-1)}

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        if self.on_evaluate is not None:
            self.on_evaluate(int(state.step))
        return {"distance": float(jnp.abs(state.params["w"] - 1).sum()), "final": float(final)}

    def finish(self) -> None:
        pass

    def data_fingerprint(self) -> dict[str, Any]:
        return {"dataset": self.config.dataset}


class Numbered:
    """An interaction that brings home numbers, and stands behind as many as there are; nothing of it is buffered."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def position(self) -> dict[str, Any]:
        return {"count": len(self.numbers)}

    def sync(self) -> None:
        """Finds everything on disk."""

    def close(self) -> None:
        """Ends nothing."""
