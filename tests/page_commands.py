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
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from chunkwise.config.load import load
from chunkwise.config.saved import flatten
from tests.driving.drives import write_drive
from tests.lerobot_files import TASKS, record, write_v21
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
INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Starts a program that ends on Ctrl-C. A shell lets what it runs in the background ignore that, and so would what is
started there; this process cannot change it in a child, since it must not fork once jax has threads."""
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
        """The words of each program that the line starts."""
        plain = [SHELL.sub("", line.strip()) for line in re.split(r"&&|&$", typed(self.line))]
        return [shlex.split(line) for line in plain if line]


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


def typed(line: str) -> str:
    """Returns what a user types for a command that a page gives: a synopsis without its brackets.

    Of alternatives there, `[--format a|b]`, it is the first; dots that stand for words are left out where they are one.
    """
    chosen = re.sub(r"\[(-[^]]*)\]", lambda found: re.sub(r"\|\w+", "", found[1]), line)
    return re.sub(r" \.\.\.(?= |$)", "", chosen)


def start(
    command: str, *more: str, folder: Path, variables: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Starts a command of a page in such a folder, with a few more words, and variables of the environment."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "bash", "-c", " ".join((typed(_bare(command)), *more))],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """Returns what a command said that ended well. One that takes too long is ended."""
    said = end(process)
    assert process.returncode == 0, said
    return said


def end(process: "subprocess.Popen[str]") -> str:
    """Returns what a command said until it ended, within TIMEOUT: else it would go on beside the tests that follow."""
    try:
        said, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return said


def _episodes(folder: Path) -> None:
    image_recordings.dataset(folder, lengths=(30, 40, 25, 36, 50, 28), size=(48, 64))


def _lerobot(folder: Path) -> None:
    write_v21(folder, record((30, 25, 40), size=(48, 64)))


def _drives(folder: Path) -> None:
    for number in range(8):
        write_drive(folder, f"drive_{number}", frames=80, start_yaw=0.3 * number, size=(32, 48))


def _empty(folder: Path) -> None:
    folder.mkdir()


def _weights(folder: Path, kind: Literal["pi0", "pi05"] = "pi0") -> None:
    """Of a pi0 of some 90,000 weights, in the layout of openpi's checkpoints."""
    from openpi_ript.config.model import toy  # here: most who read the pages need no model
    from openpi_ript.model.pi0 import Pi0
    from openpi_ript.weights import save_openpi
    from tests.openpi_ript.toy_policy import random_params

    save_openpi(random_params(Pi0(dataclasses.replace(toy(kind), action_dim=32))), folder)


def _droid(folder: Path) -> None:
    """A checkpoint as of openpi's pi05_droid, with statistics, of a model as small."""
    _weights(folder / "params", "pi05")
    one = {"mean": [0.0] * 8, "std": [1.0] * 8, "q01": [-1.0] * 8, "q99": [1.0] * 8}
    (folder / "assets/droid").mkdir(parents=True)
    (folder / "assets/droid/norm_stats.json").write_text(json.dumps({"norm_stats": {"state": one, "actions": one}}))


def _droid_config(file: Path) -> None:
    """The page's own file, with that model in place of one of 3 billion weights."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGES["docs/start/pi0.md"], re.MULTILINE | re.DOTALL)
    file.write_text(f"""import dataclasses
from openpi_ript.config.model import toy
{code}
_whole = get_config


def get_config():
    whole = _whole()
    model = dataclasses.replace(toy("pi05"), action_dim=32, action_horizon=whole.model.action_horizon)
    return dataclasses.replace(whole, model=model, data=dataclasses.replace(whole.data, image_size=(28, 28)))
""")


def _tokenizer(file: Path) -> None:
    from openpi_ript.data.lerobot_writer import train_tokenizer

    file.write_bytes(train_tokenizer(TASKS))


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


def _run(config: str, place: Path, folder: Path) -> None:
    """Puts a stand-in in its place, and into the folder that it was trained in what it recorded there."""
    run = _run_of(config)
    shutil.copytree(run, place)
    if (recorded := run.with_name("datasets")).exists():
        shutil.copytree(recorded, folder / recorded.name, dirs_exist_ok=True)


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
    "empty folder": _empty,
    "weights": _weights,
    "pi05_droid": _droid,
    "config of pi05_droid": _droid_config,
    "tokenizer": _tokenizer,
}


def put_in_place(there: Mapping[str, str], folder: Path, *, trained: bool) -> None:
    """Writes what a page's commands are given: datasets by their kind (`DATA`), runs by the config that made them.

    Args:
      there: Kind or config by path. Of one that begins with / the test has its own below the folder (`with_places`).
      folder: In which the paths are.
      trained: Whether runs are trained, or a config.json is all that there is of them.
    """
    for name, kind in there.items():
        place = folder / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind in DATA:
            DATA[kind](place)
        elif trained:
            _run(kind, place, folder)
        else:
            _config_alone(kind, place)


def with_places(line: str, there: Mapping[str, str], folder: Path) -> str:
    """Returns a command whose paths of another machine, which begin with /, are those put in place in the folder."""
    for name in there:
        if name.startswith("/"):
            line = line.replace(name, str(folder / name.lstrip("/")))
    return line


def _bare(line: str) -> str:
    return re.split(r"\s+#", line)[0].strip()


def _program(line: str) -> str:
    return SHELL.sub("", line).split(" ")[0]
