"""Packs: the images of a dataset at training size in ArrayRecord shards, which are read at random without seeking.

A pack is a folder:
  manifest.json                  format, image size, encoding, cameras, shards
  _index.npz                     the dataset's index, as beside the episodes
  _split.json                    its split, if it had one
  pictures-00000.arrayrecord ... one record a frame, as in chunkwise/data/shards.py
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from chunkwise.data import shards
from chunkwise.data.images import decode_into, decode_same_size_into
from chunkwise.data.shards import (
    FRAMES_PER_SHARD,
    PackSettings,
    open_shards,
    raw_image,
    read_images,
    write_manifest,
    write_shards,
)
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.identity import Files
from chunkwise.files.new_folder import new_folder
from driving.config import DataConfig
from driving.data.images import FILTER, FileImages, read_bytes
from driving.data.index import INDEX_FILE, PRESENT, Index, load
from driving.data.index import pack as pack_index
from driving.data.split import SPLIT_FILE, Manifest, save_manifest

FORMAT = "chunkwise-driving-pack-1"


def read_manifest(path: Path) -> dict[str, Any]:
    """A pack's description. Raises DataError if it is missing, damaged, or of another format."""
    return shards.read_manifest(path, FORMAT, {})


def load_index(path: Path, manifest: Mapping[str, Any]) -> Index:
    """A pack's index. Raises DataError if it is damaged, or of other drives than those that were packed."""
    index = load(path / INDEX_FILE)
    expected, found = manifest.get("drives"), _drives(index)
    if found != expected:
        raise DataError(
            f"{path / INDEX_FILE}: expected the index of the drives {str(expected)[:12]} as manifest.json says, found "
            f"that of {found[:12]}; pack again"
        )
    return index


def _drives(index: Index) -> str:
    """Hash of what the drives of a pack show, in their order."""
    return hashlib.sha256("".join(index.drive_hashes).encode()).hexdigest()


def open_pack(path: Path, config: DataConfig, files: Files | None = None) -> tuple[Index, "PackedImages"]:
    """Index and images of a pack.

    Args:
      path: The pack.
      config: Its cameras and its image size.
      files: The pack's, as of `open_shards`.

    Raises:
      DataError: If a part is missing or damaged.
      ConfigError: If it was packed at another image size than the config's.
    """
    manifest = read_manifest(path)
    index = load_index(path, manifest)
    if tuple(manifest["image_size"]) != config.image_size:
        raise ConfigError(
            f"data.image_size is {config.image_size}, and {path} was packed at {tuple(manifest['image_size'])}; change "
            "the field, or pack again"
        )
    if files is not None:
        files.require_unchanged(files.place(INDEX_FILE))
    return index, PackedImages(path, index, config.cameras, files)


class PackedImages:
    """Reads a pack's images at random; safe to call from several threads.

    Args:
      path: The pack.
      index: Its index.
      cameras: Order of the camera axis; a name that the pack lacks is never wanted.
      files: As of `open_shards`.

    Raises:
      DataError: If a shard is missing or damaged.
    """

    def __init__(self, path: Path, index: Index, cameras: Sequence[str], files: Files | None = None) -> None:
        self._path = path
        manifest = read_manifest(path)
        self._raw = manifest["encoding"] == "raw"
        self._width = len(index.cameras)
        self._places = {column: cameras.index(name) for column, name in enumerate(index.cameras) if name in cameras}
        text = json.dumps(manifest, sort_keys=True).encode()
        self.identity: Mapping[str, str] = {"pictures": hashlib.sha256(text).hexdigest()}
        self._records = open_shards(path, manifest["shards"], index.frames, files=files)

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in ImageSource."""
        if not wanted.any():
            return
        source = f"{self._path}: record {row}"
        stored = read_images(self._records, row, self._width, source=source)
        for column, k in self._places.items():
            if not wanted[k]:
                continue
            where = f"{source}, camera {column}"
            if self._raw:
                out[k] = raw_image(stored[column], *out.shape[1:3], source=where)
            else:
                decode_same_size_into(stored[column], out[k], source=where, filter=FILTER)


def write_pack(
    out: Path,
    index: Index,
    base: Path,
    settings: PackSettings,
    *,
    split: Manifest | None = None,
    threads: int,
    progress: Callable[[], object],
) -> None:
    """Writes a pack of a dataset of files; the folder appears under its name only when it is complete.

    Args:
      out: Folder to make.
      index: Of the dataset.
      base: Folder of the dataset.
      settings: Size and encoding. A JPEG of that size already is taken over as it is.
      split: Of the episodes that are packed; None writes none.
      threads: Shards written at a time.
      progress: Called after each frame, from any thread.

    Raises:
      DataError: If `out` exists, or an image cannot be read.
      BusyError, StorageError: As `new_folder`.
    """
    if out.exists():
        raise DataError(f"{out}: expected a folder that does not exist yet, found one; choose another name")
    images = FileImages(base, index, index.cameras)

    def records(rows: range) -> Iterator[list[bytes]]:
        for row in rows:
            yield [
                _packed(images.file(row, column), index.image_size[row, column], settings)
                if index.image_status[row, column] == PRESENT
                else b""
                for column in range(len(index.cameras))
            ]

    stretches = [
        range(first, min(first + FRAMES_PER_SHARD, index.frames)) for first in range(0, index.frames, FRAMES_PER_SHARD)
    ]
    with new_folder(out) as scratch:
        written = write_shards(scratch, stretches, records, threads=threads, progress=progress)
        (scratch / INDEX_FILE).write_bytes(pack_index(index))
        if split is not None:
            save_manifest(split, scratch / SPLIT_FILE)
        manifest = {
            "format": FORMAT,
            "image_size": list(settings.image_size),
            "encoding": settings.encoding,
            "quality": settings.quality,
            "cameras": list(index.cameras),
            "shards": written,
            "drives": _drives(index),
        }
        write_manifest(scratch, manifest)


def _packed(file: str, size: np.ndarray, settings: PackSettings) -> bytes:
    data = read_bytes(file)
    image = np.empty((*settings.image_size, 3), np.uint8)
    decode_into(data, image, source=file, filter=FILTER)  # a damaged file is found here, not while training
    same = tuple(size.tolist()) == settings.image_size and data[:3] == b"\xff\xd8\xff"
    return data if same and settings.encoding == "jpeg" else settings.encode(image)
