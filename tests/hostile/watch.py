"""What a program did to files that are none of its business, as Linux itself tells it (inotify).

An audit hook of Python would not see what HDF5, ffmpeg, Arrow or tensorstore open.
"""

import ctypes
import os
import struct
from pathlib import Path

_ACCESS, _MODIFY, _OPEN, _CREATE, _DELETE = 0x1, 0x2, 0x20, 0x100, 0x200
_MOVED = 0x40 | 0x80
_IS_FOLDER = 0x40000000
_WORDS = {_ACCESS: "read", _MODIFY: "changed", _OPEN: "opened", _CREATE: "made", _DELETE: "deleted", 0x40: "moved"}


class Watch:
    """Notes what happens to the files of some folders; use it as a context manager."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    def __enter__(self) -> "Watch":
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle = libc.inotify_init1(os.O_NONBLOCK)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, Path] = {}
        mask = _ACCESS | _MODIFY | _OPEN | _CREATE | _DELETE | _MOVED
        for top in self._folders:
            for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
                number = libc.inotify_add_watch(self._handle, os.fsencode(folder), mask)
                if number < 0:
                    raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
                self._paths[number] = folder
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def seen(self) -> list[str]:
        """'read outside/secret.txt' and the like, each once; listing a folder counts as well."""
        found: dict[str, None] = {}
        while True:
            try:
                data = os.read(self._handle, 1 << 16)
            except BlockingIOError:
                return list(found)
            at = 0
            while at < len(data):
                number, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                at += 16 + length
                word = next((words for bit, words in _WORDS.items() if mask & bit), hex(mask))
                what = "folder " if mask & _IS_FOLDER else ""
                found[f"{word} {what}{self._paths[number] / name}"] = None
