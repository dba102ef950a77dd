"""Driving episodes for a page that shows them (chunkwise/view), good episodes and bad ones."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from chunkwise.data.images import read_image_size, require_few_scans
from chunkwise.data.problems import Problem
from chunkwise.data.threads import step_back
from chunkwise.errors import DataError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.view.source import EpisodeContent, EpisodeSummary
from driving.data.episodes import Episode, episode_names, image_name, iter_images, load_episode
from driving.data.images import read_bytes
from driving.data.scan import scan_file

FAR_M = 1e5
"""Beyond it 32-bit floats are more than 0.4 cm apart."""
KEPT = 4
"""Parsed episodes that are kept: that shown, and those around it."""
_FRAME = re.compile(r"frames\[(\d+)\]")


class DrivingRecordings:
    """A folder of episode files, or one of them. An image is read when it is shown."""

    kind = "driving episodes"

    def __init__(self, path: Path, allow_links_to: tuple[str, ...] = ()) -> None:
        """Lists the files; reads none.

        Raises:
          DataError: There is none, or links lead out of the folder.
        """
        self._bounds = Bounds(path, allow_links_to)
        self.title, self.names = str(path), episode_names(path, self._bounds)
        self._episode = functools.lru_cache(KEPT)(self._read)

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Parses each file and looks at the header of each image that it names."""
        step_back()
        for place, name in enumerate(self.names):
            files = Files(self._bounds, remember=False)
            index, problems = scan_file(Path(self._bounds.path(name)), self._bounds.root, files=files)
            found = tuple(_with_frame(problem) for problem in problems)
            yield place, EpisodeSummary(name=name, length=None if index is None else index.frames, problems=found)

    def open(self, episode: int) -> EpisodeContent:
        read, _ = self._episode(episode)
        waypoints = read.waypoints.reshape(len(read.t), -1)
        steps = range(1, read.waypoints.shape[1] + 1)
        pose, notes = _near_zero(read.pose)
        columns = {
            "expert waypoints": waypoints,
            "pose": pose,
            "speed_mps": read.speed_mps,
            "yaw_rate_radps": read.yaw_rate_radps,
            "route_command": read.route_command,
            "rated trajectories": np.array([len(rated) for rated in read.rated]),
        }
        return EpisodeContent(
            cameras=read.cameras,
            columns={name: x for name, x in columns.items() if x.size},
            labels={"pose": ("x", "y", "yaw"), "expert waypoints": [f"{axis}{i}" for i in steps for axis in "xy"]},
            fps=float(1 / np.median(np.diff(read.t))) if len(read.t) > 1 else None,
            times=read.t,
            notes=notes,
        )

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        read, images = self._episode(episode)
        source = f"{self.names[episode]}: {camera}, frame {frame}"
        path = images.get((frame, read.cameras.index(camera)))
        if path is None:
            raise DataError(f"{source}: this frame has no image")
        name, refused = image_name(self.names[episode], path)
        if refused:
            raise DataError(f"{source}: expected a path inside the dataset, found {refused}: {path}")
        content = read_bytes(str(self._bounds.require(name)))
        read_image_size(content, source=source)
        require_few_scans(content, source=source)
        return content

    def _read(self, episode: int) -> tuple[Episode, Mapping[tuple[int, int], str]]:
        """An episode, and the path of each image by frame and camera."""
        read = load_episode(Path(self._bounds.path(self.names[episode])))
        return read, {(i, k): path for i, k, path in iter_images(read)}


def _with_frame(problem: Problem) -> Problem:
    """Takes the frame out of the key, where it names one."""
    found = _FRAME.match(problem.key)
    return problem if found is None or problem.row is not None else dataclasses.replace(problem, row=int(found[1]))


def _near_zero(pose: Float64[np.ndarray, "T 3"]) -> tuple[Float64[np.ndarray, "T 3"], tuple[str, ...]]:
    """Poses as the page can show them in 32 bits, to a centimetre or better, and a note where they are moved for it."""
    known = np.flatnonzero(np.isfinite(pose[:, :2]).all(axis=1))
    if not len(known) or np.abs(pose[known, :2]).max() < FAR_M:
        return pose, ()
    x, y = np.floor(pose[known[0], :2])
    note = f"pose: x and y are shown less {x:.0f} and {y:.0f} m, which 32-bit floats cannot hold to the centimetre"
    return pose - (x, y, 0.0), (note,)
