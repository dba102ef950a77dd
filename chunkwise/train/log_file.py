"""log.txt of a run: what its first process prints, with the time of each line, start after start."""

import contextlib
import datetime
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from chunkwise.files.trouble import SYSTEM
from chunkwise.printable import printable

NAME = "log.txt"


class _Tee:
    """A stream that also writes whole lines into a file, as long as that is open; a handler may keep it for longer."""

    def __init__(self, stream: Any, file: FileIO) -> None:
        self._stream, self._file, self._line = stream, file, ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._add(line)
        return written

    def end(self) -> None:
        """Writes what is left without a line's end."""
        if self._line:
            self._add(self._line)

    def _add(self, line: str) -> None:
        shown = line.rpartition("\r")[2]  # of a bar that was drawn over, its last state
        # What does not fit on the disk has been printed; the save that follows says why the run ends.
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(*SYSTEM, ValueError):  # the latter where it is closed
            self._file.write(f"{now} {printable(shown)}\n".encode(errors="backslashreplace"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def logged(run: Path) -> Iterator[None]:
    """Copies standard output and error into log.txt, as long as the context is open; an error that ends it too."""
    with open(run / NAME, "ab", buffering=0) as file:  # no buffer, which would fail again when it is closed
        before = sys.stdout, sys.stderr
        tees = _Tee(sys.stdout, file), _Tee(sys.stderr, file)
        sys.stdout, sys.stderr = tees  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        except BaseException as error:
            for line in f"{type(error).__name__}: {error}".splitlines():
                tees[1]._add(line)  # printed later, by whoever catches it
            raise
        finally:
            sys.stdout, sys.stderr = before
            for tee in tees:
                tee.end()
