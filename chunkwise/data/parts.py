"""Parts of a dataset that is made part by part: each is whole, or not there, and is made once however often it stops.

Below the scratch folder of a dataset (files/new_folder.py):
  .jobs/job.json                     what is made; where that is something else, all of it is removed
  .jobs/parts/000012/part.json     what is said of a part, and the key under which it was made
  .jobs/parts/000012/files/        what goes into the dataset
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from chunkwise.data.problems import Problem
from chunkwise.errors import RunError
from chunkwise.files.durable import give_name, publish, scratch_name, sync_folder, write_json

JOBS, PARTS = ".jobs", "parts"
BAD = "bad"
"""Marks a part with problems, which is made again by a later start: its source may have been repaired."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What is said of a part."""

    said: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """JSON values, for what is written once all parts are there; nothing of a unit that is bad as a whole."""
    problems: tuple[Problem, ...] = ()
    read: int = 1
    """Records, or episodes, that it was made of."""
    bad: int = 0
    """How many of them are left out, each with a problem."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartFolder:
    """Where the parts are; pickled to those who make them."""

    path: Path

    def make(self, number: int, key: str, work: Callable[[Path], Part]) -> None:
        """Makes a part.

        Args:
          number: Of the part.
          key: On what it depends.
          work: Writes the part's files into a folder; where several processes do it at once, the last one counts.

        Raises:
          OSError: It could not be written.
        """
        scratch = Path(tempfile.mkdtemp(prefix=f"{number:06d}.", dir=self.path))
        files = scratch / "files"
        files.mkdir()
        part = work(files)
        names = sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if not path.is_dir())
        problems = [dataclasses.asdict(problem) for problem in part.problems]
        tree = {"key": key, "files": names, **vars(part), "problems": problems}
        (scratch / "part.json").write_text(json.dumps(tree))
        if problems:
            (scratch / BAD).touch()
        if (there := self._folder(number)).exists():  # made for another key, or by another process
            shutil.rmtree(there)
        publish(scratch, there)

    def find(self, number: int, key: str) -> tuple[Part, tuple[str, ...]] | None:
        """Returns a part and the names of its files; None where it is missing, or was made for another key."""
        try:
            tree = json.loads((self._folder(number) / "part.json").read_text())
            if tree.pop("key") != key:
                return None
            names, problems = tuple(tree.pop("files")), tuple(Problem(**one) for one in tree.pop("problems"))
            return Part(**tree, problems=problems), names
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # missing, or damaged since
            return None

    def take(self, number: int, names: Collection[str], out: Path) -> None:
        """Moves files of a part into the dataset; those that a former start moved are there."""
        for name in names:
            source, target = self._folder(number) / "files" / name, out / name
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, target)
            elif not target.exists():
                raise RunError(f"{source}: expected a file of a part, found none; remove {out} to begin anew")

    def _folder(self, number: int) -> Path:
        return self.path / f"{number:06d}"


class Parts:
    """The parts below a dataset's scratch folder, for one job."""

    def __init__(self, scratch: Path, job: Mapping[str, Any]) -> None:
        """Takes what an earlier start of the same job left, and removes that of any other.

        Args:
          scratch: The dataset's scratch folder, locked.
          job: JSON values on which all parts depend.
        """
        self._scratch, self.path = scratch, scratch / JOBS
        file, job = self.path / "job.json", json.loads(json.dumps(job))
        if _read(file) != job:
            self.remove()
            self.path.mkdir()
            write_json(file, job)

    def open(self) -> PartFolder:
        """Returns the folder of the parts, without what killed makers left there."""
        folder = self.path / PARTS
        folder.mkdir(exist_ok=True)
        for left in folder.glob("??????.*"):
            shutil.rmtree(left)
        return PartFolder(path=folder)

    def begin_merge(self) -> None:
        """From here on files are moved out of the parts, which are of use only together."""
        (self.path / "merging").touch()

    @property
    def is_merging(self) -> bool:
        """Whether an earlier start had all parts, and moved some of their files."""
        return (self.path / "merging").exists()

    def remove(self) -> None:
        """Removes everything below the scratch folder."""
        for left in list(self._scratch.iterdir()):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _read(file: Path) -> Any:
    """A JSON value; None where there is none."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def has_parts(scratch: Path) -> bool:
    """Whether there is anything in a scratch folder with which a later start may go on."""
    jobs = scratch / JOBS
    parts = (files.parent.parent for files in jobs.glob(f"{PARTS}/??????/files/*"))
    return (jobs / "merging").exists() or any(not (part / BAD).exists() for part in parts)


def give_name_alone(scratch: Path, out: Path) -> None:
    """Gives a scratch folder its name without its parts, which are removed; OSError, with them in it, if it cannot."""
    left = scratch_name(out)
    os.rename(scratch / JOBS, left)
    try:
        sync_folder(scratch)
        give_name(scratch, out)
    except OSError:
        os.rename(left, scratch / JOBS)
        raise
    shutil.rmtree(left, ignore_errors=True)


def key_of(*values: Any) -> str:
    """Returns a digest of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]
