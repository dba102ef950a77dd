"""A folder that one process holds: the kernel lets go of it when that process ends, however it does."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from chunkwise.errors import BusyError


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Holds a folder for this process. Raises BusyError, which says `busy`, if another one holds it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(busy) from error
    else:
        yield
    finally:
        os.close(folder)
