"""The replay of an online run for a page that shows it (chunkwise/view): episodes in the order in which they came."""

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
from qchunk.online.replay import FRAMES, STATES, Records, read_layout

FOLDER = "replay"
"""In a run's folder."""
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
        folder, self.title = run / FOLDER, str(run)
        self._path = folder / FRAMES
        if self.config.online is None or not self._path.exists():
            raise DataError(
                f"{run}: expected a replay in {FOLDER}/{FRAMES}, found none: the run has acted in no environment. "
                f"What it learns from is {self.config.data.path}; chunkwise view shows that folder"
            )
        self._dtype = read_layout(folder)
        self._cameras = self._named_cameras()
        self._records = self._without_images()
        firsts = np.flatnonzero(self._records["first"])
        if not len(firsts) or firsts[0]:
            raise DataError(f"{self._path}: expected the first record to begin an episode, found none that does")
        self._edges = [*firsts.tolist(), len(self._records)]
        self.names = [f"episode {number}" for number in range(len(firsts))]

    def records(self, episode: int) -> Records:
        """Returns the records of an episode, one a frame, without images."""
        return self._records[self._edges[episode] : self._edges[episode + 1]]

    def images(self, episode: int, frame: int) -> np.ndarray:
        """Reads the images of a frame, [k, h, w, 3]. Raises DataError if they are not there."""
        record = self._edges[episode] + frame
        if not self._cameras or record >= self._edges[episode + 1]:
            raise DataError(f"{self.names[episode]}: expected a frame with images, found none at {frame}")
        size, place = self._dtype["images"].itemsize, self._dtype.fields
        assert place is not None
        with budget.open_file(self._path) as file:
            found = os.pread(file.fileno(), size, record * self._dtype.itemsize + place["images"][1])
        if len(found) != size:
            raise DataError(f"{self._path}: expected record {record}, found the file's end: a resumed run cut it back")
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
        begin = self._edges[episode] - episode  # an episode of L steps has L + 1 records
        notes = (f"Environment steps {begin} to {begin + len(records) - 1} of the online phase.",)
        return EpisodeContent(cameras=self._cameras, columns=columns, frames=len(records), notes=notes)

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        if camera not in self._cameras:
            raise DataError(f"{self.names[episode]}: expected one of {', '.join(self._cameras)}, found {camera}")
        return encode_png(self.images(episode, frame)[self._cameras.index(camera)])

    def _named_cameras(self) -> tuple[str, ...]:
        """Names of the images of a record. Raises DataError if they are not as many as the config's cameras."""
        if "images" not in (self._dtype.names or ()):
            return ()
        count, height, width, _ = self._dtype["images"].shape
        require_pixels(height, width, str(self._path))
        if count != len(self.config.data.cameras):
            expected = f"images of {len(self.config.data.cameras)} cameras as data.cameras says"
            raise DataError(f"{self._path.parent}: expected {expected}, found {count}")
        return self.config.data.cameras

    def _without_images(self) -> Records:
        """All records but for their images, which come last in each."""
        kept = [name for name in self._dtype.names or () if name != "images"]
        small = np.dtype([(name, self._dtype[name]) for name in kept])
        source = str(self._path)
        with budget.open_file(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            budget.require_stored(file, self._path, size)
            count = size // self._dtype.itemsize  # what is left is a record that is being written
            budget.require("table_rows", count, source)
            budget.require("decoded_mib", count * small.itemsize, source)
            found = np.empty(count, small)
            # Records without images follow one another; of those with images the head alone is read.
            at_once = BLOCK // small.itemsize + 1 if small.itemsize == self._dtype.itemsize else 1
            for begin in range(0, count, at_once):
                wanted = small.itemsize * (min(begin + at_once, count) - begin)
                content = os.pread(file.fileno(), wanted, begin * self._dtype.itemsize)
                if len(content) != wanted:
                    raise DataError(f"{source}: expected {count} records, found fewer: a run cuts it back; try again")
                found[begin : begin + at_once] = np.frombuffer(content, small)
        return found


def _ended(steps: Records, over: bool) -> str:
    if not over:
        return "under way"
    return "terminated" if steps["terminated"][-1] else "cut by time"
