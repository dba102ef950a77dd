"""Packs of LeRobot datasets: the frames decoded once into shards, so that training never seeks in a video.

A pack is a folder:
  manifest.json            format, fps, cameras, image size and encoding, tasks, shards
  tables.npz               every column, all episodes one after another; lengths and indices of the episodes
  pictures-00000.arrayrecord ...   one record a frame, as in chunkwise/data/shards.py; a shard is whole episodes
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from chunkwise.data import shards
from chunkwise.data.images import decode
from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.data.shards import Checks, Encoding, are_cameras, open_shards, raw_image, read_images, require_described
from chunkwise.errors import DataError
from chunkwise.files.identity import Files
from chunkwise.files.npz import read_npz

FORMAT = "chunkwise-pack-1"
TABLES = "tables.npz"


@runtime_checkable
class ImageReader(Protocol):
    """The cameras of any frame; made by LeRobotImages and by PackedImages."""

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """Images by camera key; `episode` is the index in the dataset."""
        ...


_MANIFEST: Checks = {
    "fps": lambda value: type(value) in (int, float) and 0 < value < 1e6,
    "cameras": are_cameras,
    "tasks": lambda value: (
        isinstance(value, dict)
        and all(number.isdecimal() and number.isascii() and len(number) < 19 for number in value)
        and all(isinstance(task, str) for task in value.values())
    ),
}
"""What each value of a manifest must be, besides those of every pack."""


class PackedImages:
    """Reads a pack's images at random; safe to call from several threads.

    Args:
      path: The pack.
      table: Its table, as `read_pack_table` gives it.
      cameras: Camera keys to decode; the others of a record are passed over.
      files: As of `open_shards`.

    Raises:
      DataError: If a shard is missing, damaged or another one, or a camera is not in the pack.
    """

    def __init__(self, path: Path, table: FrameTable, cameras: Sequence[str], *, files: Files | None = None) -> None:
        self.path = path
        manifest = read_manifest(path)
        self.image_size: tuple[int, int] = tuple(manifest["image_size"])
        self.encoding: Encoding = manifest["encoding"]
        self._order = manifest["cameras"]
        self._cameras = frozenset(cameras)
        if not self._cameras <= set(self._order):
            raise DataError(f"{path}: expected cameras {sorted(self._cameras)}, found {self._order}")
        self._records = open_shards(path, manifest["shards"], table.frames, files=files)
        require_described(path, manifest, files)
        self._start = dict(zip(table.episodes.tolist(), table.starts.tolist(), strict=True))

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """Images of one frame. Raises DataError if its record is damaged."""
        source = f"{self.path}: episode {episode}, row {frame}"
        stored = read_images(self._records, self._start[episode] + frame, len(self._order), source=source)
        return {
            camera: self._image(data, f"{source}, {camera}")
            for camera, data in zip(self._order, stored, strict=True)
            if camera in self._cameras
        }

    def _image(self, data: memoryview, source: str) -> UInt8[np.ndarray, "h w 3"]:
        if self.encoding == "jpeg":
            return decode(data, source=source)
        return raw_image(data, *self.image_size, source=source)


def read_pack_table(path: Path) -> FrameTable:
    """All frames of a pack, without images. Raises DataError if manifest or tables are missing or damaged."""
    manifest = read_manifest(path)
    file = path / TABLES
    try:
        columns = read_npz(file)
        lengths, episodes = columns.pop("/lengths"), columns.pop("/episodes")
    except (OSError, KeyError) as error:
        raise DataError(f"{file}: expected the tables of a pack, found {error}") from error
    wrong = sorted(key for key, column in columns.items() if len(column) != lengths.sum())
    if wrong:
        raise DataError(f"{file}: expected {lengths.sum()} rows in every column, found another number in {wrong}")
    tasks = {int(index): task for index, task in manifest["tasks"].items()}
    unknown = sorted(set(columns.get("task_index", np.zeros(0)).reshape(-1).tolist()) - set(tasks))
    if unknown:
        raise DataError(f"{file}: expected tasks of manifest.json, {sorted(tasks)[:20]}, found {unknown[:20]}")
    return FrameTable(fps=manifest["fps"], lengths=lengths, episodes=episodes, columns=columns, tasks=tasks)


def read_manifest(path: Path) -> dict[str, Any]:
    """A pack's description. Raises DataError if it is missing, damaged, or of another format."""
    return shards.read_manifest(path, FORMAT, _MANIFEST)
