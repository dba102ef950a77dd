"""A pool of whole episodes in memory, any frame of which can start a chunk.

Where values are normalised: here, once, when a pool loads. Actions by data.action_norm, and by data.observation_norm
the array that data.observation names; other arrays, rewards and everything on disk stay as they are. Whoever executes
a policy's actions undoes it with `open_dataset(config).action_norm.invert`.
"""

import threading
from collections.abc import Collection
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
from jaxtyping import Int64

from chunkwise.data.buffers import aligned
from chunkwise.data.episodes import (
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
from chunkwise.data.sampling import EpisodeDraw
from chunkwise.errors import ConfigError
from qchunk.config import QChunkConfig
from qchunk.data.batch import Batch, Observations
from qchunk.data.dataset import Dataset, load_episode, open_dataset, read_again
from qchunk.data.drawn_images import ImageArrays, Work, draw
from qchunk.data.frames import EpisodeFrames
from qchunk.data.image_store import FrameStore, open_store
from qchunk.data.refresh import episodes_of_pool, schedule


class Pool:
    """The episodes of one epoch and virtual shard in memory; any frame of any of them can start a chunk.

    Each episode takes its frames plus `horizon` rows of padding in every array, so that chunk, next observation and
    masks of a start are all found from the one row number `start + episode * horizon`. Images are not padded; they
    belong to their episode, and pools that hold the same episode share them.
    """

    def __init__(
        self,
        config: QChunkConfig,
        epoch: int,
        shard: int,
        *,
        part: int = 0,
        dataset: Dataset | None = None,
        store: FrameStore | None = None,
        previous: "Pool | None" = None,
        episodes: EpisodeDraw | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Draws and loads the episodes: a function of run.seed, epoch, part and shard.

        Args:
          config: Of the run.
          epoch: 0 or above.
          shard: Virtual shard, in [0, data.shards).
          part: Newest part of a rolling refresh that has come in, in [0, data.refresh_parts).
          dataset: From `open_dataset(config)`, which is called if this is None.
          store: From `open_store`, which is called if this is None and there are cameras.
          previous: A pool of the same run; episodes that it holds are taken from it and not from their files.
          episodes: To hold, in place of those that are drawn.
          cancelled: Once set, loading stops.

        Raises:
          DataError: The dataset is bad, an episode changed since it was indexed, or could not be read 3 times.
          ConfigError: `shard` or `part` is out of range, or the images need more than data.memory_gib.
          concurrent.futures.CancelledError: `cancelled` was set.
        """
        if not 0 <= shard < config.data.shards:
            raise ConfigError(f"shard is {shard}; expected 0 to {config.data.shards - 1} (data.shards)")
        if not 0 <= part < (parts := schedule(config).parts):
            found = "data.refresh_parts" if parts > 1 else f"data.refresh is {config.data.refresh!r}"
            raise ConfigError(f"part is {part}; expected 0 to {parts - 1} ({found})")
        dataset = open_dataset(config) if dataset is None else dataset
        source = dataset.source
        if store is None and (dataset.cameras or dataset.depth_cameras):
            store = open_store(config, source, pools=1, rows=config.train.batch_size)
        drawn = episodes or episodes_of_pool(config, source, epoch, part, shard)
        self._config, self._epoch, self._shard, self._part, self._notes = config, epoch, shard, part, drawn.notes
        self._indices = [int(index) for index in drawn.indices]
        self.ids = tuple(source.ids[index] for index in self._indices)
        self.lengths = source.lengths[drawn.indices]
        self.positives = source.positives[drawn.indices]
        self._cumulative = cumulative_lengths(self.lengths)
        self._first_rows = self._cumulative - self.lengths + np.arange(len(self.lengths)) * config.agent.horizon
        self._allocate(source, config.agent.horizon)
        self._store = store
        frames: dict[int, EpisodeFrames] = {}
        # In the dataset's order: a file of many episodes is read once, wherever the draw has put them.
        for place, index in sorted(enumerate(self._indices), key=lambda pair: pair[1]):
            if cancelled is not None and cancelled.is_set():
                raise CancelledError(f"loading the pool of epoch {epoch} was stopped")
            if previous is not None and index in previous._indices:
                self._take_over(place, previous, previous._indices.index(index))
            else:
                self._fill(place, load_episode(source, index), dataset)
            if store is not None:
                frames[place] = read_again(lambda: store.load(index, cancelled), source.ids[index])  # noqa: B023
        self._frames = [frames[place] for place in sorted(frames)]

    def _allocate(self, source: EpisodeSource, horizon: int) -> None:
        rows = int(self.lengths.sum()) + len(self.lengths) * horizon
        widths = dict(source.dims)
        self._actions = np.empty((rows, widths.pop("action")), np.float32)
        self._states = {name: np.empty((rows, width), np.float32) for name, width in widths.items()}
        self._returns = np.zeros((rows, horizon), np.float32)
        # Steps of the chunk at each row that exist, after which bootstrapping is allowed, and before the end.
        self._real, self._alive, self._open = (np.zeros(rows, np.int64) for _ in range(3))
        self._unseen = np.zeros(rows, bool)
        self._chunks = chunk_view(self._actions, horizon)
        self._steps_f32 = first_steps(horizon).astype(np.float32)
        self._steps_after = ~first_steps(horizon)

    def _arrays(self) -> list[np.ndarray]:
        """Every array with a row for each frame and each row of padding."""
        counts = [self._real, self._alive, self._open, self._unseen]
        return [self._actions, self._returns, *counts, *self._states.values()]

    def _rows(self, place: int) -> slice:
        """Rows of the episode at a place, padding included."""
        first = int(self._first_rows[place])
        return slice(first, first + int(self.lengths[place]) + self._config.agent.horizon)

    def _take_over(self, place: int, previous: "Pool", there: int) -> None:
        """Copies an episode's rows from another pool."""
        for mine, theirs in zip(self._arrays(), previous._arrays(), strict=True):
            mine[self._rows(place)] = theirs[previous._rows(there)]

    def _fill(self, place: int, episode: Episode, dataset: Dataset) -> None:
        """Writes an episode and its padding."""
        horizon, length = self._config.agent.horizon, episode.length
        padded = self._rows(place)
        frames = slice(padded.start, padded.start + length)
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
        recorded_after = len(episode.states[self._config.data.observation]) > length
        self._unseen[frames] = (not recorded_after) & (real <= horizon) & (alive >= real)

    def __len__(self) -> int:
        """Frames of all episodes: the number of starts."""
        return int(self._cumulative[-1])

    def batch(self, starts: Int64[np.ndarray, " b"]) -> Batch:
        """The chunks at global starts (frame s of episode e is the sum of the lengths before e, plus s).

        Args:
          starts: In [0, len(self)).

        Raises:
          IndexError: One is out of range.
        """
        starts = np.asarray(starts)
        if (outside := (starts < 0) | (starts >= len(self))).any():
            raise IndexError(f"start is {starts[outside][0]}; the pool holds 0 to {len(self) - 1}")
        episode, rows = self.locate(starts)
        batch = self.gather(episode, rows)
        if self._store is not None:
            images = ImageArrays.make(self._store.form, len(starts), aligned)
            never = np.zeros((len(starts), 2), np.int64)
            draw(self.images(episode, rows, images, never), self._store.workers)
            images.put_into(batch)
        return batch

    def locate(
        self, starts: Int64[np.ndarray, "*draws"]
    ) -> tuple[Int64[np.ndarray, "*draws"], Int64[np.ndarray, "*draws"]]:
        """Episode of each start, and its row in the pool's arrays."""
        episode = episode_of(self._cumulative, starts)
        return episode, starts + episode * self._config.agent.horizon

    def gather(self, episode: Int64[np.ndarray, " b"], rows: Int64[np.ndarray, " b"]) -> Batch:
        """The chunks that `locate` found, without their images.

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
            "is_positive": self.positives.take(episode),
            "final_reward": rewards[:, -1].copy(),
        }

    def training(self, batch: Batch, rows: Int64[np.ndarray, " b"]) -> Batch:
        """Changes the batch that `gather` made of these rows into what a run trains on.

        Where a chunk reaches the end of an episode that time cut off, and the state after its last action was not
        recorded, next_observations hold the state before that action: rewards and `valid` end there too. An entry more
        in the batch would change the bits of compiled updates with the number of updates a call.
        """
        steps = self._real.take(rows) - self._unseen.take(rows)
        sums = batch["rewards"][np.arange(len(rows)), np.maximum(steps - 1, 0)]
        ended = np.where(steps > 0, sums, np.float32(0))[:, None]
        valid = self._steps_f32.take(steps, axis=0)
        cut = self._unseen.take(rows)[:, None] & (valid == 0)
        batch["rewards"] = np.where(cut, ended, batch["rewards"])
        batch["valid"], batch["final_reward"] = valid, batch["rewards"][:, -1].copy()
        return batch

    def _observations(self, rows: Int64[np.ndarray, " b"]) -> Observations:
        def taken(name: str) -> Any:
            return self._states[name].take(rows, axis=0) if name in self._states else None

        return {
            "qpos": taken("qpos"),
            "state": taken("state"),
            "images": None,
            "depth_images": None,
        }

    def shown(
        self, episode: Int64[np.ndarray, "*draws"], rows: Int64[np.ndarray, "*draws"]
    ) -> Int64[np.ndarray, "*draws 2"]:
        """Rows, in the pool's arrays, of the images of the chunks that `locate` found, and of the next ones."""
        frames = rows - self._first_rows[episode]
        after = np.minimum(frames + self._config.agent.horizon, self.lengths[episode] - 1)
        return np.stack([rows, rows - frames + after], axis=-1)

    def let_go(self, starts: Int64[np.ndarray, " n"], shared: Collection[int]) -> None:
        """Frees all images but those of the chunks at these starts, and those of episodes in `shared`.

        An image that is asked for nevertheless is read again from its file, with its episode.

        Args:
          starts: As `batch` takes them.
          shared: Positions in the source.
        """
        episode, rows = self.locate(starts)
        shown = self.shown(episode, rows) - self._first_rows[episode][:, None]
        indices = np.array(self._indices)[episode]
        for index in set(self._indices) - set(shared):  # an episode may be here twice
            places = [place for place, other in enumerate(self._indices) if other == index]
            some = self._frames[places[0]].only(np.unique(shown[indices == index]))
            for place in places:
                self._frames[place] = some

    def images(
        self,
        episode: Int64[np.ndarray, " b"],
        rows: Int64[np.ndarray, " b"],
        out: ImageArrays,
        due: Int64[np.ndarray, "b 2"],
    ) -> list[Work]:
        """What fills `out` with the images of the chunks that `locate` found; `drawn_images.draw` does it.

        `due` has the steps that draw them, and the next ones, again; 0 for none.
        """
        frames, after = (self.shown(episode, rows) - self._first_rows[episode][:, None]).T.tolist()
        now, then = due.T.tolist()
        found = [self._holding(*row) for row in zip(episode.tolist(), frames, after, strict=True)]
        return out.work(found, (frames, after), (now, then))

    def _holding(self, place: int, frame: int, after: int) -> EpisodeFrames:
        """Images of an episode, these two frames among them."""
        found = self._frames[place]
        if not found.holds((frame, after)):
            assert self._store is not None
            store, index = self._store, self._indices[place]
            found = self._frames[place] = read_again(lambda: store.load(index), self.ids[place])
        return found

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
        return first_row(self.batch(np.array([before + start], np.int64)))

    def stats(self) -> dict[str, Any]:
        """What the pool holds (the specification's get_stats, and more).

        total_possible_starts, loaded_episodes, positive_ratio (as loaded); distinct_episodes, lengths (min, mean,
        max), bytes and image_bytes in memory, draws_per_start (how often an epoch draws each start on average),
        epoch, part, shard, and notes: what could not be drawn as asked.
        """
        config = self._config
        draws = config.data.steps_per_epoch * config.train.batch_size // config.data.shards
        return {
            "total_possible_starts": len(self),
            "loaded_episodes": len(self.lengths),
            "positive_ratio": float(self.positives.mean()),
            "distinct_episodes": len(set(self._indices)),
            "lengths": {
                "min": int(self.lengths.min()),
                "mean": float(self.lengths.mean()),
                "max": int(self.lengths.max()),
            },
            "bytes": sum(x.nbytes for x in self._arrays()),
            "image_bytes": sum(frames.nbytes for frames in set(self._frames)),
            "draws_per_start": draws / len(self),
            "epoch": self._epoch,
            "part": self._part,
            "shard": self._shard,
            "notes": list(self._notes),
        }


def first_row(tree: Any) -> Any:
    """Returns the first row of each array of a batch, None where there is none."""
    if isinstance(tree, dict):
        return {key: first_row(value) for key, value in tree.items()}
    return None if tree is None else tree[0]
