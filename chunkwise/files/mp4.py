"""What an mp4 declares about itself, looked at before ffmpeg opens it."""

import os
import re
from pathlib import Path
from typing import BinaryIO

from chunkwise.errors import DataError
from chunkwise.files import budget

_PACKED = re.compile(rb"cmov.{4}dcom", re.DOTALL)
"""QuickTime's compressed tables: 2 MB become 2 GB, which ffmpeg allocates as declared. Nothing writes them any more."""
_PATTERN = 12
_PIECE = 1 << 20


def require_plain_tables(path: Path) -> None:
    """Refuses tables that are deflated; reads all of a file but the images themselves.

    Any other file, whose first bytes are no box of an mp4, is searched as a whole.

    Raises:
      OSError: It cannot be read.
      DataError: It is no regular file, or has deflated tables, or the search takes more than a limit.
    """
    clock = budget.Clock(str(path))
    with budget.open_file(path) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        budget.require_stored(file, path, size)  # a terabyte of zeros would be searched for `seconds`
        while at + 8 <= size:
            clock.check()
            file.seek(at)
            head = file.read(16)
            length, kind = int.from_bytes(head[:4], "big"), head[4:8]
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            if length < 8:  # 0: up to the end
                length = size - at
            if kind != b"mdat" and _has_packed(file, at, min(at + length, size), clock):
                raise DataError(
                    f"{path}: expected an mp4 with plain tables, found compressed ones (cmov); rewrite it with "
                    "`ffmpeg -i OLD -c copy NEW`"
                )
            at += length


def _has_packed(file: BinaryIO, at: int, end: int, clock: budget.Clock) -> bool:
    """Whether compressed tables are between two bytes of a file; in pieces, since a box may be as large as the file."""
    before = b""
    file.seek(at)
    while at < end:
        clock.check()
        piece = file.read(min(_PIECE, end - at))
        if not piece:
            break
        if _PACKED.search(before + piece):
            return True
        before, at = (before + piece)[1 - _PATTERN :], at + len(piece)
    return False
