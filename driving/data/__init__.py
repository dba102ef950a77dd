"""Episodes on disk to batches; batch i is a function of (seed, i)."""

from driving.data.batch import Batch
from driving.data.batches import collate, make_batches, open_data

__all__ = ["Batch", "collate", "make_batches", "open_data"]
