"""Episodes that no pool draws: what policy and critic are measured on where there is no simulator.

data.holdout is their share of each label; which they are, chunkwise/data/holdout.py says.
"""

import numpy as np
from jaxtyping import Bool

from chunkwise.data import holdout
from chunkwise.data.episodes import EpisodeSource
from chunkwise.errors import DataError
from qchunk.config import DataConfig
from qchunk.data.mixture import folders_of


def held_out(data: DataConfig, source: EpisodeSource) -> Bool[np.ndarray, " episodes"]:
    """Returns which episodes are held out, a share of each label; of a mixture, of each label of each folder.

    Raises:
      DataError: No label has 2 episodes.
    """
    groups = list(zip(folders_of(data, source).tolist(), source.positives.tolist(), strict=True))
    held = holdout.held_out(source.ids, data.holdout, groups=groups)
    if data.holdout and not held.any():
        raise DataError(
            f"{data.path}: data.holdout is {data.holdout}, and no label has more than one episode of {len(source)}; "
            "expected 2 or more, or data.holdout 0"
        )
    return held
