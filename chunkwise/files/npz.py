"""Reading .npz files that others wrote: sizes checked before they are believed, no pickle, one kind of error.

And writing some of arrays that others named.
"""

import errno
import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from chunkwise.errors import DataError
from chunkwise.files import budget

MAX_HEADER = 1 << 16
"""Bytes of an array's header; numpy writes 128 and reads at most 10,000, after it has allocated what is declared."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile unpacks others without a bound
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, RuntimeError)
"""What zipfile raises of a damaged file. ValueError: an offset before the file's begin, a name that is no UTF-8.
RuntimeError: an encrypted member, a version or a compression that it does not know."""
_PIECE = 1 << 20
_LOCAL = 30
"""Bytes of the header before a member, up to its name; the last four are the lengths of name and extra field."""
_BAD_HEADER = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)
"""What numpy's parser of a header raises, which is Python's own parser, after Python 2's as a second try."""


def read_npz(path: str | Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of a .npz file by name.

    Args:
      path: The file.
      names: Arrays to read, where they are there; None reads all.

    Raises:
      OSError: It cannot be read.
      DataError: It is no regular file, no .npz file, damaged, holds objects, or costs more than a limit.
    """
    with budget.open_file(path) as file:
        return _read(file, os.fstat(file.fileno()).st_size, str(path), names)


def write_npz(
    file: BinaryIO | Path, arrays: Mapping[str, np.ndarray], *, deflated: Callable[[str], bool] = lambda name: False
) -> None:
    """Writes a .npz file of arrays that may have any names; its bytes depend on nothing else.

    numpy's savez takes names as arguments beside its own: it fails on an array called file, and loses one called
    allow_pickle.

    Args:
      file: Open, or the path.
      arrays: By name; no objects.
      deflated: Which names are compressed.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # of 1980: the bytes do not depend on the clock
            info.compress_type = zipfile.ZIP_DEFLATED if deflated(name) else zipfile.ZIP_STORED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def stored_bytes(path: str | Path) -> dict[str, tuple[int, int]]:
    """Where the uncompressed arrays of bytes of a .npz file lie, as offset and size by name; all of its names else.

    An array that is compressed, or of another dtype or more dimensions, has the offset -1.

    Raises:
      OSError: It cannot be read.
      DataError: It is no .npz file, or damaged; the arrays themselves are not looked at.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        with budget.open_file(path) as file, zipfile.ZipFile(file) as archive:
            end = os.fstat(file.fileno()).st_size
            for info in archive.infolist():
                place = (-1, 0)
                if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                    with archive.open(info) as stream:
                        shape, _, dtype = _header(stream, f"{path}: {info.filename}")
                        header = stream.tell()
                    file.seek(info.header_offset)
                    local = file.read(_LOCAL)
                    name, extra = struct.unpack("<HH", local[-4:])
                    begin = info.header_offset + _LOCAL + name + extra + header
                    if dtype == np.uint8 and len(shape) == 1 and shape[0] == info.file_size - header:
                        place = (begin, shape[0])
                        if begin + shape[0] > end:
                            raise DataError(f"{path}: {info.filename}: expected it within the file, which ends before")
                found[info.filename.removesuffix(".npy")] = place
    except _DAMAGE as error:
        raise DataError(f"{path}: expected a whole .npz file, found {error}") from error
    return found


def parse_npz(content: bytes, *, source: str) -> dict[str, np.ndarray]:
    """Arrays of the bytes of an .npz file; `source` names it in errors. Raises DataError as `read_npz`."""
    return _read(io.BytesIO(content), len(content), source, None)


def _read(
    file: io.BufferedReader | io.BytesIO, size: int, source: str, names: Collection[str] | None
) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(file) as archive:
            names_of = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            if twice := [name for name, count in Counter(names_of).items() if count > 1]:
                raise DataError(f"{source}: expected one array of each name, found several called {twice[0]!r}")
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            budget.require("table_columns", len(members), source, "arrays")
            spent = budget.Spent(source, size)
            wanted = [name for name in members if names is None or name in names]
            return {name: _read_member(archive, members[name], spent, f"{source}: {name}") for name in wanted}
    except _DAMAGE as error:
        raise DataError(f"{source}: expected a whole .npz file, found {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DataError(f"{source}: expected a whole .npz file, found a place outside of it: {error}") from error


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, spent: budget.Spent, source: str) -> np.ndarray:
    if info.compress_type not in _METHODS or info.flag_bits & 1:
        raise DataError(f"{source}: expected a stored or deflated array, found another kind of compression")
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(stream, source)
        count = math.prod(shape)
        declared = count * dtype.itemsize
        left = info.file_size - stream.tell()
        if declared != left:
            raise DataError(f"{source}: expected {declared} bytes for {dtype} of shape {shape}, found {left}")
        spent.add(declared, source.rpartition(": ")[2])
        flat = np.empty(count, dtype)
        _fill(stream, flat.view(np.uint8).data if declared else memoryview(b""), source)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _header(stream: Any, source: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and dtype that an array's header declares."""
    begin = stream.read(8)
    width = {1: 2, 2: 4, 3: 4}.get(begin[6] if len(begin) == 8 and begin[:6] == b"\x93NUMPY" else 0)
    if width is None:
        raise DataError(f"{source}: expected an array of numpy's format, found {begin!r} at its begin")
    size = stream.read(width)
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER:
        raise DataError(f"{source}: expected a header of at most {MAX_HEADER} bytes, found {length} declared")
    text = stream.read(length)
    read = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(io.BytesIO(size + text))
    except _BAD_HEADER as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{source}: expected an array's header, found {words}") from error
    if dtype.hasobject or dtype.itemsize == 0 or dtype.names is not None or dtype.subdtype is not None:
        raise DataError(f"{source}: expected numbers or text, found dtype {dtype}")
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise DataError(f"{source}: expected a shape of sizes of at least 0, found {shape}")
    return shape, fortran, dtype


def _fill(stream: Any, out: memoryview, source: str) -> None:
    """Reads exactly as many bytes as `out` has, and to the end, where zipfile compares the checksum."""
    at = 0
    while at < len(out):
        piece = stream.read(min(_PIECE, len(out) - at))
        if not piece:
            raise DataError(f"{source}: expected {len(out)} bytes, found {at}: the file is cut short")
        out[at : at + len(piece)] = piece
        at += len(piece)
    if stream.read(1):
        raise DataError(f"{source}: expected {len(out)} bytes, found more")
