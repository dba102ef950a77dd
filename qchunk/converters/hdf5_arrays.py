"""Arrays of other formats' HDF5 files, with what is wrong with them as a Problem; safe by data/readers/hdf5.py."""

import h5py
import numpy as np

from chunkwise.data.problems import Problem
from chunkwise.errors import one_line
from qchunk.data.readers.hdf5 import UNREADABLE, Refused, require_readable, resolve


def read_numbers(
    h5: h5py.File, name: str, file: str, *, group: str = "", vector: bool, needed: bool = True
) -> np.ndarray | Problem:
    """One array, [T] or [T, d]; a [T] where columns are wanted is one column, and [T, 1] a vector.

    Args:
      h5: The file.
      name: Of the array, below `group`.
      file: Names the group in the problem.
      group: Where the array lies.
      vector: One number a frame instead of columns.
      needed: Whether an absent array is a problem; else it comes back with shape (0,).
    """
    try:
        dataset = resolve(h5, f"{group}/{name}")
        if dataset is None:
            if needed:
                raise Refused("this array", "none")
            return np.zeros(0)
        require_readable(dataset)
        shape = dataset.shape
        if vector and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]
        if not vector and len(shape) == 1:
            shape = (*shape, 1)
        if len(shape) != (1 if vector else 2):
            raise Refused("shape [T]" if vector else "shape [T, d]", f"shape {dataset.shape}")
        return np.asarray(dataset[()]).reshape(shape)
    except Refused as refused:
        return refused.problem(file, name)
    except UNREADABLE as error:
        return Problem(file=file, key=name, expected="readable data", found=one_line(error))


def read_flags(h5: h5py.File, name: str, file: str, *, group: str = "") -> np.ndarray | Problem:
    """A [T] array of 0 and 1 as bool; shape (0,) where there is none."""
    x = read_numbers(h5, name, file, group=group, vector=True, needed=False)
    if isinstance(x, Problem):
        return x
    wrong = np.flatnonzero(~np.isin(x, (0, 1)))
    if len(wrong):
        found = f"{x[wrong[0]]} ({len(wrong)} such row(s))"
        return Problem(file=file, key=name, row=int(wrong[0]), expected="0 or 1 in each frame", found=found)
    return x.astype(bool)
