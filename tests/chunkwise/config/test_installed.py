"""The line that adds an extra: of a clone, of a wheel, from another folder, with another's pip on the path."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import chunkwise
from chunkwise.config import installed
from chunkwise.config.installed import clone, pip_install

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs with a pip, on the path alone, from which this Python was started."""
    programs = tmp_path / "my env/bin"
    programs.mkdir(parents=True)
    (programs / "pip").write_text("#!/bin/sh\n")
    (programs / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return programs


def lie_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunkwise, "__file__", str(folder / "chunkwise/__init__.py"))


@pytest.mark.usefixtures("own_pip")
def test_a_clone_is_installed_from_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert clone() == ROOT.resolve()
    monkeypatch.chdir(ROOT)
    assert pip_install("sim") == "pip install -e '.[sim]'"
    assert pip_install("sim", locked=True) == "make env, or pip install -e '.[sim]'"
    monkeypatch.chdir(tmp_path)
    assert pip_install("sim") == f"pip install -e '{ROOT.resolve()}[sim]'"


@pytest.mark.usefixtures("own_pip")
@pytest.mark.parametrize("beside", [None, "[project]\nname = 'robots'\n", "[tool.x]\n", "not TOML"])
def test_a_wheel_is_named(beside: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lie_in(tmp_path, monkeypatch)
    if beside is not None:
        (tmp_path / "pyproject.toml").write_text(beside)
    assert clone() is None
    assert pip_install("fleet", locked=True) == "pip install 'chunkwise[fleet]'", "a wheel has no Makefile"


def test_a_pip_of_another_environment_is_not_named(own_pip: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    lie_in(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pip_install("tb") == f"'{own_pip}/pip' install 'chunkwise[tb]'"
    monkeypatch.chdir(own_pip.parent)
    assert pip_install("tb") == "bin/pip install 'chunkwise[tb]'"
    (own_pip / "pip").unlink()
    assert pip_install("tb") == f"'{own_pip}/python' -m pip install 'chunkwise[tb]'", (
        "an environment without pip's script"
    )


def test_every_extra_that_a_message_names_is_one_and_no_message_names_the_wheel():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in ("chunkwise", "qchunk", "openpi_ript", "driving"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            for extra in re.findall(r"pip_install\([\"'](\w+)[\"']", text):
                assert extra in extras, path
            assert path == Path(installed.__file__) or "chunkwise[" not in text, f"{path}: see pip_install"
