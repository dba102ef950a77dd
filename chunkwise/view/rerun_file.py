"""Writes recordings as a file of Rerun's viewer (rerun.io), with the package rerun-sdk where it is installed.

One recording; below each episode's name lie its cameras, its columns and what is known of it. Images are the bytes that
the page shows.
"""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.config.installed import pip_install
from chunkwise.data.problems import Problem
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.durable import scratch_file
from chunkwise.printable import printable, say
from chunkwise.view.images import media_type
from chunkwise.view.source import EpisodeContent, EpisodeSummary, Recordings

FRAME, TIME = "frame", "time"
"""Timelines: number of the frame in its episode, and seconds where times or the rate are known."""
AT_ONCE = 64
"""Images that are handed over together."""


def write_rerun(recordings: Recordings, path: Path) -> int:
    """Writes all episodes to a .rrd file, which appears under its name when it is whole.

    Args:
      recordings: Good episodes and bad ones; what cannot be read is said in the file and on the terminal.
      path: Of the file; one that is there is replaced.

    Returns:
      Episodes that could be read.

    Raises:
      ConfigError: The name does not end in .rrd, or rerun-sdk is not installed.
      DataError: No episode can be read.
    """
    if path.suffix != ".rrd":
        raise ConfigError(f"--rerun is {path}; expected the name of a file that ends in .rrd, as Rerun's viewer opens")
    rr = _rerun()
    name = hashlib.sha256(str(Path(recordings.title).absolute()).encode()).hexdigest()[:32]
    summaries, read = dict(recordings.examine()), 0
    with scratch_file(path) as part:
        stream = rr.RecordingStream("chunkwise", recording_id=name, send_properties=False)
        stream.save(part)
        for episode, called in enumerate(recordings.names):
            summary = summaries.get(episode, EpisodeSummary(name=called))
            file = _Episode(rr, stream, printable(called))
            try:
                content = recordings.open(episode)
            except DataError as error:
                say(f"{called}: {error}")
                file.about(summary, (), str(error))
                continue
            file.about(summary, content.problems, " ".join(content.notes))
            file.columns(content)
            for camera in content.cameras:
                file.camera(recordings, episode, camera, content)
            read += 1
        stream.flush()
        stream.disconnect()
        if not read:
            raise DataError(f"{recordings.title}: expected an episode that can be read, found none")
    return read


def _rerun() -> Any:
    """The package. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("rerun")
    except ImportError as error:
        raise ConfigError(
            f"--rerun needs the package rerun-sdk: {pip_install('rerun')}, or rerun-sdk alone ({error})"
        ) from error


class _Episode:
    """One episode's part of the file."""

    def __init__(self, rr: Any, stream: Any, name: str) -> None:
        self._rr, self._stream, self._name = rr, stream, name

    def about(self, summary: EpisodeSummary, more: tuple[Problem, ...], words: str) -> None:
        """Task, outcome and what is wrong, for the whole episode; problems of a row also at their frame."""
        success = {True: "success", False: "failure", None: "no label"}[summary.success]
        lines = [summary.task, summary.group, success, summary.label, words]
        lines += [] if summary.total_reward is None else [f"reward {summary.total_reward:g}"]
        lines += [] if summary.advantage is None else [f"advantage {summary.advantage:+g}"]
        problems = [*summary.problems, *more]
        text = "\n".join(printable(line) for line in (*lines, *map(str, problems)) if line)
        self._stream.log(self._path("about"), self._rr.TextDocument(text), static=True)
        for problem in problems:
            if problem.row is not None:
                self._stream.set_time(FRAME, sequence=problem.row)
                self._stream.log(self._path("problems"), self._rr.TextLog(str(problem), level="ERROR"))
        self._stream.reset_time()

    def columns(self, content: EpisodeContent) -> None:
        """All rows of each column, as a scalar for each dimension."""
        for name, x in content.columns.items():
            rows = x.reshape(len(x), -1).astype(np.float64)
            path = self._path(printable(name))
            labels = [printable(label) for label in content.labels.get(name, ())]
            if labels:
                self._stream.log(path, self._rr.SeriesLines(names=labels), static=True)
            if rows.size:
                self._send(path, np.arange(len(rows)), content, self._rr.Scalars.columns(scalars=rows))

    def camera(self, recordings: Recordings, episode: int, camera: str, content: EpisodeContent) -> None:
        """Every image that can be read; the first that cannot is said, and how many there are."""
        path, missing, first = self._path("cameras", printable(camera)), 0, ""
        length = content.frames or max((len(x) for x in content.columns.values()), default=0)
        for begin in range(0, length, AT_ONCE):
            found: dict[int, bytes] = {}
            for frame in range(begin, min(begin + AT_ONCE, length)):
                try:
                    found[frame] = recordings.image(episode, camera, frame)
                except DataError as error:
                    missing, first = missing + 1, first or str(error)
            self._images(path, found, content)
        if missing:
            words = f"{missing} of {length} images of {camera} are missing, the first: {first}"
            say(f"{self._name}: {words}")
            self._stream.log(path, self._rr.TextLog(printable(words), level="WARN"), static=True)

    def _images(self, path: str, found: Mapping[int, bytes], content: EpisodeContent) -> None:
        if not found:
            return
        kinds = [media_type(image) for image in found.values()]
        columns = self._rr.EncodedImage.columns(blob=list(found.values()), media_type=kinds)
        self._send(path, np.array(list(found)), content, columns)

    def _send(self, path: str, frames: np.ndarray, content: EpisodeContent, columns: Any) -> None:
        times = [self._rr.TimeColumn(FRAME, sequence=frames)]
        if content.times is not None or content.fps is not None:
            seconds = frames / content.fps if content.times is None else content.times[frames]
            elapsed = np.rint(seconds * 1e9).astype("timedelta64[ns]")  # seconds would be cut, not rounded
            times.append(self._rr.TimeColumn(TIME, duration=elapsed))
        self._stream.send_columns(path, indexes=times, columns=columns)

    def _path(self, *parts: str) -> str:
        """Escaped: no name leads to another episode's place."""
        return self._rr.new_entity_path([self._name, *parts])
