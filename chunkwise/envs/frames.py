"""Images of a rollout as they lie in its file: each frame compressed by itself, read when it is asked for.

A frame is a zlib stream, whose own checksum tells damage, made with the fastest level; where the first frame does not
become a tenth smaller, as with noise, all are stored as they are. Whoever trains on windows of many rollouts reads the
few frames that a batch has, from the page cache, and holds none of the others.
"""

import copy
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Int64, UInt8

from chunkwise.errors import DataError

FAST, AS_THEY_ARE = 1, 0
"""Levels of zlib."""
PAYS = 0.9
"""Size, in those of the raw frame, from which on the first frame's compression is not worth its time."""


def pack(frames: UInt8[np.ndarray, "n *shape"]) -> tuple[UInt8[np.ndarray, " bytes"], Int64[np.ndarray, " n"]]:
    """Compresses frames; returns them one after another, and where each of them ends."""
    level = FAST
    if len(frames) and len(zlib.compress(frames[0].tobytes(), FAST)) > PAYS * frames[0].nbytes:
        level = AS_THEY_ARE
    streams = [zlib.compress(frame.tobytes(), level) for frame in frames]
    ends = np.cumsum([len(stream) for stream in streams], dtype=np.int64)
    return np.frombuffer(b"".join(streams), np.uint8), ends


class Frames:
    """Packed frames, as far as an array of them is needed: `len`, `shape`, `dtype`, a frame by its number, Frames of a
    slice, all of them as an array."""

    dtype = np.dtype(np.uint8)

    def __init__(
        self, packed: UInt8[np.ndarray, " bytes"], ends: Int64[np.ndarray, " n"], shape: tuple[int, ...], source: str
    ) -> None:
        """Reads none of them.

        Args:
          packed: As `pack` gives them; mapped into memory, say.
          ends: As `pack` gives them.
          shape: Of a frame.
          source: Names them in errors.

        Raises:
          DataError: These are not the ends of so many bytes.
        """
        if ends.ndim != 1 or ends.dtype.kind not in "iu" or packed.ndim != 1 or packed.dtype != np.uint8:
            raise DataError(f"{source}: expected packed frames and their ends, found {packed.dtype} and {ends.dtype}")
        if len(ends) and ((np.diff(ends, prepend=0) < 0).any() or ends[-1] != len(packed)):
            raise DataError(f"{source}: expected {len(packed)} bytes of frames, found ends up to {ends[-1]}")
        bounds = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
        self._packed, self._frame, self._source = packed, shape, source
        self._places = np.stack([bounds[:-1], bounds[1:]], axis=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that these frames would be."""
        return (len(self), *self._frame)

    @property
    def ndim(self) -> int:
        """Of the array that these frames would be."""
        return 1 + len(self._frame)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: slice) -> "Frames": ...
    @overload
    def __getitem__(self, number: int) -> UInt8[np.ndarray, "*shape"]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            some = copy.copy(self)
            some._places = self._places[number]
            return some
        number = range(len(self))[number]
        begin, end = self._places[number].tolist()
        stream: Any = self._packed[begin:end]
        size = int(np.prod(self._frame, dtype=np.int64))
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(stream, size + 1)  # no more, whatever the stream holds
        except zlib.error as error:
            raise DataError(f"{self._source}: frame {number} is damaged: {error}") from error
        if len(raw) != size or not unpacker.eof:
            raise DataError(f"{self._source}: frame {number}: expected {size} bytes, found another number")
        return np.frombuffer(raw, np.uint8).reshape(self._frame)

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "*shape"]]:
        return (self[number] for number in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.empty(self.shape, np.uint8)
        for number, frame in enumerate(self):
            whole[number] = frame
        return whole if dtype is None else whole.astype(dtype)


def mapped(path: Path, offset: int, size: int) -> UInt8[np.ndarray, " bytes"]:
    """Maps bytes of a file into memory, to be read when they are looked at."""
    if not size:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r", offset=offset, shape=(size,))
