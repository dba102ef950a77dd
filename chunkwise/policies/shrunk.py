"""The cameras whose recorded images libjpeg shrank on their way to a run, so that its policy's images are shrunk alike.

images.json in a run's folder names them, where there are any. A run of an earlier version has none: its policy resizes
images whole, as it did before.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from chunkwise.checkpoint.reader import list_saves
from chunkwise.errors import DataError
from chunkwise.files.strict_json import read_json

IMAGES = "images.json"
_KEY = "shrunk_jpegs"


def read_shrunk(run: Path) -> tuple[str, ...]:
    """Reads which cameras' images are shrunk as JPEGs are. Raises DataError where images.json is none."""
    path = run / IMAGES
    if not path.exists():
        return ()
    tree = read_json(path)
    found = tree.get(_KEY) if isinstance(tree, dict) else None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DataError(f"{path}: expected {_KEY}, a list of cameras, found {found!r:.80}")
    return tuple(str(name) for name in found)


def shrunk_of(run: Path, found: Sequence[str]) -> tuple[str, ...]:
    """Returns the cameras of a run that begins or goes on: what its folder says, where it has saves.

    Args:
      run: The run's folder.
      found: Those that its data say.
    """
    return read_shrunk(run) if list_saves(run) else tuple(found)


def images_json(shrunk: Sequence[str]) -> dict[str, bytes]:
    """Returns images.json, by name, to be kept beside the run's saves; {} where no camera's images are shrunk."""
    return {IMAGES: (json.dumps({_KEY: list(shrunk)}) + "\n").encode()} if shrunk else {}
