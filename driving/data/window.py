"""What training draws at a frame of an episode, for a page that shows it (chunkwise/view): by the dataset itself."""

import functools
import threading
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

from chunkwise.errors import DataError, RunError
from chunkwise.view.source import Recordings, Window
from driving.config import AugmentConfig, DrivingConfig
from driving.data.augment import Draws, draw
from driving.data.batch import Batch
from driving.data.batches import DrivingData, open_data
from driving.data.validation import side_of

SHOWN = (
    "time_valid",
    "t",
    "speed_mps",
    "speed_valid",
    "yaw_rad",
    "yaw_valid",
    "yaw_rate_radps",
    "yaw_rate_valid",
    "past_motion",
    "past_motion_valid",
    "relative_pose",
    "relative_pose_valid",
    "route_command",
)
"""Entries of a batch that are shown as numbers, besides waypoints and which images are there."""
WAYPOINTS = "expert waypoints"
"""The recordings' column of them."""


class OpenedOnce:
    """The dataset of a config, all splits of it, opened as for training when it is first asked for."""

    def __init__(self, config: DrivingConfig, recordings: Recordings) -> None:
        """Takes a config whose data.path is that of the recordings; reads nothing yet."""
        self.config, self._recordings = config, recordings
        self._lock = threading.Lock()

    def row(self, episode: int, frame: int) -> tuple[DrivingData, int]:
        """Returns the dataset and a frame's row in it.

        Raises:
          DataError: Training would refuse the dataset, or leaves the episode out, or there is no such frame.
        """
        with self._lock:
            data = self._data
        name = self._recordings.names[episode]
        if name not in data.index.files:
            raise DataError("Training leaves this episode out: it has a problem.")
        rows = data.index.rows(data.index.files.index(name))
        if frame >= rows.stop - rows.start:
            raise DataError(f"expected a frame below {rows.stop - rows.start}, found {frame}")
        return data, rows.start + frame

    @functools.cached_property
    def _data(self) -> DrivingData:
        try:
            return open_data(self.config.data, "all")
        except RunError as error:
            raise DataError("Training would not begin:", *str(error).splitlines()) from error


class TrainingWindows:
    """What a config makes of the episodes."""

    def __init__(self, config: DrivingConfig, name: str, recordings: Recordings) -> None:
        """Takes a config whose data.path is that of the recordings; reads nothing yet."""
        self._opened, self.name = OpenedOnce(config, recordings), name

    def window(self, episode: int, frame: int) -> Window:
        data, row = self._opened.row(episode, frame)
        batch = data.batch(np.array([row]))
        notes, images = list(self._drawn(data, row)), dict(_images(batch, data, ""))
        if data.config.augment != AugmentConfig():
            changed = data.batch(np.array([row]), self._draws(data, row))
            images |= dict(_images(changed, data, ", augmented"))
            notes.append(
                "Augmented: one draw; training draws anew for each sample of each epoch. The numbers are before it."
            )
        there = batch["image_valid"][0]
        arrays = {"waypoint_valid": batch["waypoint_valid"][0], "waypoints": batch["waypoints"][0]}
        arrays |= {name: batch[name][0] for name in SHOWN}
        arrays |= {f"image_valid {name}": there[:, k] for k, name in enumerate(data.config.cameras)}
        return Window(
            recorded=batch["waypoints"][0],
            over=WAYPOINTS,
            valid=batch["waypoint_valid"][0],
            arrays=arrays,
            per_step=("waypoint_valid", "waypoints"),
            images=images,
            in_plane=True,
            notes=tuple(notes),
        )

    def _draws(self, data: DrivingData, row: int) -> Draws:
        """Those of one sample."""
        config = self._opened.config
        times, cameras = len(config.data.offsets_s), len(config.data.cameras)
        return draw([(0, row)], seed=config.run.seed, times=times, cameras=cameras)

    def _drawn(self, data: DrivingData, row: int) -> Iterator[str]:
        """Whether training draws this start."""
        if row not in data.anchors:
            yield "Training does not draw this start: it has too few images (data.min_cameras, data.incomplete)."
        try:
            side = side_of(data.index, data.config, int(data.index.episode_of(np.array([row]))[0]))
        except DataError as error:  # one file of a folder that has no split yet
            yield f"Of which split this episode is, is not known: {error}."
            return
        if side != "train":
            yield f"This episode is of the split {side}: training never draws it."


def _images(batch: Batch, data: DrivingData, what: str) -> Iterator[tuple[str, UInt8[np.ndarray, "h w 3"]]]:
    """Each camera's image at each time of the sample, where there is one."""
    for n, offset_s in enumerate(data.config.offsets_s):
        when = "" if len(data.config.offsets_s) == 1 else f" at {offset_s:+g} s"
        for k, name in enumerate(data.config.cameras):
            if batch["image_valid"][0, n, k]:
                yield f"{name}{when}{what}", batch["images"][0, n, k]
