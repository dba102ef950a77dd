"""The place of a file that ends long work: looked at before it, so that nothing is done for a file that cannot be."""

import contextlib
import glob
from collections.abc import Iterator
from pathlib import Path

from chunkwise.errors import ConfigError, StorageError
from chunkwise.files.durable import make_folders, scratch_name


def prepare_place(file: Path, option: str = "--out") -> None:
    """Makes the file's folder, and writes beside it.

    Args:
      file: It may exist already.
      option: Of the command, by which another file is chosen.

    Raises:
      ConfigError: The file is a folder.
      StorageError: Nothing can be written there.
    """
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; expected the name of a file, as {option}")
    with told_place(file, option):
        make_folders(file.parent)
        scratch = scratch_name(file)
        scratch.touch()
        scratch.unlink()


def is_utf8(path: Path) -> bool:
    """Whether libraries that take text, as ArrayRecord and Orbax do, can open a path."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def require_no_pattern(folder: Path, option: str) -> None:
    """Raises ConfigError if a folder of runs has *, ? or [ in its path, or is no UTF-8: Orbax finds the parts of a save
    by a pattern that begins with it, so that each save fails, or takes another run's parts, and opens no other path."""
    if not is_utf8(folder):
        raise ConfigError(f"{folder}: expected a path in UTF-8, found other bytes; choose another {option}")
    if glob.escape(str(folder)) != str(folder):
        raise ConfigError(
            f"{folder}: expected a folder without *, ? and [ in its path, since no checkpoint can be written into this "
            f"one; choose another {option}, or rename the folder"
        )


@contextlib.contextmanager
def told_place(file: Path, option: str = "--out") -> Iterator[None]:
    """Raises what the system says of a file or folder in the block as a StorageError that names it and the option."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror or error}. Choose another with {option}") from error
