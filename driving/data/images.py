"""Pictures of frames at training size, from the files of episodes; `driving/pack.py` gives the same from a pack."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import simplejpeg
from jaxtyping import Bool, UInt8
from PIL import Image

from chunkwise.data.images import decode, picture_size, require_few_scans
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.identity import Files
from chunkwise.files.trouble import TRIES, is_system_error, retried
from driving.data.index import Index


@runtime_checkable
class Pictures(Protocol):
    """The cameras of any frame."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Tells stores apart that may give other pixels; enters the fingerprint of a run."""
        ...

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """Writes the wanted cameras' pictures of a frame; the others' are left as they are.

        Raises:
          DataError: If a picture cannot be read, with its path.
        """
        ...


class FilePictures:
    """Decodes the files that an index names; safe to call from several threads.

    Args:
      base: Dataset.
      index: Its index.
      cameras: Order of the camera axis; a name that the index lacks is never wanted.
      files: The dataset's, as it was opened; a picture that changed since is an error when it is read. None: not
        compared.
    """

    identity: Mapping[str, str] = {"pictures": "files"}

    def __init__(self, base: Path, index: Index, cameras: Sequence[str], files: Files | None = None) -> None:
        self._base, self._index, self._files = str(base), index, files
        self._columns = columns(index, cameras)
        self._places = np.full(index.picture.shape, -1, np.int32)
        if files is not None:
            for episode in range(len(index.files)):
                rows = index.rows(episode)
                named = np.argwhere(index.path_lengths[rows] > 0)
                places = [files.place(name) for name in index.paths(episode)]
                self._places[rows.start + named[:, 0], named[:, 1]] = places

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in Pictures."""
        height, width = out.shape[1:3]
        for k in np.flatnonzero(wanted).tolist():
            file = self.file(row, k)
            size = self._index.picture_size[row, self._columns[k]]
            decode = decode_same_size if size[0] == height and size[1] == width else decode_into
            data = read_bytes(file)
            if self._files is not None:
                require_unchanged(self._files, int(self._places[row, self._columns[k]]))
            decode(data, out[k], source=file)

    def file(self, row: int, k: int) -> str:
        """File of a picture that there is."""
        return f"{self._base}/{self._index.path(row, self._columns[k])}"


def require_unchanged(files: Files, place: int) -> None:
    """As `Files.require_unchanged`, with a DataError where a file was touched and cannot be read."""
    try:
        files.require_unchanged(place)
    except OSError as error:
        raise DataError(f"{files.path(place)}: expected a readable picture, found {error}") from error


class CachedPictures:
    """Keeps decoded pictures up to a number of bytes; the first that come stay until the end.

    Nothing is replaced: an epoch shows every picture once in random order, so what was used last is what is needed
    last, and the hit rate of a cache that replaces nothing is its share of the dataset.
    """

    def __init__(self, inner: Pictures, max_bytes: int) -> None:
        self.bytes = 0
        self._inner, self._max = inner, max_bytes
        self._kept: dict[tuple[int, int], np.ndarray] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> Mapping[str, str]:
        """Of what is cached."""
        return self._inner.identity

    def read(self, row: int, wanted: Bool[np.ndarray, " k"], out: UInt8[np.ndarray, "k h w 3"]) -> None:
        """As in Pictures."""
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


def read_bytes(file: str) -> bytes:
    """A file's bytes, tried again if reading fails. Raises DataError with its path, at once if it is no file or too
    large."""
    try:
        return retried(lambda: budget.read_bytes(file, "image_mib"), again=is_system_error)
    except OSError as error:
        raise DataError(f"{file}: expected a readable picture, found {error} in up to {TRIES} tries") from error


def decode_into(data: bytes | memoryview, out: UInt8[np.ndarray, "h w 3"], *, source: str) -> None:
    """Decodes a JPEG or PNG, stretched to the size of `out` (bilinear, antialiased).

    A large JPEG is decoded at the smallest of the fractions n/8 that is not below that size, which is several times
    faster than decoding it whole.

    Raises:
      DataError: As `chunkwise.data.images.decode`.
    """
    size = picture_size(data, source=source)
    height, width = out.shape[:2]
    if bytes(data[:3]) != b"\xff\xd8\xff":
        out[:] = stretch(decode(data, source=source), height, width)
        return
    require_few_scans(data, source=source)
    try:
        if size == (height, width):
            simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out, strict=True)
            return
        picture = simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width, strict=True)
    except ValueError as error:
        raise DataError(
            f"{source}: expected a whole JPEG of {size[0]} x {size[1]}, found damaged data: {error}"
        ) from error
    out[:] = stretch(picture, height, width)


def decode_same_size(data: bytes | memoryview, out: UInt8[np.ndarray, "h w 3"], *, source: str) -> None:
    """As `decode_into`, in one call where the picture is a JPEG of the size of `out`, as the caller expects.

    The header is not read on its own first, which would take Python's lock once more for every picture.
    """
    require_few_scans(data, source=source)
    try:
        shown = simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out, strict=True)
    except ValueError:  # no JPEG, larger than `out`, or damaged: the other one tells which
        decode_into(data, out, source=source)
        return
    if shown.shape != out.shape:
        decode_into(data, out, source=source)


def stretch(picture: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A picture at another size; both axes are scaled on their own."""
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, height), resample=Image.Resampling.BILINEAR))
