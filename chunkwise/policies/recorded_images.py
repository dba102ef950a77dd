"""How a run's images were recorded, for its policy: whose JPEGs libjpeg shrank on their way to training, so that images
are shrunk alike, and how large they were, so that it can tell of images of another shape.

images.json in a run's folder has it, where there are images. A run of an earlier version has none, or no sizes: its
policy resizes images whole, as it did before, and tells of no shape.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.checkpoint.reader import list_saves
from chunkwise.data.images import Size, other_shape
from chunkwise.errors import DataError
from chunkwise.files.strict_json import read_json

IMAGES = "images.json"
_SHRUNK, _SIZES = "shrunk_jpegs", "recorded_sizes"


def read_shrunk(run: Path) -> tuple[str, ...]:
    """Reads which cameras' images are shrunk as JPEGs are. Raises DataError where images.json is none."""
    found = _read(run).get(_SHRUNK, [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DataError(f"{run / IMAGES}: expected {_SHRUNK}, a list of cameras, found {found!r:.80}")
    return tuple(str(name) for name in found)


def read_sizes(run: Path) -> dict[str, Size]:
    """Reads height and width at which cameras' images were recorded. Raises DataError where images.json has others."""
    found = _read(run).get(_SIZES, {})
    whole = isinstance(found, dict) and all(
        isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
        for size in found.values()
    )
    if not whole:
        raise DataError(f"{run / IMAGES}: expected {_SIZES}, height and width of cameras, found {found!r:.80}")
    return {str(name): (size[0], size[1]) for name, size in found.items()}


def _read(run: Path) -> dict[str, Any]:
    path = run / IMAGES
    tree = read_json(path) if path.exists() else {}
    if not isinstance(tree, dict):
        raise DataError(f"{path}: expected {_SHRUNK} and {_SIZES}, found {tree!r:.80}")
    return tree


def shrunk_of(run: Path, found: Sequence[str]) -> tuple[str, ...]:
    """Returns the cameras of a run that begins or goes on: what its folder says, where it has saves.

    Args:
      run: The run's folder.
      found: Those that its data say.
    """
    return read_shrunk(run) if list_saves(run) else tuple(found)


def sizes_of(run: Path, found: Mapping[str, Size]) -> dict[str, Size]:
    """Returns the recorded sizes of a run that begins or goes on, as `shrunk_of` returns its cameras."""
    return read_sizes(run) if list_saves(run) else dict(found)


def images_json(shrunk: Sequence[str], sizes: Mapping[str, Size]) -> dict[str, bytes]:
    """Returns images.json, by name, to be kept beside the run's saves; {} where nothing is known of its images."""
    tree: dict[str, Any] = {_SHRUNK: list(shrunk)} if shrunk else {}
    tree |= {_SIZES: {name: list(size) for name, size in sizes.items()}} if sizes else {}
    return {IMAGES: (json.dumps(tree) + "\n").encode()} if tree else {}


class RecordedSizes:
    """Tells, once of each camera, of images that training would have squeezed in another ratio."""

    def __init__(self, sizes: Mapping[str, Size]) -> None:
        """`sizes` is that of `read_sizes`; of a camera that it does not name nothing is told."""
        self._sizes, self._told = dict(sizes), set[str]()

    def __getitem__(self, camera: str) -> Size | None:
        """Returns at which size a camera was recorded; None where that is not known."""
        return self._sizes.get(camera)

    def compare(self, camera: str, size: Size, seen: Size) -> None:
        """Warns of a camera's first image of another shape than its recordings.

        Args:
          camera: That it is of.
          size: Of the image that was sent.
          seen: At which the model sees it; one that was sent so was resized where it came from.
        """
        recorded = self._sizes.get(camera)
        if recorded is None or size == seen or camera in self._told or not other_shape(size, recorded):
            return
        self._told.add(camera)
        (height, width), (high, wide) = size, recorded
        warnings.warn(
            f"camera {camera}: images of {height} x {width} (height x width), where the recordings have {high} x "
            f"{wide}: resized to {seen[0]} x {seen[1]} they are squeezed otherwise than in training. Send them as the "
            f"camera was recorded, cropped to that shape, or resized whole to {seen[0]} x {seen[1]}",
            stacklevel=2,
        )
