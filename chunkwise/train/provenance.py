"""What made a run: command, commit, versions, machine, data. One line of starts.jsonl for every start that trained.

Nothing reads it but people and reports: it is in no digest, and a resume compares none of it. What cannot be told (no
git, no repository) is null; nothing of it stops a run.
"""

import contextlib
import datetime
import functools
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import chunkwise
from chunkwise.config.installed import version_of
from chunkwise.files.trouble import SYSTEM
from chunkwise.printable import say
from chunkwise.train import machine

NAME = "starts.jsonl"
PACKAGES = ("chunkwise", "jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy", "h5py")
GIT_SECONDS = 5.0


def note(run: Path, *, step: int, seed: int, data: dict[str, Any]) -> None:
    """Appends what made this start to starts.jsonl; where that cannot be written, says so and goes on.

    Args:
      run: Folder of the run.
      step: From which it goes on, 0 at its start.
      seed: Of the run.
      data: Identity of the dataset, by name.
    """
    line = json.dumps({"step": step, **describe(), "seed": seed, "dataset": data}).encode() + b"\n"
    try:
        with open(run / NAME, "ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
    except SYSTEM as error:
        say(f"{run / NAME}: not written: {error}", error=True)


def describe() -> dict[str, Any]:
    """Returns JSON values: time (UTC), command, folder, commits, versions, host, machine."""
    folder = _cwd()
    project = _repository(Path(chunkwise.__file__).parent)
    here = None if folder is None else _repository(folder)
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([sys.executable, *sys.orig_argv[1:]]),
        "folder": None if folder is None else str(folder),
        "commit": project,
        "folder_commit": None if here == project else here,
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "machine": machine.describe(),
    }


def _cwd() -> Path | None:
    with contextlib.suppress(OSError):  # it was removed
        return Path.cwd()
    return None


@functools.lru_cache(maxsize=4)
def _repository(folder: Path) -> dict[str, Any] | None:
    """Returns the commit of the git repository around a folder, and whether files that it tracks were changed since."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "clean": None if changed is None else not changed}


def _git(folder: Path, *words: str) -> str | None:
    """Returns what git prints, or None where it cannot be asked."""
    # A repository's own config may name programs that git status starts; a run must start none of them.
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    command = ["git", "--no-optional-locks", *safe, "-C", str(folder), *words]
    with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None
