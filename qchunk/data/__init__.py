"""Batches of chunks for Q-chunking: a pool of whole episodes in memory, and random starts drawn from all its frames.

file -> EpisodeSource.load -> Pool (once an epoch and shard) -> starts from (seed, epoch, shard, step) -> Batch.

batch.py         what a batch holds, and the specification's float form of it
dataset.py       the indexed dataset and its normalisation
pool.py          episodes in memory, chunks cut from them
frames.py        the images of one episode in memory
image_store.py   those of all, decoded once or as recorded, as the budget says
drawn_images.py  the images of a batch, drawn from those
refresh.py       which pool is in use at a step, and loading the next one behind it
stream.py        Grain
holdout.py       episodes that no pool draws
mixture.py       several datasets by weights
dataloader_v3.py the specification by its own names, for a training loop of your own
"""

from collections.abc import Iterator

from chunkwise.data.stream import require_shares
from qchunk.config import QChunkConfig
from qchunk.data.batch import Batch, Observations, specification_batch, specification_batches
from qchunk.data.dataset import Dataset, Dims, compute_norm_stats, dims, open_dataset
from qchunk.data.pool import Pool

__all__ = [
    "Batch",
    "Dataset",
    "Dims",
    "Observations",
    "Pool",
    "compute_norm_stats",
    "dims",
    "make_batches",
    "open_dataset",
    "specification_batch",
    "specification_batches",
]


def make_batches(config: QChunkConfig, *, shard: int = 0, num_shards: int = 1, start_step: int = 0) -> Iterator[Batch]:
    """Endless batches; batch i is a function of run.seed and i alone, so that a run can go on at any step.

    The global batch of train.batch_size rows is data.shards equal slices, each drawn from its own pool. Process
    `shard` of `num_shards` gets an equal stretch of its rows, and loads only the pools that these come from; the
    global batch does not depend on the number of processes. The next epoch's pools load in the background.

    Args:
      config: Of the run.
      shard: This process, in [0, num_shards).
      num_shards: Processes; must divide train.batch_size.
      start_step: Number of the first batch; any is equally cheap.

    Raises:
      ConfigError: If `num_shards` does not divide the batch, or `shard` is out of range, or the images need more
        memory than data.memory_gib.
      DataError: The dataset is bad. Later, from the iterator: an episode could not be read.
    """
    require_shares(config.train.batch_size, shard, num_shards, start=start_step)
    from qchunk.data.stream import open_stream  # grain takes 2 s to import

    return open_stream(config, open_dataset(config), shard=shard, num_shards=num_shards, start_step=start_step)
