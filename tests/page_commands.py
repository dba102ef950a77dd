"""The commands that README and the pages of docs give, and folders in which they can be run as they stand.

Every one of them is listed in tests/page_commands.toml, which says how it is known to work. Its value begins with

    runs      executed by tests/test_page_commands.py; the words that follow are added, most of them smaller sizes
    starts    the same for what serves until it is stopped: it is stopped once it says its address
    shown by  a test runs it; its file and name follow
    in .ci    .ci/run or .ci/full runs it; a line of theirs follows
    not run   the reason follows
"""

import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chunkwise.config.load import load
from chunkwise.config.saved import flatten
from tests.driving.drives import write_drive
from tests.lerobot_files import record, write_v21
from tests.qchunk import image_recordings
from tests.qchunk.converters.sources import robomimic

ROOT = Path(__file__).parent.parent
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
PROGRAMS = (
    "buildah",
    "chunkwise",
    "debootstrap",
    "docker",
    "export",
    "make",
    "pip",
    "python",
    "python3.8",
    "ray",
    "rm",
    "sbatch",
    "source",
    "xprof",
    ".venv/bin/pip",
    ".venv/bin/python",
)
TIMEOUT = 600
"""Seconds that a command may take."""
HOW = ("runs", "starts", "shown by", "in .ci", "not run")
SHELL = re.compile(r"^(?:[A-Z_]+=\S+ )+|^\w+=\$\(|\)$")
"""Variables before a command, and what puts its output into one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One of a page, as one line of shell without its comment."""

    page: str
    line: str
    cell: bool = False
    """Whether it stands in a cell of a notebook, which `make site` executes."""

    @property
    def parts(self) -> list[list[str]]:
        """The words of each program that the line starts; brackets of what may be left out are dropped.

        Of alternatives, `a|b`, it is the first; dots that stand for words are left out where they are a word.
        """
        lines = re.split(r"&&|&$", self.line)
        plain = [
            re.sub(r"\|\w+", "", SHELL.sub("", line.strip()).replace("[-", "-").replace("]", "")) for line in lines
        ]
        return [[word for word in shlex.split(line) if word != "..."] for line in plain if line]


def commands() -> list[Command]:
    """Returns all of them: lines of indented blocks that start a program, and cells of notebooks that bash executes."""
    found = []
    for page, text in PAGES.items():
        joined = re.sub(r" *\\\n\s*", " ", text)
        unfenced = re.sub(r"^```.*?^```", "", joined, flags=re.MULTILINE | re.DOTALL)
        for block in re.findall(r"(?:^    .*\n)+", unfenced, re.MULTILINE):
            lines = [line.strip() for line in block.splitlines()]
            if any(_program(line) in PROGRAMS for line in lines):
                found += [Command(page=page, line=_bare(line)) for line in lines]
        for cell in re.findall(r"^%%bash.*\n((?:(?!```).*\n)*)", joined, re.MULTILINE):
            found += [Command(page=page, line=_bare(line), cell=True) for line in cell.splitlines() if line.strip()]
    return found


def listed() -> dict[str, dict[str, Any]]:
    """Returns tests/page_commands.toml: of each page what its commands need, and how each is known to work.

    `there` is put in place first; `made` is what the page's own commands make, for those that are only read.
    """
    return tomllib.loads((ROOT / "tests/page_commands.toml").read_text())


def clone(folder: Path) -> Path:
    """Makes a folder in which commands find what they find in a clone, and write beside it."""
    for name in ("launch.py", "configs", "tests", "examples", "benchmarks", "docs", "Makefile", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    for name, words in {"bin/chunkwise": "-m chunkwise ", ".venv/bin/python": ""}.items():
        program = folder / name
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        program.chmod(0o755)
    return folder


def start(command: str, *more: str, folder: Path) -> "subprocess.Popen[str]":
    """Starts a command of a page in such a folder, with a few more words."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", " ".join((_bare(command), *more))],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C, and so would what these tests start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """Returns what a command said that ended well."""
    said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, said
    return said


def _episodes(folder: Path) -> None:
    image_recordings.dataset(folder, lengths=(30, 40, 25, 36, 50, 28), size=(48, 64))


def _lerobot(folder: Path) -> None:
    write_v21(folder, record((30, 25, 40), size=(48, 64)))


def _drives(folder: Path) -> None:
    for number in range(8):
        write_drive(folder, f"drive_{number}", frames=80, start_yaw=0.3 * number, size=(32, 48))


FEW = "--train.steps 10 --train.log-every 10 --train.eval-every 0 --checkpoint.every 10"
SHORT: Mapping[str, str] = {
    "qchunk/debug": f"{FEW} --eval.videos 0 --eval.final-episodes 1 --eval.num-envs 1 --eval.max-steps 20",
    "openpi_ript/debug": FEW,
    "openpi_ript/debug_ript": "--train.steps 320",
    "driving/debug": f"{FEW} --eval.blind-updates 2",
}
"""What makes the training of a run that stands in short: a few updates, of RIPT one round."""


@functools.cache
def _run_of(config: str) -> Path:
    """Trains a run that stands in, once for all pages; returns its folder."""
    folder = clone(Path(tempfile.mkdtemp(prefix="chunkwise-pages-")))
    finish(start(f"python launch.py --config configs/{config}.py --run.dir run", SHORT[config], folder=folder))
    return folder / "run"


def _run(config: str, folder: Path) -> None:
    shutil.copytree(_run_of(config), folder)


def _config_alone(config: str, folder: Path) -> None:
    """Writes what tells whose run a folder is."""
    made, _ = load(["--config", str(ROOT / f"configs/{config}.py")])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(flatten(made)))


DATA: Mapping[str, Callable[[Path], object]] = {
    "episodes": _episodes,
    "lerobot": _lerobot,
    "drives": _drives,
    "robomimic": robomimic,
}


def put_in_place(there: Mapping[str, str], folder: Path, *, trained: bool) -> None:
    """Writes what a page's commands are given: datasets by their kind (`DATA`), runs by the config that made them.

    Args:
      there: Kind or config by path.
      folder: In which the paths are.
      trained: Whether runs are trained, or a config.json is all that there is of them.
    """
    for name, kind in there.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind in DATA:
            DATA[kind](place)
        else:
            (_run if trained else _config_alone)(kind, place)


def _bare(line: str) -> str:
    return re.split(r"\s+#", line)[0].strip()


def _program(line: str) -> str:
    return SHELL.sub("", line).split(" ")[0]
