"""Memory of large batches that is used again, once nobody holds the batch that lay in it."""

import collections
import mmap
import threading
import weakref
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

ALIGNMENT = 4096
"""Bytes: a page. jax.device_put on a CPU takes memory aligned to 64 as it is, and copies other memory; OpenCV bypasses
the cache (`Planes` of qchunk/data/frames.py) where an image begins at a whole vector."""
SPARES = 3
"""Buffers of one shape that wait to be lent again; one is filled while two are under way to the device."""


class _Loan:
    """Owner of one loan. Every array of it, views of views too, keeps this object, so its end is the loan's end."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


class LentBuffers:
    """Lends arrays whose memory comes back when the last array that looks into it is gone.

    A ring that is overwritten in turn would corrupt batches: on a CPU jax.device_put keeps numpy's memory where it is
    aligned, for as long as the device array lives, and holds the numpy array meanwhile. That hold is what ends a loan
    here, so a batch is never overwritten while anyone, device arrays included, can still read it. Nothing ever waits:
    when all memory is lent out, more is allocated. Safe to share between threads.
    """

    def __init__(self, spares: int = SPARES) -> None:
        """Keeps at most `spares` unused buffers of each shape and dtype."""
        self._spares = spares
        self._free: dict[tuple[tuple[int, ...], np.dtype], collections.deque[np.ndarray]] = {}
        self._lock = threading.Lock()

    def lend(self, shape: tuple[int, ...], dtype: Any) -> Shaped[np.ndarray, "..."]:
        """Returns an array with undefined content, aligned to a page."""
        key = (tuple(shape), np.dtype(dtype))
        with self._lock:
            # A deque that forgets its oldest member is where memory beyond the spares is let go.
            free = self._free.setdefault(key, collections.deque(maxlen=self._spares))
            memory = free.pop() if free else None
        if memory is None:
            memory = aligned(*key)
        loan = _Loan(memory)
        weakref.finalize(loan, free.append, memory).atexit = False
        return np.asarray(loan)


def returned(size: int) -> UInt8[np.ndarray, " n"]:
    """Returns memory, zeros, that goes back to the system when the last array of it does.

    What the C library gets back of less than 32 MiB it may keep for itself: of pools that take turns, half a pool.
    """
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8, count=size)


def aligned(shape: tuple[int, ...], dtype: Any) -> Shaped[np.ndarray, "..."]:
    """Returns new memory with undefined content, aligned to a page."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size].view(dtype).reshape(shape)
