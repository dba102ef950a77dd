"""`python -m MODULE` of a module that is no program: its usage, and 64, where Python would run it to no effect.

Python imports the package of a module before it runs the module, and `sys.argv[0]` is "-m" as long as it does. So each
package asks here when it is imported, and the modules themselves need no lines for it.
"""

import ast
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from chunkwise.errors import ConfigError

HINT = "chunkwise --help has what can be run"


def require_program(package: str, folders: Iterable[str]) -> None:
    """Ends the process with 64 and a usage where Python is about to run a module of a package that does nothing.

    Args:
      package: Its `__name__`.
      folders: Its `__path__`.
    """
    name = _named(sys.orig_argv) if sys.argv[:1] == ["-m"] else None
    if name is None or not f"{name}.".startswith(f"{package}."):
        return
    for folder in folders:
        file = _file(Path(folder).joinpath(*name.split(".")[len(package.split(".")) :]))
        if file is not None and not _runs(file):
            line = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
            print(f"usage: {name} is no program, but a module to import: {line}\n{HINT}", file=sys.stderr)
            sys.exit(ConfigError.exit_code)


def _named(words: list[str]) -> str | None:
    """The module that the words of a command line have Python run; None where that cannot be told."""
    for word, following in itertools.pairwise([*words[1:], ""]):
        if word.startswith("-") and not word.startswith("--"):
            before, dash_m, after = word.partition("m")  # several options may stand in one word
            if dash_m and not set(before) & set("cWX"):
                return after or following
    return None


def _file(path: Path) -> Path | None:
    """What Python would read of a module or package; None where there is none, which Python says itself."""
    if (path / "__main__.py").is_file():
        return path / "__main__.py"
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None


def _runs(file: Path) -> bool:
    """Whether a file does something when it is run."""
    return (
        file.name == "__main__.py"
        or re.search(r'^if __name__ == "__main__":', file.read_text(), re.MULTILINE) is not None
    )
