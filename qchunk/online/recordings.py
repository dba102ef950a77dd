"""The replay of an online run for a page that shows it (chunkwise/view): episodes in the order in which they came.

Where a run acts in several environments, those of the first come first.
"""

import bisect
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chunkwise.config.saved import read_config
from chunkwise.data.images import encode_png, require_pixels
from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.view.source import EpisodeContent, EpisodeSummary
from qchunk.config import QChunkConfig
from qchunk.online.replay import FOLDER, FRAMES, STATES, Records, folders, read_layout

BLOCK = 1 << 20
"""Bytes that are read at a time."""


class ReplayRecordings:
    """Episodes of a run's replay as it was when it was opened. Images stay in the file until they are shown."""

    kind = "replay of an online run"

    def __init__(self, run: Path) -> None:
        """Reads all but the images.

        Raises:
          ConfigError: It is no run of this package.
          DataError: It has no replay or a damaged one, or links lead out of it.
        """
        self.config = read_config(run, QChunkConfig)
        self.title = str(run)
        several = self.config.online is not None and self.config.online.num_envs > 1
        found = () if self.config.online is None else folders(run, self.config.online.num_envs)
        # Up to the first that is not there, however many a config claims; the others are about to be begun.
        self._paths = [folder / FRAMES for folder in itertools.takewhile(lambda one: (one / FRAMES).exists(), found)]
        if not self._paths:
            raise DataError(
                f"{run}: expected a replay in {FOLDER}/{FRAMES}, found none: the run has acted in no environment. "
                f"What it learns from is {self.config.data.path}; chunkwise view shows that folder"
            )
        self._dtype = read_layout(self._paths[0].parent)
        self._cameras = self._named_cameras()
        logs = self._without_images()
        self._begins = [0, *itertools.accumulate(len(records) for records in logs)]
        """Records before those of each log."""
        self._records = np.concatenate(logs)
        bad = [path for path, log in zip(self._paths, logs, strict=True) if len(log) and not log["first"][0]]
        if bad or not len(self._records):
            path = (bad or self._paths)[0]
            raise DataError(f"{path}: expected the first record to begin an episode, found none that does")
        self._edges, self.names = list[int](), list[str]()
        for number, (log, begin) in enumerate(zip(logs, self._begins, strict=False)):
            firsts = np.flatnonzero(log["first"])
            self._edges += (firsts + begin).tolist()
            whose = f"environment {number}, " if several else ""
            self.names += [f"{whose}episode {episode}" for episode in range(len(firsts))]
        self._edges.append(self._begins[-1])

    def records(self, episode: int) -> Records:
        """Returns the records of an episode, one a frame, without images."""
        return self._records[self._edges[episode] : self._edges[episode + 1]]

    def images(self, episode: int, frame: int) -> np.ndarray:
        """Reads the images of a frame, [k, h, w, 3]. Raises DataError if they are not there."""
        if not self._cameras or self._edges[episode] + frame >= self._edges[episode + 1]:
            raise DataError(f"{self.names[episode]}: expected a frame with images, found none at {frame}")
        log = self._log_of(episode)
        path, record = self._paths[log], self._edges[episode] + frame - self._begins[log]
        size, place = self._dtype["images"].itemsize, self._dtype.fields
        assert place is not None
        with budget.open_file(path) as file:
            found = os.pread(file.fileno(), size, record * self._dtype.itemsize + place["images"][1])
        if len(found) != size:
            raise DataError(f"{path}: expected record {record}, found the file's end: a resumed run cut it back")
        return np.frombuffer(found, np.uint8).reshape(self._dtype["images"].shape)

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Tells all at once: everything was read."""
        assert self.config.online is not None
        for episode, name in enumerate(self.names):
            steps = self.records(episode)[1:]
            over = bool(len(steps)) and bool(steps["terminated"][-1] or steps["truncated"][-1])
            success = bool(steps["success"].any())
            yield (
                episode,
                EpisodeSummary(
                    name=name,
                    task=self.config.online.env,
                    success=success if over or success else None,
                    length=len(steps),
                    total_reward=float(steps["reward"].sum()),
                    label=_ended(steps, over),
                ),
            )

    def open(self, episode: int) -> EpisodeContent:
        records = self.records(episode)
        columns = {"action": records["action"][1:], "reward": records["reward"][1:]}
        columns |= {name: records[name] for name in STATES if name in (records.dtype.names or ())}
        columns["success"] = records["success"][1:]
        log = self._log_of(episode)
        before = episode - bisect.bisect_left(self._edges, self._begins[log])  # episodes of this log
        begin = self._edges[episode] - self._begins[log] - before  # an episode of L steps has L + 1 records
        where = f", in environment {log}" if len(self._paths) > 1 else ""
        notes = (f"Environment steps {begin} to {begin + len(records) - 1} of the online phase{where}.",)
        return EpisodeContent(cameras=self._cameras, columns=columns, frames=len(records), notes=notes)

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        if camera not in self._cameras:
            raise DataError(f"{self.names[episode]}: expected one of {', '.join(self._cameras)}, found {camera}")
        return encode_png(self.images(episode, frame)[self._cameras.index(camera)])

    def _log_of(self, episode: int) -> int:
        """Number of the log that holds an episode."""
        return bisect.bisect_right(self._begins, self._edges[episode]) - 1

    def _named_cameras(self) -> tuple[str, ...]:
        """Names of the images of a record. Raises DataError if they are not as many as the config's cameras."""
        if "images" not in (self._dtype.names or ()):
            return ()
        count, height, width, _ = self._dtype["images"].shape
        require_pixels(height, width, str(self._paths[0]))
        if count != len(self.config.data.cameras):
            expected = f"images of {len(self.config.data.cameras)} cameras as data.cameras says"
            raise DataError(f"{self._paths[0].parent}: expected {expected}, found {count}")
        return self.config.data.cameras

    def _without_images(self) -> list[Records]:
        """All records of each log but for their images, which come last in each."""
        kept = [name for name in self._dtype.names or () if name != "images"]
        small = np.dtype([(name, self._dtype[name]) for name in kept])
        found, total = list[Records](), 0
        for path in self._paths:
            if read_layout(path.parent) != self._dtype:
                raise DataError(f"{path.parent}: expected the layout of {self._paths[0].parent}, found another")
            with budget.open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                budget.require_stored(file, path, size)
                count = size // self._dtype.itemsize  # what is left is a record that is being written
                total += count
                budget.require("table_rows", total, str(path))
                budget.require("decoded_mib", total * small.itemsize, str(path))
                found.append(self._heads(file.fileno(), count, small, path))
        return found

    def _heads(self, descriptor: int, count: int, small: np.dtype, path: Path) -> Records:
        """The first fields of so many records."""
        found = np.empty(count, small)
        # Records without images follow one another; of those with images the head alone is read.
        at_once = BLOCK // small.itemsize + 1 if small.itemsize == self._dtype.itemsize else 1
        for begin in range(0, count, at_once):
            wanted = small.itemsize * (min(begin + at_once, count) - begin)
            content = os.pread(descriptor, wanted, begin * self._dtype.itemsize)
            if len(content) != wanted:
                raise DataError(f"{path}: expected {count} records, found fewer: a run cuts it back; try again")
            found[begin : begin + at_once] = np.frombuffer(content, small)
        return found


def _ended(steps: Records, over: bool) -> str:
    if not over:
        return "under way"
    return "terminated" if steps["terminated"][-1] else "cut by time"
