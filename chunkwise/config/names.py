"""Configs by name: qchunk/cube_single, of a checkout or of an installed wheel, from any folder."""

import ast
import difflib
from pathlib import Path

from chunkwise.errors import ConfigError

HERE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Returns the folder of the shipped configs: chunkwise/configs of a wheel, configs/ of a checkout."""
    packaged = HERE / "configs"
    return packaged if packaged.is_dir() else HERE.parent / "configs"


def names() -> list[str]:
    """Returns the names of the shipped configs, without .py."""
    root = folder()
    files = sorted(path for path in root.glob("*/*.py") if path.stem != "__init__" and path.parent.name != "studies")
    return [path.relative_to(root).with_suffix("").as_posix() for path in files]


def studies() -> list[str]:
    """Returns the names of the shipped studies, as `chunkwise study` takes them."""
    return sorted(path.stem for path in (folder() / "studies").glob("*.py") if path.stem != "__init__")


def find(name: str) -> Path:
    """Returns the file of a config.

    Args:
      name: A file, or a shipped config's name.

    Raises:
      ConfigError: There is none; the message names the nearest.
    """
    path = Path(name)
    if path.suffix == ".py" or path.is_file():
        return path  # where it is missing, whoever reads it says so
    known = names()
    if name in known:
        return folder() / f"{name}.py"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"no config is named {name}, and no file; {hint}")


def first_line(name: str) -> str:
    """Returns the first line of a config's docstring; the file is not run."""
    text = ast.get_docstring(ast.parse((folder() / f"{name}.py").read_text()))
    return (text or "").partition("\n")[0]
