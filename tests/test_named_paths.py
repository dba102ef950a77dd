"""Paths that cannot be looked at: each program says which one and why, with the documented exit code."""

import dataclasses
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import launch
from chunkwise.cli.named_paths import require_reachable
from chunkwise.errors import DataError

ROOT = Path(__file__).parent.parent
WORDS = {"file": "Not a directory", "loop": "Too many levels of symbolic links", "long": "File name too long"}


def unreachable(folder: Path, kind: str) -> str:
    """A path of one kind."""
    if kind == "file":
        (folder / "file").write_text("x")
    if kind == "loop":
        (folder / "loop").symlink_to("loop")
    return str(folder / ("n" * 300 if kind == "long" else kind) / "x")


FIELDS = [
    ("qchunk/debug", "data.path", 65),
    ("driving/debug", "data.path", 65),
    ("driving/debug", "waypoints.weights", 65),
    ("openpi_ript/debug", "data.path", 65),
    ("openpi_ript/debug", "data.norm_stats", 65),
    ("openpi_ript/debug", "tokenizer", 65),
    ("openpi_ript/debug", "weights", 65),
    ("qchunk/debug", "run.dir", 74),
    ("driving/debug", "run.dir", 74),
    ("openpi_ript/debug", "run.dir", 74),
]


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(("config", "field", "code"), FIELDS)
def test_a_field_of_a_config(
    config: str,
    field: str,
    code: int,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = importlib.import_module(f"configs.{config.replace('/', '.')}").get_config()
    path = unreachable(tmp_path, kind)
    for name, value in {"run.dir": str(tmp_path / "run"), "data.path": str(tmp_path / "data"), field: path}.items():
        made = replaced(made, name, value)
    monkeypatch.chdir(tmp_path)
    assert launch.train(made, "debug") == code
    told = capsys.readouterr().err
    assert WORDS[kind] in told
    assert "Traceback" not in told
    assert field == "run.dir" or f"error: {field} {path[:300]}" in told
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "data").exists()


def replaced(config: Any, name: str, value: str) -> Any:
    """A config with one field, by its dotted name, changed."""
    first, _, rest = name.partition(".")
    inner = replaced(getattr(config, first), rest, value) if rest else value
    return dataclasses.replace(config, **{first: inner})


TOOLS: dict[str, list[str]] = {
    "chunkwise.checkpoint.tool": ["verify", "PATH"],
    "qchunk.inspect": ["PATH"],
    "qchunk.convert": ["PATH", "out"],
    "driving.validate": ["PATH"],
    "driving.data.pack": ["PATH", "out", "--image-size", "8", "8"],
    "driving.convert": ["PATH", "out"],
    "openpi_ript.inspect": ["PATH"],
    "openpi_ript.data.pack": ["PATH", "out"],
    "openpi_ript.evaluate": ["run", "PATH"],
    "chunkwise.policies.serve": ["PATH"],
    "qchunk.evaluate": ["PATH"],
}


def code_of(main: Callable[[list[str]], int | None], words: list[str]) -> tuple[int, str]:
    """A tool's exit code, as cli.command.run would have it, and what it raised, if that is an error of the project."""
    try:
        return main(words) or 0, ""
    except SystemExit as stop:
        return int(str(stop.code)), ""
    except DataError as error:
        return error.exit_code, str(error)


@pytest.mark.parametrize("kind", ["loop", "long"])
@pytest.mark.parametrize("tool", TOOLS)
def test_an_argument_of_a_tool(
    tool: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = unreachable(tmp_path, kind)
    words = [path if word == "PATH" else word for word in TOOLS[tool]]
    code, raised = code_of(importlib.import_module(tool).main, words)
    told = raised + capsys.readouterr().err
    assert code == 65, told
    assert WORDS[kind] in told
    assert path[:300] in told


def test_access_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def stat(path: object, *args: object, **settings: object) -> os.stat_result:
        if str(path) == str(tmp_path / "secret/x"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **settings)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(os, "stat", stat)
    require_reachable({"data.path": tmp_path / "missing", "weights": None, "tokenizer": tmp_path})
    with pytest.raises(DataError, match=r"data\.path .*/secret/x: expected a path that .*: Permission denied"):
        require_reachable({"weights": tmp_path, "data.path": str(tmp_path / "secret/x")})
    with pytest.raises(DataError, match="null"):
        require_reachable({"weights": "a\0b"})
