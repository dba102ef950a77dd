"""Packs: the images of a dataset at training size in ArrayRecord shards, which are read at random without seeking.

A pack is a folder:
  manifest.json                  format, image size, encoding, cameras, shards
  _index.npz                     the dataset's index, as beside the episodes
  _split.json                    its split, if it had one
  pictures-00000.arrayrecord ... one record a frame, as in chunkwise/data/shards.py
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from chunkwise.data import shards
from chunkwise.data.images import decode_same_size_into
from chunkwise.data.shards import are_cameras, open_shards, raw_image, read_images, require_described
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.identity import Files
from driving.config import DataConfig
from driving.data.images import FILTER
from driving.data.index import INDEX_FILE, Index, load

FORMAT = "chunkwise-driving-pack-1"


def read_manifest(path: Path) -> dict[str, Any]:
    """A pack's description. Raises DataError if it is missing, damaged, or of another format."""
    return shards.read_manifest(path, FORMAT, {"cameras": are_cameras})


def load_index(path: Path, manifest: Mapping[str, Any]) -> Index:
    """A pack's index. Raises DataError if it is damaged, or of other drives than those that were packed."""
    index = load(path / INDEX_FILE)
    expected, found = manifest.get("drives"), hash_of_drives(index)
    if found != expected:
        raise DataError(
            f"{path / INDEX_FILE}: expected the index of the drives {str(expected)[:12]} as manifest.json says, found "
            f"that of {found[:12]}; pack again"
        )
    return index


def hash_of_drives(index: Index) -> str:
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
      DataError: If a shard is missing, damaged or another one.
    """

    def __init__(self, path: Path, index: Index, cameras: Sequence[str], files: Files | None = None) -> None:
        self._path = path
        manifest = read_manifest(path)
        self._raw = manifest["encoding"] == "raw"
        self._packed = manifest["cameras"]  # the index lacks those that only drives had which were left out
        self._places = {column: cameras.index(name) for column, name in enumerate(self._packed) if name in cameras}
        text = json.dumps(manifest, sort_keys=True).encode()
        self.identity: Mapping[str, str] = {"pictures": hashlib.sha256(text).hexdigest()}
        self._records = open_shards(path, manifest["shards"], index.frames, files=files)
        require_described(path, manifest, files)

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in ImageSource."""
        if not wanted.any():
            return
        source = f"{self._path}: record {row}"
        stored = read_images(self._records, row, len(self._packed), source=source)
        for column, k in self._places.items():
            if not wanted[k]:
                continue
            where = f"{source}, camera {column}"
            if self._raw:
                out[k] = raw_image(stored[column], *out.shape[1:3], source=where)
            else:
                decode_same_size_into(stored[column], out[k], source=where, filter=FILTER)

    def stored(self, row: int) -> Mapping[str, memoryview]:
        """What a record holds of each camera, nothing for no image. Raises DataError if it is damaged."""
        images = read_images(self._records, row, len(self._packed), source=f"{self._path}: record {row}")
        return dict(zip(self._packed, images, strict=True))
