"""What the packages' streams of batches share: rows in the order of an epoch, a Grain iterator at a step.

A stream is endless, and its batch of step n a function of n, so that its state is n. One record of a Grain source is
one batch, or is stacked to one by Grain.
"""

import threading
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int64

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.data.sampling import Purpose, generator
from chunkwise.errors import ConfigError

Batch = TypeVar("Batch")
Drawn = TypeVar("Drawn", covariant=True)

ENDLESS = 1 << 40
"""Length of an endless stream, as Grain wants one."""


class EpochOrder:
    """Row of sample i: epochs of all rows, each in a permutation drawn from (seed, epoch). A source for Grain."""

    def __init__(self, rows: Int64[np.ndarray, " n"], purpose: Purpose, seed: int) -> None:
        """Draws nothing yet; `purpose` is that of the permutations."""
        self._rows, self._purpose, self._seed = rows, purpose, seed
        self._epochs: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return ENDLESS

    def place(self, index: int) -> tuple[int, int]:
        """Returns the epoch of a sample, and its number in it."""
        return divmod(int(index), len(self._rows))

    def __getitem__(self, index: int) -> int:
        epoch, k = self.place(index)
        with self._lock:
            if epoch not in self._epochs:
                if len(self._epochs) > 1:  # threads read ahead across one border at most
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = generator(self._purpose, self._seed, epoch).permutation(self._rows)
            return int(self._epochs[epoch][k])


def iterator_at(dataset: Any, start_step: int, *, threads: int) -> Iterator[Any]:
    """Returns a Grain iterator over a dataset of batches.

    Args:
      dataset: A grain.MapDataset, batch i at position i.
      start_step: Of the first batch; any is equally cheap.
      threads: That build batches ahead; 0: each is built where it is asked for.
    """
    import grain  # takes 1 s, and imports jax

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=most_ahead(threads))
    iterator = iter(dataset.to_iter_dataset(options))
    iterator.set_state({"next_index": start_step})
    return iterator


def most_ahead(threads: int) -> int:
    """Steps that threads may have come past the oldest one that is not built yet: as many as Grain begins after it."""
    return threads + 1 if threads else 0


def require_shares(batch_size: int, shard: int, num_shards: int, *, start: int) -> None:
    """Raises ConfigError if the shards do not divide a batch, or there is no such shard, or no such first batch."""
    if not isinstance(start, int | np.integer) or start < 0:
        raise ConfigError(f"start_step is {start!r}; expected the number of the first batch, 0 or above")
    if num_shards < 1 or batch_size % num_shards or not 0 <= shard < num_shards:
        raise ConfigError(
            f"train.batch_size {batch_size}: expected a multiple of the number of shards, {num_shards}, and a "
            f"shard below it, found shard {shard}"
        )


@runtime_checkable
class StreamConfig(Protocol):
    """What a stream takes of a run's config."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def train(self) -> TrainConfig: ...


@runtime_checkable
class Streamed(Protocol[Drawn]):
    """A dataset that was opened."""

    def batches(
        self, *, seed: int, batch_size: int, start_step: int = 0, shard: int = 0, num_shards: int = 1
    ) -> Iterator[Drawn]:
        """Endless batches."""
        ...


def batches_of_run(
    data: Streamed[Batch], config: StreamConfig, *, start_step: int = 0, shard: int = 0, num_shards: int = 1
) -> Iterator[Batch]:
    """Returns the batches that a run trains on: `data.batches` with the seed and batch size of its config."""
    return data.batches(
        seed=config.run.seed,
        batch_size=config.train.batch_size,
        start_step=start_step,
        shard=shard,
        num_shards=num_shards,
    )
