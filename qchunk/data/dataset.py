"""An indexed dataset with the normalisation that a run applies to it, and reading its episodes."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from chunkwise.data import norm_stats
from chunkwise.data.episodes import Episode, EpisodeSource
from chunkwise.data.norm_stats import Affine, NormStats, RunningStats
from chunkwise.distributed.jobs import Hands, do_here_or, in_order
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.identity import Check, Files, any_files
from chunkwise.files.trouble import TRIES, is_system_error, retried
from qchunk.config import DataConfig, Normalization, QChunkConfig
from qchunk.data import mixture
from qchunk.data.holdout import held_out
from qchunk.data.image_store import image_form, recorded_sizes, shrunk_cameras
from qchunk.data.index import dataset_files, open_source
from qchunk.data.readers.aloha import AlohaSource
from qchunk.data.readers.own import OwnSource

Read = TypeVar("Read")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dims:
    """Widths that the networks are made for."""

    observation: int
    """Of the array that data.observation names."""
    action: int
    cameras: tuple[str, ...] = ()
    """Images in a batch, in this order."""
    image_size: tuple[int, int] | None = None
    """Height and width of each; None without cameras."""
    shrunk: tuple[str, ...] = ()
    """Cameras whose images are shrunk as their recorded JPEGs are (chunkwise/policies/recorded_images.py)."""
    depth_cameras: tuple[str, ...] = ()
    """Depth maps in a batch, in this order."""
    depth_size: tuple[int, int] | None = None
    """Height and width of each; None without depth cameras."""
    depth_dtype: str | None = None
    """Of their numbers, as recorded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """An indexed dataset with the normalisation that a run applies to it."""

    files: Files
    """That it was read from, and the data.norm_stats that it uses."""
    source: EpisodeSource
    action_norm: Affine
    observation_norm: Affine
    """Of the array that data.observation names."""
    cameras: tuple[str, ...]
    depth_cameras: tuple[str, ...]
    image_size: tuple[int, int] | None
    """Height and width of colour images in a batch; None without cameras."""
    shrunk: tuple[str, ...] = ()
    """Cameras most of whose images are JPEGs that libjpeg shrinks."""
    recorded_sizes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Height and width at which cameras were recorded, of those whose images have one shape."""
    depth_size: tuple[int, int] | None = None
    """Height and width of depth maps in a batch; None without depth cameras."""
    depth_dtype: str | None = None
    """Of their numbers."""
    notes: tuple[str, ...]
    """What a person should know: labels that are missing, episodes skipped, dimensions floored."""

    def dims(self, observation: str) -> Dims:
        """Widths of the array that data.observation names and of an action, and what the images are."""
        return Dims(
            observation=self.source.dims[observation],
            action=self.source.dims["action"],
            cameras=self.cameras,
            image_size=self.image_size,
            shrunk=self.shrunk,
            depth_cameras=self.depth_cameras,
            depth_size=self.depth_size,
            depth_dtype=self.depth_dtype,
        )

    @property
    def fingerprint(self) -> str:
        """Equal for equal episodes, whatever folder they lie in. Skipped episodes are not in it, so skipping shows."""
        return self.source.manifest_hash()

    @property
    def arrays_hash(self) -> str | None:
        """Equal where a reader of the user's makes the same of the files; None for the formats that are read here."""
        return self.source.arrays_hash() if isinstance(self.source, OwnSource) else None


def open_dataset(config: QChunkConfig, *, check: Check = any_files) -> Dataset:
    """Indexes the dataset (cached) and makes its normalisation.

    Args:
      config: Of the run.
      check: Told which files the dataset is made of, data.norm_stats among them, before any of them is judged.

    Raises:
      DataError: The dataset or data.norm_stats is missing or bad; every problem is listed.
      ConfigError: data.task names no task, or the simulator that it needs is not installed.
    """
    files = dataset_files(config.data)
    check(files)
    source, notes = open_source(config.data, files=files)
    return _with_norm(config.data, files, source, notes)


def _with_norm(data: DataConfig, files: Files, source: EpisodeSource, notes: tuple[str, ...]) -> Dataset:
    stats = None
    held = held_out(data, source)
    mixture.require_each(data, source, ~held)
    notes += mixture.describe(data, source, ~held)
    if data.holdout:
        notes += (f"data.holdout {data.holdout:g}: {held.sum()} of {len(held)} episodes are kept for evaluation alone",)
    if (data.action_norm, data.observation_norm) != ("none", "none"):
        stats = norm_stats_of(data, source)
    action, floored = affine(stats, data.action_norm, "actions", source.dims["action"], name="action")
    notes += floored
    width = source.dims[data.observation]
    observation, floored = affine(stats, data.observation_norm, "state", width, name=data.observation)
    notes += floored
    size, shrunk, recorded, depth_size, depth_dtype = None, (), {}, None, None
    if isinstance(source, AlohaSource):
        form = image_form(data, source.images_of[0])
        size, shrunk = form.image_size, tuple(shrunk_cameras(data.cameras, form, source))
        recorded = recorded_sizes(data.cameras, form, source)
        if data.jpeg_channels == "bgr" and not any(
            report.encoding == "jpeg" for reports in source.images_of for report in reports.values()
        ):
            notes += ("data.jpeg_channels is bgr, and no image is a JPEG; others are taken as they are, as RGB",)
        depth_size, depth_dtype = form.depth_size, None if form.depth_dtype is None else form.depth_dtype.name
    return Dataset(
        files=files,
        source=source,
        action_norm=action,
        observation_norm=observation,
        cameras=data.cameras,
        depth_cameras=data.depth_cameras,
        image_size=size,
        shrunk=shrunk,
        recorded_sizes=recorded,
        depth_size=depth_size,
        depth_dtype=depth_dtype,
        notes=notes,
    )


def affine(
    stats: Mapping[str, NormStats] | None, mode: Normalization, key: str, width: int, *, name: str
) -> tuple[Affine, tuple[str, ...]]:
    """Makes the normalisation of an array, and a note for each dimension whose scale has the floor.

    Args:
      stats: By key; None where nothing is normalised.
      mode: Of the config.
      key: "state" or "actions".
      width: Dimensions of the array.
      name: Of the array, for the notes.
    """
    if stats is None or mode == "none":
        return norm_stats.identity(width), ()
    return norm_stats.normalizer(stats[key], mode, name)


def compute_norm_stats(config: QChunkConfig, hands: Hands | None = None) -> dict[str, NormStats]:
    """Statistics of "state" (the array that data.observation names) and "actions", in openpi's keys.

    Read from data.norm_stats if that is set, else computed in one pass over all frames of all good episodes
    that are not held out; of a mixture, each folder weighs its share.

    Args:
      config: Of the run.
      hands: How many processes read episodes, and where; the statistics are the same to the bit.

    Raises:
      DataError: The dataset or the JSON is missing or bad.
    """
    return norm_stats_of(config.data, open_source(config.data)[0], hands)


def norm_stats_of(data: DataConfig, source: EpisodeSource, hands: Hands | None = None) -> dict[str, NormStats]:
    """As `compute_norm_stats`, of a dataset that was opened."""
    widths = {"state": source.dims[data.observation], "actions": source.dims["action"]}
    if data.norm_stats is None:
        folders = mixture.folders_of(data, source)
        running = {name: [RunningStats() for _ in mixture.shares(data)] for name in widths}
        chosen, reader = np.flatnonzero(~held_out(data, source)).tolist(), _Reader(source, data.observation)
        reading = do_here_or(chosen, reader, reader.read, hands or Hands(), name="episode")
        for index, (state, action) in zip(chosen, in_order(chosen, reading), strict=True):
            running["state"][folders[index]].update(state)
            running["actions"][folders[index]].update(action)
        if not data.mixture:
            return {name: stats.result() for name, (stats,) in running.items()}
        return {name: norm_stats.mixed(parts, mixture.shares(data).tolist()) for name, parts in running.items()}
    path = Path(data.norm_stats)
    stats = norm_stats.load(path)
    for name, width in widths.items():
        found = len(stats[name].mean) if name in stats else None
        if found != width:
            of = data.observation if name == "state" else "action"
            raise DataError(
                f"{path}: expected {width} dimensions of {name!r}, the array {of!r}, found {found or 'none'}; "
                "chunkwise inspect qchunk DIR --config CONFIG --write-stats FILE writes those of a config"
            )
    return stats


class _Reader:
    """Reads what statistics are made of, in any process."""

    def __init__(self, source: EpisodeSource, observation: str) -> None:
        self._source, self._observation = source, observation
        self._limits = budget.current()

    def __call__(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        budget.use(self._limits)
        return self.read

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns observations and actions of an episode."""
        episode = load_episode(self._source, index)
        return episode.states[self._observation], episode.action


def dims(config: QChunkConfig) -> Dims:
    """Widths of observation and action in the dataset.

    Raises:
      DataError: The dataset is missing or bad.
    """
    return open_dataset(config).dims(config.data.observation)


def load_episode(source: EpisodeSource, index: int) -> Episode:
    """Loads an episode, again if reading fails.

    Raises:
      DataError: With the path, after the last failure.
    """
    return read_again(lambda: source.load(index), source.ids[index])


def read_again(read: Callable[[], Read], name: str) -> Read:
    """What `read` returns, called again if reading fails.

    Raises:
      DataError: With the name, after the last failure.
    """
    try:
        return retried(read, again=is_system_error)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name}: could not be read in up to {TRIES} tries: {reason}") from error
