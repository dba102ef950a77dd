"""What is said of an environment that fails: its name, the step, and the lines of whoever wrote it."""

import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.errors import DataError, RunError, one_line
from chunkwise.printable import say

LARGEST = float(np.finfo(np.float32).max)
"""What is kept in 32 bits is at most this, and not below its negative."""
_OURS = str(Path(__file__).resolve().parents[1])
_RUNNERS = ("concurrent/futures", "threading.py", "multiprocessing", "<")
"""Frames of files with these in their path lead to an environment and say nothing of it."""


def failure(what: str, error: BaseException) -> RunError:
    """Returns what to raise for an error of an environment.

    Args:
      what: Name and step: "the environment mine:Env failed in step 12 of an episode".
      error: What it raised; of its frames those of the environment and what it calls are shown.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(_OURS) and not any(r in f.filename for r in _RUNNERS)]
    said = type(error).__name__ if not str(error) else f"{type(error).__name__}: {one_line(error)}"
    lines = [f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in theirs or frames]
    return RunError(f"{what}: {said}", *lines)


def close_anyway(what: str, close: Callable[[], None]) -> None:
    """Closes an environment, `what`; what it raises is said in a line: it must not hide why it is closed."""
    try:
        close()
    except (Exception, SystemExit) as error:  # anything a simulator raises
        say(f"{what} could not be closed: {type(error).__name__}: {one_line(error)}", error=True)


class Shapes:
    """Names and shapes of what is observed, which stay as they were when each was first seen."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._first: dict[str, tuple[int, ...]] = {}
        self._images: dict[str, tuple[int, ...]] = {}

    def require(self, what: str, observation: Mapping[str, Any]) -> None:
        """Raises RunError, which begins with `what`, if an observation lacks a name or changes a shape of before."""
        _compare(what, self._first, observation)

    def require_images(self, what: str, images: Mapping[str, Any]) -> None:
        """Raises RunError, which begins with `what`, if a camera is missing, has another size than before, or gives no
        uint8."""
        require_observed(what, images)
        for name, value in images.items():
            image = np.asarray(value)
            if image.dtype.kind not in "bfiu" or (image.shape[2:] == (3,) and image.dtype != np.uint8):
                hint = "; multiply floats in 0..1 by 255 and cast" if image.dtype.kind == "f" else ""
                raise RunError(f"{what} gave {name!r} as {image.dtype}; expected uint8 [h, w, 3] in 0..255{hint}")
        _compare(what, self._images, images)


def require_cameras(what: str, images: Mapping[str, Any], cameras: Collection[str]) -> None:
    """Raises DataError, which begins with `what`, if an environment does not show a camera that it was asked for."""
    if not isinstance(images, Mapping):
        raise DataError(f"{what} shows a {type(images).__name__}; expected a dict of images by camera")
    if missing := sorted({name for name in cameras if name not in images}):
        found = ", ".join(sorted(images)) or "none"
        raise DataError(f"{what} shows {found}; expected {', '.join(missing)} too, which cameras name")


def require_rgb(what: str, images: Mapping[str, Any], cameras: Collection[str]) -> None:
    """Raises DataError, as `require_cameras` and where a camera that was asked for gives no uint8 [h, w, 3]."""
    require_cameras(what, images, cameras)
    for name in cameras:
        image = np.asarray(images[name])
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            found = f"{image.dtype} {list(image.shape)}"
            raise DataError(f"{what} shows the camera {name!r} as {found}; expected uint8 [h, w, 3], RGB in 0..255")


def _compare(what: str, first: dict[str, tuple[int, ...]], observation: Mapping[str, Any]) -> None:
    """Raises RunError where names are missing or shapes are others than the first ones, which it notes."""
    found = {name: np.shape(value) for name, value in observation.items()}
    if found == first:
        return
    if missing := [name for name in first if name not in found]:
        raise RunError(f"{what} observed {sorted(found)}; expected {', '.join(missing)} too, as before")
    for name, shape in found.items():
        expected = first.setdefault(name, shape)
        if shape != expected:
            raise RunError(f"{what} observed {name!r} with shape {shape}; expected {expected}, as before")


def require_observed(what: str, observation: object) -> None:
    """Raises RunError, which begins with `what`, if an observation is no dict, as of a reset that gives two things."""
    if not isinstance(observation, Mapping):
        two = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[0], Mapping)
        hint = ", the first of the two alone" if two else ""
        raise RunError(f"{what} gave a {type(observation).__name__}; expected a dict of arrays by name{hint}")


def require_finite(what: str, observation: Mapping[str, Any]) -> None:
    """Raises RunError, which begins with `what`, if an array of an observation, or a list, is not finite in 32 bits."""
    for name, value in observation.items():
        array = np.asarray(value)
        # One comparison for all but what is refused, since each step passes here. NaN is not at most anything, and a
        # bound of 16 bits would be infinite.
        if array.dtype.kind != "f" or float(np.abs(array).max(initial=0.0)) <= LARGEST:
            continue
        flat = array.reshape(-1)
        with np.errstate(over="ignore"):  # it is kept in 32 bits, which end at 3.4e38
            bad = np.flatnonzero(~np.isfinite(flat.astype(np.float32, copy=False)))
        if len(bad):
            shown = ", ".join(f"[{i}] = {flat[i]}" for i in bad[:4])
            raise RunError(
                f"{what} observed {name!r} with {len(bad)} of {array.size} numbers not finite in 32 bits: {shown}"
            )
