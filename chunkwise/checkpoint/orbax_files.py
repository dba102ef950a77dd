"""What a folder that Orbax wrote may cost, asked before Orbax reads it.

Orbax parses its metadata whole and makes room for the arrays that they declare, whoever wrote them. Its metadata are
JSON, beside manifests of a database of chunks (OCDBT), and at most a few kB for each array.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.strict_json import parse_json
from chunkwise.files.trouble import root_cause

_JSON = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", ".zarray", ".zattrs", ".zgroup", "zarr.json")
_TREE = "_METADATA"
_MANIFEST = ".ocdbt"


def require_metadata(folder: Path) -> None:
    """Asks the limits of each file of metadata below a folder of Orbax.

    Raises:
      OSError: One cannot be read.
      LimitError: One is above a limit of metadata.
      DataError: One is no JSON, or anything below the folder is no regular file.
    """
    for parent, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            file = Path(parent, name)
            budget.regular(file)  # opening a pipe would wait for ever
            if name in _JSON or file.parent.name == "array_metadatas":
                _read_json(file)
            elif name.endswith(_MANIFEST):
                budget.require("metadata_mib", file.stat().st_size, str(file))


def require_declared(folder: Path) -> None:
    """Compares the shapes that Orbax's metadata name with the size of the files, before Orbax looks at any array.

    Each `_METADATA` below the folder is asked for itself. They name no dtype, so a number counts as one byte; and of an
    array that several processes wrote they name a part: what is above the limit so is above it anyway.

    Raises:
      OSError: The folder cannot be listed.
      LimitError: As `require_arrays`.
      DataError: The metadata are no JSON, or a shape is no list of whole numbers.
    """
    for file in sorted(folder.rglob(_TREE)):
        spent = budget.Spent(str(file), _size(folder))
        tree = _read_json(file)
        arrays = tree.get("tree_metadata") if isinstance(tree, dict) else None
        for name, entry in arrays.items() if isinstance(arrays, dict) else ():
            value = entry.get("value_metadata") if isinstance(entry, dict) else None
            shape = value.get("write_shape") if isinstance(value, dict) else None
            if shape is None:  # older versions wrote none
                continue
            if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
                raise DataError(f"{file}: {name:.200}: expected a shape of whole numbers, found {shape!s:.200}")
            spent.add(math.prod(shape), f"{name:.200} of shape {shape!s:.200}", streamed=True)


def require_database(folder: Path) -> None:
    """Reads manifest and directory of the database in which a folder's arrays lie, if they lie in one.

    Orbax opens all arrays at once and goes at the first that fails; the others then print tracebacks of an event loop
    that is closed.

    Raises:
      DataError: It cannot be read; the message names the file.
    """
    if not (folder / f"manifest{_MANIFEST}").exists():
        return
    import tensorstore  # Orbax needs it as well; most programs need neither

    try:
        tensorstore.KvStore.open({"driver": "ocdbt", "base": folder.absolute().as_uri() + "/"}).result().list().result()
    except Exception as error:  # tensorstore raises any type
        raise DataError(f"{folder}: expected arrays in a whole OCDBT database, found {root_cause(error)}") from error


def require_arrays(folder: Path, arrays: Iterable[Any]) -> None:
    """Compares what the arrays of a folder would take with the size of its files.

    Args:
      folder: Of Orbax.
      arrays: Their `shape` and `dtype`, as the metadata declare them.

    Raises:
      OSError: The folder cannot be listed.
      LimitError: They would take more than free_mib, and more than `expansion` times the files.
    """
    spent = budget.Spent(str(folder), _size(folder))
    for array in arrays:
        # A checkpoint of a large model is larger than what any dataset's file may unpack to: only the ratio counts.
        spent.add(math.prod(array.shape) * array.dtype.itemsize, f"an array of shape {array.shape}", streamed=True)


def _size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(os.stat(Path(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)


def _read_json(file: Path) -> Any:
    try:
        return parse_json(budget.read_bytes(file).decode(), source=str(file), finite=False)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: expected JSON in UTF-8, found {error}") from error


def _raise(error: OSError) -> None:
    raise error
