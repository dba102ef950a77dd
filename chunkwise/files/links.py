"""What a dataset's own names may lead to once links are followed.

A dataset comes from elsewhere, and a link in it may point to any file of this machine. So a name leads inside the
dataset's folder, or is refused; but for two cases:

  a hub snapshot      <repo>/snapshots/<revision>/name -> ../../blobs/<hash>: files of the `blobs` folder beside it
  data.allow_links_to folders that the user names

A folder or a file that the user names may itself be a link: that is the user's word, not the dataset's. A file goes by
the name of its link, relative to the dataset, and has the content of the link's target.
"""

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from chunkwise.errors import DataError

FLAG = "--data.allow-links-to"
MAX_LISTED = 20


class Bounds:
    """The folders that the names of one dataset may lead to."""

    def __init__(self, root: str | Path, allow: Sequence[str | Path] = ()) -> None:
        """Looks at the root alone.

        Args:
          root: The dataset's folder, or its only file; may be a link, and may be missing.
          allow: Folders outside of it that links may lead to.

        Raises:
          DataError: A folder of `allow` does not exist.
        """
        named = Path(os.path.abspath(root))
        self.root = named.parent if named.exists() and not named.is_dir() else named
        """Folder that all names are relative to."""
        self._prefix = f"{self.root}/"
        self._allowed = [os.path.realpath(self.root)]
        self._blobs = _blobs(Path(self._allowed[0]))
        if named != self.root:
            self._allowed.append(os.path.realpath(named))
        for folder in allow:
            if not os.path.isdir(folder):
                raise DataError(f"{FLAG} {folder}: expected a folder that links of {root} may lead to, found none")
            self._allowed.append(os.path.realpath(folder))
        self._good_folders: set[str] = set()

    def path(self, name: str) -> str:
        """Where a name lies; nothing is checked."""
        return self._prefix + name

    def relative(self, path: Path) -> str:
        """The name of a path below the root, as it is written, without following links."""
        return Path(os.path.abspath(path)).relative_to(self.root).as_posix()

    def refusal(self, name: str) -> str | None:
        """Words for why a name is refused, or None. What it leads to need not exist."""
        if "://" in name:
            return "a URL"
        if os.path.isabs(name):
            return "an absolute path"
        if "\0" in name or not name or ".." in name.split("/"):
            return "a path that leads out of the dataset"
        path = self.path(name)
        folder = os.path.dirname(path)
        if folder not in self._good_folders:
            if not self._allows(real := os.path.realpath(folder)):
                return _out(real)
            self._good_folders.add(folder)
        if os.path.islink(path) and not self._allows(real := os.path.realpath(path)):
            return _out(real)
        return None

    def require(self, name: str) -> Path:
        """The path of a name that the dataset holds. Raises DataError for one that leads out of it."""
        if reason := self.refusal(name):
            raise DataError(f"{self.root}: expected a path inside the dataset, found {name!r}: {reason}")
        return Path(self.path(name))

    def forget(self) -> None:
        """Looks at every folder anew: what was a folder may have become a link."""
        self._good_folders.clear()

    def _allows(self, real: str) -> bool:
        """Whether a path without links lies where one may."""
        if self._blobs is not None and os.path.dirname(real) == self._blobs:
            return True
        return any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in self._allowed)

    def walk(self, suffixes: Collection[str] | None) -> Iterator[str]:
        """Names of all files below the root with one of these suffixes, through links to folders as well, in order.

        Suffixes are in lower case, and take names in capitals too; None: all files. What begins with a dot is passed
        over, and so is what lies below it: hidden files, and a folder that is still being made (`.OUT.part`). The root
        itself may begin with one.

        Raises:
          DataError: Links lead out of the dataset, nowhere, or to a folder twice, or names are not UTF-8; all of them
            in one error. A folder that is reached in two ways would count its episodes twice, or lead in a circle.
        """
        refused: list[str] = []
        seen: dict[tuple[int, int], str] = {}
        found = sorted(self._below("", suffixes, seen, refused))
        if refused:
            more = [f"and {len(refused) - MAX_LISTED} more"] if len(refused) > MAX_LISTED else []
            raise DataError(
                f"{self.root}: expected regular files of names in UTF-8, and links inside the dataset, found:",
                *(f"  {line}" for line in (*refused[:MAX_LISTED], *more)),
            )
        yield from found

    def _below(
        self, folder: str, suffixes: Collection[str] | None, seen: dict[tuple[int, int], str], refused: list[str]
    ) -> Iterator[str]:
        """Names below one folder; appends what is wrong to `refused`."""
        status = os.stat(self.path(folder))
        first = seen.setdefault((status.st_dev, status.st_ino), folder)
        if first != folder:
            refused.append(f"{folder}: leads to the folder {first or '.'} again; remove one of the two")
            return
        try:
            entries = sorted(os.scandir(self.path(folder)), key=lambda entry: (entry.is_symlink(), entry.name))
        except OSError as error:
            refused.append(f"{folder or '.'}: cannot be listed: {error.strerror or error}")
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{folder}/{entry.name}" if folder else entry.name
            ending = os.path.splitext(entry.name)[1].lower()
            wanted = not entry.is_dir() if suffixes is None else ending in suffixes
            if (wanted or entry.is_dir()) and not _is_utf8(entry.name):
                refused.append(f"{name!a}: a name that is not UTF-8, which no index can hold; rename it")
                continue
            if entry.is_symlink():
                missing = not os.path.exists(entry.path)
                if missing and not wanted:
                    continue
                if missing:
                    refused.append(f"{name}: a link to {os.readlink(entry.path)}, where nothing is")
                    continue
                if (wanted or entry.is_dir()) and (reason := self.refusal(name)):
                    refused.append(f"{name}: {reason}")
                    continue
            if entry.is_dir():
                yield from self._below(name, suffixes, seen, refused)
            elif wanted and entry.is_file():
                yield name
            elif wanted:
                refused.append(f"{name}: a pipe, socket or device")


def _out(real: str) -> str:
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    return f"a path that leads out of the dataset, to {real}; if you trust it: {FLAG} {shlex.quote(folder)}"


def _blobs(root: Path) -> str | None:
    """The folder of contents that a hub snapshot's links lead to, where `root` lies in such a snapshot."""
    for folder in (root, *root.parents):
        blobs = folder.parent / "blobs"
        if folder.name == "snapshots" and blobs.is_dir() and not blobs.is_symlink():
            return str(blobs)
    return None


def _is_utf8(name: str) -> bool:
    """Whether a name that the file system gave is text; other bytes come as half surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
