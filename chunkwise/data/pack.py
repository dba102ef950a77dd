"""Packs: the frames of a dataset decoded once into ArrayRecord shards, so that training never seeks in a video.

A pack is a folder:
  manifest.json            format, fps, cameras, picture size and encoding, tasks, shards
  tables.npz               every column, all episodes one after another; lengths and indices of the episodes
  pictures-00000.arrayrecord ...   one record a frame: for each camera a length (uint32) and that many bytes

Records are checksummed by their format: a flipped bit is an error when its record is read.
"""

import bisect
import concurrent.futures
import dataclasses
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import decode, encode_jpeg, require_pixels, resize_with_pad
from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.files.new_folder import new_folder
from chunkwise.files.npz import read_npz
from chunkwise.files.strict_json import read_json

FORMAT = "chunkwise-pack-1"
FRAMES_PER_SHARD = 4096
"""A shard is as many whole episodes as fit: about 250 MB of JPEG for two cameras at 224."""

Encoding = Literal["jpeg", "raw"]


@runtime_checkable
class PictureReader(Protocol):
    """The cameras of any frame; made by LeRobotPictures and by PackedPictures."""

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """Pictures by camera key; `episode` is the index in the dataset."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackSettings:
    """How pictures are stored."""

    image_size: tuple[int, int]
    """Height and width; other sizes are resized with padding."""
    encoding: Encoding = "jpeg"
    """jpeg: about 25 KB a picture at 224. raw: exact, 150 KB."""
    quality: int = 95
    """Of JPEG, 1 to 100."""

    def __post_init__(self) -> None:
        if min(self.image_size) < 1 or not 1 <= self.quality <= 100:
            raise ValueError(
                f"image size {self.image_size}, quality {self.quality}; expected height and width of at least 1, and a "
                "quality of 1 to 100"
            )


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < 1 << 16 for n in value)


_MANIFEST: Mapping[str, Callable[[Any], bool]] = {
    "fps": lambda value: type(value) in (int, float) and 0 < value < 1e6,
    "cameras": lambda value: (
        isinstance(value, list)
        and all(isinstance(name, str) and name for name in value)
        and len(set(value)) == len(value)
    ),
    "image_size": _is_size,
    "encoding": lambda value: value in get_args(Encoding),
    "tasks": lambda value: (
        isinstance(value, dict)
        and all(number.isdecimal() and number.isascii() and len(number) < 19 for number in value)
        and all(isinstance(task, str) for task in value.values())
    ),
}
"""What each value of a manifest must be."""


def is_pack(path: Path) -> bool:
    """Whether a folder is a pack, or means to be one."""
    return (path / "manifest.json").is_file()


def write_pack(
    out: Path,
    table: FrameTable,
    open_pictures: Callable[[], PictureReader],
    cameras: Sequence[str],
    settings: PackSettings,
    *,
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Writes a pack; the folder appears under its name only when it is complete.

    Args:
      out: Folder to make.
      table: All frames.
      open_pictures: Gives a reader; called once a shard, because a reader that goes forward never seeks.
      cameras: Camera keys, in the order of the records.
      settings: Size and encoding.
      threads: Shards written at a time.
      progress: Told the number of frames done since the last call, from any thread.

    Raises:
      DataError: If `out` exists, or a picture is bad.
      BusyError, StorageError: As `new_folder`.
    """
    if out.exists():
        raise DataError(f"{out}: expected a folder that does not exist yet, found one; remove it or choose another")
    with new_folder(out) as scratch:
        _write_into(scratch, table, open_pictures, cameras, settings, threads, progress)


def _write_into(
    scratch: Path,
    table: FrameTable,
    open_pictures: Callable[[], PictureReader],
    cameras: Sequence[str],
    settings: PackSettings,
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Writes the files of a pack; arguments as of `write_pack`."""
    shards = list(_shards(table))

    def write(number: int) -> dict[str, Any]:
        name = f"pictures-{number:05d}.arrayrecord"
        rows = _write_shard(scratch / name, table, shards[number], open_pictures(), cameras, settings, progress)
        return {"file": name, "rows": rows}

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        written = list(pool.map(write, range(len(shards))))
    np.savez(scratch / "tables.npz", **{"/lengths": table.lengths, "/episodes": table.episodes}, **table.columns)  # pyright: ignore[reportArgumentType]
    manifest = {
        "format": FORMAT,
        "fps": table.fps,
        "cameras": list(cameras),
        **dataclasses.asdict(settings),
        "tasks": {str(index): task for index, task in table.tasks.items()},
        "shards": written,
    }
    (scratch / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


@runtime_checkable
class Records(Protocol):
    """Numbered records of bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, record: int, /) -> bytes: ...


def shard_names(path: Path, shards: Any) -> list[str]:
    """File names of the shards that a manifest lists. Raises DataError if it lists anything but files of the pack."""
    good = isinstance(shards, list) and all(
        isinstance(shard, dict)
        and isinstance(shard.get("file"), str)
        and Path(shard["file"]).name == shard["file"]
        and isinstance(shard.get("rows"), int)
        and shard["rows"] >= 0
        for shard in shards
    )
    if not good:
        raise DataError(
            f'{path}/manifest.json: expected shards inside the pack, [{{"file": name, "rows": number}}, ...], found '
            f"{str(shards)[:120]}"
        )
    return [shard["file"] for shard in shards]


class _WatchedRecords:
    """Records of shards that are compared with what they were when the pack was opened, each time one is read.

    One above record_mib is not handed on; the library has unpacked it by then, and tells no size before.
    """

    def __init__(self, records: Records, path: Path, files: Files | None, shards: Sequence[Mapping[str, Any]]) -> None:
        self._records, self._path, self._files = records, path, files
        self._places = [] if files is None else [files.place(shard["file"]) for shard in shards]
        self._ends = np.cumsum([shard["rows"] for shard in shards]).tolist()

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, record: int, /) -> bytes:
        try:
            data = self._records[record]
            budget.require("record_mib", len(data), f"{self._path}: record {record}")
            return data
        finally:  # what was changed is named as that, and not as damaged
            if self._files is not None:
                self._files.require_unchanged(self._places[bisect.bisect_right(self._ends, record)])


def open_shards(path: Path, shards: Sequence[Mapping[str, Any]], frames: int, *, files: Files | None = None) -> Records:
    """The records of a pack's shards, one a frame, to be read at random from any thread.

    Args:
      path: The pack.
      shards: Of its manifest.
      frames: Records that there must be, by its tables.
      files: Of the pack, as it was opened; a shard that changed since is an error when it is read. None: not compared.

    Raises:
      DataError: If a shard is missing or damaged, or the records are too few or too many.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource  # 0.1 s

    bounds = Bounds(path) if files is None else files.bounds
    found = [bounds.require(name) for name in shard_names(path, shards)]
    missing = [str(file) for file in found if not file.is_file()]
    if missing:
        raise DataError(f"{path}: expected the shards of its manifest, found no {missing}")
    try:
        records: Any = ArrayRecordDataSource([str(file) for file in found])
        count = len(records)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{path}: expected whole ArrayRecord shards, found {error}") from error
    if count != frames:
        raise DataError(f"{path}: expected {frames} records as in its tables, found {count}")
    if sum(shard["rows"] for shard in shards) != frames:
        raise DataError(f"{path}/manifest.json: expected shards of {frames} rows in all, found {str(shards)[:120]}")
    return _WatchedRecords(records, path, files, shards)


class PackedPictures:
    """Reads a pack's pictures at random; safe to call from several threads.

    Args:
      path: The pack.
      table: Its table, as `read_pack_table` gives it.
      cameras: Camera keys to decode; the others of a record are passed over.
      files: As of `open_shards`.

    Raises:
      DataError: If a shard is missing or damaged, or a camera is not in the pack.
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
        self._start = dict(zip(table.episodes.tolist(), table.starts.tolist(), strict=True))

    def read(self, episode: int, frame: int) -> Mapping[str, UInt8[np.ndarray, "h w 3"]]:
        """Pictures of one frame. Raises DataError if its record is damaged."""
        source = f"{self.path}: episode {episode}, row {frame}"
        try:
            record = memoryview(self._records[self._start[episode] + frame])
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise DataError(f"{source}: expected a whole record, found {error}") from error
        pictures, offset = {}, 0
        try:
            for camera in self._order:
                (size,) = struct.unpack_from("<I", record, offset)
                data = record[offset + 4 : offset + 4 + size]
                offset += 4 + size
                if camera in self._cameras:
                    pictures[camera] = self._picture(data, f"{source}, {camera}")
        except (struct.error, ValueError) as error:  # whole, but not of this manifest
            raise DataError(f"{source}: expected pictures as manifest.json says, found {error}") from error
        return pictures

    def _picture(self, data: memoryview, source: str) -> UInt8[np.ndarray, "h w 3"]:
        if self.encoding == "jpeg":
            return decode(data, source=source)
        return np.frombuffer(data, np.uint8).reshape(*self.image_size, 3)


def read_pack_table(path: Path) -> FrameTable:
    """All frames of a pack, without pictures. Raises DataError if manifest or tables are missing or damaged."""
    manifest = read_manifest(path)
    file = path / "tables.npz"
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
    manifest = read_json(path / "manifest.json")
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise DataError(f"{path}/manifest.json: expected format {FORMAT!r}, found {found!r}")
    missing = sorted({"fps", "cameras", "image_size", "encoding", "tasks", "shards"} - set(manifest))
    if missing:
        raise DataError(f"{path}/manifest.json: expected the keys {missing}, found {sorted(manifest)}")
    shard_names(path, manifest["shards"])
    wrong = {key: str(manifest[key])[:80] for key, fits in _MANIFEST.items() if not fits(manifest[key])}
    if wrong:
        raise DataError(f"{path}/manifest.json: expected values as a pack has them, found {wrong}")
    height, width = manifest["image_size"]
    require_pixels(height, width, f"{path}/manifest.json: image_size")
    return manifest


def add_pack(files: Files, *names: str) -> None:
    """Takes in the files of a pack: its manifest, its shards, and those named. Raises DataError if one leads out."""
    files.require(["manifest.json", *names])
    shards = read_json(files.bounds.require("manifest.json"))
    files.require(shard_names(files.bounds.root, shards.get("shards") if isinstance(shards, dict) else None))


def _shards(table: FrameTable) -> Iterator[list[int]]:
    """Positions of the episodes of each shard: consecutive, whole, about FRAMES_PER_SHARD frames."""
    shard: list[int] = []
    frames = 0
    for position, length in enumerate(table.lengths.tolist()):
        if shard and frames + length > FRAMES_PER_SHARD:
            yield shard
            shard, frames = [], 0
        shard.append(position)
        frames += length
    yield shard


def _write_shard(
    path: Path,
    table: FrameTable,
    positions: Sequence[int],
    pictures: PictureReader,
    cameras: Sequence[str],
    settings: PackSettings,
    progress: Callable[[int], None],
) -> int:
    from array_record.python.array_record_module import ArrayRecordWriter

    # One record a group: read alone. Pictures are compressed already, or are meant to be read at memory speed.
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    rows = 0
    for position in positions:
        episode, length = int(table.episodes[position]), int(table.lengths[position])
        for frame in range(length):
            images = pictures.read(episode, frame)
            writer.write(b"".join(_encode(images[camera], settings) for camera in cameras))
        rows += length
        progress(length)
    writer.close()
    return rows


def _encode(image: UInt8[np.ndarray, "h w 3"], settings: PackSettings) -> bytes:
    fitted = resize_with_pad(image, *settings.image_size)
    data = encode_jpeg(fitted, quality=settings.quality) if settings.encoding == "jpeg" else fitted.tobytes()
    return struct.pack("<I", len(data)) + data
