"""Images of frames at training size, from the files of episodes; `driving/data/pack.py` gives the same from a pack."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, UInt8

from chunkwise.data.images import Filter, decode_into, decode_same_size_into, one_shape, shrinks
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.identity import Files
from chunkwise.files.trouble import TRIES, is_system_error, retried
from driving.data.index import PRESENT, Index

FILTER: Filter = "bilinear"
"""How images come to the training size."""
LOOKED_AT = 1000
"""Images of a camera, spread over all, that tell how most of them are stored."""
JPEG_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif")


@runtime_checkable
class ImageSource(Protocol):
    """The cameras of any frame."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Tells stores apart that may give other pixels; enters the fingerprint of a run."""
        ...

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """Writes the wanted cameras' images of a frame; the others' are left as they are.

        Raises:
          DataError: If an image cannot be read, with its path.
        """
        ...


class FileImages:
    """Decodes the files that an index names; safe to call from several threads.

    Args:
      base: Dataset.
      index: Its index.
      cameras: Order of the camera axis; a name that the index lacks is never wanted.
      files: The dataset's, as it was opened; an image that changed since is an error when it is read. None: not
        compared.
    """

    identity: Mapping[str, str] = {"pictures": "files"}

    def __init__(self, base: Path, index: Index, cameras: Sequence[str], files: Files | None = None) -> None:
        self._base, self._index, self._files = str(base), index, files
        self._columns = columns(index, cameras)
        self._places = np.full(index.image_status.shape, -1, np.int32)
        if files is not None:
            for episode in range(len(index.files)):
                rows = index.rows(episode)
                named = np.argwhere(index.path_lengths[rows] > 0)
                places = [files.place(name) for name in index.paths(episode)]
                self._places[rows.start + named[:, 0], named[:, 1]] = places

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in ImageSource."""
        height, width = out.shape[1:3]
        for k in np.flatnonzero(wanted).tolist():
            file = self.file(row, k)
            size = self._index.image_size[row, self._columns[k]]
            decode = decode_same_size_into if size[0] == height and size[1] == width else decode_into
            data = read_bytes(file)
            if self._files is not None:
                require_unchanged(self._files, int(self._places[row, self._columns[k]]))
            decode(data, out[k], source=file, filter=FILTER)

    def file(self, row: int, k: int) -> str:
        """File of an image that there is."""
        return f"{self._base}/{self._index.path(row, self._columns[k])}"


def recorded_size(index: Index, camera: str) -> tuple[int, int] | None:
    """Returns height and width of most of a camera's images as they were recorded; None where it has none."""
    counts = _sizes(index, camera)
    return max(counts, key=lambda size: counts[size], default=None)


def _sizes(index: Index, camera: str) -> dict[tuple[int, int], int]:
    """How many of a camera's images were recorded at each height and width."""
    (column,) = columns(index, [camera])
    if column < 0:
        return {}
    there = index.image_size[index.image_status[:, column] == PRESENT, column]
    sizes, counts = np.unique(there, axis=0, return_counts=True)
    return {(int(high), int(wide)): int(count) for (high, wide), count in zip(sizes, counts, strict=True)}


def recorded_sizes(index: Index, cameras: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns height and width at which cameras were recorded, where `one_shape` knows them; as `shrunk_cameras`."""
    return {name: size for name in cameras if (size := one_shape(_sizes(index, name))) is not None}


def shrunk_cameras(index: Index, cameras: Sequence[str], size: tuple[int, int]) -> Iterator[str]:
    """Yields the cameras most of whose images are JPEGs, by their names, that libjpeg shrinks on their way to a size.

    Args:
      index: Of a dataset; that of a pack has the images of which the pack was made.
      cameras: Those that are looked at.
      size: Height and width for training.
    """
    for camera, column in zip(cameras, columns(index, cameras), strict=True):
        if column < 0:
            continue
        there, shrunk = np.flatnonzero(index.image_status[:, column] == PRESENT), 0
        there = there[np.linspace(0, len(there) - 1, min(len(there), LOOKED_AT)).astype(np.int64)]
        for row in there.tolist():
            height, width = index.image_size[row, column].tolist()
            named = str(index.path(row, column)).lower().endswith(JPEG_ENDINGS)
            shrunk += named and shrinks((height, width), size)
        if 2 * shrunk > len(there):
            yield camera


def require_unchanged(files: Files, place: int) -> None:
    """As `Files.require_unchanged`, with a DataError where a file was touched and cannot be read."""
    try:
        files.require_unchanged(place)
    except OSError as error:
        raise DataError(f"{files.path(place)}: expected a readable image, found {error}") from error


class CachedImages:
    """Keeps decoded images up to a number of bytes; the first that come stay until the end.

    Nothing is replaced: an epoch shows every image once in random order, so what was used last is what is needed
    last, and the hit rate of a cache that replaces nothing is its share of the dataset.
    """

    def __init__(self, inner: ImageSource, max_bytes: int) -> None:
        self.bytes = 0
        self._inner, self._max = inner, max_bytes
        self._kept: dict[tuple[int, int], np.ndarray] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> Mapping[str, str]:
        """Of what is cached."""
        return self._inner.identity

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in ImageSource."""
        missing = wanted.copy()
        for k in np.flatnonzero(wanted).tolist():
            kept = self._kept.get((row, k))
            if kept is not None:
                out[k] = kept
                missing[k] = False
        self._inner.read(row, missing, out)
        for k in np.flatnonzero(missing).tolist():
            with self._lock:
                if (row, k) in self._kept or self.bytes + out[k].nbytes > self._max:
                    continue
                self.bytes += out[k].nbytes
                self._kept[row, k] = out[k].copy()


def columns(index: Index, cameras: Sequence[str]) -> list[int]:
    """Position of each camera in the index; -1 where no episode has it."""
    return [index.cameras.index(name) if name in index.cameras else -1 for name in cameras]


def by_camera(index: Index, array: np.ndarray, cameras: Sequence[str], empty: float | int) -> np.ndarray:
    """Returns what an array [T, all cameras, ...] of an index says of these cameras; `empty` of those that it lacks."""
    picks = np.array(columns(index, cameras))
    found = np.full((len(array), len(picks), *array.shape[2:]), empty, array.dtype)
    found[:, picks >= 0] = array[:, picks[picks >= 0]]
    return found


def read_bytes(file: str) -> bytes:
    """A file's bytes, tried again if reading fails. Raises DataError with its path, at once if it is no file or too
    large."""
    try:
        return retried(lambda: budget.read_bytes(file, "image_mib"), again=is_system_error)
    except OSError as error:
        raise DataError(f"{file}: expected a readable image, found {error} in up to {TRIES} tries") from error
