"""Episodes that no pool draws: what policy and critic are measured on where there is no simulator.

data.holdout is their share of each label. Which they are follows from their names, so that every seed of a config holds
out the same ones, and a copy of the dataset too.
"""

import hashlib

import numpy as np
from jaxtyping import Bool

from chunkwise.data.episodes import EpisodeSource
from chunkwise.errors import DataError
from qchunk.config import DataConfig


def held_out(data: DataConfig, source: EpisodeSource) -> Bool[np.ndarray, " episodes"]:
    """Returns which episodes are held out: of each label round(data.holdout n), and at least 1 of 2 or more.

    Those are taken whose names have the least SHA-256.

    Raises:
      DataError: No label has 2 episodes.
    """
    held = np.zeros(len(source), bool)
    if not data.holdout:
        return held
    order = sorted(range(len(source)), key=lambda index: hashlib.sha256(source.ids[index].encode()).digest())
    ranked = np.array(order, np.int64)
    for label in (True, False):
        members = ranked[source.positives[ranked] == label]
        if len(members) > 1:
            held[members[: min(max(round(data.holdout * len(members)), 1), len(members) - 1)]] = True
    if not held.any():
        raise DataError(
            f"{data.path}: data.holdout is {data.holdout}, and no label has more than one episode of {len(source)}; "
            "expected 2 or more, or data.holdout 0"
        )
    return held
