"""Files that cost more than they weigh, or that never end: each through the real program, with its memory and time.

    python -m tests.bombs [NAME ...] [--list] [--json FILE]

A case is a function with the decorator `case` in one of the modules of CASES, and nothing else has to be changed:

    @case
    def npz_of_zeros(folder: Path) -> Command:
        "One sentence that says what is hostile."
        np.savez_compressed(folder / "play.npz", observations=np.zeros((10**8, 4)))
        return ["-m", "qchunk.inspect", str(folder / "play.npz")]

`folder` is empty and its own; what is returned goes behind `python`. The case has passed if the program refuses the
file (exit code 65, no traceback), or, with `@case(may_read=True)`, reads it (exit code 0); and in both cases within
PEAK_MB more than the program needs for nothing, and within SECONDS.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, overload

Command = list[str]
Build = Callable[[Path], Command]

CASES = (
    "arrays",
    "hdf5",
    "metadata",
    "images",
    "pipes",
    "tables",
    "odd_hdf5",
    "odd_files",
    "odd_images",
    "odd_numbers",
    "odd_sources",
    "odd_runs",
)
"""Modules of this folder that hold cases."""
PEAK_MB = 1000
"""Memory that a case may take beyond what its program takes to start."""
SECONDS = 120
"""Of one case; half of it is the start of Python on a busy machine."""


class Case(NamedTuple):
    """One hostile file."""

    name: str
    build: Build
    may_read: bool
    codes: tuple[int, ...]
    """Exit codes of a refusal."""


_cases: dict[str, Case] = {}


@overload
def case(build: Build, /) -> Build: ...
@overload
def case(*, may_read: bool = False, codes: tuple[int, ...] = (65,)) -> Callable[[Build], Build]: ...
def case(
    build: Build | None = None, /, *, may_read: bool = False, codes: tuple[int, ...] = (65,)
) -> Build | Callable[[Build], Build]:
    """Adds a case. `may_read`: reading the file is as good as refusing it; `codes`: exit codes of a refusal."""

    def add(build: Build) -> Build:
        name = build.__name__
        if name in _cases:
            raise ValueError(f"there are two cases {name}")
        _cases[name] = Case(name, build, may_read, codes)
        return build

    return add if build is None else add(build)


def all_cases() -> dict[str, Case]:
    """Every case by name, in the order of the modules."""
    for module in CASES:
        importlib.import_module(f"tests.bombs.{module}")
    return dict(_cases)
