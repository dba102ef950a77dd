"""`python -m` on any module: a program, or a usage and 64."""

import subprocess
import sys
from pathlib import Path

import pytest

from chunkwise.config import programs
from tests.test_imports import PACKAGES, ROOT, module_name, sources

FILES = sources("chunkwise", *PACKAGES, "configs")


def asked(name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code with which the package of a module ends `python -m NAME`; 0 if it lets it run."""
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", name, "--help"])
    package = name.split(".")[0]
    try:
        programs.require_program(package, [str(ROOT / package)])
    except SystemExit as end:
        return int(str(end.code))
    return 0


def test_every_module_is_a_program_or_says_that_it_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    programs_found = set()
    for path in FILES:
        name = module_name(path)
        runs = '\nif __name__ == "__main__":' in path.read_text() or (
            path.parent / "__main__.py" in FILES and path.name in ("__init__.py", "__main__.py")
        )
        assert asked(name, monkeypatch) == (0 if runs else 64), name
        said = capsys.readouterr().err
        assert said.startswith(f"usage: {name} is no program") == (not runs)
        assert said.endswith(f"{programs.HINT}\n") == (not runs)
        programs_found |= {name} if runs else set()
    assert {"chunkwise", "chunkwise.checkpoint", "qchunk.evaluate", "driving.convert"} <= programs_found
    assert len(FILES) - len(programs_found) > 150


@pytest.mark.parametrize(
    "name", ["chunkwise.errors", "chunkwise.config.programs", "qchunk", "qchunk.data.index", "configs.qchunk.debug"]
)
def test_python_itself(name: str, tmp_path: Path):
    for words in (["-m", name], ["-Bm", name, "x"], ["-X", "utf8", f"-m{name}"]):
        found = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert (found.returncode, found.stdout) == (64, "")
        assert found.stderr.startswith(f"usage: {name} is no program, but a module to import")


def test_what_is_run_otherwise_is_left_alone(tmp_path: Path):
    (tmp_path / "own.py").write_text("import chunkwise, qchunk.config, configs\nprint('ran')")
    for words in (["-m", "own"], [str(tmp_path / "own.py")], ["-c", "import own", "-m", "qchunk"]):
        environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
        found = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert (found.returncode, found.stdout) == (0, "ran\n"), found.stderr
    none = subprocess.run([sys.executable, "-m", "qchunk.none"], cwd=ROOT, capture_output=True, text=True)
    assert "No module named qchunk.none" in none.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "-m", "a.b"], "a.b"),
        (["python", "-ma.b", "-m", "c"], "a.b"),
        (["python", "-Bm", "a.b"], "a.b"),
        (["python", "-X", "importtime", "-m", "a"], "a"),
        (["python", "-W", "error", "-m", "a"], "a"),
        (["python", "-Wmessage", "-m", "a"], "a"),
        (["python", "--check-hash-based-pycs", "never", "-m", "a"], "a"),
        (["python"], None),
    ],
)
def test_the_module_of_a_command_line(words: list[str], name: str | None):
    assert programs._named(words) == name
