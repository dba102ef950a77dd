"""Episodes of a LeRobot dataset for a page that shows them (chunkwise/view), good episodes and bad ones."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import encode_jpeg
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import EpisodeTable, iter_tables
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.data.threads import step_back
from chunkwise.errors import DataError
from chunkwise.files.links import Bounds
from chunkwise.view.source import EpisodeContent, EpisodeSummary
from openpi_ript.config.data import DataConfig
from openpi_ript.data.pack import numeric_columns

QUALITY = 92
"""Of the JPEGs that frames of a video become."""

INDICES = ("episode_index", "frame_index", "timestamp", "index")
"""Columns that say nothing that the page does not show otherwise."""


class LeRobotRecordings:
    """A folder of LeRobot 2.1 or 3.0. The tables of two files are kept, and the decoders of some videos."""

    def __init__(
        self, path: Path, allow_links_to: tuple[str, ...] = (), *, tolerance_s: float = TIME_TOLERANCE_S
    ) -> None:
        """Reads meta/.

        Args:
          path: Folder of the dataset.
          allow_links_to: Folders outside of it that links in it may lead to.
          tolerance_s: As data.tolerance_s.

        Raises:
          DataError: It is no LeRobot dataset, or meta/ is bad; wrong totals are a note, so that they can be looked at.
        """
        bounds = Bounds(path, allow_links_to)
        self._meta = read_meta(path, bounds=bounds, tolerance_s=tolerance_s, wrong_totals="note")
        self.notes = self._meta.notes
        self.title, self.kind = str(path), f"LeRobot {self._meta.version}"
        self.names = [f"episode {episode.index}" for episode in self._meta.episodes]
        self._keys = numeric_columns(self._meta)
        self._tables = functools.lru_cache(2)(self._read_tables)
        self._images = {camera: LeRobotImages(self._meta, [camera], upright=False) for camera in self._meta.cameras}

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Reads all tables, and then looks at the images as far as that needs no decoding of all."""
        step_back()
        told: list[EpisodeSummary] = []
        for place, table in enumerate(iter_tables(self._meta, self._keys)):
            told.append(_summary(self._meta, table))
            yield place, told[-1]
        reader = LeRobotImages(self._meta, self._meta.cameras, upright=False)
        for place, summary in enumerate(told):
            if not summary.problems and (found := reader.check(self._meta.episodes[place].index, last=True)):
                yield place, dataclasses.replace(summary, problems=tuple(found))

    def open(self, episode: int) -> EpisodeContent:
        meta = self._meta.episodes[episode]
        table = self._tables(meta.file)[meta.index]
        if not table.columns:
            raise DataError(*table.problems)
        first = [
            key for key in (DataConfig.action_key, DataConfig.state_key, DataConfig.reward_key) if key in table.columns
        ]
        order = [*first, *(key for key in table.columns if key not in (*first, *INDICES))]
        columns = {key: table.columns[key] for key in order}
        return EpisodeContent(cameras=tuple(self._meta.cameras), columns=columns, fps=self._meta.fps)

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        return encode_jpeg(self.pixels(episode, camera, frame), quality=QUALITY)

    def pixels(self, episode: int, camera: str, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """Decodes one image. Raises DataError if there is none, or it is damaged."""
        meta = self._meta.episodes[episode]
        if frame >= meta.length or camera not in self._images:
            cameras = ", ".join(self._images) or "no camera"
            raise DataError(
                f"{self.names[episode]}: expected a frame below {meta.length} of {cameras}, found {frame} of {camera}"
            )
        return self._images[camera].read(meta.index, frame)[camera]

    def index(self, episode: int) -> int:
        """Returns the number that the dataset has for an episode."""
        return self._meta.episodes[episode].index

    def task(self, episode: int, frame: int) -> str:
        """Returns what the frame's task_index says in words; empty where there is none."""
        meta = self._meta.episodes[episode]
        task = self._tables(meta.file)[meta.index].columns.get("task_index")
        return "" if task is None or frame >= len(task) else self._meta.tasks.get(int(task[frame]), "")

    def _read_tables(self, file: str) -> Mapping[int, EpisodeTable]:
        """The episodes of one file by their index."""
        inside = tuple(episode for episode in self._meta.episodes if episode.file == file)
        part = dataclasses.replace(self._meta, episodes=inside)
        return {table.meta.index: table for table in iter_tables(part, self._keys)}


def _summary(meta: LeRobotMeta, table: EpisodeTable) -> EpisodeSummary:
    success, reward = table.columns.get(DataConfig.success_key), table.columns.get(DataConfig.reward_key)
    task = table.columns.get("task_index")
    return EpisodeSummary(
        name=f"episode {table.meta.index}",
        task="" if task is None or not len(task) else meta.tasks.get(int(task[0]), ""),
        success=None if success is None else bool(success.any()),
        length=table.meta.length,
        total_reward=None if reward is None else float(reward.sum()),
        problems=table.problems,
    )
