"""What is said of an environment that fails: its name, the step, and the lines of whoever wrote it."""

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from chunkwise.errors import RunError, one_line
from chunkwise.printable import say

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
    except Exception as error:  # anything a simulator raises
        say(f"{what} could not be closed: {type(error).__name__}: {one_line(error)}", error=True)


def require_finite(what: str, observation: Mapping[str, np.ndarray]) -> None:
    """Raises RunError, which begins with `what`, if an array of an observation holds NaN or Inf."""
    for name, array in observation.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        flat = array.reshape(-1)
        bad = np.flatnonzero(~np.isfinite(flat))
        if len(bad):
            shown = ", ".join(f"[{i}] = {flat[i]}" for i in bad[:4])
            raise RunError(f"{what} observed {name!r} with {len(bad)} of {array.size} numbers not finite: {shown}")
