"""Reading parquet files that others wrote: what the metadata declare is asked for first, then what comes is counted.

Encodings of runs and dictionaries make any number of rows out of a few bytes: 0.6 MB of metadata has become 4 GB.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from chunkwise.files import budget

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
"""Bytes of a value once it is decoded; texts and bytes have none of their own."""
_TAIL = struct.Struct("<I4s")
"""Length of the footer, and PAR1: the end of a file."""
_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 65_536


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opens a file, and asks for its footer's size and its number of rows, columns and row groups.

    Raises:
      OSError, pa.ArrowException: It is missing or damaged.
      DataError: It is no regular file, or costs more than a limit.
    """
    size = budget.regular(path).st_size
    with budget.open_file(path) as file:  # the footer is parsed whole when the file is opened
        file.seek(max(size - _TAIL.size, 0))
        tail = file.read(_TAIL.size)
    if len(tail) == _TAIL.size and (footer := _TAIL.unpack(tail))[1] == b"PAR1":
        budget.require("metadata_mib", min(footer[0], size), str(path), "size of the footer of a table")
    try:
        parquet = pq.ParquetFile(path)
        _ = parquet.schema_arrow.names  # names that are no text show here
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"a name of a column is no text: {error}") from error
    budget.require("table_rows", parquet.metadata.num_rows, str(path))
    budget.require("table_columns", parquet.metadata.num_columns, str(path))
    budget.require("table_groups", parquet.num_row_groups, str(path))
    return parquet


def read_columns(
    path: Path, parquet: pq.ParquetFile, columns: Sequence[str], *, groups: Sequence[int] | None = None
) -> pa.Table:
    """Columns as a table. Raises as `iter_batches`."""
    batches = list(iter_batches(path, parquet, columns, groups=groups))
    schema = pa.schema([parquet.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def read_rows(path: Path, parquet: pq.ParquetFile, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A small table as one dict a row. Raises as `iter_batches`, and LimitError by metadata_values."""
    budget.require("metadata_values", _values(parquet, columns, range(parquet.num_row_groups)), str(path))
    return [row for batch in iter_batches(path, parquet, columns) for row in batch.to_pylist()]


def iter_batches(
    path: Path,
    parquet: pq.ParquetFile,
    columns: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Columns in pieces whose memory is bounded.

    Args:
      path: Of the file, for messages.
      parquet: From `open_parquet`.
      columns: Names at the top level; all must be there.
      groups: Row groups to read; None reads all.
      rows: Most rows of a piece.

    Raises:
      OSError, pa.ArrowException: The file is damaged.
      LimitError: What is declared, or what came so far, costs more than a limit.
    """
    chosen = range(parquet.num_row_groups) if groups is None else groups
    size = path.stat().st_size
    declared, largest = _declared(parquet, columns, chosen)
    budget.Spent(str(path), size).add(declared)
    count = max(1, sum(parquet.metadata.row_group(group).num_rows for group in chosen))
    clock, spent = budget.Clock(str(path)), budget.Spent(str(path), size)
    step = max(1, min(rows, _BATCH_ROWS, _BATCH_BYTES // max(1, largest, declared // count)))
    for batch in parquet.iter_batches(batch_size=step, columns=list(columns), row_groups=list(chosen)):
        clock.check()
        spent.add(batch.nbytes)
        yield batch


def _chunks(parquet: pq.ParquetFile, columns: Sequence[str], groups: Sequence[int]) -> Iterator[Any]:
    """Metadata of every chunk of the columns, those of nested columns among them."""
    wanted = set(columns)
    names = [parquet.schema.column(i).path.split(".")[0] for i in range(parquet.metadata.num_columns)]
    tops = {parquet.schema.column(i).path: i for i in range(parquet.metadata.num_columns)}
    chosen = [i for i, name in enumerate(names) if name in wanted]
    # A column's own name may have dots in it, as LeRobot's have.
    chosen += [i for path, i in tops.items() if any(path == w or path.startswith(f"{w}.") for w in wanted)]
    for group in groups:
        described = parquet.metadata.row_group(group)
        for i in sorted(set(chosen)):
            yield described.column(i)


def _values(parquet: pq.ParquetFile, columns: Sequence[str], groups: Sequence[int]) -> int:
    return sum(max(0, chunk.num_values) for chunk in _chunks(parquet, columns, groups))


def _declared(parquet: pq.ParquetFile, columns: Sequence[str], groups: Sequence[int]) -> tuple[int, int]:
    """Bytes of the decoded columns as declared; and of the largest single value that repeating may multiply."""
    total = largest = 0
    for chunk in _chunks(parquet, columns, groups):
        width = _WIDTH.get(chunk.physical_type)
        stored = max(0, chunk.total_uncompressed_size)
        total += max(stored, max(0, chunk.num_values) * (width or 4))
        if width is None and any("DICTIONARY" in encoding for encoding in chunk.encodings):
            largest = max(largest, stored)
    return total, largest
