"""Datasets of an HDF5 file that are safe to read: inside the file, of numbers, and no larger than what is stored."""

import h5py

from qchunk.sources.report import declared_size_problem

UNREADABLE = (OSError, RuntimeError, KeyError, ValueError)
"""What h5py raises on damaged files."""


class Refused(Exception):
    """A dataset that is not read."""

    def __init__(self, expected: str, found: str, row: int | None = None) -> None:
        super().__init__(
            f"expected {expected}; found {found}" if row is None else f"row {row}: expected {expected}; found {found}"
        )
        self.expected, self.found, self.row = expected, found, row


def one_line(error: Exception) -> str:
    """An error's message without its line breaks."""
    return " ".join(str(error).split())


def resolve(h5: h5py.File, name: str) -> h5py.Dataset | None:
    """The dataset of this path; None where there is none.

    Raises:
      Refused: A link on the way leads elsewhere, or something on the way is of another kind.
    """
    node = _walk(h5, name)
    if node is not None and not isinstance(node, h5py.Dataset):
        raise Refused("a dataset", type(node).__name__)
    return node


def members(h5: h5py.File, name: str) -> list[str]:
    """Names in the group of this path; none where there is no group.

    Raises:
      Refused: As `resolve`.
    """
    node = _walk(h5, name)
    if node is not None and not isinstance(node, h5py.Group):
        raise Refused("a group", type(node).__name__)
    return [] if node is None else list(node)


def _walk(h5: h5py.File, name: str) -> object | None:
    node: object = h5
    for part in name.strip("/").split("/"):
        if not isinstance(node, h5py.Group):
            raise Refused("a group on the way", f"{type(node).__name__} above {part!r}")
        link = node.get(part, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise Refused("data stored in this file", f"{type(link).__name__} at {part!r}")
        node = node[part]
    return node


def require_readable(dataset: h5py.Dataset, kinds: str = "fiub") -> None:
    """Refuses what would read another file or allocate what was never stored.

    A file can name data outside itself (external storage, virtual datasets), which would read any file of the machine.

    Args:
      dataset: From `resolve`.
      kinds: Kinds of dtype that are allowed, numpy's letters.

    Raises:
      Refused: With what is wrong.
    """
    if dataset.external or dataset.is_virtual:
        raise Refused("data stored in this file", "external storage" if dataset.external else "a virtual dataset")
    if dataset.dtype.kind not in kinds:
        raise Refused("numbers", f"dtype {dataset.dtype}")
    if problem := declared_size_problem(dataset.nbytes, dataset.id.get_storage_size()):
        raise Refused(*problem)
