"""A round's chunks as batches: passes over all of them, in equal parts over the updates of the round. No jax here."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int64

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.batch import TrainingBatch, to_training_batch
from openpi_ript.data.dataset import TrainingData

CHAIN, LOG_PROB = "chain", "log_prob"
"""What a policy that explores notes of each chunk: the points from noise to actions, and how likely each step was."""


class ChunkBatch(TrainingBatch):
    """Layer 3 of the frames at which chunks began, and how those were sampled."""

    chain: np.ndarray
    """[b, k + 1, t, model.action_dim] float32, from noise to normalised actions."""
    log_prob: np.ndarray
    """[b, k, t] float32, under the policy that sampled."""
    valid: np.ndarray
    """[b, t] bool: the steps that were executed; none of a row that only fills the batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """The chunks of one round; `passes_over` makes it."""

    data: TrainingData
    """Windows of the round's rollouts."""
    rows: Int64[np.ndarray, " n"]
    """Of `data`, the frame at which each chunk began."""
    chain: Float32[np.ndarray, "n points t a"]
    log_prob: Float32[np.ndarray, "n k t"]
    valid: Bool[np.ndarray, "n t"]
    seed: int
    """Of the run."""
    step: int
    """Updates behind the round."""
    updates: int
    """Of the round."""
    batch_size: int
    drawn: int
    """Chunks that all updates of the round take together."""

    def chunks(self, step: int) -> Int64[np.ndarray, " m"]:
        """Returns the numbers of the chunks of an update: its part of the passes, of which each has its own order."""
        past, count = step - self.step, len(self.rows)
        places = np.arange(self.drawn * past // self.updates, self.drawn * (past + 1) // self.updates)
        of_pass = {
            number: generator(Purpose.CHUNK_ORDER, self.seed, self.step, number).permutation(count)
            for number in np.unique(places // count).tolist()
        }
        return np.array([of_pass[place // count][place % count] for place in places.tolist()], np.int64)

    def batch(self, step: int, rows: slice) -> ChunkBatch:
        """Returns some rows of an update's batch, whose last ones fill it up and have no part in the update."""
        chunks = self.chunks(step)
        real = np.arange(self.batch_size) < len(chunks)
        taken = np.concatenate([chunks, np.zeros(self.batch_size - len(chunks), np.int64)])[rows]
        return {
            **to_training_batch([self.data.sample(int(row)) for row in self.rows[taken]]),
            "chain": self.chain[taken],
            "log_prob": self.log_prob[taken],
            "valid": self.valid[taken] & real[rows, None],
        }

    def describe(self, steps: int) -> str:
        """Returns in words how the round is trained on by a run of so many updates, which may end within it."""
        count, made = len(self.rows), min(self.updates, steps - self.step)
        return f"{count} chunks, {self.drawn * made // self.updates / count:.3g} passes over them in {made} updates"


def passes_over(data: TrainingData, rollouts: Sequence[Rollout], config: OpenpiRiptConfig, step: int) -> Passes:
    """Prepares a round.

    Args:
      data: Windows of these rollouts, in their order.
      rollouts: Of a policy that noted CHAIN and LOG_PROB of each of its chunks, all executed up to env.execute steps.
      config: Of the run.
      step: Updates behind the round.

    Raises:
      DataError: A rollout lacks the notes of a chunk, or they are of another model or sampler.
    """
    assert config.rollout is not None
    assert config.env is not None
    ppo, updates, execute = config.rollout.ppo, config.rollout.updates, config.env.execute
    horizon, batch_size = config.model.action_horizon, config.train.batch_size
    shapes = {
        CHAIN: (ppo.sample_steps + 1, horizon, config.model.action_dim),
        LOG_PROB: (ppo.sample_steps, horizon),
    }
    begun = [np.arange(0, rollout.length, execute) for rollout in rollouts]
    for rollout, starts in zip(rollouts, begun, strict=True):
        for name, shape in shapes.items():
            found = rollout.notes[name].shape if name in rollout.notes else None
            if found != (len(starts), *shape):
                raise DataError(
                    f"rollout of seed {rollout.seed} at step {rollout.step}: expected {name} of shape "
                    f"{(len(starts), *shape)}, noted when its chunks were sampled, found {found}; delete the folder of "
                    "that round"
                )
    executed = np.concatenate([rollout.length - starts for rollout, starts in zip(rollouts, begun, strict=True)])
    rows = np.concatenate([starts + first for first, starts in zip(data.table.starts.tolist(), begun, strict=True)])
    return Passes(
        data=data,
        rows=rows,
        chain=np.concatenate([rollout.notes[CHAIN] for rollout in rollouts]),
        log_prob=np.concatenate([rollout.notes[LOG_PROB] for rollout in rollouts]),
        valid=np.arange(horizon) < np.minimum(executed, execute)[:, None],
        seed=config.run.seed,
        step=step,
        updates=updates,
        batch_size=batch_size,
        drawn=min(len(rows) * ppo.epochs, updates * batch_size),
    )
