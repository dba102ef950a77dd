"""The pool loader's specification by its own names, for those who bring a training loop of their own.

    from qchunk.data.dataloader_v3 import create_qc_dataloader_v3
    train_dataset, train_dataloader = create_qc_dataloader_v3(dataset_dir, camera_names, norm_stats, chunk_size=50)
    batches = iter(train_dataloader)
    for epoch in range(epochs):
        train_dataset.refresh_epoch(epoch)
        for _ in range(5000):
            batch = next(batches)

The pool is that of every run here (qchunk/data/pool.py), so is the law by which starts are drawn: batch k after
`refresh_epoch(e)` is a function of (e, rank, k). It differs from the specification in three things. Ranks draw
independently by a keyed generator: `epoch_seed + rank * 1000` makes epoch 1000 of rank 0 that of rank 1. `dataset[idx]`
is uniform over all starts whatever idx is, and a function of it and of how often it was asked for, so that workers of
another loader, each with a copy of the dataset, draw different transitions, and its passes draw every start. The loader
does not end with a pass, since there is none.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.data.norm_stats import Affine
from chunkwise.data.sampling import STEPS_PER_BLOCK, EpisodeDraw, Purpose, block_of_starts, philox
from chunkwise.errors import ConfigError, DataError
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data.batch import Layout, SpecificationForm
from qchunk.data.dataset import open_dataset
from qchunk.data.holdout import held_out
from qchunk.data.image_store import open_store
from qchunk.data.pool import Pool, first_row

ORDERS = 4
"""Passes whose order is kept: a loader with workers begins the next one before all have ended the last."""


class QCSimpleDatasetV3:
    """A pool of whole episodes, any frame of which can start a chunk."""

    def __init__(
        self,
        dataset_dir: str,
        camera_names: Sequence[str],
        norm_stats: Mapping[str, Any] | None,
        chunk_size: int,
        episodes_per_epoch: int = 32,
        positive_ratio: float = 0.6,
        rank: int = 0,
        world_size: int = 1,
        epoch_seed: int = 0,
        dataset_type: str = "train",
        *,
        batch_size: int = 128,
        num_workers: int = 8,
        layout: Layout = "kchw",
        discount: float = 0.99,
        holdout: float = 0.0,
        **data: Any,
    ) -> None:
        """Loads the pool of one rank.

        Args:
          dataset_dir: Folder of ALOHA-layout HDF5 episodes.
          camera_names: Cameras of a transition; none: images are None.
          norm_stats: ALOHA's `qpos_mean`, `qpos_std`, `action_mean` and `action_std`, by which both are normalised;
            None or empty: they stay as recorded.
          chunk_size: Actions of a chunk.
          episodes_per_epoch: Whole episodes in memory.
          positive_ratio: Share of positive ones, 0 to 1.
          rank: Of this process or GPU, 0 to world_size - 1. Ranks draw independently, and may draw the same episode.
          world_size: Ranks.
          epoch_seed: Of the first pool; 0 or above, as in `refresh_epoch`.
          dataset_type: "train", or "val" for the episodes held out.
          batch_size: Rows of this rank's batch in `QCDataLoaderV3`.
          num_workers: Threads that decode images; 0: one a core.
          layout: Axes of images, float32 in 0 to 1: "kchw" (k, 3, h, w), or "khwc" (k, h, w, 3) as the specification's
            table of a transition has them.
          discount: Of the cumulative rewards.
          holdout: Share of the episodes of each label that "train" never draws (data.holdout).
          **data: Other fields of `DataConfig`: image_size, jpeg_channels, memory_gib, ...

        Raises:
          ConfigError: An argument is out of range, "val" without `holdout`, or `observation` is not qpos.
          DataError: The dataset is bad, or norm_stats lack an entry or have another width.
        """
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "data")} | data
        if layout not in (layouts := get_args(Layout)):
            raise ConfigError(f"layout is {layout!r}; expected one of {', '.join(layouts)}")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank is {rank}; expected 0 to {world_size - 1} (world_size)")
        if dataset_type not in ("train", "val") or (dataset_type == "val" and not holdout):
            raise ConfigError(
                f"dataset_type is {dataset_type!r}, holdout {holdout}; expected train, or val with a holdout"
            )
        _require_one_normalisation(norm_stats, data)
        try:
            self._config = QChunkConfig(
                run=RunConfig(seed=0),
                train=TrainConfig(steps=1, batch_size=batch_size * world_size),
                data=DataConfig(
                    path=str(dataset_dir),
                    cameras=tuple(camera_names),
                    episodes_per_epoch=episodes_per_epoch,
                    positive_ratio=positive_ratio,
                    shards=world_size,
                    decode_threads=num_workers,
                    holdout=holdout,
                    **data,
                ),
                agent=AgentConfig(horizon=chunk_size, discount=discount),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._dataset, self._rank = open_dataset(self._config), rank
        if norm_stats:
            self._dataset = dataclasses.replace(
                self._dataset,
                observation_norm=_affine(norm_stats, "qpos", self._dataset.source.dims["qpos"]),
                action_norm=_affine(norm_stats, "action", self._dataset.source.dims["action"]),
            )
        source, self._held, self._store = self._dataset.source, None, None
        if dataset_type == "val":
            self._held = EpisodeDraw(indices=np.flatnonzero(held_out(self._config.data, source)), notes=())
        if self._dataset.cameras:
            held = None if self._held is None else len(self._held.indices)  # all of them, whatever the epoch
            self._store = open_store(self._config, source, pools=1, rows=batch_size, episodes=held)
        self._form = SpecificationForm(layout=layout, threads=num_workers)
        self.pool: Pool
        self.refresh_epoch(epoch_seed)

    def __reduce__(self) -> Any:
        """Gives another process the arguments and the epoch, of which it loads the pool itself."""
        return functools.partial(type(self), **self._arguments | {"epoch_seed": self.epoch}), ()

    def refresh_epoch(self, new_epoch_seed: int) -> None:
        """Takes the episodes of another epoch; those that both have are not read again.

        Raises:
          ConfigError: The seed is below 0, or no whole number.
          DataError: A file changed since it was indexed, or could not be read.
        """
        if not isinstance(new_epoch_seed, int | np.integer) or new_epoch_seed < 0:
            raise ConfigError(f"epoch_seed is {new_epoch_seed!r}; expected a whole number, 0 or above")
        self.epoch, self.step = new_epoch_seed, 0
        self._asked = collections.Counter[int]()
        """How often each index has been asked for in this epoch."""
        self._orders: dict[int, Int64[np.ndarray, " starts"]] = {}
        self.pool = Pool(
            self._config,
            new_epoch_seed,
            self._rank,
            dataset=self._dataset,
            store=self._store,
            previous=getattr(self, "pool", None),
            episodes=self._held,
        )

    @property
    def total_starts(self) -> int:
        """Frames of all loaded episodes."""
        return len(self.pool)

    @property
    def loaded_episodes(self) -> tuple[str, ...]:
        """Files of the loaded episodes, by path in the dataset."""
        return self.pool.ids

    @property
    def episode_lengths(self) -> Int64[np.ndarray, " episodes"]:
        """Frames of each."""
        return self.pool.lengths

    @property
    def episode_labels(self) -> Bool[np.ndarray, " episodes"]:
        """True for the positive ones."""
        return self.pool.positives

    def get_stats(self) -> dict[str, Any]:
        """Returns total_possible_starts, loaded_episodes, positive_ratio, and what else the pool knows (Pool.stats)."""
        return self.pool.stats()

    def __len__(self) -> int:
        return self.total_starts

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns a transition from a start that is uniform over all, whatever `idx` is, without a batch axis.

        All indices once give every start once, in an order that the epoch, the rank and the pass draw; the n-th time
        that an index is asked for is of the n-th pass. So a shuffled loader leaves no frame out. Workers that live on
        from pass to pass count for themselves: each start is then as likely, and may come twice in a pass or not.

        Args:
          idx: 0 to len(self) - 1.
        """
        if not 0 <= idx < len(self):
            raise IndexError(f"idx is {idx}; expected 0 to {len(self) - 1}")
        start = self._order(self._asked[idx])[idx]
        self._asked[idx] += 1
        one = self._form(self.pool.batch(np.array([start])))
        plain = {"is_positive": bool(one["is_positive"][0]), "final_reward": float(one["final_reward"][0])}
        return first_row(one) | plain

    def _order(self, past: int) -> Int64[np.ndarray, " starts"]:
        """Draws the order of all starts in the pass after `past` others."""
        if past not in self._orders:
            rng = philox(Purpose.POOL_ITEM, self._config.run.seed, self.epoch, shard=self._rank, step=past)
            if len(self._orders) == ORDERS:
                del self._orders[min(self._orders)]
            self._orders[past] = rng.permutation(len(self))
        return self._orders[past]

    def next_batch(self) -> dict[str, Any]:
        """Returns the next batch of this epoch."""
        block, row = divmod(self.step, STEPS_PER_BLOCK)
        if row == 0:
            self._starts = block_of_starts(
                len(self),
                self._arguments["batch_size"],
                seed=self._config.run.seed,
                epoch=self.epoch,
                shard=self._rank,
                block=block,
            )
        self.step += 1
        return self._form(self.pool.batch(self._starts[row]))


@dataclasses.dataclass(frozen=True)
class QCDataLoaderV3:
    """Endless batches of a dataset; after `refresh_epoch` every iterator goes on with the new pool."""

    dataset: QCSimpleDatasetV3

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self.dataset.next_batch()


def create_qc_dataloader_v3(
    dataset_dir: str,
    camera_names: Sequence[str],
    norm_stats: Mapping[str, Any] | None,
    chunk_size: int,
    episodes_per_epoch: int = 32,
    positive_ratio: float = 0.6,
    batch_size: int = 128,
    rank: int = 0,
    world_size: int = 1,
    epoch_seed: int = 0,
    dataset_type: str = "train",
    num_workers: int = 8,
    **more: Any,
) -> tuple[QCSimpleDatasetV3, QCDataLoaderV3]:
    """Makes the dataset of one rank, and its batches: the keys of `Batch`, images as float32 (b, k, 3, h, w) in 0 to 1.

    Arguments, `more` (layout, discount, holdout, fields of `DataConfig`) and errors are those of `QCSimpleDatasetV3`.
    """
    # Written out as the class's are, since the specification has both, in orders of their own.
    dataset = QCSimpleDatasetV3(
        dataset_dir,
        camera_names,
        norm_stats,
        chunk_size,
        episodes_per_epoch,
        positive_ratio,
        rank,
        world_size,
        epoch_seed,
        dataset_type,
        batch_size=batch_size,
        num_workers=num_workers,
        **more,
    )
    return dataset, QCDataLoaderV3(dataset)


def _require_one_normalisation(norm_stats: Mapping[str, Any] | None, data: Mapping[str, Any]) -> None:
    """Refuses another array than qpos, and fields of `DataConfig` that norm_stats, of qpos and /action, contradict."""
    if data.get("observation", "qpos") != "qpos":
        raise ConfigError(
            f"observation is {data['observation']!r}; expected 'qpos', which the specification's batches hold. "
            "qchunk.data.make_batches gives those of another array"
        )
    others = [name for name in ("action_norm", "observation_norm") if data.get(name, "none") != "none"]
    if norm_stats and (others or data.get("action", "action") != "action"):
        given = ", ".join(f"{name} {data[name]!r}" for name in (*others, "action") if name in data)
        raise ConfigError(
            f"{given} beside norm_stats, by which qpos and /action are normalised; expected norm_stats alone, or none"
        )


def _affine(stats: Mapping[str, Any], name: str, width: int) -> Affine:
    """Returns the map of ALOHA's statistics of an array to mean 0 and deviation 1."""
    found = {}
    for key in (f"{name}_mean", f"{name}_std"):
        if key not in stats:
            raise DataError(f"norm_stats: expected {key!r}, found {sorted(stats)}")
        found[key] = np.asarray(stats[key], np.float64)
        if found[key].shape != (width,) or not np.isfinite(found[key]).all():
            raise DataError(f"norm_stats[{key!r}]: expected {width} finite numbers, found shape {found[key].shape}")
    scale = found[f"{name}_std"]
    if (scale <= 0).any():
        raise DataError(f"norm_stats['{name}_std']: expected numbers above 0, found {scale.min():g}")
    return Affine(offset=found[f"{name}_mean"], scale=scale)
