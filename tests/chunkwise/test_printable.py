"""Names that others chose, with line breaks and escape sequences: no tool prints them as they are."""

import importlib
import json
import pickle
import shutil
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkwise import errors
from chunkwise.checkpoint.reader import DamagedError
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.data.problems import Problem, list_problems, problem_of
from chunkwise.distributed import processes
from chunkwise.errors import DataError, MismatchError, RunError, require_equal
from chunkwise.files.budget import LimitError
from chunkwise.printable import printable, say
from tests.chunkwise.checkpoint.test_manager import written
from tests.driving.converters.test_lerobot import write_l2d
from tests.driving.drives import write_drive
from tests.lerobot_files import record, write_v21
from tests.qchunk.recordings import dataset

NAME = "a\nforged: all is well\x1b[31m[red]\x9b"
SHOWN = r"a\nforged: all is well\x1b[31m[red]\x9b"
Tool = tuple[str, list[str]]


def test_what_is_escaped() -> None:
    assert printable(NAME) == SHOWN
    assert printable(SHOWN) == SHOWN
    assert printable("Straße 東京 🚗, tab\tand\r\0\ud800\u2028") == r"Straße 東京 🚗, tab\tand\r\x00\ud800\u2028"


def test_say_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(NAME)
    say(NAME, error=True)
    assert capsys.readouterr() == (SHOWN + "\n", SHOWN + "\n")


@pytest.mark.parametrize("kind", [RunError, DataError, DamagedError])
def test_a_line_of_an_error_is_one_line(kind: type[Exception]) -> None:
    error = kind(f"{NAME}: expected:", f"  {NAME}")
    assert str(error) == f"{SHOWN}: expected:\n  {SHOWN}"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))


def test_problems_are_one_line() -> None:
    problem = Problem(file=NAME, key=NAME, expected="b", found=NAME)
    assert str(problem).count(SHOWN) == 3
    assert "\n" not in str(problem)
    (line,) = list_problems([problem, problem])
    assert line.count(SHOWN) == 4
    assert "\n" not in line
    with pytest.raises(MismatchError) as error:
        require_equal({"a": 1, NAME: 2}, {"a": 1}, NAME)
    assert len(str(error.value).split("\n")) == 3
    assert problem_of(DataError(f"{NAME}: k: expected 1, found 2"), NAME).key == "k"


def test_an_error_of_the_first_process_keeps_its_lines_and_its_nearest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, str] = {}
    client = types.SimpleNamespace(key_value_set=told.__setitem__, blocking_key_value_get=lambda key, _: told[key])
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    monkeypatch.setattr(processes, "_client", lambda: client)
    for raised in (DataError("a:", "  b"), LimitError("a", "chunks", "5"), errors.MismatchError("c")):

        def make(raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(processes, "_calls", iter([7, 7]))
        monkeypatch.setattr(processes, "is_primary", lambda: True)
        with pytest.raises(type(raised)):
            processes.broadcast_one_to_all(make)
        monkeypatch.setattr(processes, "is_primary", lambda: False)
        with pytest.raises(RunError) as error:
            processes.broadcast_one_to_all(make)
        assert type(error.value) is (DataError if isinstance(raised, DataError) else MismatchError)
        assert str(error.value) == str(raised)


def bad_hdf5(folder: Path) -> list[Tool]:
    root = dataset(folder / "data")
    (root / f"{NAME}.hdf5").write_bytes(b"none")
    return [("qchunk.inspect", [str(root)])]


def bad_drive(folder: Path) -> list[Tool]:
    write_drive(folder / "data", "good", frames=3)
    (folder / "data" / f"{NAME}.json").write_text("{")
    return [
        ("driving.validate", [str(folder / "data")]),
        ("driving.data.pack", [str(folder / "data"), str(folder / "o")]),
    ]


def camera_of_a_drive(folder: Path) -> list[Tool]:
    write_drive(folder / "data", "good", frames=3)
    (path,) = (folder / "data").glob("*.json")
    path.write_text(path.read_text().replace('"front"', json.dumps(NAME)))
    return [("driving.validate", [str(folder / "data")])]


def lerobot_tables(folder: Path) -> list[Tool]:
    root = write_v21(folder / "data", record((3, 3)), "image")
    info = json.loads((root / "meta/info.json").read_text())
    info |= {"robot_type": NAME, "data_path": f"data/{NAME}/{{episode_index}}.parquet"}
    (root / "meta/info.json").write_text(json.dumps(info))
    out = str(folder / "out")
    return [
        ("openpi_ript.inspect", [str(root)]),
        ("openpi_ript.data.pack", [str(root), out]),
        ("qchunk.convert", [str(root), out]),
        ("driving.convert", [str(root), out, "--state", "speed_mps=observation.state:0"]),
    ]


def save(folder: Path) -> list[Tool]:
    written(folder / "run", 1)
    (folder / "run/checkpoints/1" / NAME).touch()
    return [("chunkwise.checkpoint.tool", ["verify", str(folder / "run")])]


@pytest.mark.parametrize("make", [bad_hdf5, bad_drive, camera_of_a_drive, lerobot_tables, save])
def test_tools_print_no_name_as_it_is(
    make: Callable[[Path], list[Tool]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for tool, words in make(tmp_path):
        try:
            code = importlib.import_module(tool).main(words)
        except RunError as error:  # as chunkwise.cli.command.run would
            code = processes.report(error)
        out, err = capsys.readouterr()
        assert code == (0 if make is camera_of_a_drive else 65), (tool, out, err)
        for stream in (out, err):
            assert "\x1b" not in stream, tool
            assert "\x9b" not in stream, tool
            assert not any(line.lstrip("│ ").startswith("forged") for line in stream.splitlines()), (tool, stream)
        assert SHOWN in "".join((out + err).split("\n")), (tool, out, err)


@pytest.mark.parametrize("kind", ["v21", "l2d"])
def test_links_that_the_user_allows(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, shelf = tmp_path / "data", tmp_path / "shelf"
    if kind == "v21":
        write_v21(root, record((3, 3)), "image")
    else:
        write_l2d(root)
    shutil.move(root / "data", shelf)
    (root / "data").symlink_to(shelf)
    out = str(tmp_path / "out")
    tools = {
        "v21": [
            ("openpi_ript.inspect", [str(root)]),
            ("qchunk.convert", [str(root), out]),
            ("openpi_ript.data.pack", [str(root), out, "--image-size", "8", "8"]),
        ],
        "l2d": [("driving.convert", [str(root), out])],
    }[kind]
    for tool, words in tools:
        shutil.rmtree(out, ignore_errors=True)
        main = importlib.import_module(tool).main
        assert main(words) == 65, tool
        assert f"--data.allow-links-to {shelf}" in "".join(capsys.readouterr()), tool
        for flag in ("--allow-links-to", "--data.allow-links-to"):
            shutil.rmtree(out, ignore_errors=True)
            assert main([*words, flag, str(shelf)]) == 0, (tool, capsys.readouterr())
        assert str(shelf) not in "".join(path.read_text() for path in Path(out).glob("*dataset.json"))


def test_links_of_a_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack, inspect = (importlib.import_module(f"openpi_ript.{name}").main for name in ("data.pack", "inspect"))
    write_v21(tmp_path / "data", record((3, 3)), "image")
    assert pack([str(tmp_path / "data"), str(tmp_path / "packed"), "--image-size", "8", "8"]) == 0
    (shard,) = (tmp_path / "packed").glob("*.arrayrecord")
    (tmp_path / "shelf").mkdir()
    shutil.move(shard, tmp_path / "shelf")
    shard.symlink_to(tmp_path / "shelf" / shard.name)
    assert inspect([str(tmp_path / "packed")]) == 65
    assert f"--data.allow-links-to {tmp_path / 'shelf'}" in capsys.readouterr().out
    assert inspect([str(tmp_path / "packed"), "--allow-links-to", str(tmp_path / "shelf")]) == 0


def test_the_flag_has_the_name_of_the_config_as_well() -> None:
    parser = Parser()
    add_links_option(parser)
    assert parser.parse_args(["--allow-links-to", "a", "--data.allow-links-to", "b"]).allow_links_to == ["a", "b"]
