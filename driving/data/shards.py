"""Packs: the pictures of a dataset at training size in ArrayRecord shards, which are read at random without seeking.

A pack is a folder:
  manifest.json                  format, picture size, encoding, cameras, shards
  _index.npz                     the dataset's index, as beside the episodes
  _split.json                    its split, if it had one
  pictures-00000.arrayrecord ... one record a frame: for each camera a length (uint32) and that many bytes, 0 for none

Records are checksummed by their format: a flipped bit is an error when its record is read.
"""

import concurrent.futures
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, UInt8

from chunkwise.data.images import encode_jpeg, require_pixels
from chunkwise.data.pack import Encoding, PackSettings, open_shards, shard_names
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.identity import Files
from chunkwise.files.new_folder import new_folder
from chunkwise.files.strict_json import read_json
from driving.config import DataConfig
from driving.data.images import FilePictures, decode_into, decode_same_size, read_bytes
from driving.data.index import INDEX_FILE, PRESENT, Index, load
from driving.data.index import pack as pack_index
from driving.data.split import SPLIT_FILE, Manifest, save_manifest

FORMAT = "chunkwise-driving-pack-1"
FRAMES_PER_SHARD = 4096
_LENGTH = struct.Struct("<I")


def is_pack(path: Path) -> bool:
    """Whether a folder is a pack, or means to be one."""
    return (path / "manifest.json").is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """A pack's description. Raises DataError if it is missing, damaged, or of another format."""
    manifest = read_json(path / "manifest.json")
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise DataError(f"{path}/manifest.json: expected format {FORMAT!r}, found {found!r}")
    size: Any = manifest.get("image_size")
    encoding = manifest.get("encoding")
    two = isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
    if not two or encoding not in get_args(Encoding):
        raise DataError(
            f"{path}/manifest.json: expected image_size of two numbers and an encoding of {get_args(Encoding)}, found "
            f"{str(size)[:40]} and {str(encoding)[:40]}"
        )
    require_pixels(size[0], size[1], f"{path}/manifest.json: image_size")
    shard_names(path, manifest.get("shards"))
    return manifest


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


def open_pack(path: Path, config: DataConfig, files: Files | None = None) -> tuple[Index, "PackedPictures"]:
    """Index and pictures of a pack.

    Args:
      path: The pack.
      config: Its cameras and its picture size.
      files: The pack's, as of `open_shards`.

    Raises:
      DataError: If a part is missing or damaged.
      ConfigError: If it was packed at another picture size than the config's.
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
    return index, PackedPictures(path, index, config.cameras, files)


class PackedPictures:
    """Reads a pack's pictures at random; safe to call from several threads.

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
        """As in Pictures."""
        if not wanted.any():
            return
        source = f"{self._path}: record {row}"
        try:
            record = memoryview(self._records[row])
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise DataError(f"{source}: expected a whole record, found {error}") from error
        offset = 0
        for column in range(self._width):
            (size,) = _LENGTH.unpack_from(record, offset)
            data = record[offset + _LENGTH.size : offset + _LENGTH.size + size]
            offset += _LENGTH.size + size
            k = self._places.get(column, -1)
            if k < 0 or not wanted[k]:
                continue
            if self._raw:
                out[k] = np.frombuffer(data, np.uint8).reshape(out.shape[1:])
            else:
                decode_same_size(data, out[k], source=f"{source}, camera {column}")


def write_pack(
    out: Path,
    index: Index,
    base: Path,
    settings: PackSettings,
    *,
    split: Manifest | None = None,
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Writes a pack of a dataset of files; the folder appears under its name only when it is complete.

    Args:
      out: Folder to make.
      index: Of the dataset.
      base: Folder of the dataset.
      settings: Size and encoding. A JPEG of that size already is taken over as it is.
      split: Of the episodes that are packed; None writes none.
      threads: Shards written at a time.
      progress: Told the number of frames done since the last call, from any thread.

    Raises:
      DataError: If `out` exists, or a picture cannot be read.
      BusyError, StorageError: As `new_folder`.
    """
    if out.exists():
        raise DataError(f"{out}: expected a folder that does not exist yet, found one; choose another name")
    with new_folder(out) as scratch:
        _write_into(scratch, index, base, split, settings, threads, progress)


def _write_into(
    scratch: Path,
    index: Index,
    base: Path,
    split: Manifest | None,
    settings: PackSettings,
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Writes the files of a pack; arguments as of `write_pack`."""
    borders = [*range(0, index.frames, FRAMES_PER_SHARD), index.frames]
    pictures = FilePictures(base, index, index.cameras)

    def write(number: int) -> dict[str, Any]:
        name = f"pictures-{number:05d}.arrayrecord"
        rows = range(borders[number], borders[number + 1])
        _write_shard(scratch / name, rows, index, pictures, settings, progress)
        return {"file": name, "rows": len(rows)}

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        written = list(pool.map(write, range(len(borders) - 1)))
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
    (scratch / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _write_shard(
    path: Path,
    rows: range,
    index: Index,
    pictures: FilePictures,
    settings: PackSettings,
    progress: Callable[[int], None],
) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    # One record a group: read alone. Pictures are compressed already, or are meant to be read at memory speed.
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for row in rows:
        parts = []
        for column in range(len(index.cameras)):
            there = index.picture[row, column] == PRESENT
            data = _packed(pictures.file(row, column), index.picture_size[row, column], settings) if there else b""
            parts += [_LENGTH.pack(len(data)), data]
        writer.write(b"".join(parts))
        progress(1)
    writer.close()


def _packed(file: str, size: np.ndarray, settings: PackSettings) -> bytes:
    data = read_bytes(file)
    picture = np.empty((*settings.image_size, 3), np.uint8)
    decode_into(data, picture, source=file)  # a damaged file is found here, not while training
    if settings.encoding == "raw":
        return picture.tobytes()
    same = tuple(size.tolist()) == settings.image_size and data[:3] == b"\xff\xd8\xff"
    return data if same else encode_jpeg(picture, quality=settings.quality)
