"""The gate between what was downloaded and this machine: nothing that a folder brings is run, nor leads out of it.

A run, a checkpoint, an export and a dataset are data. What would execute code that they name or hold, an import path
above all, asks here and is refused. One thing can be allowed: an environment, an agent or a reader of the user's own, a
`module:function` that is imported where the user named it. SECURITY.md says what is trusted.
"""

import importlib
import os
from pathlib import Path
from typing import Any, NoReturn

from chunkwise.errors import ConfigError, DataError, StorageError
from chunkwise.files.links import Bounds
from chunkwise.files.trouble import SYSTEM, retried, root_cause

MAX_LISTED = 5


def require_plain_name(name: str, *, where: str, what: str) -> None:
    """Raises ConfigError if a name would have a library import Python code.

    Gymnasium imports `module` for an environment `module:name`.

    Args:
      name: As the config or the command line has it.
      where: Names the place in the error.
      what: What the name is of.
    """
    if ":" in name or "/" in name or "\\" in name:
        refuse_code(f"{where}: expected the name of {what}, found {name!r}, which would import Python code")


def import_named(name: str, *, what: str) -> Any:
    """Imports what the user named, `module:function`. Whoever calls this knows that it was the user.

    Args:
      name: As the config has it.
      what: It is to make, for the message.

    Raises:
      ConfigError: Python cannot import it.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name}: expected {what} that Python can import, found {type(error).__name__}: {error}. Install its "
            "package, or put its folder on PYTHONPATH"
        ) from error


def refuse_code(message: str, allowed_by: str | None = None) -> NoReturn:
    """Raises ConfigError for what would run code that was not asked for; `allowed_by` is the option that asks."""
    unless = "" if allowed_by is None else f" unless it is named: {allowed_by}, if you trust it"
    raise ConfigError(f"{message}; code that a name or a folder brings is never run (SECURITY.md){unless}")


def require_own_files(folder: Path) -> None:
    """Raises DataError if a link below a run or a checkpoint leads out of it, naming the link; StorageError if a folder
    cannot be listed.

    Reading would read another file of this machine, and writing would overwrite it. The folder itself may be a link,
    and a snapshot of a hub (`snapshots/<revision>` beside `blobs`) has its files in the blobs. Files that are no
    folder, such as a .safetensors file, are taken as they are: the user named them.
    """
    root = Path(os.path.realpath(folder))
    bounds = Bounds(root)
    try:
        out = retried(lambda: _links_out(root, bounds))
    except SYSTEM as error:
        raise StorageError(f"{folder}: cannot be looked through for links: {root_cause(error)}") from error
    if out:
        more = f", and {len(out) - MAX_LISTED} more" if len(out) > MAX_LISTED else ""
        raise DataError(
            f"{folder}: expected links inside the folder alone, found {', '.join(sorted(out)[:MAX_LISTED])}{more}. Put "
            "the files themselves there, or move the whole folder and link to it"
        )


def _links_out(root: Path, bounds: Bounds) -> list[str]:
    """The links below a folder that lead out of it, and where to. OSError where a folder cannot be listed."""
    out = []
    for parent, folders, files in os.walk(root, onerror=_raise):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() and bounds.refusal(bounds.relative(path)):
                out.append(f"{bounds.relative(path)} -> {os.readlink(path)}")
    return out


def _raise(error: OSError) -> None:
    """What `os.walk` would pass over: a folder that cannot be listed may hold such a link."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):  # whoever reads it has words for these
        raise error
