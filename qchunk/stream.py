"""The Grain side of qchunk.data: record i of the dataset is the whole batch of step i.

One record a batch, because Grain's bookkeeping costs 11 us a record, and building a batch little more.
"""

import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

import grain
import numpy as np
from jaxtyping import Int64

from core.sampling import STEPS_PER_BLOCK, block_of_starts, epoch_and_step
from qchunk.config import QChunkConfig
from qchunk.data import Batch, Dataset, Observations, Pool

Pools = Mapping[int, Pool]  # by virtual shard


def open_stream(
    config: QChunkConfig, dataset: Dataset, *, shard: int, num_shards: int, start_step: int
) -> Iterator[Batch]:
    """A Grain iterator over the batches of one process, standing at `start_step`; see qchunk.data.make_batches."""
    threads = config.data.read_threads
    batches = StepBatches(config, dataset, pieces(config, shard, num_shards), start_step)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1 if threads else 0)
    iterator = iter(batches.to_iter_dataset(options))
    iterator.set_state({"next_index": start_step})
    return iterator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows that a process takes of one virtual shard's slice of the batch."""

    shard: int
    rows: slice


def pieces(config: QChunkConfig, shard: int, num_shards: int) -> tuple[Piece, ...]:
    """Cuts the process's stretch of the global batch at the borders of the virtual shards."""
    per_process = config.train.batch_size // num_shards
    per_slice = config.train.batch_size // config.data.shards
    first, end = shard * per_process, (shard + 1) * per_process
    cuts = []
    for virtual in range(first // per_slice, (end - 1) // per_slice + 1):
        before = virtual * per_slice
        cuts.append(Piece(shard=virtual, rows=slice(max(first - before, 0), min(end - before, per_slice))))
    return tuple(cuts)


class StepBatches(grain.MapDataset[Batch]):
    """Batch i at position i, built vectorised from the pools of its epoch.

    A MapDataset of its own, since Grain's wrapper around a plain source measures every array of every record,
    which takes 34 us a batch: longer than building it.
    """

    def __init__(self, config: QChunkConfig, dataset: Dataset, cuts: tuple[Piece, ...], start_step: int) -> None:
        super().__init__()
        self._config, self._dataset, self._cuts = config, dataset, cuts
        # Threads build a few steps ahead: the last epoch's pool stays until all of them have left it.
        self._epochs = EpochPools(self._load, margin=min(config.data.read_threads, config.data.steps_per_epoch - 1))
        self._epochs.start(epoch_and_step(start_step, config.data.steps_per_epoch)[0])
        self._starts = functools.lru_cache(maxsize=4 * len(cuts))(self._draw)
        self._said: set[str] = set()
        self._say(dataset.notes)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        epoch, step = epoch_and_step(step, self._config.data.steps_per_epoch)
        pools = self._epochs.get(epoch, step)
        block, row = divmod(step, STEPS_PER_BLOCK)
        parts = [
            pools[cut.shard].batch(self._starts(epoch, cut.shard, block, len(pools[cut.shard]))[row, cut.rows])
            for cut in self._cuts
        ]
        return parts[0] if len(parts) == 1 else _concatenate(parts)

    def _draw(self, epoch: int, shard: int, block: int, total: int) -> Int64[np.ndarray, "steps b"]:
        size = self._config.train.batch_size // self._config.data.shards
        seed = self._config.run.seed
        return block_of_starts(total, size, seed=seed, epoch=epoch, shard=shard, block=block)

    def _load(self, epoch: int, cancelled: threading.Event) -> Pools:
        pools = {}
        for cut in self._cuts:
            pools[cut.shard] = Pool(self._config, epoch, cut.shard, dataset=self._dataset, cancelled=cancelled)
            self._say(f"pool: {note}" for note in pools[cut.shard].stats()["notes"])
        return pools

    def _say(self, notes: Iterator[str] | tuple[str, ...]) -> None:
        """Prints each note once, from the first process."""
        for note in notes:
            if note not in self._said and (self._cuts[0].shard, self._cuts[0].rows.start) == (0, 0):
                print(f"data: {note}", flush=True)
            self._said.add(note)


def _concatenate(parts: list[Batch]) -> Batch:
    """One batch of the parts' rows, in order."""

    def joined(trees: list[Observations]) -> Observations:
        return {  # pyright: ignore[reportReturnType]
            key: None if trees[0][key] is None else np.concatenate([tree[key] for tree in trees]) for key in trees[0]
        }

    nested = ("observations", "next_observations")
    flat = {key: np.concatenate([part[key] for part in parts]) for key in parts[0] if key not in nested}
    return {key: joined([part[key] for part in parts]) for key in nested} | flat  # pyright: ignore[reportReturnType]


class EpochPools:
    """Pools of the epoch in use, and of the next, which load in a thread: never more than two are kept."""

    def __init__(self, load: Callable[[int, threading.Event], Pools], *, margin: int) -> None:
        """Loads nothing yet.

        Args:
          load: Makes the pools of an epoch; stops early when the event is set.
          margin: Steps into an epoch after which the last epoch's pools are dropped and the next ones load.
        """
        self._load, self._margin = load, margin
        self._lock = threading.Lock()
        self._loading: dict[int, Future[Pools]] = {}
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _stop, self._closing, self._threads)

    def start(self, epoch: int) -> Future[Pools]:
        """Begins to load an epoch if it is not there, and drops all but it and the one before."""
        with self._lock:
            if epoch not in self._loading:
                for other in set(self._loading) - {epoch - 1}:
                    del self._loading[other]
                future: Future[Pools] = Future()
                self._loading[epoch] = future
                self._threads[:] = [thread for thread in self._threads if thread.is_alive()]
                run = threading.Thread(
                    target=_run, args=(self._load, epoch, self._closing, future), name=f"pool-{epoch}", daemon=True
                )
                self._threads.append(run)
                run.start()
            return self._loading[epoch]

    def get(self, epoch: int, step: int) -> Pools:
        """Pools of an epoch, waiting for them if need be.

        Raises:
          Exception: Whatever loading raised, here and not in the thread.
        """
        future = self._loading.get(epoch) or self.start(epoch)
        pools = future.result()
        if step >= self._margin and epoch + 1 not in self._loading:
            self.start(epoch + 1)
        return pools


def _run(load: Callable[[int, threading.Event], Pools], epoch: int, closing: threading.Event, future: Future) -> None:
    try:
        future.set_result(load(epoch, closing))
    except BaseException as error:  # raised where the pools are asked for
        future.set_exception(error)


def _stop(closing: threading.Event, threads: list[threading.Thread]) -> None:
    """Ends loading after the episode at hand; at exit, so that no thread reads while HDF5 is torn down."""
    closing.set()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
