"""Batches of chunks for Q-chunking: a pool of whole episodes in memory, and random starts drawn from all its frames.

file -> EpisodeSource.load -> Pool (once an epoch and shard) -> starts from (seed, epoch, shard, step) -> Batch.

Where values are normalised: in `Pool`, once, when it loads. Actions by data.action_norm, and by data.observation_norm
the array that data.observation names; other arrays, rewards and everything on disk stay as they are. Whoever executes
a policy's actions undoes it with `open_dataset(config).action_norm.invert`.
"""

import dataclasses
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool, Float32, Int64, Shaped, UInt8

from core import norm_stats
from core.episodes import (
    Episode,
    EpisodeSource,
    chunk_returns,
    chunk_view,
    cumulative_lengths,
    episode_of,
    first_steps,
    pad_with_last,
    steps_to_termination,
)
from core.errors import ConfigError, DataError
from core.norm_stats import Affine, NormStats, RunningStats
from core.sampling import draw_episodes
from qchunk.config import DataConfig, Normalization, QChunkConfig
from qchunk.index import open_source

READ_TRIES = 3
RETRY_SECONDS = 0.2  # before the second try; twice as long before the third


class Observations(TypedDict):
    """What the robot sees at one frame of each row."""

    qpos: Float32[np.ndarray, "b s"]
    """Joint positions (rad or m, as recorded)."""
    state: Float32[np.ndarray, "b s"] | None
    """Full state vector, where the files have one."""
    images: UInt8[np.ndarray, "b k h w 3"] | None
    """RGB, 0 to 255, of data.cameras in that order; None without cameras."""
    depth_images: Shaped[np.ndarray, "b k h w"] | None
    """Depth of data.depth_cameras, dtype and unit as recorded; None without depth cameras."""


class Batch(TypedDict):
    """One batch. t = agent.horizon steps of the chunk that starts at frame s of an episode of L frames."""

    observations: Observations
    """Frame s."""
    next_observations: Observations
    """Frame s + t, or the last one recorded."""
    actions: Float32[np.ndarray, "b t a"]
    """Actions of frames s + i, normalised; past the end the last one repeated."""
    rewards: Float32[np.ndarray, "b t"]
    """Cumulative: sum over j <= i of discount^j r[s + j], up to the end or the first terminated frame."""
    masks: Float32[np.ndarray, "b t"]
    """1 if a value may be bootstrapped after step i; 0 from the first terminated frame on."""
    valid: Float32[np.ndarray, "b t"]
    """1 where frame s + i exists."""
    terminals: Bool[np.ndarray, "b t"]
    """True from the episode's last frame or the first terminated frame on."""
    is_positive: Bool[np.ndarray, " b"]
    """Label of the row's episode."""
    final_reward: Float32[np.ndarray, " b"]
    """rewards[:, -1]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dims:
    """Widths that the networks are made for."""

    observation: int
    """Of the array that data.observation names."""
    action: int
    cameras: tuple[str, ...] = ()
    """Pictures in a batch, in this order."""
    image_size: tuple[int, int] | None = None
    """Height and width of each; None without cameras."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """An indexed dataset with the normalisation that a run applies to it."""

    source: EpisodeSource
    action_norm: Affine
    observation_norm: Affine
    """Of the array that data.observation names."""
    cameras: tuple[str, ...]
    depth_cameras: tuple[str, ...]
    image_size: tuple[int, int] | None
    """Height and width of pictures in a batch; None without cameras."""
    notes: tuple[str, ...]
    """What a person should know: labels that are missing, episodes skipped, dimensions floored."""

    def dims(self, observation: str) -> Dims:
        """Widths of the array that data.observation names and of an action, and what the pictures are."""
        return Dims(
            observation=self.source.dims[observation],
            action=self.source.dims["action"],
            cameras=self.cameras,
            image_size=self.image_size,
        )

    @property
    def fingerprint(self) -> str:
        """Equal for equal episodes, whatever folder they lie in. Skipped episodes are not in it, so skipping shows."""
        return self.source.manifest_hash()


def open_dataset(config: QChunkConfig) -> Dataset:
    """Indexes the dataset (cached) and makes its normalisation.

    Raises:
      DataError: The dataset or data.norm_stats is missing or bad; every problem is listed.
      ConfigError: data.task names no task, or the simulator that it needs is not installed.
    """
    source, notes = open_source(config.data)
    return _with_norm(config.data, source, notes)


def _with_norm(data: DataConfig, source: EpisodeSource, notes: tuple[str, ...]) -> Dataset:
    stats = None
    if (data.action_norm, data.observation_norm) != ("none", "none"):
        stats = _norm_stats(data, source)

    def norm(mode: Normalization, key: str, name: str) -> Affine:
        nonlocal notes
        if stats is None or mode == "none":
            return norm_stats.identity(source.dims[name])
        affine, floored = norm_stats.normalizer(stats[key], mode, name)
        notes += floored
        return affine

    action = norm(data.action_norm, "actions", "action")
    observation = norm(data.observation_norm, "state", data.observation)
    return Dataset(
        source=source,
        action_norm=action,
        observation_norm=observation,
        cameras=data.cameras,
        depth_cameras=data.depth_cameras,
        image_size=data.image_size,
        notes=notes,
    )


def compute_norm_stats(config: QChunkConfig) -> dict[str, NormStats]:
    """Statistics of "state" (the array that data.observation names) and "actions", in openpi's keys.

    Read from data.norm_stats if that is set, else computed in one pass over all frames of all good episodes.

    Raises:
      DataError: The dataset or the JSON is missing or bad.
    """
    return _norm_stats(config.data, open_source(config.data)[0])


def write_norm_stats(config: QChunkConfig, folder: Path) -> Path:
    """Writes the statistics that the run uses to <folder>/norm_stats.json, as openpi does; returns the path."""
    path = folder / "norm_stats.json"
    norm_stats.save(path, compute_norm_stats(config))
    return path


def _norm_stats(data: DataConfig, source: EpisodeSource) -> dict[str, NormStats]:
    widths = {"state": source.dims[data.observation], "actions": source.dims["action"]}
    if data.norm_stats is None:
        running = {name: RunningStats() for name in widths}
        for index in range(len(source)):
            episode = _load(source, index)
            running["state"].update(episode.states[data.observation])
            running["actions"].update(episode.action)
        return {name: stats.result() for name, stats in running.items()}
    path = Path(data.norm_stats)
    stats = norm_stats.load(path)
    for name, width in widths.items():
        found = len(stats[name].mean) if name in stats else None
        if found != width:
            raise DataError(f"{path}: expected {width} dimensions of {name!r}; found {found or 'none'}")
    return stats


def dims(config: QChunkConfig) -> Dims:
    """Widths of observation and action in the dataset.

    Raises:
      DataError: The dataset is missing or bad.
    """
    return open_dataset(config).dims(config.data.observation)


class Pool:
    """The episodes of one epoch and virtual shard in memory; any frame of any of them can start a chunk.

    Each episode takes its frames plus `horizon` rows of padding in every array, so that chunk, next observation and
    masks of a start are all found from the one row number `start + episode * horizon`.
    """

    def __init__(
        self,
        config: QChunkConfig,
        epoch: int,
        shard: int,
        *,
        dataset: Dataset | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Draws and loads the episodes: a function of run.seed, epoch and shard.

        Args:
          config: Of the run.
          epoch: 0 or above.
          shard: Virtual shard, in [0, data.shards).
          dataset: From `open_dataset(config)`, which is called if this is None.
          cancelled: Once set, loading stops at the next episode.

        Raises:
          DataError: The dataset is bad, an episode changed since it was indexed, or could not be read 3 times.
          concurrent.futures.CancelledError: `cancelled` was set.
        """
        if not 0 <= shard < config.data.shards:
            raise ConfigError(f"shard is {shard}; expected 0 to {config.data.shards - 1} (data.shards)")
        dataset = open_dataset(config) if dataset is None else dataset
        source, count = dataset.source, config.data.episodes_per_epoch
        draw = draw_episodes(
            np.flatnonzero(source.positives),
            np.flatnonzero(~source.positives),
            count=count,
            positive_ratio=config.data.positive_ratio,
            seed=config.run.seed,
            epoch=epoch,
            shard=shard,
        )
        self._config, self._epoch, self._shard, self._notes = config, epoch, shard, draw.notes
        self.ids = tuple(source.ids[int(index)] for index in draw.indices)
        self.lengths = source.lengths[draw.indices]
        self._positives = source.positives[draw.indices]
        self._distinct = len(np.unique(draw.indices))
        self._cumulative = cumulative_lengths(self.lengths)
        self._allocate(source, config.agent.horizon)
        row = 0
        for index in draw.indices:
            if cancelled is not None and cancelled.is_set():
                raise CancelledError(f"loading the pool of epoch {epoch} was stopped")
            row = self._fill(row, _load(source, int(index)), dataset)

    def _allocate(self, source: EpisodeSource, horizon: int) -> None:
        rows = int(self.lengths.sum()) + len(self.lengths) * horizon
        widths = dict(source.dims)
        self._actions = np.empty((rows, widths.pop("action")), np.float32)
        self._states = {name: np.empty((rows, width), np.float32) for name, width in widths.items()}
        self._returns = np.zeros((rows, horizon), np.float32)
        # Steps of the chunk at each row that exist, after which bootstrapping is allowed, and before the end.
        self._real, self._alive, self._open = (np.zeros(rows, np.int64) for _ in range(3))
        self._chunks = chunk_view(self._actions, horizon)
        self._steps_f32 = first_steps(horizon).astype(np.float32)
        self._steps_after = ~first_steps(horizon)

    def _fill(self, row: int, episode: Episode, dataset: Dataset) -> int:
        """Writes an episode from `row` on; returns the row after its padding."""
        horizon, length = self._config.agent.horizon, episode.length
        frames, padded = slice(row, row + length), slice(row, row + length + horizon)
        pad_with_last(self._actions[padded], dataset.action_norm.apply(episode.action))
        for name, x in episode.states.items():
            seen = name == self._config.data.observation
            pad_with_last(self._states[name][padded], dataset.observation_norm.apply(x) if seen else x)
        alive = steps_to_termination(episode.terminated)
        real = length - np.arange(length)
        self._returns[frames] = chunk_returns(
            episode.reward, alive, horizon=horizon, discount=self._config.agent.discount
        )
        self._real[frames] = np.minimum(real, horizon)
        self._alive[frames] = np.minimum(alive, horizon)
        self._open[frames] = np.minimum(np.minimum(alive, real - 1), horizon)
        return padded.stop

    def __len__(self) -> int:
        """Frames of all episodes: the number of starts."""
        return int(self._cumulative[-1])

    def batch(self, starts: Int64[np.ndarray, " b"]) -> Batch:
        """The chunks at global starts (frame s of episode e is the sum of the lengths before e, plus s).

        Args:
          starts: In [0, len(self)).
        """
        return self.gather(*self.locate(starts))

    def locate(
        self, starts: Int64[np.ndarray, "*draws"]
    ) -> tuple[Int64[np.ndarray, "*draws"], Int64[np.ndarray, "*draws"]]:
        """Episode of each start, and its row in the pool's arrays."""
        episode = episode_of(self._cumulative, starts)
        return episode, starts + episode * self._config.agent.horizon

    def gather(self, episode: Int64[np.ndarray, " b"], rows: Int64[np.ndarray, " b"]) -> Batch:
        """The chunks that `locate` found.

        Every array is new, so that nothing changes under a device that still reads it: jax.device_put on a CPU keeps
        numpy's memory where that is aligned.
        """
        rewards = self._returns.take(rows, axis=0)
        return {
            "observations": self._observations(rows),
            "next_observations": self._observations(rows + self._config.agent.horizon),
            "actions": self._chunks[rows],
            "rewards": rewards,
            "masks": self._steps_f32.take(self._alive.take(rows), axis=0),
            "valid": self._steps_f32.take(self._real.take(rows), axis=0),
            "terminals": self._steps_after.take(self._open.take(rows), axis=0),
            "is_positive": self._positives.take(episode),
            "final_reward": rewards[:, -1].copy(),
        }

    def _observations(self, rows: Int64[np.ndarray, " b"]) -> Observations:
        state = self._states.get("state")
        return {
            "qpos": self._states["qpos"].take(rows, axis=0),
            "state": None if state is None else state.take(rows, axis=0),
            "images": None,
            "depth_images": None,
        }

    def transition(self, episode: int, start: int) -> dict[str, Any]:
        """One transition: the keys of `Batch`, without the batch axis.

        Args:
          episode: Position in the pool, in [0, len(self.lengths)); `ids` names the file.
          start: Frame, in [0, lengths[episode]).

        Raises:
          IndexError: If either is out of range.
        """
        if not 0 <= episode < len(self.lengths):
            raise IndexError(f"episode is {episode}; the pool holds 0 to {len(self.lengths) - 1}")
        if not 0 <= start < self.lengths[episode]:
            raise IndexError(f"start is {start}; episode {episode} has frames 0 to {self.lengths[episode] - 1}")
        before = int(self._cumulative[episode] - self.lengths[episode])
        return _first_row(self.batch(np.array([before + start], np.int64)))

    def stats(self) -> dict[str, Any]:
        """What the pool holds (the specification's get_stats, and more).

        total_possible_starts, loaded_episodes, positive_ratio (as loaded); distinct_episodes, lengths (min, mean,
        max), bytes in memory, draws_per_start (how often an epoch draws each start on average), epoch, shard, and
        notes: what could not be drawn as asked.
        """
        config = self._config
        arrays = [self._actions, self._returns, self._real, self._alive, self._open, *self._states.values()]
        draws = config.data.steps_per_epoch * config.train.batch_size // config.data.shards
        return {
            "total_possible_starts": len(self),
            "loaded_episodes": len(self.lengths),
            "positive_ratio": float(self._positives.mean()),
            "distinct_episodes": self._distinct,
            "lengths": {
                "min": int(self.lengths.min()),
                "mean": float(self.lengths.mean()),
                "max": int(self.lengths.max()),
            },
            "bytes": sum(x.nbytes for x in arrays),
            "draws_per_start": draws / len(self),
            "epoch": self._epoch,
            "shard": self._shard,
            "notes": list(self._notes),
        }


def _first_row(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _first_row(value) for key, value in tree.items()}
    return None if tree is None else tree[0]


def _load(source: EpisodeSource, index: int) -> Episode:
    """Loads an episode, three times if reading fails.

    Raises:
      DataError: With the path, after the third failure.
    """
    for attempt in range(READ_TRIES):
        try:
            return source.load(index)
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            if attempt == READ_TRIES - 1:
                reason = " ".join(str(error).split())
                raise DataError(f"{source.ids[index]}: could not be read in {READ_TRIES} tries: {reason}") from error
            time.sleep(RETRY_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def make_batches(config: QChunkConfig, *, shard: int = 0, num_shards: int = 1, start_step: int = 0) -> Iterator[Batch]:
    """Endless batches; batch i is a function of run.seed and i alone, so that a run can go on at any step.

    The global batch of train.batch_size rows is data.shards equal slices, each drawn from its own pool. Process
    `shard` of `num_shards` gets an equal stretch of its rows, and loads only the pools that these come from; the
    global batch does not depend on the number of processes. The next epoch's pools load in the background.

    Args:
      config: Of the run.
      shard: This process, in [0, num_shards).
      num_shards: Processes; must divide train.batch_size.
      start_step: Number of the first batch; any is equally cheap.

    Raises:
      ConfigError: If `num_shards` does not divide the batch, or `shard` is out of range.
      DataError: The dataset is bad. Later, from the iterator: an episode could not be read.
    """
    rows = config.train.batch_size
    if rows % num_shards:
        raise ConfigError(f"train.batch_size {rows} is not divisible by the number of processes, {num_shards}")
    if not 0 <= shard < num_shards:
        raise ConfigError(f"shard is {shard}; expected 0 to {num_shards - 1}")
    from qchunk.stream import open_stream  # grain takes 2 s to import

    return open_stream(config, open_dataset(config), shard=shard, num_shards=num_shards, start_step=start_step)
