"""What a folder or file is, told by its name and what lies in it; nothing of it is opened but a manifest."""

from collections.abc import Iterable
from pathlib import Path

from chunkwise.config.packages import PACKAGES, package_of
from chunkwise.config.saved import is_run
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.strict_json import read_json

DEPTH = 3
"""Folders that are looked into, one below the other, the first one among them."""
WAYS: dict[str, tuple[str, ...]] = {
    "qchunk": ("*.hdf5", "*.h5", "*.npz"),
    "driving": ("*.tfrecord*", "v1.0-*", "camera_image", "*.json"),
}
"""Names that only one package's files have, in the order in which they are looked for."""


def package_of_data(path: Path, verb: str, packages: Iterable[str] = PACKAGES) -> str:
    """Returns the package that reads a dataset, or that made a run.

    Args:
      path: Folder or file.
      verb: Of the command line, for the message.
      packages: Those that have the verb, for the message.

    Raises:
      ConfigError: It cannot be told; the message says how to name it.
      DataError: A manifest cannot be read.
    """
    if is_run(path):
        return package_of(path)
    if (path / "meta" / "info.json").is_file():
        return "openpi_ript"
    if (path / "manifest.json").is_file():
        tree = read_json(path / "manifest.json")
        form = str(tree.get("format")) if isinstance(tree, dict) else ""
        return "driving" if "driving" in form else "openpi_ript"
    if not path.exists():
        raise DataError(f"{path}: expected a dataset, found nothing (in {Path.cwd()})")
    for package, patterns in WAYS.items():
        if any(_there(path, pattern) for pattern in patterns):
            return package
    choice = "|".join(packages)
    raise ConfigError(f"{path}: cannot tell whose data these are; say it: chunkwise {verb} {choice} {path}")


def package_of_run(path: Path) -> str:
    """Returns the package that trained a run. Raises ConfigError if the folder is none."""
    if not is_run(path):
        found = "no config.json in it" if path.exists() else f"nothing (in {Path.cwd()})"
        raise ConfigError(f"{path}: expected the folder of a run, found {found}")
    return package_of(path)


def _there(path: Path, pattern: str) -> bool:
    """Whether the path, or something in it or in the folders of the next levels, DEPTH in all, has such a name."""
    if path.match(pattern):
        return True
    return any(next(path.glob("*/" * depth + pattern), None) is not None for depth in range(DEPTH))
