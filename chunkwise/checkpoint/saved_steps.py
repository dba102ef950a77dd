"""Which steps of a run are saved, as far as names tell, and what has been announced of them.

<run>/checkpoints/<step>/   a save; it has this name only once all of it is on the device
<run>/checkpoints/<step>.*  what a save or a removal that was broken off left, which the next start removes
<run>/saved.json            {"step": the newest save that has been announced, or null while there is none}

`saved.json` lies beside the saves and is written, durably, before the first line of metrics, and again with each save
before it is announced. So where no save can be read, it tells a run that never had one, which starts again from the
beginning, from one whose saves are lost, which must not.
"""

import os
import re
from pathlib import Path

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.durable import write_json
from chunkwise.files.strict_json import parse_json

SAVES = "checkpoints"
ANNOUNCED = "saved.json"

_STEP = re.compile(r"0|[1-9][0-9]*")  # not str.isdigit, which takes a superscript for one
_REMAINS = re.compile(r"[0-9]+\..+")


def step_of(path: Path) -> int | None:
    """The step of which a folder is named to be a save; None for other names."""
    return int(path.name) if _STEP.fullmatch(path.name) else None


def steps_in(folder: Path) -> list[int]:
    """Steps under a folder of saves, newest first; none if there is no such folder.

    Raises:
      OSError: It cannot be listed (`Path.glob` would say that it is empty).
    """
    return sorted((step for path in _listed(folder) if (step := step_of(path)) is not None), reverse=True)


def remains_in(folder: Path) -> list[Path]:
    """What is no save and never was one, or no longer: halves of saves and of removals, and empty folders of steps.

    Raises:
      OSError: The folder cannot be listed.
    """
    found = []
    for path in _listed(folder):
        empty = step_of(path) is not None and path.is_dir() and not _listed(path)
        if empty or _REMAINS.fullmatch(path.name):
            found.append(path)
    return found


def announce(run: Path, step: int | None) -> None:
    """Notes the newest save of a run, durably; None when it begins. Raises OSError."""
    write_json(run / ANNOUNCED, {"step": step}, indent=None)


def told(step: int | None) -> str:
    """Returns in words which save is the newest of a run; None: it has none."""
    return "No save was finished before" if step is None else f"The last save is of step {step}"


def announced(run: Path) -> dict[str, int | None] | None:
    """What `announce` noted: {"step": step or None}; None if it never did, as in runs of older versions.

    Raises:
      DataError: The file was changed by hand, or costs more than a limit.
      OSError: It cannot be read.
    """
    path = run / ANNOUNCED
    try:
        text = budget.read_bytes(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    tree = parse_json(text, source=str(path))
    if not isinstance(tree, dict) or not (tree.get("step", "") is None or isinstance(tree.get("step"), int)):
        raise DataError(f'{path}: expected {{"step": number or null}}, found {text[:80]!r}')
    return {"step": tree["step"]}


def _listed(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it does not exist."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except FileNotFoundError:
        return []
