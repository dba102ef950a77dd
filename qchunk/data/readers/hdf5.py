"""Datasets of an HDF5 file that are safe to read: inside the file, of numbers, and no larger than what is stored."""

import contextlib
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np
from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]

from chunkwise.data.problems import Problem
from chunkwise.errors import one_line
from chunkwise.files import budget

UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises on damaged files."""


_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""Filters that are read, by HDF5's number. Others take the unpacked size from the file, or are code to be loaded."""
_DEFLATE = 1
"""HDF5's number of the filter gzip."""
_DEFLATE_MOST = 1032
"""Bytes that deflate can make of one."""


HERE = "data stored in this file"
"""What is expected of arrays: no link leads to them, and their bytes lie in no other file."""


class Refused(Exception):
    """A dataset that is not read."""

    def __init__(self, expected: str, found: str, row: int | None = None) -> None:
        super().__init__(f"{'' if row is None else f'row {row}: '}expected {expected}, found {found}")
        self.expected, self.found, self.row = expected, found, row

    def problem(self, file: str, dataset: str) -> Problem:
        """The problem of a dataset that is not read."""
        return Problem(file=file, key=dataset, row=self.row, expected=self.expected, found=self.found)


@contextlib.contextmanager
def open_h5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file, open for reading.

    Raises:
      OSError: It is missing, or cannot be read.
      DataError: It is no regular file.
    """
    budget.regular(path)
    with h5py.File(path, "r") as h5:
        yield h5


def require_affordable(h5: h5py.File, names: Iterable[str], *, streamed: bool = False) -> None:
    """Asks for the arrays that are read from one file, together; each alone is asked for by `require_readable`.

    Args:
      h5: The file.
      names: Paths of datasets, which may be absent; links to one dataset count as often as they are named.
      streamed: They are read in pieces.

    Raises:
      LimitError: Together they cost more than a limit.
    """
    size = _file_size(h5)
    spent = budget.Spent(h5.filename, size)
    for name in names:
        try:
            dataset = resolve(h5, name)
            nbytes = 0 if dataset is None else dataset.nbytes
            budget.Spent("", size).add(nbytes, streamed=streamed)
        except (Refused, budget.LimitError):
            continue  # it alone is too large: said, with its name, when it is read
        spent.add(nbytes, streamed=streamed)


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
            expected = f"{HERE}, at this place of it" if isinstance(link, h5py.SoftLink) else HERE
            raise Refused(expected, f"{type(link).__name__} at {part!r}")
        node = node[part]
    return node


IMAGES = "uS"
"""Kinds of dtype that colour images have: pixels, or bytes of JPEGs."""


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
        raise Refused(HERE, "external storage" if dataset.external else "a virtual dataset")
    if h5py.check_vlen_dtype(dataset.dtype) is not None and h5py.check_string_dtype(dataset.dtype) is None:
        raise Refused(
            "rows of one length (images: each JPEG padded with zeros)", "rows of their own lengths (h5py.vlen_dtype)"
        )
    if dataset.dtype.kind not in kinds:
        expected = "uint8 pixels, or bytes of JPEGs" if kinds == IMAGES else "numbers"
        raise Refused(expected, f"dtype {dataset.dtype}")
    _require_small(dataset)


def read_attribute(owner: h5py.Group | h5py.Dataset | h5py.Datatype, name: str) -> object:
    """One number or text of an attribute; None where there is none.

    Raises:
      Refused: It holds several values, or of another kind. Texts may share their bytes, so that many of them take
        more memory than the file.
    """
    try:  # HDF5 reads an attribute whole when it opens it; large ones lie in a heap of their owner's
        budget.require("metadata_mib", h5o.get_info(owner.id).meta_size.attr.heap_size, "")
    except budget.LimitError as error:
        raise Refused(error.expected, error.found) from error
    if name not in owner.attrs:
        return None
    described = owner.attrs.get_id(name)
    kind = described.dtype.kind
    if math.prod(described.shape or ()) != 1 or kind not in "fiubSO":
        raise Refused("one number or text", f"{described.dtype} of shape {described.shape}")
    if kind == "O" and h5py.check_string_dtype(described.dtype) is None:
        raise Refused("one number or text", "another kind of object")
    value = owner.attrs[name]
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) else value


def read_texts(dataset: h5py.Dataset) -> list[str]:
    """A list of texts, one read after another: they may share their bytes, which a single read would multiply.

    Raises:
      Refused: They cost more than a limit, or are no UTF-8 text.
    """
    spent = budget.Spent("", _file_size(dataset.file))
    texts = []
    try:
        budget.require("metadata_values", len(dataset), "")
        for i in range(len(dataset)):
            value = dataset[i]
            spent.add(len(value))
            texts.append(value.decode() if isinstance(value, bytes) else str(value))
    except budget.LimitError as error:
        raise Refused(error.expected, error.found) from error
    except UnicodeDecodeError as error:
        raise Refused("UTF-8 text", str(error)) from error
    return texts


def _require_small(dataset: h5py.Dataset) -> None:
    if dataset.chunks:  # an index of chunks, and HDF5's own of it, takes kilobytes a chunk
        count = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
        try:
            if count > budget.current().chunks:
                budget.Spent("", _file_size(dataset.file)).add(dataset.nbytes)
            budget.require("chunks", count, "")
        except budget.LimitError as error:
            raise Refused(error.expected, error.found) from error
    declared, stored = dataset.nbytes, dataset.id.get_storage_size()
    size = _file_size(dataset.file)
    chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
    try:
        budget.Spent("", size).add(chunk)
        if stored or declared > budget.current().decoded_mib * budget.MIB:
            budget.Spent("", size).add(declared, streamed=bool(stored) and len(dataset.shape) > 2)
    except budget.LimitError as error:
        raise Refused(error.expected, error.found) from error
    if declared and not stored:
        raise Refused("an array whose bytes are in the file", f"{declared} bytes declared, {stored} stored")
    if dataset.chunks:
        _require_honest_chunks(dataset, chunk)


def _require_honest_chunks(dataset: h5py.Dataset, chunk: int) -> None:
    """Refuses chunks that unpack to more than the chunk that the file describes: HDF5 makes room for all that comes."""
    filters = dataset.id.get_create_plist()
    numbers = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
    if len(set(numbers)) < len(numbers) or not set(numbers) <= _FILTERS.keys():
        found = ", ".join(_FILTERS.get(number, f"number {number}") for number in numbers)
        raise Refused(f"no filters but {', '.join(_FILTERS.values())}, each at most once", found)
    free = budget.current().free_mib * budget.MIB // _DEFLATE_MOST
    if _DEFLATE not in numbers or dataset.id.get_storage_size() <= free:  # all of it unpacks to less than what is free
        return
    large: list[tuple[int, ...]] = []

    def look(info: h5py.h5d.StoreInfo) -> None:
        if info.size > free and not info.filter_mask:
            large.append(info.chunk_offset)

    dataset.id.chunk_iter(look)
    for offset in large:
        _, data = dataset.id.read_direct_chunk(offset)
        try:  # fletcher32 may have added 4 bytes before deflate
            length = len(zlib.decompressobj().decompress(data, chunk + 5))
        except zlib.error as error:
            raise Refused("readable data", one_line(error)) from error
        if length > chunk + 4:
            raise Refused(f"chunks of {chunk} bytes, as the file describes them", "one that unpacks to more")


def _file_size(h5: h5py.File) -> int:
    return Path(h5.filename).stat().st_size
