"""The Grain side of qchunk.data: record i of the dataset is the whole batch of step i.

One record a batch, because Grain's bookkeeping costs 11 us a record or more, and building a batch of 32 rows 16.
"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping

import grain
import numpy as np
from jaxtyping import Int64

from chunkwise.data.buffers import LentBuffers
from chunkwise.data.sampling import STEPS_PER_BLOCK, block_of_starts
from chunkwise.data.stream import ENDLESS, iterator_at, most_ahead
from chunkwise.data.threads import Workers
from chunkwise.printable import say
from qchunk.config import QChunkConfig
from qchunk.data.batch import Batch, Observations
from qchunk.data.dataset import Dataset
from qchunk.data.drawn_images import ImageArrays, KeptImages, draw, steps_until_again
from qchunk.data.image_store import FrameStore, open_store
from qchunk.data.pool import Pool
from qchunk.data.refresh import Place, PoolLoader, Refreshes, episodes_of_pool, schedule

Pools = Mapping[int, Pool]  # by virtual shard


def open_stream(
    config: QChunkConfig, dataset: Dataset, *, shard: int, num_shards: int, start_step: int, training: bool = False
) -> Iterator[Batch]:
    """A Grain iterator over the batches of one process, standing at `start_step`; see qchunk.data.make_batches.

    With `training` they are what a run trains on (Pool.training), which is not the specification's everywhere.
    """
    threads = config.data.read_threads
    batches = StepBatches(config, dataset, pieces(config, shard, num_shards), start_step, training=training)
    if not threads:
        return InPlaceIterator(batches, start_step)
    return iterator_at(batches, start_step, threads=threads)


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
    """Number of the pool, and of the block in the epoch."""
    episodes: Int64[np.ndarray, "steps b"]
    rows: Int64[np.ndarray, "steps b"]
    again: Int64[np.ndarray, "steps b 2"]
    """Steps until the images of each, and the next ones, are drawn again, where they are to be kept; else 0."""


class StepBatches(grain.MapDataset[Batch]):
    """Batch i at position i, built vectorised from the pools of its step.

    A MapDataset of its own, since Grain's wrapper around a plain source measures every array of every record,
    which takes 34 us a batch: longer than building it.
    """

    def __init__(
        self,
        config: QChunkConfig,
        dataset: Dataset,
        cuts: tuple[Piece, ...],
        start_step: int,
        *,
        training: bool = False,
    ) -> None:
        super().__init__()
        self._training = training
        self._config, self._dataset, self._cuts = config, dataset, cuts
        self._schedule = schedule(config)
        self._said: set[str] = set()
        self._say(dataset.notes)
        self._store: FrameStore | None = None
        if dataset.cameras or dataset.depth_cameras:
            # Background loading decodes with threads of its own, which step back; drawing has others.
            self._store = open_store(config, dataset.source, pools=len(cuts), rows=self._rows)
            self._say(self._store.notes)
        self._workers, self._buffers = Workers(config.data.decode_threads), LentBuffers()
        self._kept: KeptImages | None = None
        if self._store is not None and self._store.spare and self._store.form.image_size is not None:
            self._kept = KeptImages(self._store.spare, self._store.form.image_size)
        # Threads build a few steps ahead: the last pool stays until all of them have left it.
        self._ahead = most_ahead(config.data.read_threads)
        self._margin = min(self._ahead, self._schedule.shortest - 1)
        self._pools = PoolLoader(self._load)
        self._refreshes, self._number = Refreshes(), -1
        self._pools.start(self._schedule.number(self._schedule.place(start_step)))
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, step: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        place = self._schedule.place(step)
        number = self._schedule.number(place)
        pools = self._pools.get(number, go_on=self._time_to_load(place))
        if number != self._number:
            self._number = number
            self._say_refresh(place)
        parts, work, row = [], [], 0
        images = None if self._store is None else ImageArrays.make(self._store.form, self._rows, self._buffers.lend)
        for cut in self._cuts:
            pool = pools[cut.shard]
            episodes, rows, again = self._draw(cut, place, number, pool)
            part = pool.gather(episodes, rows)
            if self._training:
                part = pool.training(part, rows)
            parts.append(part)
            if images is not None:
                due = np.where(again > 0, step + again, 0)
                work += pool.images(episodes, rows, images.rows(row, row + len(rows)), due)
            row += len(rows)
        batch = parts[0] if len(parts) == 1 else _concatenate(parts)
        if images is not None:
            if self._kept is not None:
                self._kept.forget(step - self._ahead)
            draw(work, self._workers, self._kept)
            images.put_into(batch)
        return batch

    @property
    def _rows(self) -> int:
        return sum(cut.rows.stop - cut.rows.start for cut in self._cuts)

    def _draw(
        self, cut: Piece, place: Place, number: int, pool: Pool
    ) -> tuple[Int64[np.ndarray, " b"], Int64[np.ndarray, " b"], Int64[np.ndarray, "b 2"]]:
        """Episode and row of each start of a piece, and how many steps later their images are drawn again."""
        in_epoch, row = divmod(place.step, STEPS_PER_BLOCK)
        block = self._blocks.get(cut.shard)
        if block is None or block.key != (number, in_epoch):
            size = self._config.train.batch_size // self._config.data.shards
            seed = self._config.run.seed
            starts = block_of_starts(len(pool), size, seed=seed, epoch=place.epoch, shard=cut.shard, block=in_epoch)
            episodes, rows = pool.locate(starts[:, cut.rows])
            again = self._again(pool, episodes, rows)
            block = Block(key=(number, in_epoch), episodes=episodes, rows=rows, again=again)
            self._blocks[cut.shard] = block
        return block.episodes[row], block.rows[row], block.again[row]

    def _again(
        self, pool: Pool, episodes: Int64[np.ndarray, "steps b"], rows: Int64[np.ndarray, "steps b"]
    ) -> Int64[np.ndarray, "steps b 2"]:
        """`Block.again` of a block of these draws."""
        if self._kept is None or self._store is None:
            return np.zeros((*rows.shape, 2), np.int64)
        shown = pool.shown(episodes, rows)
        again = steps_until_again(shown.reshape(len(shown), -1)).reshape(shown.shape)
        window = self._kept.window(len(pool) * len(self._cuts), 2 * self._rows, len(self._store.form.colour))
        return np.where(again <= window, again, 0)

    def _time_to_load(self, place: Place) -> bool:
        """Whether the next pool is to load at this step."""
        ahead = self._config.data.refresh_ahead
        near = ahead is None or self._schedule.end(place.epoch, place.part).step - place.step < ahead
        return near and place.step_in_part >= self._margin

    def _load(self, number: int, previous: Pools | None, cancelled: threading.Event) -> Pools:
        epoch, part = divmod(number, self._schedule.parts)
        pools = {}
        if previous is not None and self._config.data.refresh_ahead is not None:
            self._let_go(number, previous, self._config.data.refresh_ahead)
        for cut in self._cuts:
            pools[cut.shard] = Pool(
                self._config,
                epoch,
                cut.shard,
                part=part,
                dataset=self._dataset,
                store=self._store,
                previous=None if previous is None else previous[cut.shard],
                cancelled=cancelled,
            )
            self._say(f"pool: {note}" for note in pools[cut.shard].stats()["notes"])
        return pools

    def _let_go(self, number: int, pools: Pools, ahead: int) -> None:
        """Leaves the pools before those of a number the images that their last `ahead` steps draw, and those that the
        pools of that number hold too."""
        epoch, part = divmod(number, self._schedule.parts)
        last = self._schedule.end(*divmod(number - 1, self._schedule.parts))
        # Threads may still be at steps just before these.
        first = max(last.step - last.step_in_part, last.step + 1 - ahead - self._ahead)
        config, source = self._config, self._dataset.source
        shared = [episodes_of_pool(config, source, epoch, part, cut.shard).indices for cut in self._cuts]
        for cut in self._cuts:
            pool, size = pools[cut.shard], config.train.batch_size // config.data.shards
            blocks = range(first // STEPS_PER_BLOCK, last.step // STEPS_PER_BLOCK + 1)
            drawn = [
                block_of_starts(len(pool), size, seed=config.run.seed, epoch=last.epoch, shard=cut.shard, block=block)
                for block in blocks
            ]
            steps = slice(first - blocks[0] * STEPS_PER_BLOCK, last.step + 1 - blocks[0] * STEPS_PER_BLOCK)
            pool.let_go(np.concatenate(drawn)[steps, cut.rows].ravel(), set(np.concatenate(shared).tolist()))
        if self._kept is not None:
            self._kept.forget_all()  # they refer to the images as they were, which would stay in memory

    def _say(self, notes: Iterator[str] | tuple[str, ...]) -> None:
        """Prints each note once, from the first process."""
        for note in notes:
            if note not in self._said:
                self._print(note)
            self._said.add(note)

    def _say_refresh(self, place: Place) -> None:
        line = self._refreshes.note(place, self._pools.waited)
        if line is not None:
            self._print(line)

    def _print(self, line: str) -> None:
        if (self._cuts[0].shard, self._cuts[0].rows.start) == (0, 0):
            say(f"data: {line}")


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
