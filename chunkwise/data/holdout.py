"""What is held out of training to be measured on: which episodes, and which of their frames.

Which they are follows from names alone, so that every seed of a config holds out the same ones, and a copy of the
dataset too. qchunk and openpi_ript hold episodes out by data.holdout; driving has a validation split by recording
(driving/data/split.py), and measures on frames that are spaced as here.
"""

import hashlib
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Int64

ROWS = 512
"""Frames that are measured on at most."""


def held_out(names: Sequence[str], share: float, *, groups: Sequence[Hashable] = ()) -> Bool[np.ndarray, " n"]:
    """Returns which of `names` are held out: of each group round(share n), and at least 1 of 2 or more, but never all.

    Those are taken whose names have the least SHA-256, so another name in a group moves at most one of the others.

    Args:
      names: Different from one another.
      share: 0 to below 1; 0 holds out nothing.
      groups: Of each name, by which the share is taken; without any there is one.
    """
    held = np.zeros(len(names), bool)
    if not share:
        return held
    members: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(names)), key=lambda index: hashlib.sha256(names[index].encode()).digest()):
        members.setdefault(groups[index] if groups else None, []).append(index)
    for ranked in members.values():
        if len(ranked) > 1:
            held[ranked[: min(max(round(share * len(ranked)), 1), len(ranked) - 1)]] = True
    return held


def spaced(frames: int, rows: int) -> Int64[np.ndarray, "batches rows"]:
    """Returns evenly spaced numbers of 0 to frames - 1, ascending: at most ROWS, in full batches alone.

    Full ones, so that one program serves them all.

    Args:
      frames: At least 1.
      rows: Of a batch at most; fewer where there are fewer frames.
    """
    rows = min(rows, ROWS, frames)
    whole = rows * (min(ROWS, frames) // rows)
    return np.linspace(0, frames - 1, whole).round().astype(np.int64).reshape(-1, rows)
