"""Episodes on disk to batches; batch i is a function of (seed, i)."""

from driving.data.batch import Batch, collate, collate_batch
from driving.data.batches import make_batches, open_data

__all__ = ["Batch", "collate", "collate_batch", "make_batches", "open_data"]
