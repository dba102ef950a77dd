"""A mixture of datasets: folders of data.path, each with its share of the frames that are drawn (data.mixture).

The share of a folder is its weight over the sum of all. Whole episodes are in the pool, and starts are uniform over its
frames; so a folder of weight w gets places in proportion to w / L, L the mean length of the episodes drawn from it, and
the expected frames of the folders are as their weights. Places are whole numbers: each pool rounds them up or down by
one draw for all folders, so that their sum is the pool's size and their mean over pools what it should be.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.sampling import EpisodeDraw, Purpose, draw_episodes, philox
from chunkwise.errors import DataError
from qchunk.config import DataConfig


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
    """Returns the share of the frames of each folder, in alphabetical order; 1 alone without a mixture."""
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
    folder = folders_of(data, source)
    first, second = philox(Purpose.POOL_MIXTURE, seed, epoch, shard=shard).random(2)
    ends = np.cumsum(places(data, source, drawn))
    ends[-1] = data.episodes_per_epoch
    counts = _rounded(ends, first)
    positives = _rounded(np.cumsum(counts) * (_positives(data) / data.episodes_per_epoch), second)
    indices, notes = [], []
    for k, name in enumerate(sorted(data.mixture)):
        if not counts[k]:
            continue
        members = drawn & (folder == k)
        found = draw_episodes(
            np.flatnonzero(members & source.positives),
            np.flatnonzero(members & ~source.positives),
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


def describe(data: DataConfig, source: EpisodeSource, drawn: Bool[np.ndarray, " episodes"]) -> tuple[str, ...]:
    """Returns a line a folder for a person; none without a mixture."""
    if not data.mixture:
        return ()
    folder, lengths = folders_of(data, source), source.lengths
    average = places(data, source, drawn)
    lines = []
    for k, (name, share) in enumerate(zip(sorted(data.mixture), shares(data).tolist(), strict=True)):
        members = drawn & (folder == k)
        lines.append(
            f"mixture: {name}: {share:.3g} of the frames; {members.sum()} episodes, {lengths[members].sum()} frames, "
            f"{average[k]:.3g} of {data.episodes_per_epoch} places of a pool on average"
        )
    return tuple(lines)
