"""The list of a run's dataset files in the run folder, by which a resume names those that are not what they were.

dataset_files.gz: a head line, then one line a file: hash, size, hash of all bytes (or -), name as JSON. The
checkpoint's fingerprint holds the list's digest (`dataset.files`), so that the list itself can be lost or changed
without a wrong resume: then the digests differ, and only the names are not known.
"""

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from chunkwise.errors import DataError, MismatchError, StorageError
from chunkwise.files import budget
from chunkwise.files.durable import write_durably
from chunkwise.files.identity import Entry, Files, compare
from chunkwise.files.strict_json import parse_json
from chunkwise.files.trouble import SYSTEM, retried, root_cause

NAME = "dataset_files.gz"
_HEAD = "chunkwise-dataset-files-1"
MAX_NAMED = 20
_PIECE = 1 << 20


def require_same(run: Path, files: Files, *, resume: bool) -> bytes | None:
    """Compares a dataset with that of the run which is to go on.

    Args:
      run: The run's folder.
      files: Of the dataset, as it is now.
      resume: Whether the folder holds a run whose list counts.

    Returns:
      What the list is to hold from now on, where there is none, or more is known: for `write`, once the run goes on.

    Raises:
      MismatchError: Files were changed, are missing or have been added; the message names them.
    """
    now = files.entries()
    before = _load(run / NAME) if resume else None
    if before is None:
        return _pack(now)
    found = compare(before, now)
    if any(found):
        raise MismatchError(
            f"{files.bounds.root}: the dataset is not what {run} was started with:",
            *(line for kind, names in found._asdict().items() for line in _lines(kind, names, files)),
            "Restore these files to go on, or start anew in another folder",
        )
    more = any(now[name].full and not before[name].full for name in now)  # then every byte can be compared
    return _pack(now) if more else None


def differing(run: Path, other: Path, *, shared: bool = False) -> str:
    """Says in which files the dataset of a run differs from that of another.

    Args:
      run: The run's folder.
      other: The other's.
      shared: Whether only files count that both have: with other cameras, say, a run reads others.

    Returns:
      "", where they do not differ or a list is missing.

    Raises:
      StorageError: As `require_same`.
      DataError: As `require_same`.
    """
    lists = [_load(folder / NAME) for folder in (other, run)]
    if lists[0] is None or lists[1] is None:
        return ""
    found = compare(lists[0], lists[1])._asdict()
    kinds = {"changed": found["changed"]} if shared else found
    told = [(kind, names[0] + ", ..." * (len(names) > 1), len(names)) for kind, names in kinds.items() if names]
    return ", ".join(f"{count} {kind} ({names})" for kind, names, count in told)


def write(run: Path, listed: bytes) -> None:
    """Writes the list that `require_same` returned."""
    write_durably(run / NAME, listed)


def _lines(kind: str, names: list[str], files: Files) -> list[str]:
    more = [f"  and {len(names) - MAX_NAMED} more {kind}"] if len(names) > MAX_NAMED else []
    return [f"  {kind}: {_place(name, files)}" for name in names[:MAX_NAMED]] + more


def _place(name: str, files: Files) -> str:
    """A file's name, with its path where it does not lie in the dataset."""
    if name not in files:
        return name
    path = files.path(files.place(name))
    return name if path == files.bounds.path(name) else f"{name} ({path})"


def _pack(entries: Mapping[str, Entry]) -> bytes:
    lines = [f"{one.hash or '-'} {one.size} {one.full or '-'} {json.dumps(name)}" for name, one in entries.items()]
    return gzip.compress("\n".join([_HEAD, *lines, ""]).encode(), mtime=0)


def _load(file: Path) -> dict[str, Entry] | None:
    """The list; None where it is missing or damaged, which the digest in the checkpoint still covers.

    Raises:
      StorageError: It is there and cannot be read, which is no reason to write another in its place.
      DataError: It is no regular file, or costs more than a limit.
    """
    try:
        content = retried(lambda: budget.read_bytes(file, "decoded_mib"))
    except FileNotFoundError:
        return None
    except SYSTEM as error:
        raise StorageError(
            f"cannot read {file}: {root_cause(error)}. Mend that, then add --run.resume again"
        ) from error
    try:
        text = _unpack(content, str(file)).decode()
    except (OSError, ValueError, EOFError, zlib.error):
        return None
    budget.require("metadata_values", text.count("\n"), str(file))
    head, *lines = text.removesuffix("\n").split("\n")
    if head != _HEAD:
        return None
    entries = {}
    try:
        for line in lines:
            found, size, full, quoted = line.split(" ", 3)
            name = parse_json(quoted, source=str(file))
            if not isinstance(name, str):
                return None
            entries[name] = Entry(found.strip("-"), int(size), full.strip("-"))
    except budget.LimitError:
        raise
    except (ValueError, DataError):
        return None
    return entries


def _unpack(content: bytes, source: str) -> bytes:
    """The text of a list, whose size is asked for as it comes. Raises LimitError, and what gzip raises."""
    spent, pieces = budget.Spent(source, len(content)), []
    with gzip.open(io.BytesIO(content)) as packed:
        while piece := packed.read(_PIECE):
            spent.add(len(piece))
            pieces.append(piece)
    return b"".join(pieces)
