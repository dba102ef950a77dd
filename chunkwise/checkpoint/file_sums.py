"""The SHA-256 of every file of a save, in a file beside them that `sha256sum --check SHA256SUMS` reads as well.

Whether arrays are what was saved is decided by checksums of their own (checksums.py). Of 80 flipped bits 2 to 13
lay in bytes that nothing reads; a disk that changes those changes others too, so such a save is not trusted either.
"""

import concurrent.futures
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.durable import write_durably

NAME = "SHA256SUMS"
_LINE = hashlib.sha256().digest_size * 2 + len("  \n")
"""Bytes of a line beside the file's name."""
THREADS = 8  # hashlib lets other threads run; one core sums 1 GB/s, and a save of pi0 has 52 GB


def seal(step: Path, given_up: Callable[[], bool]) -> None:
    """Writes the sums of a whole save, durably.

    Args:
      step: Folder of the save, whose files are on the device: sums that outlive them would condemn it.
      given_up: Asked before each file; once it is true, no sums are written.
    """
    sums = _sums(step, _names(step), given_up)
    if given_up():
        return
    write_durably(step / NAME, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))


def is_sealed(step: Path) -> bool:
    """Whether a save has sums. Raises OSError if that cannot be told."""
    try:
        (step / NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def probe(step: Path) -> None:
    """Opens every file of a save and reads its first byte. Raises OSError or DataError if one cannot be read."""
    for name in _names(step):
        with budget.open_file(step / name) as file:
            file.read(1)


def verify_files(step: Path, share: int = 0, shares: int = 1) -> str:
    """How the files of a save differ from its sums; empty if they do not, or if it has none.

    Args:
      step: Folder of the save.
      share: Which part of the files is read here; names are compared by all.
      shares: Number of parts.

    Raises:
      OSError: A file or folder cannot be read.
      LimitError: The sums cost more than a limit, and are as large as those of so many files are.
    """
    try:
        text = budget.read_bytes(step / NAME).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except budget.LimitError:
        # Too large to be read, but what was written has one line for each file: another size is proof enough.
        size, expected = (step / NAME).stat().st_size, sum(len(os.fsencode(name)) + _LINE for name in _names(step))
        if size == expected:
            raise
        return f"{NAME} has {size} bytes, and sums of the files that are there {expected}"
    except DataError as error:  # nothing of ours writes a pipe, a socket or a device
        return str(error)
    lines = text.removesuffix("\n").split("\n")  # not splitlines, for which a flipped newline may still be one
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if differing := wanted.keys() ^ set(_names(step)):
        return f"files missing, or not in {NAME}: {_first(differing)}"
    try:
        found = _sums(step, sorted(wanted)[share::shares])
    except DataError as error:
        return str(error)
    return f"{NAME} gives another sum for {_first(bad)}" if (bad := [n for n in found if found[n] != wanted[n]]) else ""


def _names(step: Path) -> list[str]:
    """All files of a save but its sums. Raises OSError where a folder cannot be listed, which is not an empty one."""
    names = []
    for folder, _, files in os.walk(step, onerror=_raise):
        names += [Path(folder, file).relative_to(step).as_posix() for file in files]
    return [name for name in names if name != NAME]


def _raise(error: OSError) -> None:
    raise error


def _sums(step: Path, names: Iterable[str], given_up: Callable[[], bool] = lambda: False) -> dict[str, str]:
    def digest(name: str) -> str:
        if given_up():
            return ""
        with budget.open_file(step / name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    names = list(names)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(names, threads.map(digest, names), strict=True))


def _first(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:5])
