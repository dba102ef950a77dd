"""The Grain side of qchunk.data: record i of the dataset is the whole batch of step i.

One record a batch, because Grain's bookkeeping costs 11 us a record or more, and building a batch of 32 rows 16.
"""

import dataclasses
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

import grain
import numpy as np
from jaxtyping import Int64

from core.sampling import STEPS_PER_BLOCK, block_of_starts, epoch_and_step
from qchunk.config import QChunkConfig
from qchunk.data import Batch, Dataset, Observations, Pool

Pools = Mapping[int, Pool]  # by virtual shard
Loaded = TypeVar("Loaded")


def open_stream(
    config: QChunkConfig, dataset: Dataset, *, shard: int, num_shards: int, start_step: int
) -> Iterator[Batch]:
    """A Grain iterator over the batches of one process, standing at `start_step`; see qchunk.data.make_batches."""
    threads = config.data.read_threads
    batches = StepBatches(config, dataset, pieces(config, shard, num_shards), start_step)
    if not threads:
        return InPlaceIterator(batches, start_step)
    iterator = iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Draws of STEPS_PER_BLOCK steps of one piece, located in its pool."""

    key: tuple[int, int]
    """Epoch, and number of the block in it."""
    episodes: Int64[np.ndarray, "steps b"]
    rows: Int64[np.ndarray, "steps b"]


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
        self._blocks: dict[int, Block] = {}
        self._said: set[str] = set()
        self._say(dataset.notes)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        epoch, step = epoch_and_step(step, self._config.data.steps_per_epoch)
        pools = self._epochs.get(epoch, step)
        parts = [self._piece(cut, epoch, step, pools[cut.shard]) for cut in self._cuts]
        return parts[0] if len(parts) == 1 else _concatenate(parts)

    def _piece(self, cut: Piece, epoch: int, step: int, pool: Pool) -> Batch:
        number, row = divmod(step, STEPS_PER_BLOCK)
        block = self._blocks.get(cut.shard)
        if block is None or block.key != (epoch, number):
            size = self._config.train.batch_size // self._config.data.shards
            seed = self._config.run.seed
            starts = block_of_starts(len(pool), size, seed=seed, epoch=epoch, shard=cut.shard, block=number)
            episodes, rows = pool.locate(starts[:, cut.rows])
            block = self._blocks[cut.shard] = Block(key=(epoch, number), episodes=episodes, rows=rows)
        return pool.gather(block.episodes[row], block.rows[row])

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


class InPlaceIterator(grain.DatasetIterator[Batch]):
    """Builds each batch where it is asked for, without Grain's prefetching, which costs 17 us a batch even when off.

    Its state is that of Grain's own iterator, so that either goes on where the other stopped.
    """

    def __init__(self, batches: StepBatches, step: int) -> None:
        super().__init__()
        self._batches, self._step = batches, step

    def __next__(self) -> Batch:
        batch = self._batches[self._step]
        self._step += 1
        return batch

    def get_state(self) -> dict[str, int]:
        return {"next_index": self._step}

    def set_state(self, state: dict[str, int]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._step = state["next_index"]


def _concatenate(parts: list[Batch]) -> Batch:
    """One batch of the parts' rows, in order."""

    def joined(trees: list[Observations]) -> Observations:
        return {  # pyright: ignore[reportReturnType]
            key: None if trees[0][key] is None else np.concatenate([tree[key] for tree in trees]) for key in trees[0]
        }

    nested = ("observations", "next_observations")
    flat = {key: np.concatenate([part[key] for part in parts]) for key in parts[0] if key not in nested}
    return {key: joined([part[key] for part in parts]) for key in nested} | flat  # pyright: ignore[reportReturnType]


class EpochPools(Generic[Loaded]):
    """Pools of the epoch in use, and of the next, which load in a thread: never more than two epochs are kept.

    Only a jump (a restored position) can find a third under way; it is finished, and dropped.
    """

    def __init__(self, load: Callable[[int, threading.Event], Loaded], *, margin: int) -> None:
        """Loads nothing yet.

        Args:
          load: Makes the pools of an epoch; stops early when the event is set.
          margin: Steps into an epoch after which the last epoch's pools are dropped and the next ones load.
        """
        self._load, self._margin = load, margin
        self._lock = threading.Lock()
        self._ready: tuple[int, Loaded] | None = None  # what the last call returned: most calls take no lock
        self._loading: dict[int, Future[Loaded]] = {}
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _stop, self._closing, self._threads)

    def start(self, epoch: int) -> Future[Loaded]:
        """Begins to load an epoch if it is not there, and drops all but it and the one before."""
        with self._lock:
            if epoch not in self._loading:
                for other in set(self._loading) - {epoch - 1}:
                    del self._loading[other]
                future: Future[Loaded] = Future()
                self._loading[epoch] = future
                self._threads[:] = [thread for thread in self._threads if thread.is_alive()]
                run = threading.Thread(
                    target=_run, args=(self._load, epoch, self._closing, future), name=f"pool-{epoch}", daemon=True
                )
                self._threads.append(run)
                run.start()
            return self._loading[epoch]

    def get(self, epoch: int, step: int) -> Loaded:
        """Pools of an epoch, waiting for them if need be.

        Raises:
          Exception: Whatever loading raised, here and not in the thread.
        """
        ready = self._ready
        if ready is None or ready[0] != epoch:
            ready = self._ready = (epoch, self.start(epoch).result())
        if step >= self._margin and epoch + 1 not in self._loading:
            self.start(epoch + 1)
        return ready[1]


def _run(load: Callable[[int, threading.Event], Loaded], epoch: int, closing: threading.Event, future: Future) -> None:
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
