"""A mixture of datasets: folders of data.path, each with its share of the frames in pools (data.mixture).

The share of a folder is its weight over the sum of all. Whole episodes are in the pool, and starts are uniform over its
frames; so a folder of weight w gets places in proportion to w / L, L the mean length of the episodes drawn from it, and
the expected frames of the folders are as their weights. Places are whole numbers: each pool rounds them up or down by
one draw for all folders, so that their sum is the pool's size and their mean over pools what it should be.

Every pool gives equally many rows of batches, however many frames it holds, and the mean of a ratio is not the ratio of
the means: where pools hold few episodes of unequal length, a pool without the long ones gives all its rows to the short
ones, and a folder of long episodes has less of the rows than its weight. `describe` says how much, from pools as they
are drawn.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.sampling import EpisodeDraw, Purpose, draw_episodes, philox
from chunkwise.errors import DataError
from qchunk.config import DataConfig

# Draws of one folder for one pool, 0.1 ms each, by which `describe` measures: 256 pools of two folders, 32 at least.
DRAWS, LEAST_POOLS, LEAST_EPISODES = 512, 32, 10
# Of its weight, by which a folder's share of the rows may be off before a person is told.
TOLERATED = 0.2


def names_within(data: DataConfig, names: Sequence[str]) -> list[str]:
    """Returns the files that lie in a folder of the mixture; all of them without one.

    Raises:
      DataError: A folder has none.
    """
    if not data.mixture:
        return list(names)
    empty = [folder for folder in data.mixture if not any(name.startswith(f"{folder}/") for name in names)]
    if empty:
        raise DataError(
            f"data.mixture: {data.path} holds no episode in {', '.join(empty)}; expected folders of episodes"
        )
    return [name for name in names if any(name.startswith(f"{folder}/") for folder in data.mixture)]


def folders_of(data: DataConfig, source: EpisodeSource) -> Int64[np.ndarray, " episodes"]:
    """Returns the number of the folder that each episode lies in, in alphabetical order; 0 without a mixture."""
    folders = sorted(data.mixture)
    numbers = [next((k for k, folder in enumerate(folders) if name.startswith(f"{folder}/")), 0) for name in source.ids]
    return np.array(numbers, np.int64)


def shares(data: DataConfig) -> Float64[np.ndarray, " folders"]:
    """Returns the weight of each folder over the sum, in alphabetical order; 1 alone without a mixture."""
    weights = np.array([data.mixture[name] for name in sorted(data.mixture)] or [1.0])
    return weights / weights.sum()


def places(data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]) -> Float64[np.ndarray, " f"]:
    """Returns the places in a pool of each folder on average, by its share and the mean length of its episodes.

    Args:
      data: Of the run.
      source: The dataset.
      drawn: Episodes that pools draw, at least one of each folder.
    """
    folder, lengths = folders_of(data, source), source.lengths.astype(np.float64)
    positive = _positives(data) / data.episodes_per_epoch
    mean = np.zeros(len(data.mixture))
    for k in range(len(mean)):
        of_label = [
            (share, lengths[members].mean())
            for share, label in ((positive, source.positives), (1 - positive, ~source.positives))
            if (members := (folder == k) & drawn & label).any()
        ]
        total = sum(share for share, _ in of_label)
        # A folder without the label that is asked for gives what it has, as `draw_episodes` does.
        mean[k] = sum(s * x for s, x in of_label) / total if total else np.mean([x for _, x in of_label])
    ratio = shares(data) / mean
    return data.episodes_per_epoch * ratio / ratio.sum()


def draw(
    data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"], *, seed: int, epoch: int, shard: int
) -> EpisodeDraw:
    """Draws the episodes of a pool, folder by folder; a function of its arguments.

    Args:
      data: Of the run, with a mixture.
      source: The dataset.
      drawn: Episodes that may be drawn.
      seed: Of the run.
      epoch: Of the pool.
      shard: Virtual shard.
    """
    roundings = philox(Purpose.POOL_MIXTURE, seed, epoch, shard=shard).random(2)
    return _draw(data, _folders(data, source, drawn), roundings, seed=seed, epoch=epoch, shard=shard)


@dataclasses.dataclass(frozen=True)
class _Folders:
    """What every pool draws from."""

    of: Int64[np.ndarray, " episodes"]
    """Folder of each episode."""
    ends: Float64[np.ndarray, " f"]
    """Cumulative places of a pool, on average."""
    positives: list[Int64[np.ndarray, " _"]]
    negatives: list[Int64[np.ndarray, " _"]]


def _folders(data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]) -> _Folders:
    folder = folders_of(data, source)
    ends = np.cumsum(places(data, source, drawn))
    ends[-1] = data.episodes_per_epoch
    members = [drawn & (folder == k) for k in range(len(data.mixture))]
    return _Folders(
        of=folder,
        ends=ends,
        positives=[np.flatnonzero(each & source.positives) for each in members],
        negatives=[np.flatnonzero(each & ~source.positives) for each in members],
    )


def _draw(
    data: DataConfig, folders: _Folders, roundings: Float64[np.ndarray, "2"], *, seed: int, epoch: int, shard: int
) -> EpisodeDraw:
    """Draws a pool, whose places are rounded by the first of two uniform numbers, those of positives by the other."""
    counts = _rounded(folders.ends, roundings[0])
    positives = _rounded(np.cumsum(counts) * (_positives(data) / data.episodes_per_epoch), roundings[1])
    indices, notes = [], []
    for k, name in enumerate(sorted(data.mixture)):
        if not counts[k]:
            continue
        found = draw_episodes(
            folders.positives[k],
            folders.negatives[k],
            count=int(counts[k]),
            positive_ratio=positives[k] / counts[k],
            seed=seed,
            epoch=epoch,
            shard=shard,
            part=k,
        )
        indices.append(found.indices)
        notes += [f"{name}: {note}" for note in found.notes]
    return EpisodeDraw(indices=np.concatenate(indices), notes=tuple(notes))


def _positives(data: DataConfig) -> int:
    """Places of a pool for positive episodes."""
    return round(data.positive_ratio * data.episodes_per_epoch)


def _rounded(ends: Float64[np.ndarray, " n"], u: float) -> Int64[np.ndarray, " n"]:
    """Whole numbers whose mean over a uniform u in 0 to 1 is what lies between `ends`, each off by less than 1."""
    return np.diff(np.floor(ends + u), prepend=0.0).astype(np.int64)


def require_each(data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]) -> None:
    """Raises DataError if there is a folder of the mixture of which no episode is left to draw."""
    folder = folders_of(data, source)
    lacking = [name for k, name in enumerate(sorted(data.mixture)) if not (drawn & (folder == k)).any()]
    if lacking:
        raise DataError(
            f"{data.path}: no episode is left to train on in {', '.join(lacking)}; expected one in every folder of "
            "data.mixture"
        )


def rows_drawn(
    data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]
) -> Float64[np.ndarray, " f"]:
    """Returns the share of the rows of batches that come of each folder: the mean over pools of its share of a pool's
    frames. Pools are drawn as a run's are, of seed 0, but that the first rounding goes evenly over 0 to 1: whether a
    folder of less than one place is there is most of what differs between pools.

    Args:
      data: Of the run, with a mixture.
      source: The dataset.
      drawn: Episodes that may be drawn.
    """
    folders, count = _folders(data, source, drawn), len(data.mixture)
    total, pools = np.zeros(count), _pools(count)
    for epoch in range(pools):
        roundings = np.array([(epoch + 0.5) / pools, philox(Purpose.POOL_MIXTURE, 0, epoch).random()])
        indices = _draw(data, folders, roundings, seed=0, epoch=epoch, shard=0).indices
        frames = np.bincount(folders.of[indices], source.lengths[indices], minlength=count)
        total += frames / frames.sum()
    return total / pools


def _pools(folders: int) -> int:
    """How many pools are drawn to tell the rows of so many folders."""
    return max(LEAST_POOLS, DRAWS // folders)


def describe(data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]) -> tuple[str, ...]:
    """Returns a line a folder for a person, and one of those whose rows are off their weight; none without a mixture.

    A folder's rows are off where their share differs from its weight by more than a fifth of it.
    """
    if not data.mixture:
        return ()
    folder, lengths = folders_of(data, source), source.lengths
    average, weights, rows = places(data, source, drawn), shares(data), rows_drawn(data, source, drawn)
    names, lines = sorted(data.mixture), []
    for k, name in enumerate(names):
        members = drawn & (folder == k)
        lines.append(
            f"mixture: {name}: weight {weights[k]:.3g}, {rows[k]:.2g} of the rows drawn; "
            f"{members.sum()} episodes, {lengths[members].sum()} frames, "
            f"{average[k]:.3g} of {data.episodes_per_epoch} places of a pool on average"
        )
    # A folder that few of the pools drawn for `rows` held says nothing: its share is off by chance.
    told = (np.abs(rows - weights) > TOLERATED * weights) & (average * _pools(len(names)) >= LEAST_EPISODES)
    if off := [name for name, apart in zip(names, told, strict=True) if apart]:
        lines.append(
            f"mixture: the rows of {', '.join(off)} are off the weight by more than a fifth of it: pools of "
            f"{data.episodes_per_epoch} episodes are few where lengths differ; raise data.episodes_per_epoch"
        )
    return tuple(lines)
