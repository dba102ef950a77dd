"""What every pack of images is made of: ArrayRecord shards, a record a frame, and a manifest.

A record holds for each camera a length (uint32) and that many bytes, 0 for none. Records are checksummed by their
format: a flipped bit is an error when its record is read. A package adds its tables, and says what a record's row is.
What makes packs is in chunkwise/data/packing.py.
"""

import bisect
import concurrent.futures
import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import MAX_JPEG_SIDE, encode_jpeg, require_pixels
from chunkwise.errors import DataError
from chunkwise.files import budget, identity
from chunkwise.files.identity import Files, content_hash
from chunkwise.files.links import Bounds
from chunkwise.files.place import is_utf8
from chunkwise.files.strict_json import read_json

MANIFEST = "manifest.json"
_LENGTH = struct.Struct("<I")
_OPENED_AT_A_TIME = 64
"""Shards whose records are counted at a time: each waits for the storage, and packs have thousands."""

Encoding = Literal["jpeg", "raw"]
Checks = Mapping[str, Callable[[Any], bool]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackSettings:
    """How images are stored."""

    image_size: tuple[int, int]
    """Height and width; images of other sizes are resized, each package in its own way."""
    encoding: Encoding = "jpeg"
    """jpeg: about 25 KB an image at 224. raw: exact, 150 KB."""
    quality: int = 95
    """Of JPEG, 1 to 100."""

    def __post_init__(self) -> None:
        if not 1 <= min(self.image_size) <= max(self.image_size) <= MAX_JPEG_SIDE or not 1 <= self.quality <= 100:
            raise ValueError(
                f"image size {self.image_size}, quality {self.quality}; expected height and width of 1 to "
                f"{MAX_JPEG_SIDE}, and a quality of 1 to 100"
            )

    def encode(self, image: UInt8[np.ndarray, "h w 3"]) -> bytes:
        """Returns what is stored of an image of `image_size`."""
        return encode_jpeg(image, quality=self.quality) if self.encoding == "jpeg" else image.tobytes()


def is_pack(path: Path) -> bool:
    """Tells whether a folder is a pack, or means to be one."""
    return (path / MANIFEST).is_file()


def are_cameras(value: Any) -> bool:
    """Whether a manifest's value is a list of different names."""
    return (
        isinstance(value, list)
        and all(isinstance(name, str) and name for name in value)
        and len(set(value)) == len(value)
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < 1 << 16 for n in value)


_CHECKS: Checks = {"image_size": _is_size, "encoding": lambda value: value in get_args(Encoding)}


def read_manifest(path: Path, format: str, checks: Checks) -> dict[str, Any]:
    """Reads a pack's description.

    Args:
      path: The pack.
      format: That it must have.
      checks: What else each of its values must be, besides image_size, encoding and shards.

    Raises:
      DataError: It is missing, damaged, or of another format.
    """
    manifest = read_json(path / MANIFEST)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != format:
        raise DataError(f"{path}/{MANIFEST}: expected format {format!r}, found {found!r}")
    checks = {**checks, **_CHECKS}
    missing = sorted({*checks, "shards"} - set(manifest))
    if missing:
        raise DataError(f"{path}/{MANIFEST}: expected the keys {missing}, found {sorted(manifest)}")
    shard_names(path, manifest["shards"])
    if not _names_files(manifest.get("tables", [])):
        raise DataError(
            f'{path}/{MANIFEST}: expected tables inside the pack, [{{"file": name}}, ...], found '
            f"{str(manifest['tables'])[:120]}"
        )
    wrong = {key: str(manifest[key])[:80] for key, fits in checks.items() if not fits(manifest[key])}
    if wrong:
        raise DataError(f"{path}/{MANIFEST}: expected values as a pack has them, found {wrong}")
    height, width = manifest["image_size"]
    require_pixels(height, width, f"{path}/{MANIFEST}: image_size")
    return manifest


def settings_in(path: Path, manifest: Mapping[str, Any]) -> PackSettings:
    """How the images of a pack are stored. Raises DataError if its manifest gives a quality that none has."""
    quality = manifest.get("quality", PackSettings.quality)
    try:
        height, width = manifest["image_size"]
        return PackSettings(image_size=(height, width), encoding=manifest["encoding"], quality=quality)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}/{MANIFEST}: expected a quality of 1 to 100, found {str(quality)[:80]}") from error


def shard_names(path: Path, shards: Any) -> list[str]:
    """File names of the shards that a manifest lists. Raises DataError if it lists anything but files of the pack."""
    if not (_names_files(shards) and all(isinstance(one.get("rows"), int) and one["rows"] >= 0 for one in shards)):
        raise DataError(
            f'{path}/{MANIFEST}: expected shards inside the pack, [{{"file": name, "rows": number}}, ...], found '
            f"{str(shards)[:120]}"
        )
    return [shard["file"] for shard in shards]


def _names_files(entries: Any) -> bool:
    """Whether a manifest's value is a list of entries of different files of the pack."""
    good = isinstance(entries, list) and all(
        isinstance(one, dict) and isinstance(one.get("file"), str) and Path(one["file"]).name == one["file"]
        for one in entries
    )
    return good and len({one["file"] for one in entries}) == len(entries)


def describe_file(file: Path) -> dict[str, Any]:
    """Returns what a manifest says of a file of its pack, by which any other is told from it.

    That is its size in bytes, its hash as a dataset's identity has it (of a large file that of a sample, which is known
    when a dataset is opened), and the SHA-256 of all its bytes.
    """
    size, whole = file.stat().st_size, content_hash(file, "full")
    sample = whole if size <= identity.WHOLE_BYTES else content_hash(file)
    return {"file": file.name, "bytes": size, "hash": sample, "sha256": whole}


def require_described(path: Path, manifest: Mapping[str, Any], files: Files | None = None) -> None:
    """Compares tables and shards with what `describe_file` said of them; packs of before say nothing of it.

    Args:
      path: The pack.
      manifest: Its description.
      files: Of the pack, as it was opened: their hashes are compared, of all bytes where they were read. None: sizes.

    Raises:
      DataError: A file is another one than the one that was packed.
    """
    entries = [*manifest.get("tables", []), *manifest["shards"]]
    if files is not None:
        files.require([entry["file"] for entry in entries])  # all are there, unless the manifest names odd tables
    known = {} if files is None else files.entries()
    bounds = Bounds(path) if files is None else files.bounds
    for entry in entries:
        file = bounds.require(entry["file"])
        if not file.is_file():
            continue  # whoever reads it says so
        found: dict[str, Any] = {"bytes": file.stat().st_size}
        if files is not None:
            hashed = known[entry["file"]]
            found |= {"hash": hashed.hash} | ({"sha256": hashed.full} if hashed.full else {})
        wrong = [key for key in found if key in entry and entry[key] != found[key]]
        if wrong:
            expected, other = (", ".join(f"{key} {str(one[key])[:12]}" for key in wrong) for one in (entry, found))
            raise DataError(
                f"{file}: expected {expected} as {MANIFEST} says, found {other}: it is another file of this pack, is "
                "another pack's, or was changed; restore it, or pack again"
            )


def require_whole(path: Path, manifest: Mapping[str, Any], allow_links_to: Sequence[str] = ()) -> None:
    """As `require_described`, and reads every byte of what the manifest has a hash of."""
    files = Files(Bounds(path, allow_links_to), verify="full", remember=False)
    entries = [*manifest.get("tables", []), *manifest["shards"]]
    if any("sha256" in entry for entry in entries):
        require_described(path, manifest, files)


def add_pack(files: Files, *names: str) -> None:
    """Takes in the files of a pack: its manifest, its shards, and those named. Raises DataError if one leads out."""
    files.require([MANIFEST, *names])
    shards = read_json(files.bounds.require(MANIFEST))
    files.require(shard_names(files.bounds.root, shards.get("shards") if isinstance(shards, dict) else None))


def write_records(path: Path, frames: Iterable[Sequence[bytes]]) -> int:
    """Writes a shard; returns its number of records.

    Args:
      path: Of the file.
      frames: Frame after frame the stored images of all cameras; what it raises is passed on: the file is not whole.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    rows = 0
    # One record a group: read alone. Images are compressed already, or are meant to be read at memory speed.
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    try:
        for images in frames:
            writer.write(b"".join(part for data in images for part in (_LENGTH.pack(len(data)), data)))
            rows += 1
    finally:
        writer.close()
    return rows


@runtime_checkable
class Records(Protocol):
    """Numbered records of bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, record: int, /) -> bytes: ...


class _WatchedRecords:
    """Records of shards that are compared with what they were when the pack was opened, each time one is read.

    One above record_mib is not handed on; the library has unpacked it by then, and tells no size before.
    """

    def __init__(self, shards: Sequence[Records], path: Path, files: Files | None, names: Sequence[str]) -> None:
        self._shards, self._path, self._files = shards, path, files
        self._places = [] if files is None else [files.place(name) for name in names]
        self._ends = np.cumsum([len(shard) for shard in shards]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, record: int, /) -> bytes:
        if not 0 <= record < len(self):
            raise IndexError(f"record {record} of {len(self)}")
        number = bisect.bisect_right(self._ends, record)
        shard = self._shards[number]
        try:
            data = shard[record - self._ends[number] + len(shard)]
            budget.require("record_mib", len(data), f"{self._path}: record {record}")
            return data
        finally:  # what was changed is named as that, and not as damaged
            if self._files is not None:
                self._files.require_unchanged(self._places[number])


def open_shards(path: Path, shards: Sequence[Mapping[str, Any]], frames: int, *, files: Files | None = None) -> Records:
    """The records of a pack's shards, one a frame, to be read at random from any thread.

    Args:
      path: The pack.
      shards: Of its manifest.
      frames: Records that there must be, by its tables.
      files: Of the pack, as it was opened; a shard that changed since is an error when it is read. None: not compared.

    Raises:
      DataError: If a shard is missing or damaged, or the records of one, or of all, are too few or too many.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource  # 0.1 s

    bounds = Bounds(path) if files is None else files.bounds
    names = shard_names(path, shards)
    found = [bounds.require(name) for name in names]
    if not found:
        raise DataError(f"{path}/{MANIFEST}: expected at least one shard, found none")
    if not all(map(is_utf8, found)):
        raise DataError(
            f"{path}: expected a path in UTF-8, found other bytes, which ArrayRecord cannot open; rename it"
        )
    missing = [str(file) for file in found if not file.is_file()]
    if missing:
        raise DataError(f"{path}: expected the shards of its manifest, found no {missing}")
    try:
        with concurrent.futures.ThreadPoolExecutor(min(len(found), _OPENED_AT_A_TIME)) as pool:
            opened: list[Any] = list(pool.map(lambda file: ArrayRecordDataSource([str(file)]), found))
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{path}: expected whole ArrayRecord shards, found {error}") from error
    records = _WatchedRecords(opened, path, files, names)
    if len(records) != frames:
        raise DataError(f"{path}: expected {frames} records as in its tables, found {len(records)}")
    for file, shard, own in zip(found, shards, opened, strict=True):
        if len(own) != shard["rows"]:
            raise DataError(
                f"{file}: expected {shard['rows']} records as {MANIFEST} says, found {len(own)}: it is another file of "
                "this pack, or another pack's; restore it, or pack again"
            )
    return records


def read_images(records: Records, record: int, cameras: int, *, source: str) -> list[memoryview]:
    """Reads the stored images of a frame, one a camera.

    Raises:
      DataError: The record is damaged, or not of so many cameras.
    """
    try:
        data = memoryview(records[record])
    except (OSError, RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"{source}: expected a whole record, found {error}") from error
    images, offset = [], 0
    try:
        for _ in range(cameras):
            (size,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size + size
            images.append(data[offset - size : offset])
    except struct.error as error:  # whole, but not of this manifest
        raise DataError(f"{source}: expected images as {MANIFEST} says, found {error}") from error
    return images


def raw_image(data: memoryview, height: int, width: int, *, source: str) -> UInt8[np.ndarray, "h w 3"]:
    """An image that is stored as it is. Raises DataError if it is of another size."""
    if len(data) != height * width * 3:
        raise DataError(f"{source}: expected images as {MANIFEST} says, {height} x {width}, found {len(data)} bytes")
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)
