"""The commands of the pages for those who begin, as the pages give them, with fewer updates."""

import functools
import os
import re
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import chunkwise
from tests import page_commands
from tests.page_commands import PAGES, ROOT, clone, finish, start


def commands(page: str, word: str) -> list[str]:
    """Returns the commands of a page that contain a word, each as one line of shell."""
    return [one.line for one in page_commands.commands() if one.page == page and word in one.line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return clone(tmp_path)


# Stands in for python, so that make installs nothing: `-m venv` makes an environment with the packages of the tests.
INTERPRETER = """#!/bin/sh
[ "$1" = -m ] || exit 0
{python} -m venv --without-pip .venv
echo {packages} > .venv/lib/python{version}/site-packages/tests.pth
"""


def test_the_environment_of_a_clone_has_the_command_of_the_pages(tmp_path: Path):
    """From another folder, from a clone whose path has a space, beside what PYTHONPATH named; nothing is installed.

    The page's line puts it on the path of a terminal.
    """
    clone, other = tmp_path / "my clone", tmp_path / "other"
    for folder in (clone, other):
        folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "chunkwise", *(file.name for file in ROOT.glob("requirements*.lock"))):
        (clone / name).symlink_to(ROOT / name)
    interpreter = tmp_path / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = sysconfig.get_path("purelib")
    interpreter.write_text(INTERPRETER.format(python=sys.executable, packages=packages, version=version))
    interpreter.chmod(0o755)
    subprocess.run(["make", "-s", "env", f"PYTHON={interpreter}", "INSTALL=true"], cwd=clone, check=True, timeout=60)
    (other / "mine.py").write_text("")
    (other / "elsewhere").mkdir()
    code = "import chunkwise, os, sys; print(os.path.dirname(os.path.dirname(chunkwise.__file__))); import mine"
    program = (clone / ".venv/bin/chunkwise").read_text().replace("-m chunkwise", f"-c '{code}'")
    (clone / ".venv/bin/where").write_text(program)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(other)}
    run = functools.partial(subprocess.run, cwd=other / "elsewhere", env=environment, capture_output=True, text=True)
    assert run(["sh", clone / ".venv/bin/where"]).stdout.strip() == str(clone)
    said = run([clone / ".venv/bin/chunkwise", "--version"])
    assert said.stdout.strip().endswith(chunkwise.__version__), said.stderr
    (line,) = commands("docs/install.md", "activate")
    terminal = subprocess.run(
        ["bash", "-c", f"{line} && command -v chunkwise && cd / && chunkwise --version"],
        cwd=clone,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert terminal.stdout.splitlines() == [str(clone / ".venv/bin/chunkwise"), said.stdout.strip()], terminal.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_small_policy_of_pi0_s_layout_trains_and_says_what_it_takes(folder: Path):
    (training,) = commands("docs/start/pi0.md", "runs/tiny-pi0")[:1]
    said = finish(start(training, "--train.steps", "5", "--checkpoint.every", "5", folder=folder))
    assert "done step=5" in said
    (spec,) = commands("docs/start/pi0.md", "--spec")
    assert '"prompt"' in finish(start(spec, folder=folder))


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_of_one_machine_are_one_run(folder: Path):
    both = commands("docs/start/pod.md", "JAX_PROCESS_ID")
    assert len(both) == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mine = [command.replace("localhost:8476", f"localhost:{port}") for command in both]
    short = ("--train.steps", "10", "--train.eval-every", "0", "--checkpoint.every", "10")
    processes = [start(command, *short, folder=folder) for command in mine]
    said = [finish(process) for process in processes]
    assert "process 0 of 2" in said[0]
    assert "done step=10" in said[0]
    assert "done step" not in said[1], "the first process alone prints"


def test_a_config_of_openpi_s_policy_is_what_the_page_says():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGES["docs/start/pi0.md"], re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["get_config"]().tokenizer == "tokenizer.model"
