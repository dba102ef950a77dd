"""Episodes that no pool draws: what policy and critic are measured on where there is no simulator.

data.holdout is their share of each label; which they are, chunkwise/data/holdout.py says.
"""

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.data import holdout
from chunkwise.data.episodes import EpisodeSource
from chunkwise.errors import ConfigError, DataError
from qchunk.config import DataConfig, QChunkConfig
from qchunk.data.image_store import FrameStore, open_store
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


def measured(data: DataConfig, source: EpisodeSource) -> Int64[np.ndarray, " n"]:
    """Returns the episodes on which evaluations measure: those held out, at most data.episodes_per_epoch of them.

    Of more they are spaced evenly over folders and labels, so that each of both has its share: in the order of files
    all failures may come before the first success.

    Raises:
      DataError: No label has 2 episodes.
    """
    held, most = np.flatnonzero(held_out(data, source)), data.episodes_per_epoch
    if len(held) <= most:
        return held
    grouped = held[np.lexsort((source.positives[held], folders_of(data, source)[held]))]
    return np.sort(grouped[np.linspace(0, len(held) - 1, most).round().astype(np.int64)])


def open_measured(config: QChunkConfig, source: EpisodeSource) -> FrameStore | None:
    """Returns an empty store for the images of the measured episodes; None without cameras.

    Training asks for it before the first update, so that no run ends at its first evaluation.

    Raises:
      DataError: No label has 2 episodes.
      ConfigError: The images need more than data.memory_gib.
    """
    if not config.data.cameras:
        return None
    count, rows = len(measured(config.data, source)), config.train.batch_size
    try:
        return open_store(config, source, pools=1, rows=rows, episodes=count, least=True)
    except ConfigError as error:
        raise ConfigError(f"data.holdout is {config.data.holdout:g}: {error}") from error
