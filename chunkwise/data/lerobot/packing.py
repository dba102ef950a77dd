"""Makes a pack (chunkwise/data/pack.py) of a LeRobot dataset."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.convert import Jobs
from chunkwise.data.images import resize_with_pad
from chunkwise.data.lerobot.meta import DEFAULT_IMAGE_PATH, LeRobotMeta
from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.data.lerobot.video import LeRobotImages, file_names
from chunkwise.data.pack import FORMAT, TABLES
from chunkwise.data.packing import Packing, make_pack, whole_episodes
from chunkwise.data.problems import Problem
from chunkwise.data.shards import PackSettings
from chunkwise.errors import DataError
from chunkwise.files.npz import write_npz


def write_pack(
    out: Path,
    meta: LeRobotMeta,
    table: FrameTable,
    cameras: Sequence[str],
    settings: PackSettings,
    *,
    skipped: Sequence[Problem] = (),
    jobs: Jobs | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Writes a pack; the folder appears under its name only when it is complete.

    Args:
      out: Folder to make.
      meta: The opened dataset.
      table: All its frames, without bad episodes.
      cameras: Camera keys, in the order of the records.
      settings: Size and encoding.
      skipped: What is wrong with the episodes that `table` lacks.
      jobs: By how many processes, where, and what becomes of episodes with a bad image.
      report: Takes lines of text for a person.

    Raises:
      DataError: `out` exists, or images are bad.
      BusyError, StorageError: As `new_folder`.
    """
    about = {
        "format": FORMAT,
        "fps": table.fps,
        "cameras": list(cameras),
        "tasks": {str(index): task for index, task in table.tasks.items()},
    }
    make_pack(
        _Opener(meta, table, tuple(cameras), settings, whole_episodes(table.lengths.tolist()), tuple(skipped)),
        out,
        about=about,
        settings=settings,
        source=meta.root,
        jobs=jobs or Jobs(),
        report=report,
    )


@dataclasses.dataclass(frozen=True)
class _Opener:
    """Opens the dataset in any process; a worker gets no table, which only the process that joins the parts needs."""

    meta: LeRobotMeta
    table: FrameTable
    cameras: tuple[str, ...]
    settings: PackSettings
    shards: Sequence[Sequence[int]]
    skipped: Sequence[Problem]

    def __call__(self) -> "_LeRobotPacking":
        return _LeRobotPacking(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "table": dataclasses.replace(self.table, columns={})}


class _LeRobotPacking(Packing):
    tables = TABLES

    def __init__(self, source: _Opener) -> None:
        super().__init__(source.shards, source.skipped, len(source.meta.episodes) - len(source.table.lengths))
        self._source = source
        self._reader = LeRobotImages(source.meta, source.cameras)

    def name(self, position: int) -> str:
        return str(self._index(position))

    def sources(self, position: int) -> Iterable[Path]:
        meta, cameras = self._source.meta, self._source.cameras
        episode = meta.episodes[self._index(position)]
        yield from (meta.root / name for name in file_names(dataclasses.replace(meta, episodes=(episode,)), cameras))
        for camera in (camera for camera in cameras if meta.features[camera].dtype == "image"):
            for frame in range(episode.length):  # beside the table; a file that is not there counts as one, too
                yield meta.root / DEFAULT_IMAGE_PATH.format(
                    image_key=camera, episode_index=episode.index, frame_index=frame
                )

    def images(self, position: int) -> Iterable[Sequence[bytes]]:
        settings = self._source.settings
        for frame in range(int(self._source.table.lengths[position])):
            shown = self._reader.read(self._index(position), frame)
            sized = (resize_with_pad(shown[camera], *settings.image_size) for camera in self._source.cameras)
            yield [settings.encode(image) for image in sized]

    def problem(self, position: int, error: DataError) -> Problem:
        index = self._index(position)
        file = self._source.meta.episodes[index].file
        return Problem(file=file, episode=index, expected="whole images", found=str(error))

    def write_tables(self, folder: Path, left_out: Collection[int]) -> Mapping[str, Any]:
        table = self._source.table
        table = table.only(np.array([position not in left_out for position in range(len(table.lengths))], bool))
        tables: dict[str, Any] = {"/lengths": table.lengths, "/episodes": table.episodes, **table.columns}
        write_npz(folder / TABLES, tables)
        return {}

    def _index(self, position: int) -> int:
        return int(self._source.table.episodes[position])
