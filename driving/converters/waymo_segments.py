"""What a file has of a Waymo segment, and its JSON: end-to-end segments are spread over files, each read alone."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driving.converters.waymo_frames import Calibration, WaymoFrame, WaymoImage
from driving.data.history import History
from driving.data.rater import Rated

OFFICIAL = {"train": "training", "val": "validation", "test": "testing"}
"""How names of files and folders begin, and what Perception's folders call the split."""
_SPLIT = re.compile(r"(train|val|test)(?:ing|idation)?(?![a-zA-Z0-9])")


class Segment:
    """What has been seen of one segment."""

    def __init__(self, source: str, where: str, split: str | None) -> None:
        """Takes the file, relative to the dataset, words for where the segment begins in it, and the file's split."""
        self.source, self.where, self.split = source, where, split
        self.frames: list[WaymoFrame] = []
        self.calibrations: dict[str, Calibration] = {}

    def add(self, calibrations: Mapping[str, Calibration], frames: Sequence[WaymoFrame]) -> None:
        """Takes in frames, and calibrations, of which the last count."""
        self.calibrations |= calibrations
        self.frames += frames


def segment_of(name: str) -> str:
    """An E2E frame is named <segment>-<number of the frame>."""
    segment, dash, number = name.rpartition("-")
    return segment if dash and number.isdecimal() else name


def split_of(path: str) -> str | None:
    """Split that a file is of by its own name (training_2025...tfrecord-00000-of-00263) or a folder's (validation/).

    Names begin with a split's, whole or short, as a word: values/ and trainer/ are none.
    """
    for part in reversed(Path(path).parts):
        if found := _SPLIT.match(part):
            return OFFICIAL[found[1]]
    return None


def as_tree(segment: Segment) -> dict[str, Any]:
    """A segment as JSON values, from which `of_tree` makes an equal one."""
    return {
        "source": segment.source,
        "where": segment.where,
        "split": segment.split,
        "calibrations": {name: dataclasses.asdict(one) for name, one in segment.calibrations.items()},
        "frames": [_frame_tree(frame) for frame in segment.frames],
    }


def of_tree(tree: Mapping[str, Any]) -> Segment:
    """The segment of a tree of `as_tree`."""
    segment = Segment(tree["source"], tree["where"], tree.get("split", split_of(tree["source"])))
    calibrations: Any = {
        name: {key: None if value is None else tuple(value) for key, value in one.items()}
        for name, one in tree["calibrations"].items()
    }
    segment.add(
        {name: Calibration(**one) for name, one in calibrations.items()}, [_frame_of(frame) for frame in tree["frames"]]
    )
    return segment


def _frame_tree(frame: WaymoFrame) -> dict[str, Any]:
    more = dict(frame.more)
    if "history" in more:
        more["history"] = {"dt_s": more["history"].dt_s, "states": more["history"].states.tolist()}
    if "rated" in more:
        more["rated"] = [{**dataclasses.asdict(one), "waypoints": one.waypoints.tolist()} for one in more["rated"]]
    images = {name: dataclasses.asdict(image) for name, image in frame.images.items()}
    return {"timestamp_micros": frame.timestamp_micros, "pose": frame.pose, "images": images, "more": more}


def _frame_of(tree: Mapping[str, Any]) -> WaymoFrame:
    more = dict(tree["more"])
    if "history" in more:
        more["history"] = History(dt_s=more["history"]["dt_s"], states=np.array(more["history"]["states"], np.float64))
    if "rated" in more:
        rated = [{**one, "waypoints": np.array(one["waypoints"], np.float64)} for one in more["rated"]]
        more["rated"] = [Rated(**one) for one in rated]
    return WaymoFrame(
        timestamp_micros=tree["timestamp_micros"],
        pose=None if tree["pose"] is None else tuple(tree["pose"]),
        images={name: WaymoImage(**image) for name, image in tree["images"].items()},
        more=more,
    )
