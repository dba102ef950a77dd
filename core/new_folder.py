"""A folder that appears under its name only when all of it is there."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from core.errors import StorageError


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A scratch folder beside `out`, which becomes `out` at the end of the block; on an error it is removed.

    Raises:
      StorageError: Anything could not be written, the block's own files included.
    """
    scratch: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
        yield scratch
        scratch.chmod(0o777 & ~_umask())  # mkdtemp's own folders are for one user alone
        os.rename(scratch, out)
    except OSError as error:
        raise StorageError(f"{out} could not be written: {error}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _umask() -> int:
    """The process's own; it can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
