"""The Grain side of driving.data: record i of the dataset is the whole batch of step i.

One record a batch, so that a thread decodes every image into its place and nothing is stacked afterwards.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import grain
import numpy as np
from jaxtyping import Int64

from chunkwise.data.sampling import Purpose, generator
from driving.config import DataConfig
from driving.data.augment import Draws, draw
from driving.data.batch import Batch


@runtime_checkable
class Samples(Protocol):
    """What a stream needs of `driving.data.batches.DrivingData`."""

    @property
    def config(self) -> DataConfig: ...
    @property
    def anchors(self) -> Int64[np.ndarray, " a"]:
        """Frames that samples may be anchored at."""
        ...

    def batch(self, rows: Int64[np.ndarray, " b"], draws: Draws | None = None) -> Batch:
        """The samples anchored at some of them."""
        ...


def open_stream(data: Samples, *, seed: int, batch_size: int, start: int, shard: int, shards: int) -> Iterator[Batch]:
    """A Grain iterator over the batches of one process, standing at step `start`; see DrivingData.batches."""
    threads = data.config.read_threads
    batches = StepBatches(data, seed=seed, batch_size=batch_size, shard=shard, shards=shards)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1 if threads else 0)
    iterator = iter(batches.to_iter_dataset(options))
    iterator.set_state({"next_index": start})
    return iterator


class StepBatches(grain.MapDataset[Batch]):
    """Batch i at position i."""

    def __init__(self, data: Samples, *, seed: int, batch_size: int, shard: int, shards: int) -> None:
        super().__init__()
        self._data, self._seed, self._batch_size = data, seed, batch_size
        self._first, self._rows = shard * batch_size // shards, batch_size // shards
        self._epochs: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        begin = step * self._batch_size + self._first
        places = [divmod(begin + j, len(self._data.anchors)) for j in range(self._rows)]
        rows = np.array([self._order(epoch)[k] for epoch, k in places], np.int64)
        config = self._data.config
        draws = draw(places, seed=self._seed, times=len(config.offsets_s), cameras=len(config.cameras))
        return self._data.batch(rows, draws)

    def _order(self, epoch: int) -> np.ndarray:
        """Anchors in the order of an epoch."""
        with self._lock:
            if epoch not in self._epochs:
                if len(self._epochs) > 1:  # threads read ahead across one border at most
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = generator(Purpose.DRIVING_ORDER, self._seed, epoch).permutation(
                    self._data.anchors
                )
            return self._epochs[epoch]
