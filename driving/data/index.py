"""The index of a dataset: what its JSON files say, as flat arrays over all frames.

An episode is parsed once, and again only when a file's content changes; names in it are relative, so that a dataset
can be moved. Training reads the index and the images, never JSON. It is kept in the cache (scan.py), and as
`_index.npz` in a pack, of which it is a part; wherever it comes from, its arrays are checked against one another.
"""

import dataclasses
import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int8, Int32, Int64, UInt8

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.npz import parse_npz
from chunkwise.files.strict_json import parse_json
from driving.data.episodes import ROUTE_COMMANDS
from driving.data.history import COLUMNS
from driving.data.rater import Rated

INDEX_FILE = "_index.npz"
"""In a pack. Earlier versions kept one beside the episodes of any dataset; such a file is ignored."""
FORMATS = ("chunkwise-driving-index-2", "chunkwise-driving-index-3", "chunkwise-driving-index-4")
"""Each has what the one before has not (_LATER); an index of drives that have none of it is written as the one before.

The second has histories and the source's own split, the third waypoints of an expert where the car went elsewhere.
"""
MAX_SIDE = 1 << 20
NONE, PRESENT, ABSENT = 0, 1, 2
"""Image not named; named and there; named, and its file is absent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
    """All frames (F) of e episodes, one after another, and all c cameras that occur, sorted by name."""

    cameras: tuple[str, ...]
    files: tuple[str, ...]
    """JSON file of each episode, relative to the dataset."""
    ids: tuple[str, ...]
    recordings: tuple[str, ...]
    content_hashes: tuple[str, ...]
    """SHA-256 of each JSON file."""
    drive_hashes: tuple[str, ...]
    """SHA-256 of what each episode shows (times, states, images), whatever its id and file names."""
    lengths: Int64[np.ndarray, " e"]
    t: Float64[np.ndarray, " F"]
    pose: Float64[np.ndarray, "F 3"]
    speed_mps: Float64[np.ndarray, " F"]
    yaw_rate_radps: Float64[np.ndarray, " F"]
    route_command: Int8[np.ndarray, " F"]
    image_status: UInt8[np.ndarray, "F c"]
    """NONE, PRESENT or ABSENT."""
    image_size: Int32[np.ndarray, "F c 2"]
    """Height and width of the file's image; 0 unless PRESENT."""
    path_bytes: UInt8[np.ndarray, " bytes"]
    """Image paths relative to the dataset, UTF-8, one after another in the order of `image_status`."""
    path_lengths: Int32[np.ndarray, "F c"]
    t_offset_s: Float32[np.ndarray, "F c"]
    camera_pose: Float64[np.ndarray, "F c 3"]
    calibration: Int32[np.ndarray, "F c"]
    """Row of intrinsics and extrinsics; -1 where either is unknown."""
    intrinsics: Float64[np.ndarray, "m 3 3"]
    extrinsics: Float64[np.ndarray, "m 4 4"]
    waypoint_counts: Int64[np.ndarray, " e"]
    """Waypoints a frame of each episode; a shorter list is NaN at its end."""
    waypoint_dt_s: Float64[np.ndarray, " e"]
    waypoints_driven: Bool[np.ndarray, " e"]
    """Whether the car went to the waypoints; else an expert would have."""
    waypoints: Float32[np.ndarray, "all 2"]
    """lengths[i] x waypoint_counts[i] rows of each episode in turn."""
    rated_counts: Int32[np.ndarray, " F"]
    """Trajectories that people rated, by frame: r in all."""
    rated_scores: Float32[np.ndarray, " r"]
    rated_dt_s: Float64[np.ndarray, " r"]
    rated_lengths: Int32[np.ndarray, " r"]
    rated_waypoints: Float32[np.ndarray, "places 2"]
    """rated_lengths[i] rows of each trajectory in turn."""
    splits: tuple[str, ...]
    """What the source of each episode calls the part of it that the drive is of; empty where it does not say."""
    history_counts: Int32[np.ndarray, " F"]
    """States of each frame's history (driving/data/history.py): s in all."""
    history_dt_s: Float64[np.ndarray, " F"]
    """Seconds between two of them; 0 where there is none."""
    history: Float32[np.ndarray, "s 6"]
    """history_counts[i] rows of each frame in turn."""

    @functools.cached_property
    def starts(self) -> Int64[np.ndarray, " e"]:
        """First row of each episode."""
        return np.cumsum(self.lengths) - self.lengths

    @functools.cached_property
    def _path_ends(self) -> Int64[np.ndarray, " places"]:
        return np.cumsum(self.path_lengths.reshape(-1), dtype=np.int64)

    @functools.cached_property
    def _path_text(self) -> bytes:
        return self.path_bytes.tobytes()

    @functools.cached_property
    def _waypoint_ends(self) -> Int64[np.ndarray, " e"]:
        return np.cumsum(self.lengths * self.waypoint_counts)

    @functools.cached_property
    def _rated_ends(self) -> Int64[np.ndarray, " F"]:
        return np.cumsum(self.rated_counts, dtype=np.int64)

    @functools.cached_property
    def _rated_waypoint_ends(self) -> Int64[np.ndarray, " r"]:
        return np.cumsum(self.rated_lengths, dtype=np.int64)

    @functools.cached_property
    def _history_ends(self) -> Int64[np.ndarray, " F"]:
        return np.cumsum(self.history_counts, dtype=np.int64)

    @property
    def frames(self) -> int:
        """F."""
        return len(self.t)

    def rows(self, episode: int) -> slice:
        """Rows of an episode."""
        return slice(int(self.starts[episode]), int(self.starts[episode] + self.lengths[episode]))

    def episode_of(self, rows: Int64[np.ndarray, " b"]) -> Int64[np.ndarray, " b"]:
        """Episode that each row belongs to."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def recording_of(self, rows: Int64[np.ndarray, " b"]) -> Int64[np.ndarray, " b"]:
        """First episode of the recording that each row belongs to."""
        first: dict[str, int] = {}
        number = np.array([first.setdefault(name, i) for i, name in enumerate(self.recordings)], np.int64)
        return number[self.episode_of(rows)]

    def path(self, row: int, camera: int) -> str | None:
        """Path of an image relative to the dataset; None where none is named."""
        place = row * len(self.cameras) + camera
        length = int(self.path_lengths[row, camera])
        end = int(self._path_ends[place])
        return self._path_text[end - length : end].decode() if length else None

    def paths(self, episode: int) -> Iterator[str]:
        """Names of the images that an episode names, in the order of `image_status`."""
        rows = self.rows(episode)
        for row, camera in np.argwhere(self.path_lengths[rows] > 0).tolist():
            name = self.path(rows.start + row, camera)
            assert name is not None
            yield name

    def expert_waypoints(self, episode: int) -> Float32[np.ndarray, "T m 2"]:
        """What an episode lists as waypoints."""
        length, count = int(self.lengths[episode]), int(self.waypoint_counts[episode])
        end = int(self._waypoint_ends[episode])
        return self.waypoints[end - length * count : end].reshape(length, count, 2)

    def rated(self, row: int) -> tuple[Rated, ...]:
        """The trajectories of a frame that people rated."""
        last = int(self._rated_ends[row])
        return tuple(self._rated(i) for i in range(last - int(self.rated_counts[row]), last))

    def history_of(self, rows: slice) -> Float32[np.ndarray, "states 6"]:
        """The histories of some frames, one after another."""
        return self.history[slice(*(int(self._history_ends[row - 1]) if row else 0 for row in (rows.start, rows.stop)))]

    def _rated(self, i: int) -> Rated:
        end = int(self._rated_waypoint_ends[i])
        return Rated(
            waypoints=self.rated_waypoints[end - int(self.rated_lengths[i]) : end].astype(np.float64),
            dt_s=float(self.rated_dt_s[i]),
            score=float(self.rated_scores[i]),
        )

    def one(self, episode: int) -> "Index":
        """The index of one episode alone."""
        rows, width = self.rows(episode), len(self.cameras)
        first, last = (int(self._path_ends[row * width - 1]) if row * width else 0 for row in (rows.start, rows.stop))
        used = np.unique(self.calibration[rows])
        used = used[used >= 0]
        calibration = np.searchsorted(used, self.calibration[rows]).astype(np.int32)
        rated = slice(*(int(self._rated_ends[row - 1]) if row else 0 for row in (rows.start, rows.stop)))
        places = slice(*(int(self._rated_waypoint_ends[i - 1]) if i else 0 for i in (rated.start, rated.stop)))
        values: dict[str, Any] = {
            "cameras": self.cameras,
            "path_bytes": self.path_bytes[first:last],
            "calibration": np.where(self.calibration[rows] < 0, np.int32(-1), calibration),
            "intrinsics": self.intrinsics[used],
            "extrinsics": self.extrinsics[used],
            "waypoints": self.expert_waypoints(episode).reshape(-1, 2),
            "rated_scores": self.rated_scores[rated],
            "rated_dt_s": self.rated_dt_s[rated],
            "rated_lengths": self.rated_lengths[rated],
            "rated_waypoints": self.rated_waypoints[places],
            "history": self.history_of(rows),
        }
        for field in dataclasses.fields(Index):
            whole = getattr(self, field.name)
            if field.name in _BY_EPISODE:
                values[field.name] = whole[episode : episode + 1]
            elif field.name not in values:
                values[field.name] = whole[rows]
        return Index(**values)


_BY_CAMERA = {
    "image_status": NONE,
    "image_size": 0,
    "path_lengths": 0,
    "t_offset_s": 0.0,
    "camera_pose": np.nan,
    "calibration": -1,
}
"""Arrays with a camera axis, and what they hold for a camera that an episode does not have."""
_STORED = {"image_status": "picture", "image_size": "picture_size"}
"""Arrays by the names that they have in a file, which are those of the first version: packs are compared by content."""
_NAMES = ("files", "ids", "recordings", "content_hashes", "drive_hashes", "splits")
_LATER = ((), ("splits", "history_counts", "history_dt_s", "history"), ("waypoints_driven",))
"""What each of FORMATS has that those before it have not."""
_BY_EPISODE = (*_NAMES, "lengths", "waypoint_counts", "waypoint_dt_s", "waypoints_driven")


_ELSEWHERE = ("files", "path_bytes", "path_lengths", "content_hashes", "calibration", "intrinsics", "extrinsics")
"""Fields that `differing` does not compare as they stand: names, hashes of others, and where matrices are listed."""


def differing(one: Index, other: Index) -> list[str]:
    """Returns the fields in which two indexes differ in content: their files may have other names."""
    first = ("ids", "lengths", "cameras", "drive_hashes")
    rest = (field.name for field in dataclasses.fields(Index) if field.name not in (*first, *_ELSEWHERE))
    found = [name for name in (*first, *rest) if not _same(getattr(one, name), getattr(other, name))]
    if not _same(one.calibration >= 0, other.calibration >= 0):
        return [*found, "calibration"]
    used = [(index, index.calibration[index.calibration >= 0]) for index in (one, other)]
    for name in ("intrinsics", "extrinsics"):
        found += [] if _same(*(getattr(index, name)[rows] for index, rows in used)) else [name]
    return found


def _same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")


def concatenate(parts: Sequence[Index]) -> Index:
    """One index of the parts' episodes, in order, with the cameras of which any says something."""
    cameras = tuple(sorted({camera for part in parts for camera in part.cameras}))
    offsets = np.cumsum([0, *(len(part.intrinsics) for part in parts)])
    values: dict[str, Any] = {"cameras": cameras}
    for field in dataclasses.fields(Index):
        if field.name == "cameras":
            continue
        arrays = [getattr(part, field.name) for part in parts]
        if field.name in _NAMES:
            values[field.name] = tuple(name for names in arrays for name in names)
            continue
        if field.name == "calibration":
            arrays = [np.where(a < 0, a, a + o).astype(np.int32) for a, o in zip(arrays, offsets[:-1], strict=True)]
        if field.name in _BY_CAMERA:
            arrays = [
                _widen(a, part.cameras, cameras, _BY_CAMERA[field.name]) for a, part in zip(arrays, parts, strict=True)
            ]
        values[field.name] = np.concatenate(arrays)
    return without_empty_cameras(Index(**values))


def without_empty_cameras(index: Index) -> Index:
    """The index without cameras that no episode says anything of, as those of an episode that was taken out of it."""
    used = np.zeros(len(index.cameras), bool)
    for name, empty in _BY_CAMERA.items():
        array = getattr(index, name)
        said = ~np.isnan(array) if np.isnan(empty) else array != empty
        used |= said.any(axis=tuple(axis for axis in range(array.ndim) if axis != 1))
    if used.all():
        return index
    cameras = tuple(name for name, there in zip(index.cameras, used.tolist(), strict=True) if there)
    kept = {name: np.compress(used, getattr(index, name), axis=1) for name in _BY_CAMERA}
    return dataclasses.replace(index, cameras=cameras, **kept)


def _widen(array: np.ndarray, own: Sequence[str], cameras: Sequence[str], empty: float | int) -> np.ndarray:
    """`array` with its camera axis spread over more cameras. Both lists are sorted, so paths keep their order."""
    if tuple(own) == tuple(cameras):
        return array
    out = np.full((len(array), len(cameras), *array.shape[2:]), empty, array.dtype)
    out[:, [cameras.index(name) for name in own]] = array
    return out


def pack(index: Index) -> bytes:
    """An index as an uncompressed .npz file."""
    later = any(index.splits) or bool(index.history_counts.any())
    which = int(later) if index.waypoints_driven.all() else 2
    left_out = _lacking(which)
    names = {name: getattr(index, name) for name in ("cameras", *_NAMES) if name not in left_out}
    head = np.frombuffer(json.dumps({"format": FORMATS[which], **names}).encode(), np.uint8)
    fields = [f.name for f in dataclasses.fields(Index) if f.name not in left_out]
    arrays = {name: getattr(index, name) for name in fields if name not in names}
    arrays = {_STORED.get(name, name): array for name, array in arrays.items()}
    out = io.BytesIO()
    np.savez(out, head=head, **arrays)
    return out.getvalue()


def _lacking(which: int) -> list[str]:
    """Names of what an index of one of FORMATS has not."""
    return [name for later in _LATER[which + 1 :] for name in later]


def unpack(content: bytes, *, source: str) -> Index:
    """Inverse of `pack`.

    Raises:
      DataError: If it is damaged, of another format, or its arrays contradict one another.
    """
    try:
        values: dict[str, Any] = parse_npz(content, source=source)
        head = parse_json(values.pop("head").tobytes().decode(), source=f"{source}: head")
        found = head.pop("format")
        if found not in FORMATS:
            raise DataError(
                f"{source}: expected format {FORMATS[-1]!r}, found {found!r} of another version; pack again"
            )
        values |= {name: tuple(names) for name, names in head.items()}
        values |= {name: values.pop(stored) for name, stored in _STORED.items()}
        without = _without_later(values)
        values |= {name: without[name] for name in _lacking(FORMATS.index(found))}
        sizes, wrong = _sizes(values)
        index = None if wrong else Index(**values)
        if index is not None:
            wrong = _contradiction(index, sizes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source}: expected an index of driving episodes, found {error!r}") from error
    if wrong or index is None:
        raise DataError(f"{source}: expected an index of driving episodes, found {wrong}")
    return index


def _without_later(values: Mapping[str, Any]) -> dict[str, Any]:
    """_LATER of drives that have none of it."""
    frames = len(values["t"])
    return {
        "waypoints_driven": np.ones(len(values["files"]), bool),
        "splits": ("",) * len(values["files"]),
        "history_counts": np.zeros(frames, np.int32),
        "history_dt_s": np.zeros(frames),
        "history": np.zeros((0, COLUMNS), np.float32),
    }


def load(file: Path) -> Index:
    """Reads an index. Raises DataError if it is missing, or as `unpack`."""
    try:
        return unpack(budget.read_bytes(file, "decoded_mib"), source=str(file))
    except OSError as error:
        raise DataError(f"{file}: expected an index of driving episodes, found {error!r}") from error


def _sizes(values: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """Sizes of the dimensions of an index's arrays by their letters, and which array has another dtype or shape."""
    sizes = {"e": len(values["files"]), "c": len(values["cameras"])}
    for field in dataclasses.fields(Index):
        value = values[field.name]
        if field.name in ("cameras", *_NAMES):
            wanted = sizes["c" if field.name == "cameras" else "e"]
            if len(value) != wanted or not all(isinstance(name, str) for name in value):
                return sizes, f"{field.name}: {str(value)[:80]}, expected {wanted} texts"
            continue
        kind: Any = field.type
        shape, dims = value.shape, kind.dim_str.split()
        if value.dtype.name not in kind.dtypes or len(shape) != len(dims):
            return sizes, f"{field.name} as {value.dtype} of shape {shape}"
        for size, dim in zip(shape, dims, strict=True):
            wanted = int(dim) if dim.isdigit() else sizes.setdefault(dim, size)
            if size != wanted:
                return sizes, f"{field.name} of shape {shape}, where {wanted} are expected of {size}"
    return sizes, ""


def _contradiction(index: Index, sizes: Mapping[str, int]) -> str:
    """What is wrong with the values of an index, each array on its own and beside the others; empty if nothing is."""
    if list(index.cameras) != sorted(set(index.cameras)):
        return f"cameras {list(index.cameras)}, which are not sorted and different"
    sums = (
        ("lengths", index.lengths, sizes["F"], 1),
        ("path_lengths", index.path_lengths, sizes["bytes"], 0),
        ("waypoint_counts", index.waypoint_counts, None, 0),
        ("rated_counts", index.rated_counts, sizes["r"], 0),
        ("rated_lengths", index.rated_lengths, sizes["places"], 0),
        ("history_counts", index.history_counts, sizes["s"], 0),
    )
    for name, counts, total, least in sums:
        if counts.size and int(counts.min()) < least:
            return f"{name} with {int(counts.min())}"
        if total is not None and sum(counts.reshape(-1).tolist()) != total:
            return f"{name} that do not add up to {total}"
    waypoints = sum(a * b for a, b in zip(index.lengths.tolist(), index.waypoint_counts.tolist(), strict=True))
    if waypoints != sizes["all"]:
        return f"{sizes['all']} waypoints, where the counts say {waypoints}"
    ranges = (
        ("image_status", index.image_status, NONE, ABSENT),
        ("calibration", index.calibration, -1, sizes["m"] - 1),
        ("image_size", index.image_size, 0, MAX_SIDE),
        ("route_command", index.route_command, 0, len(ROUTE_COMMANDS) - 1),
    )
    for name, values, low, high in ranges:
        if values.size and not low <= int(values.min()) <= int(values.max()) <= high:
            return f"{name} from {values.min()} to {values.max()}, expected {low} to {high}"
    if not (index.history_dt_s[index.history_counts > 0] > 0).all():
        return "histories without time between their states"
    if ((index.image_status != NONE) & (index.path_lengths == 0)).any():
        return "images without a name"
    for episode in range(sizes["e"]):
        for name in (index.files[episode], *index.paths(episode)):
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                return f"the name {name!r}, which leads out of the dataset"
    return ""
