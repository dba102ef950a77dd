"""The one way of writing files and folders that must be there after a power cut.

A write that has returned lies in the kernel's memory for up to half a minute, and so does the name that `rename` gave
it. What has been announced as saved must outlive the machine, so nothing here returns before the device has it:

  1. the file's bytes are forced out before the file gets its name: else a cut can leave the name of an empty file;
  2. the folder is forced out after the name is given: else a cut can leave the old file, or none, after "saved";
  3. a new folder's own name lies in its parent, which is forced out as well.

Everything is written under a scratch name first, so that a kill leaves the old file or the new one. What a kill leaves
under a scratch name goes with `sweep`.
"""

import concurrent.futures
import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

THREADS = 8  # a save has up to hundreds of files, and a device takes several flushes at a time

# Some network and user-space file systems know no fsync of a folder, and say so; they write names at once, or at none.
_FOLDER_HAS_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_SCRATCH, _REMOVED = ".part", ".removed"
_LEFT = re.compile(r".+\.[0-9]+-[0-9]+\.(part|removed)")

_count = itertools.count()


def write_durably(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Replaces a file as a whole, and returns when its content and its name are on the device.

    Args:
      path: File to write; its folder exists (see `make_folders`).
      content: Bytes, text (written as UTF-8), or what writes into an open file.

    Raises:
      OSError: It could not be written; the old file, if there was one, is as it was.
    """
    with _renamed(path) as scratch, open(scratch, "xb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()  # Python's own buffer, of which fsync knows nothing
        os.fsync(file.fileno())


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Replaces a file by a JSON value and a line's end, as `write_durably`; by default a line for each entry."""
    write_durably(path, json.dumps(value, indent=indent) + "\n")


@contextlib.contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` for a writer that opens its file by name; as `write_durably` at the end of the block.

    On an error in the block nothing is left, and the old file is as it was.
    """
    with _renamed(path) as scratch:
        yield scratch
        sync_file(scratch)


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    """Yields a scratch name whose file, which the block forces out, gets the name `path`; removed on an error."""
    scratch = scratch_name(path)
    try:
        yield scratch
        os.replace(scratch, path)
        sync_folder(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def scratch_name(path: Path) -> Path:
    """Names a file or folder beside `path` that no other thread or process uses, and that `sweep` knows."""
    return path.with_name(f"{path.name}.{os.getpid()}-{next(_count)}{_SCRATCH}")


def publish(scratch: Path, out: Path) -> None:
    """Gives a folder its final name once all that is in it is on the device, and returns when the name is, too.

    Args:
      scratch: The folder, beside `out`.
      out: Its name from now on; does not exist, or is an empty folder.

    Raises:
      OSError: Something could not be written, or `out` is there already.
    """
    sync_tree(scratch)
    give_name(scratch, out)


def give_name(scratch: Path, out: Path) -> None:
    """The second half of `publish`, for what is on the device already."""
    os.rename(scratch, out)
    sync_folder(out.parent)


def make_folders(folder: Path) -> None:
    """Makes a folder and those above it that are missing, and forces the name of each new one to the device."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)  # another process may be making it as well
        sync_folder(path.parent)


def write_ahead(path: Path, content: bytes | memoryview) -> None:
    """Writes one of many files of a folder that will be forced out as a whole, and lets the device begin with it.

    Else the device is idle until then: 2,000 images of 240 kB were waited for 0.65 s at the end, and are for 0.2 s.

    Args:
      path: File to make or to replace.
      content: Its bytes.

    Raises:
      OSError: It could not be written.
    """
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        if hasattr(os, "posix_fadvise"):  # macOS has none
            with contextlib.suppress(OSError):  # it is advice, which Linux takes by writing, without waiting for it
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync_file(path: Path) -> None:
    """Forces the bytes of a file to the device, whoever wrote them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Forces the names in a folder to the device: what was made, renamed and removed there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_HAS_NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Forces all files below a folder, and then all folders from the deepest up to itself, to the device.

    Links are left alone; what they point to is somebody else's.
    """
    files: list[Path] = []
    for path, _, names in os.walk(folder, onerror=_raise):
        files += [file for name in names if not (file := Path(path, name)).is_symlink()]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(sync_file, files):
            pass
    sync_names(folder)  # names last: a name on the device without its bytes is what must not be


def sync_names(folder: Path) -> None:
    """The second half of `sync_tree`, for files that are on the device already: folders from the deepest up."""
    for path, _, _ in os.walk(folder, topdown=False, onerror=_raise):
        sync_folder(Path(path))


def sync_up(folder: Path, top: Path) -> None:
    """Forces the names in a folder, and in each folder above it up to and including the parent of `top`."""
    sync_folder(folder)
    while folder != top.parent:
        folder = folder.parent
        sync_folder(folder)


def remove_tree(folder: Path) -> None:
    """Removes a folder so that a kill or a cut leaves it whole, or under a name that says it is on its way out."""
    doomed = folder.with_name(f"{folder.name}.{os.getpid()}-{next(_count)}{_REMOVED}")
    os.rename(folder, doomed)
    sync_folder(folder.parent)  # else the name may come back with half of what was in it
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Removes what killed writers left in a folder that nobody else writes to now: scratch names and half removals."""
    for path in [path for path in folder.glob("*") if _LEFT.fullmatch(path.name)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _raise(error: OSError) -> None:
    """What `os.walk` would pass over: a folder that it cannot list."""
    raise error
