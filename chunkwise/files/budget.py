"""What one file may cost: the limits, and the questions that every reader asks before and while it reads.

A header is a claim. So a reader asks twice: of the header, before anything is allocated, and of the bytes as they come.
The limits hold for the whole process, as those of the operating system do: they say what this machine can bear, and
threads, tools and libraries in between need not hand them on. A config sets them (`data.limits`), and the command line
of every tool may raise them by the same flags; docs/limits.md lists them.
"""

import contextlib
import dataclasses
import errno
import io
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkwise.errors import DataError

MIB = 1 << 20
_FLAG = "--data.limits"
_KINDS = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}


def _limit(default: int, unit: str, meaning: str) -> Any:
    """A field of Limits with the words that messages and `--help` use."""
    return dataclasses.field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one file may cost. Each default is far above what recordings need; a file above it is refused."""

    metadata_mib: int = _limit(
        64, "MiB", "size of a file of metadata: JSON, JSON Lines, sums; of the footer of a parquet table"
    )
    metadata_values: int = _limit(
        4_000_000, "values", "values of a JSON file, a table of metadata or a protobuf message"
    )
    json_depth: int = _limit(64, "levels", "nesting of JSON")
    tokenizer_mib: int = _limit(8, "MiB", "size of a tokenizer, which takes up to 41 times as much once it is loaded")
    seconds: int = _limit(
        300, "seconds", "time to read and check one file of metadata, one table, or one camera's images"
    )
    decoded_mib: int = _limit(8192, "MiB", "arrays that are read from one file, once they are unpacked")
    free_mib: int = _limit(256, "MiB", "unpacked arrays of one file to which the next limit does not apply")
    expansion: int = _limit(50, "times", "how many times larger than their file its unpacked arrays may be")
    table_rows: int = _limit(50_000_000, "rows", "rows of one table")
    table_columns: int = _limit(4096, "columns", "columns of one table, arrays of one .npz file")
    table_groups: int = _limit(100_000, "row groups", "row groups of one parquet table")
    image_mib: int = _limit(64, "MiB", "size of an encoded image")
    image_pixels: int = _limit(7680 * 4320, "pixels", "height x width of an image, depth map or video frame")
    image_scans: int = _limit(64, "scans", "passes over the image of a progressive JPEG")
    video_frames: int = _limit(4_000_000, "frames", "frames of one video file")
    chunks: int = _limit(200_000, "chunks", "pieces in which an HDF5 dataset is stored")
    hole_mib: int = _limit(4096, "MiB", "holes of a file: bytes that no disk stores, and that are read as zeros")
    record_mib: int = _limit(512, "MiB", "size of one record of a TFRecord file or of a pack")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"data.limits.{field.name} is {getattr(self, field.name)}; expected at least 1")


class LimitError(DataError):
    """A file costs more than a limit allows; the message names file, limit, what was found, and the flag."""

    def __init__(self, source: str, name: str, found: str, what: str = "") -> None:
        """Words the message.

        Args:
          source: File, and the part of it.
          name: Field of Limits.
          found: Amount that was found or declared, with its unit.
          what: What was measured; empty takes the limit's own meaning.
        """
        self.limit = name
        field = {field.name: field for field in dataclasses.fields(Limits)}[name]
        most = f"{getattr(current(), name)} {field.metadata['unit']}"
        self.expected = f"at most {most} ({what or field.metadata['meaning']})"
        self.found = f"{found}; if you trust the file, {flag(name)} raises the limit"
        super().__init__(f"{source}: expected {self.expected}, found {self.found}")


def flag(name: str) -> str:
    """The option that sets a limit, the same for every program."""
    return f"{_FLAG}.{name.replace('_', '-')}"


LIMITS = Limits()
"""The defaults."""
_configured = LIMITS
_given: dict[str, int] = {}


def is_limit(text: str) -> bool:
    """Whether a message is about a limit, so that another limit may change the verdict."""
    return f"{_FLAG}." in text


def current() -> Limits:
    """The limits in force: the config's, under what the command line of a tool gave."""
    return dataclasses.replace(_configured, **_given) if _given else _configured


def use(limits: Limits) -> None:
    """Puts a config's limits in force, for the whole process, from now on."""
    global _configured
    _configured = limits


def override(**given: int) -> None:
    """Puts single limits over those of any config: what a tool's command line says.

    Raises:
      ValueError: A limit is below 1.
    """
    dataclasses.replace(LIMITS, **given)
    _given.update(given)


@contextlib.contextmanager
def using(**given: int) -> Iterator[None]:
    """Changes single limits for a while, and restores all of them afterwards."""
    global _configured
    before, before_given = _configured, dict(_given)
    try:
        override(**given)
        yield
    finally:
        _configured = before
        _given.clear()
        _given.update(before_given)


def require(name: str, found: int, source: str, what: str = "") -> None:
    """Compares an amount with a limit, in the limit's own unit (bytes for those in MiB).

    Raises:
      LimitError: It is above.
    """
    limit = getattr(current(), name)
    in_mib = name.endswith("_mib")
    if found > (limit * MIB if in_mib else limit):
        raise LimitError(source, name, f"{found / MIB:.1f} MiB" if in_mib else f"{found}", what)


class Spent:
    """What the arrays of one file take once they are unpacked, added up as they are read."""

    def __init__(self, source: str, size: int) -> None:
        """Begins at nothing.

        Args:
          source: The file, for messages.
          size: Of the file, in bytes.
        """
        self._source, self._size, self._total = source, size, 0

    def add(self, nbytes: int, what: str = "", *, streamed: bool = False) -> None:
        """Asks for memory before it is allocated.

        Args:
          nbytes: Declared or counted.
          what: Which array.
          streamed: It is read in small pieces, so that decoded_mib does not apply.

        Raises:
          LimitError: The file's arrays would take more than decoded_mib, or more than free_mib and `expansion` times
            the file.
        """
        self._total += nbytes
        source, limits = f"{self._source}: {what}" if what else self._source, current()
        found = f"{self._total / MIB:.1f} MiB from a file of {self._size / MIB:.3f} MiB"
        if self._total > limits.decoded_mib * MIB and not streamed:
            raise LimitError(source, "decoded_mib", found)
        if self._total > max(limits.free_mib * MIB, limits.expansion * self._size):
            raise LimitError(source, "expansion", found, f"{limits.free_mib} MiB are free; unpacked arrays")


class Clock:
    """The seconds that are left for one file. Only reading counts: a clock is made when the reading begins."""

    def __init__(self, source: str) -> None:
        """Starts it; `source` names the file in messages."""
        self._source, self._end = source, time.monotonic() + current().seconds

    def check(self) -> None:
        """Raises LimitError once the time is over."""
        if time.monotonic() > self._end:
            raise LimitError(self._source, "seconds", f"more than {current().seconds} seconds")


def regular(path: str | Path) -> os.stat_result:
    """Status of a regular file, before a library opens it by its path.

    Raises:
      OSError: It is missing or cannot be looked at.
      DataError: It is a FIFO, socket, device or folder: opening a FIFO would wait for a writer, for ever.
    """
    status = os.stat(path)
    _require_regular(path, status)
    return status


def open_file(path: str | Path) -> io.BufferedReader:
    """Opens a regular file for reading; never waits for a FIFO's writer. Raises as `regular`."""
    descriptor, _ = _open(path)
    try:
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open(path: str | Path) -> tuple[int, int]:
    """Returns a descriptor of a regular file, and its bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_bytes(path: str | Path, name: str = "metadata_mib") -> bytes:
    """A small file's bytes.

    Args:
      path: A regular file.
      name: Limit of its size.

    Raises:
      OSError: It cannot be read.
      DataError: It is no regular file, or larger than the limit; a file that grows meanwhile as well.
    """
    # By the descriptor alone: a buffered file asks the system three times more for each image, and a read of up to the
    # limit reserves as much memory. With both, two threads read a quarter of the images that one reads like this.
    descriptor, size = _open(path)
    try:
        require(name, size, str(path))
        data = os.read(descriptor, size + 1)
        if len(data) != size:  # it changes meanwhile, or comes in parts
            data = _read_on(descriptor, data, getattr(current(), name) * MIB + 1)
    finally:
        os.close(descriptor)
    require(name, len(data), str(path))
    return data


def _read_on(descriptor: int, data: bytes, most: int) -> bytes:
    """Reads the rest of a file, up to `most` bytes in all."""
    parts, total = [data], len(data)
    while total < most and (part := os.read(descriptor, min(most - total, MIB))):
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def require_stored(file: io.BufferedReader, path: str | Path, size: int) -> None:
    """Refuses a file that is mostly holes, before all of it is read: a terabyte of them costs nothing to make.

    A file system that knows no holes says that there are none.

    Args:
      file: Open; its position stays.
      path: Of it, for the message.
      size: Of it, in bytes.

    Raises:
      LimitError: Its holes are above hole_mib.
    """
    position, at, holes = file.tell(), 0, 0
    descriptor = file.fileno()
    try:
        while at < size:
            try:
                data = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return  # the file system cannot tell
                data = size  # a hole to the end
            holes += data - at
            require("hole_mib", holes, str(path))
            at = size if data >= size else os.lseek(descriptor, data, os.SEEK_HOLE)
    finally:
        file.seek(position)


def _require_regular(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise DataError(f"{path}: expected a regular file, found {found}")
