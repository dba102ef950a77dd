"""The Grain side of driving.data: record i of the dataset is the whole batch of step i.

One record a batch, so that a thread decodes every image into its place and nothing is stacked afterwards.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import grain
import numpy as np
from jaxtyping import Int64

from chunkwise.data.sampling import Purpose
from chunkwise.data.stream import ENDLESS, EpochOrder, iterator_at
from driving.config import DataConfig
from driving.data.augment import Draws, draw
from driving.data.batch import Batch


@runtime_checkable
class Samples(Protocol):
    """What a stream needs of `driving.data.batches.DrivingData`."""

    @property
    def config(self) -> DataConfig: ...
    @property
    def drawn(self) -> Int64[np.ndarray, " d"]:
        """Frames that samples are anchored at, each as often as an epoch draws it."""
        ...

    def batch(self, rows: Int64[np.ndarray, " b"], draws: Draws | None = None) -> Batch:
        """The samples anchored at some of them."""
        ...


def open_stream(data: Samples, *, seed: int, batch_size: int, start: int, shard: int, shards: int) -> Iterator[Batch]:
    """A Grain iterator over the batches of one process, standing at step `start`; see DrivingData.batches."""
    batches = StepBatches(data, seed=seed, batch_size=batch_size, shard=shard, shards=shards)
    return iterator_at(batches, start, threads=data.config.read_threads)


class StepBatches(grain.MapDataset[Batch]):
    """Batch i at position i."""

    def __init__(self, data: Samples, *, seed: int, batch_size: int, shard: int, shards: int) -> None:
        super().__init__()
        self._data, self._seed, self._batch_size = data, seed, batch_size
        self._first, self._rows = shard * batch_size // shards, batch_size // shards
        self._order = EpochOrder(data.drawn, Purpose.DRIVING_ORDER, seed)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, step: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        begin = step * self._batch_size + self._first
        samples = range(begin, begin + self._rows)
        rows = np.array([self._order[i] for i in samples], np.int64)
        places, config = [self._order.place(i) for i in samples], self._data.config
        draws = draw(places, seed=self._seed, times=len(config.offsets_s), cameras=len(config.cameras))
        return self._data.batch(rows, draws)
