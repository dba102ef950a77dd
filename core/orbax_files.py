"""What a folder that Orbax wrote may cost, asked before Orbax reads it.

Orbax parses its metadata whole and makes room for the arrays that they declare, whoever wrote them. Its metadata are
JSON, beside manifests of a database of chunks, and at most a few kB for each array.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core import budget
from core.errors import DataError
from core.strict_json import parse_json

_JSON = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", ".zarray", ".zattrs", ".zgroup", "zarr.json")
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
                _require_json(file)
            elif name.endswith(_MANIFEST):
                budget.require("metadata_mib", file.stat().st_size, str(file))


def require_arrays(folder: Path, arrays: Iterable[Any]) -> None:
    """Compares what the arrays of a folder would take with the size of its files.

    Args:
      folder: Of Orbax.
      arrays: Their `shape` and `dtype`, as the metadata declare them.

    Raises:
      OSError: The folder cannot be listed.
      LimitError: They would take more than free_mib, and more than `expansion` times the files.
    """
    size = sum(os.stat(Path(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)
    spent = budget.Spent(str(folder), size)
    for array in arrays:
        # A checkpoint of a large model is larger than what any dataset's file may unpack to: only the ratio counts.
        spent.add(math.prod(array.shape) * array.dtype.itemsize, f"an array of shape {array.shape}", streamed=True)


def _require_json(file: Path) -> None:
    try:
        parse_json(budget.read_bytes(file).decode(), source=str(file), finite=False)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: expected JSON in UTF-8, found {error}") from error


def _raise(error: OSError) -> None:
    raise error
