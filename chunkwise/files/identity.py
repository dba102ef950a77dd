"""Which files a dataset is made of, and what is in them: a dataset is its names, sizes and contents.

Of a file up to WHOLE_BYTES every byte is hashed; of a larger one its size, its first and last EDGE_BYTES, and BLOCKS
blocks of BLOCK_BYTES spread evenly between them. `data.verify=full` hashes all of it, and takes nothing from the cache.

When a file was changed, where it lies on the disk and how the folder above is called are no part of that: a copy is
the same dataset. They key a cache of hashes instead, so that a start reads only what is new: (device, inode, size,
mtime, ctime) had this hash. The ctime is in the key because an edit can put size and mtime back, and cannot put back
the ctime.
"""

import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from chunkwise.errors import DataError
from chunkwise.files import budget, cache
from chunkwise.files.links import Bounds

Verify = Literal["sample", "full"]

WHOLE_BYTES = 256 << 20
EDGE_BYTES = 1 << 20
BLOCKS = 64
BLOCK_BYTES = 1 << 20

THREADS = 8
"""Files hashed at a time: hashlib and reads let go of Python's lock."""
MAX_CACHED = 1_000_000
"""Hashes that are kept of one dataset, 72 bytes each."""
RACY_NS = 50_000_000
"""A file changed less than this ago is not cached: another edit may leave it the same times, which tick every 4 ms."""
_TRIES = 3  # a file that is written to while it is hashed
_MASK = (1 << 63) - 1
_KEY = struct.Struct("<5q")
_ROW_BYTES = _KEY.size + 32


class Stat(NamedTuple):
    """What tells that a file was touched, without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def stat_of(status: os.stat_result) -> Stat:
    """The part of a status that changes with the content."""
    return Stat(status.st_dev & _MASK, status.st_ino & _MASK, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def content_hash(path: Path | str, verify: Verify = "sample") -> str:
    """SHA-256 of a file's bytes; of a large one's size and a fixed sample of them, unless `verify` is "full".

    Raises:
      OSError: The file is missing, or cannot be read.
      DataError: It is no regular file.
    """
    return _hash(str(path), verify)[1].hex()


def _hash(path: str, verify: Verify) -> tuple[Stat, bytes]:
    """Stat and hash of one moment: a file that is written to meanwhile is hashed again."""
    for _ in range(_TRIES):
        with budget.open_file(path) as file:
            before = stat_of(os.fstat(file.fileno()))
            size = before.size
            if size <= WHOLE_BYTES or verify == "full":
                if size > WHOLE_BYTES:
                    budget.require_stored(file, path, size)
                small = file.read(size + 1) if size < EDGE_BYTES else b""
                digest = hashlib.sha256(small)
                if len(small) != size:  # large, or it changes; by pieces small ones would take a fourth longer
                    file.seek(0)
                    digest = hashlib.file_digest(file, "sha256")
            else:
                digest = hashlib.sha256(str(size).encode())
                for start, count in _sample(size):
                    file.seek(start)
                    digest.update(file.read(count))
            if stat_of(os.fstat(file.fileno())) == before:
                return before, digest.digest()
    raise OSError(f"{path}: is being written to; it changed {_TRIES} times while it was read")


def _sample(size: int) -> Iterator[tuple[int, int]]:
    """Start and length of the pieces of a large file that its hash covers."""
    yield 0, EDGE_BYTES
    room = max(size - 2 * EDGE_BYTES - BLOCK_BYTES, 0)
    for block in range(BLOCKS):
        yield EDGE_BYTES + room * block // (BLOCKS - 1), BLOCK_BYTES
    yield size - EDGE_BYTES, EDGE_BYTES


class Difference(NamedTuple):
    """Names of files that are not what they were."""

    changed: list[str]
    missing: list[str]
    added: list[str]


class Entry(NamedTuple):
    """What is remembered of one file."""

    hash: str
    """Hexadecimal; empty where it was missing or could not be read."""
    size: int
    full: str
    """Of all bytes of a large file, where they were read; else empty."""


class Files:
    """The files of one dataset as they were when it was opened."""

    def __init__(self, bounds: Bounds, *, verify: Verify = "sample", remember: bool = True) -> None:
        """Holds no file yet.

        Args:
          bounds: Of the dataset.
          verify: sample: files that were not touched since they were hashed are not read, and of large ones a sample
            is. full: every byte of every file is read.
          remember: Use the cache of hashes; False reads every file, and writes nothing.
        """
        self.bounds = bounds
        self.verify: Verify = verify
        self.names: list[str] = []
        self._paths: dict[int, str] = {}  # of files that lie elsewhere
        self._places: dict[str, int] = {}
        self._stats = np.zeros((0, 5), np.int64)
        self._hashes = np.zeros((0, 32), np.uint8)
        self._full: dict[int, bytes] = {}
        self.errors: dict[str, str] = {}
        """By name, why a file could not be read; one that is missing has none."""
        self._remembers, self._waits, self._unsaved = remember, False, False  # the last two: saved_once
        self._known: MutableMapping[bytes, bytes] | None = None
        self._new: dict[bytes, bytes] = {}  # of the cache, in files that are `apart`

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the cache of hashes, which each process reads itself."""
        return {**self.__dict__, "_known": None}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def own(self) -> list[str]:
        """Names of the files that are the dataset's, in the order in which they were taken in."""
        return [name for place, name in enumerate(self.names) if place not in self._paths]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, names: Iterable[str]) -> dict[str, str]:
        """Takes files in: looks at each, and hashes those that the cache does not know.

        Args:
          names: Relative to the dataset. One that is missing is remembered as such.

        Returns:
          The names that lead out of the dataset, and words for how; they are not taken in.
        """
        refused: dict[str, str] = {}
        fresh: list[str] = []
        for name in names:
            if name in self._places or name in refused:
                continue
            if reason := self.bounds.refusal(name):
                refused[name] = reason
                continue
            self._places[name] = len(self.names) + len(fresh)
            fresh.append(name)
        self._take([(name, self.bounds.path(name)) for name in fresh])
        return refused

    def require(self, names: Iterable[str]) -> None:
        """As `add`. Raises DataError if a name leads out of the dataset, with all such names."""
        refused = self.add(names)
        if refused:
            lines = (f"  {name!r}: {reason}" for name, reason in list(refused.items())[:20])
            raise DataError(f"{self.bounds.root}: expected paths inside the dataset, found:", *lines)

    def add_other(self, name: str, path: Path) -> None:
        """Takes in a file that the user named, wherever it lies, under a name of its own, e.g. the field's."""
        self._paths[len(self.names)] = str(path)
        self._places[name] = len(self.names)
        self._take([(name, str(path))])

    @contextlib.contextmanager
    def saved_once(self) -> Iterator[None]:
        """Writes the cache of hashes once, behind all files that are taken in meanwhile.

        Otherwise each `add` writes all of it: n files that come by m episodes would be n m / 2 rows of 72 bytes.
        """
        waits, self._waits = self._waits, True
        try:
            yield
        finally:
            self._waits = waits
            if not waits and self._unsaved:
                self._save(self._load(), [])

    def apart(self) -> "Files":
        """No file yet of the same dataset: what is taken into them, here or in another process, `join` takes in."""
        files = Files(self.bounds, verify=self.verify, remember=self._remembers)
        files._known, files._waits = collections.ChainMap(files._new, self._load()), True
        return files

    def join(self, apart: "Files") -> bool:
        """Takes in files that were taken in apart; none, and returns False, if one is not what it is known as here."""
        places = np.array([self._places.get(name, -1) for name in apart.names], np.int64)
        both, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        for mine, others in ((self._stats, apart._stats), (self._hashes, apart._hashes)):
            if (mine[places[both]] != others[both]).any():
                return False
        first = self._append([apart.names[i] for i in new.tolist()])
        self._stats[first : len(self.names)], self._hashes[first : len(self.names)] = (
            apart._stats[new],
            apart._hashes[new],
        )
        self._places |= {name: place for place, name in enumerate(self.names[first:], first)}
        self._full |= {self._places[apart.names[place]]: full for place, full in apart._full.items()}
        self.errors |= apart.errors
        if apart._new:
            self._load().update(apart._new)
            self._save(self._load(), [])
        return True

    def _append(self, names: Sequence[str]) -> int:
        """Makes room for files; returns the place of the first."""
        first = len(self.names)
        self.names += names
        more = len(self.names) - len(self._stats)
        if more > 0:  # room for as many again, so that files that come one by one are not copied each time
            more = max(more, len(self._stats))
            self._stats = np.concatenate([self._stats, np.full((more, 5), -1, np.int64)])
            self._hashes = np.concatenate([self._hashes, np.zeros((more, 32), np.uint8)])
        return first

    def _take(self, found: list[tuple[str, str]]) -> None:
        first, known = self._append([name for name, _ in found]), self._load()
        to_hash: list[tuple[int, str]] = []
        for place, (name, path) in enumerate(found, first):
            try:
                now = stat_of(os.stat(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                self.errors[name] = str(error)
                continue
            if not self._recall(place, now, known):
                to_hash.append((place, path))
        if not to_hash:
            return
        for (place, _), result in zip(to_hash, self._look_at_all([path for _, path in to_hash]), strict=True):
            if isinstance(result, budget.LimitError):
                raise result
            if isinstance(result, OSError):
                if not isinstance(result, FileNotFoundError):
                    self.errors[self.names[place]] = str(result)
                continue
            self._remember(place, *result)
        self._save(known, [place for place, _ in to_hash])

    def _look_at_all(self, paths: Sequence[str]) -> list[Any]:
        """As `_look`, of many files; a LimitError is what was found of one.

        Each thread takes the next file until none is left: to hand them out one by one takes longer than to hash them.
        """
        found: list[Any] = [None] * len(paths)
        waiting = iter(range(len(paths)))

        def look(_: int) -> None:
            for i in waiting:
                try:
                    found[i] = self._look(paths[i])
                except budget.LimitError as error:
                    found[i] = error

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            try:
                list(pool.map(look, range(min(THREADS, len(paths)))))
            finally:
                list(waiting)  # where this is broken off, no thread begins another file
        return found

    def _recall(self, place: int, now: Stat, known: Mapping[bytes, bytes]) -> bool:
        """Takes the hash of a file from the cache; False if it is not there."""
        sample = known.get(_KEY.pack(*now))
        if sample is None or self.verify == "full":
            return False
        self._remember(place, now, sample, b"")
        return True

    def _wants_full(self, now: Stat) -> bool:
        return self.verify == "full" and now.size > WHOLE_BYTES

    def _look(self, path: str) -> tuple[Stat, bytes, bytes] | OSError:
        try:
            now, sample = _hash(path, "sample")
            if not self._wants_full(now):
                return now, sample, b""
            again, full = _hash(path, "full")
        except OSError as error:
            return error
        except budget.LimitError:
            raise
        except DataError as error:  # a pipe or a device: not to be read, and no content
            return OSError(str(error))
        return (now, sample, full) if again == now else OSError(f"{path}: is being written to")

    def _remember(self, place: int, now: Stat, sample: bytes, full: bytes) -> None:
        self._stats[place] = now
        self._hashes[place] = np.frombuffer(sample, np.uint8)
        if full:
            self._full[place] = full

    def hash(self, name: str) -> str | None:
        """Hexadecimal hash of a file that was taken in; None if it was missing or unreadable."""
        place = self._places[name]
        return self._hashes[place].tobytes().hex() if self._stats[place, 2] >= 0 else None

    def size(self, name: str) -> int:
        """Bytes of a file that was taken in; -1 if it was missing or unreadable."""
        return int(self._stats[self._places[name], 2])

    def mtime_ns(self, name: str) -> int:
        """When a file was changed last; -1 if it was missing."""
        return int(self._stats[self._places[name], 3])

    def place(self, name: str) -> int:
        """Number of a file, for `require_unchanged`."""
        return self._places[name]

    def path(self, place: int) -> str:
        """Where a file lies."""
        return self._paths.get(place) or self.bounds.path(self.names[place])

    def require_unchanged(self, place: int) -> None:
        """Compares a file with what it was when the dataset was opened; costs some microseconds.

        To be called after the file has been read, so that a change before and while it was read is noticed. A file
        that was only touched is hashed again, and is fine.

        Raises:
          DataError: The file's content is another, or it leads elsewhere by now.
          OSError: It was touched, and cannot be read; which is no proof of a change, and worth another try.
        """
        path = self.path(place)
        try:
            now = os.stat(path)
        except FileNotFoundError:
            found = [-1] * 5
        else:  # as stat_of, which takes twice as long
            found = [now.st_dev & _MASK, now.st_ino & _MASK, now.st_size, now.st_mtime_ns, now.st_ctime_ns]
        if found != self._stats[place].tolist():
            self._examine_again(place, path)

    def _examine_again(self, place: int, path: str) -> None:
        """Reads a file that was touched. Raises as `require_unchanged`."""
        name, before = self.names[place], self._hashes[place].tobytes()
        found = None
        if place not in self._paths:
            self.bounds.forget()
            found = self.bounds.refusal(name)
        if found is None:
            result = self._look(path)
            if isinstance(result, FileNotFoundError):
                found = "no file"
            elif isinstance(result, OSError):
                raise result
            elif self._stats[place, 2] < 0:
                found = f"content {result[1].hex()[:12]}"
            elif result[1] == before and (not result[2] or result[2] == self._full.get(place, result[2])):
                self._remember(place, *result)
                return
            else:
                found = f"content {result[1].hex()[:12]} of {result[0].size} bytes"
        size = int(self._stats[place, 2])
        expected = f"content {before.hex()[:12]} of {size} bytes" if size >= 0 else "no file"
        raise DataError(
            f"{path}: changed since the dataset was opened: expected {expected}, found {found}. Restore the file and "
            "go on with --run.resume, or start anew in another folder"
        )

    def require_equal(self, now: "Files") -> None:
        """Compares with the same dataset, opened anew. Raises DataError that names what is not what it was."""
        found = compare(self.entries(), now.entries())
        names = [f"{kind}: {name}" for kind, names in found._asdict().items() for name in names]
        if names:
            more = f", and {len(names) - 20} more" if len(names) > 20 else ""
            raise DataError(
                f"{self.bounds.root}: changed since the run opened it: {', '.join(names[:20])}{more}. Restore these "
                "files and go on with --run.resume, or start anew in another folder"
            )

    def entries(self) -> dict[str, Entry]:
        """What is remembered of each file, by name."""
        rows = zip(self.names, self._stats[: len(self.names), 2].tolist(), strict=True)
        return {
            name: Entry(
                self._hashes[place].tobytes().hex() if size >= 0 else "",
                size,
                self._full.get(place, b"").hex(),
            )
            for place, (name, size) in enumerate(rows)
        }

    def digest(self) -> str:
        """Identity of the dataset: equal for equal names, sizes and contents, wherever it lies."""
        return digest(self.entries())

    def _load(self) -> MutableMapping[bytes, bytes]:
        """Hashes by stat. What is no such table reads as none."""
        if self._known is None:
            content = (cache.read("hashes", cache.key_of(self.bounds.root)) if self._remembers else None) or b""
            self._known = {}
            if len(content) % _ROW_BYTES == 0:
                for start in range(0, len(content), _ROW_BYTES):
                    row = content[start : start + _ROW_BYTES]
                    self._known[row[: _KEY.size]] = row[_KEY.size :]
        return self._known

    def _save(self, known: MutableMapping[bytes, bytes], hashed: list[int]) -> None:
        """Adds to the cache what was hashed and was not changed just now."""
        if not self._remembers:
            return
        recent = time.time_ns() - RACY_NS
        for place in hashed:
            now = self._stats[place].tolist()
            if now[2] < 0 or now[4] > recent:
                continue
            known[_KEY.pack(*now)] = self._hashes[place].tobytes()
        self._unsaved = self._waits
        if self._waits:
            return
        newest = list(known.items())[-MAX_CACHED:]
        cache.write("hashes", cache.key_of(self.bounds.root), b"".join(key + value for key, value in newest))


@runtime_checkable
class FilesSettings(Protocol):
    """What a data config says of its files (`FilesConfig` of chunkwise/config)."""

    @property
    def verify(self) -> Literal["sample", "full"]:
        """What is read of large files to tell whether they changed."""
        ...

    @property
    def allow_links_to(self) -> tuple[str, ...]:
        """Folders outside of the dataset that links in it may lead to."""
        ...


def open_files(root: str | Path, data: FilesSettings) -> Files:
    """No file of a dataset yet, as its config wants them looked at. Raises DataError as `Bounds`."""
    return Files(Bounds(root, data.allow_links_to), verify=data.verify)


Check = Callable[[Files], None]
"""Told which files a dataset is made of, before any of them is judged; raises if they are not those that it expects."""


def any_files(files: Files) -> None:
    """A Check that expects nothing."""


def digest(entries: Mapping[str, Entry]) -> str:
    """SHA-256 over name, size and hash of each file, by name; what `full` adds is not in it, so that both compare."""
    total = hashlib.sha256()
    for name in sorted(entries):
        total.update(f"{entries[name].hash} {entries[name].size} {json.dumps(name)}\n".encode())
    return total.hexdigest()


def compare(before: Mapping[str, Entry], now: Mapping[str, Entry]) -> Difference:
    """Names of what changed, went and came; all bytes of large files are compared where both know them."""

    def same(a: Entry, b: Entry) -> bool:
        return (a.hash, a.size) == (b.hash, b.size) and (not a.full or not b.full or a.full == b.full)

    there, here = ({name for name, entry in one.items() if entry.size >= 0} for one in (before, now))
    return Difference(
        changed=sorted(name for name in there & here if not same(before[name], now[name])),
        missing=sorted(there - here),
        added=sorted(here - there),
    )
