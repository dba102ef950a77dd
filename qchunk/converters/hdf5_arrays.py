"""Arrays of HDF5 files that may come from anywhere: nothing outside the file is read, nothing huge allocated."""

import h5py
import numpy as np

from qchunk.sources.report import Problem, declared_size_problem

UNREADABLE = (OSError, RuntimeError, KeyError, ValueError)  # what h5py raises on damaged files


def find(group: h5py.Group, name: str, file: str) -> h5py.Dataset | h5py.Group | Problem | None:
    """What a path of hard links leads to, None where there is nothing, or what is wrong with it.

    Args:
      group: Where the path begins.
      name: Path with slashes.
      file: Names the group in the problem.
    """

    def refused(expected: str, found: str) -> Problem:
        return Problem(file=file, dataset=name, row=None, expected=expected, found=found)

    node: object = group
    for part in name.strip("/").split("/"):
        if not isinstance(node, h5py.Group):
            return refused("a group on the way", f"{type(node).__name__} above {part!r}")
        link = node.get(part, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            return refused("data stored in this file", f"{type(link).__name__} at {part!r}")
        node = node[part]
    if isinstance(node, h5py.Dataset):
        if node.external or node.is_virtual:
            return refused("data stored in this file", "external storage" if node.external else "a virtual dataset")
        if problem := declared_size_problem(node.nbytes, node.id.get_storage_size()):
            return refused(*problem)
        return node
    return node if isinstance(node, h5py.Group) else refused("a dataset", type(node).__name__)


def read_numbers(group: h5py.Group, name: str, file: str, *, vector: bool, needed: bool = True) -> np.ndarray | Problem:
    """One array, [T] or [T, d]; a [T] where columns are wanted is one column, and [T, 1] a vector.

    Args:
      group: Where the array lies.
      name: Its path.
      file: Names the group in the problem.
      vector: One number a frame instead of columns.
      needed: Whether an absent array is a problem; else it comes back with shape (0,).
    """
    node = find(group, name, file)
    if isinstance(node, Problem):
        return node

    def refused(expected: str, found: str) -> Problem:
        return Problem(file=file, dataset=name, row=None, expected=expected, found=found)

    if node is None:
        return refused("this array", "none") if needed else np.zeros(0)
    if not isinstance(node, h5py.Dataset):
        return refused("an array", "a group")
    if node.dtype.kind not in "fiub":
        return refused("numbers", f"dtype {node.dtype}")
    shape = node.shape
    if vector and len(shape) == 2 and shape[1] == 1:
        shape = shape[:1]
    if not vector and len(shape) == 1:
        shape = (*shape, 1)
    if len(shape) != (1 if vector else 2):
        return refused("shape [T]" if vector else "shape [T, d]", f"shape {node.shape}")
    try:
        return np.asarray(node[()]).reshape(shape)
    except UNREADABLE as error:
        return refused("readable data", " ".join(str(error).split()))


def read_flags(group: h5py.Group, name: str, file: str) -> np.ndarray | Problem:
    """A [T] array of 0 and 1 as bool; shape (0,) where there is none."""
    x = read_numbers(group, name, file, vector=True, needed=False)
    if isinstance(x, Problem):
        return x
    wrong = np.flatnonzero(~np.isin(x, (0, 1)))
    if len(wrong):
        found = f"{x[wrong[0]]} ({len(wrong)} such row(s))"
        return Problem(file=file, dataset=name, row=int(wrong[0]), expected="0 or 1 in each frame", found=found)
    return x.astype(bool)
