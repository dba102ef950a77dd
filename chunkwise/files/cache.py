"""What may be computed again and is kept to save time: below $XDG_CACHE_HOME/chunkwise (~/.cache/chunkwise).

Nothing in it is needed. A file that is missing, damaged or of another version reads as None. All of them together take
no more than MAX_BYTES: those that were not used for longest go.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from chunkwise.files.durable import make_folders, write_durably

MAX_BYTES = 1 << 30
"""Of all files together."""
MAX_FILE_BYTES = MAX_BYTES // 4
_HEAD = b"chunkwise-cache-1\n"
_SUM_BYTES = 32


def key_of(path: Path) -> str:
    """A name for what is kept of a folder or a file, wherever it is seen from."""
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]


def read(kind: str, key: str) -> bytes | None:
    """What was kept under a name, or None."""
    file = _folder() / kind / key
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return None
        content = file.read_bytes()
        os.utime(file)  # used just now
    except OSError:
        return None
    start = len(_HEAD) + _SUM_BYTES
    whole = content[:start] == _HEAD + hashlib.sha256(content[start:]).digest()
    return content[start:] if whole else None


def write(kind: str, key: str, content: bytes) -> None:
    """Keeps something; a home that cannot be written to, or a full disk, costs time at the next start only."""
    if len(content) > MAX_FILE_BYTES - len(_HEAD) - _SUM_BYTES:
        return
    file = _folder() / kind / key
    with contextlib.suppress(OSError):
        make_folders(file.parent)
        write_durably(file, _HEAD + hashlib.sha256(content).digest() + content)
    _evict()


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "chunkwise"


def _evict() -> None:
    """Removes what was used longest ago until the rest is small enough; another process may do the same."""
    found: list[tuple[int, int, Path]] = []
    for file in _folder().glob("*/*"):
        with contextlib.suppress(OSError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, status.st_size, file))
    room = MAX_BYTES
    for _, size, file in sorted(found, reverse=True):
        room -= size
        if room < 0:
            with contextlib.suppress(OSError):
                file.unlink()
