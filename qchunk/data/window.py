"""The chunk that training draws at a start, for a page that shows it (chunkwise/view): by the pool itself."""

import functools
import threading

import numpy as np

from chunkwise.data.sampling import EpisodeDraw
from chunkwise.errors import DataError, RunError
from chunkwise.view.source import Recordings, Window
from qchunk.config import QChunkConfig
from qchunk.data.dataset import Dataset, open_dataset
from qchunk.data.holdout import held_out
from qchunk.data.image_store import FrameStore, open_store
from qchunk.data.pool import Pool

POOLS = 2
"""Of one episode each, in memory at once."""
PER_STEP = ("valid", "masks", "terminals", "rewards", "actions")


class TrainingWindows:
    """What a config makes of the episodes. The dataset is indexed as for training when the first chunk is asked for."""

    def __init__(self, config: QChunkConfig, name: str, recordings: Recordings) -> None:
        """Takes a config whose data.path is that of the recordings; reads nothing yet."""
        self._config, self.name, self._recordings = config, name, recordings
        self._lock = threading.Lock()
        self._pool = functools.lru_cache(POOLS)(self._open_pool)

    def window(self, episode: int, frame: int) -> Window:
        with self._lock:
            dataset, store = self._opened
            index = self._index(dataset, self._recordings.names[episode])
            pool = self._pool(index)
        if frame >= len(pool):
            raise DataError(f"training draws starts below {len(pool)} in this episode, found frame {frame}")
        starts = np.array([frame], np.int64)
        batch = pool.training(pool.batch(starts), pool.locate(starts)[1])
        seen = batch["observations"]
        observation = self._config.data.observation
        arrays = {name: batch[name][0] for name in PER_STEP}
        for moment in ("observations", "next_observations"):
            values = batch[moment][observation]
            if values is not None:
                arrays[f"{moment}.{observation}"] = values[0]
        arrays |= {name: batch[name][0] for name in ("is_positive", "final_reward")}
        images = {} if seen["images"] is None else dict(zip(dataset.cameras, seen["images"][0], strict=True))
        notes = (
            ("Images are shown before the augmentation, which each step draws anew on the device.",) if store else ()
        )
        if held_out(self._config.data, dataset.source)[index]:
            notes = (*notes, "This episode is held out (data.holdout): training never draws it.")
        return Window(
            recorded=dataset.action_norm.invert(batch["actions"][0]),
            over=self._config.data.action,
            valid=batch["valid"][0] > 0,
            arrays=arrays,
            per_step=PER_STEP,
            images=images,
            notes=notes,
        )

    @functools.cached_property
    def _opened(self) -> tuple[Dataset, FrameStore | None]:
        try:
            dataset = open_dataset(self._config)
            with_images = bool(dataset.cameras or dataset.depth_cameras)
            store = (
                open_store(self._config, dataset.source, pools=1, rows=1, episodes=POOLS, least=True)
                if with_images
                else None
            )
        except RunError as error:
            raise DataError("Training would not begin:", *str(error).splitlines()) from error
        return dataset, store

    def _index(self, dataset: Dataset, name: str) -> int:
        ids = list(dataset.source.ids)
        if name not in ids:
            raise DataError("Training leaves this episode out: it has a problem, or its folder is of no label.")
        return ids.index(name)

    def _open_pool(self, index: int) -> Pool:
        dataset, store = self._opened
        alone = EpisodeDraw(indices=np.array([index], np.int64), notes=())
        return Pool(self._config, 0, 0, dataset=dataset, store=store, episodes=alone)
