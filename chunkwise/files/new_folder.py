"""A folder that appears under its name only when all of it is there, and on the device."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from chunkwise.errors import BusyError, ConfigError, StorageError
from chunkwise.files.durable import make_folders, publish


@contextlib.contextmanager
def new_folder(
    out: Path,
    *,
    keep: Callable[[Path], bool] = lambda _: False,
    finish: Callable[[Path, Path], None] = publish,
) -> Iterator[Path]:
    """Yields a scratch folder beside `out`, which becomes `out` at the end of the block; on an error it is removed.

    Its name is always the same, so that what a kill leaves, which may be hundreds of GB, is removed by the next one.

    Args:
      out: Folder to make; does not exist.
      keep: Whether what is in the scratch folder stays, for the block to go on with: at its start, and on an error.
      finish: Gives the scratch folder its name; `give_name` where the block has forced all of it to the device.

    Raises:
      BusyError: Another process is making the same folder.
      StorageError: Anything could not be written, the block's own files included.
    """
    scratch = out.with_name(f".{out.name}.part")
    try:
        make_folders(out.parent)
        with _locked(scratch, out):
            try:
                for left in [] if keep(scratch) else list(scratch.iterdir()):
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
                yield scratch
                finish(scratch, out)
            except BaseException:
                if not keep(scratch):
                    shutil.rmtree(scratch, ignore_errors=True)
                raise
    except OSError as error:
        raise StorageError(f"{out} could not be written: {error}") from error


def require_outside(out: Path, dataset: Path) -> None:
    """Refuses an output in a dataset, whose files a later listing of the dataset would take for its own.

    Args:
      out: To make; need not exist.
      dataset: Its folder.

    Raises:
      ConfigError: `out` lies in `dataset`, as written or behind links.
    """
    for where, place in ((dataset.absolute(), out.absolute()), (dataset.resolve(), out.resolve())):
        if os.path.normpath(place).startswith(os.path.join(os.path.normpath(where), "")):
            raise ConfigError(
                f"{out}: expected a folder outside of the dataset, found one in {dataset}, of which its files would be "
                "a part; choose another"
            )


@contextlib.contextmanager
def _locked(scratch: Path, out: Path) -> Iterator[None]:
    """Makes the scratch folder and holds it for this process, however it ends."""
    while True:
        scratch.mkdir(exist_ok=True)
        folder = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(f"another process is making {out}; wait for it, or choose another name") from error
            # Else the other one finished in between: what is locked bears the name `out` now, or is gone.
            if scratch.exists() and os.path.samestat(os.fstat(folder), scratch.stat()):
                yield
                return
        finally:
            os.close(folder)
