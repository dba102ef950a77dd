"""How this project is installed, and so which line adds a package that it can do without."""

import contextlib
import importlib.metadata
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import chunkwise

NAME = "chunkwise"
"""Of the distribution."""


def clone() -> Path | None:
    """Returns the folder of the clone that the packages are imported from; None where they were installed as a wheel.

    A pyproject.toml beside them is not enough: with `pip install --target` they lie in a project of the user's own.
    """
    folder = Path(chunkwise.__file__).resolve().parents[1]
    with contextlib.suppress(OSError, ValueError), open(folder / "pyproject.toml", "rb") as file:
        if tomllib.load(file).get("project", {}).get("name") == NAME:
            return folder
    return None


def version_of(package: str) -> str | None:
    """Returns the installed version of a package; None where it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def pip_install(extra: str, *, locked: bool = False) -> str:
    """Returns the command that adds an extra of pyproject.toml to the environment of this process.

    Args:
      extra: Its name, such as sim.
      locked: Whether a lock of a clone has what is missing, so that `make env` is said too.
    """
    folder = clone()
    if folder is None:
        return f"{pip()} install '{NAME}[{extra}]'"
    where = "." if folder == Path.cwd() else folder
    return f"{'make env, or ' if locked else ''}{pip()} install -e {shlex.quote(f'{where}[{extra}]')}"


def pip() -> str:
    """Returns what is typed to start the pip of this environment: `pip` alone may be another's."""
    own, found = Path(sys.executable).with_name("pip"), shutil.which("pip")
    if found is not None and Path(found) == own:
        return "pip"
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m pip"
    return shlex.quote(str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own))
