"""driving/validate.py by several processes: the same report as by one, and a crash costs its episode's line."""

from pathlib import Path
from typing import Any

import pytest

from chunkwise.distributed.jobs import Hands
from driving import validate as validation
from driving.validate import main, validate
from tests.driving.drives import write_drive


def drives(root: Path) -> Path:
    for name in ("a", "b", "c", "d"):
        write_drive(root, name)
    files = sorted(root.rglob("*.json"))
    for file in (files[0], files[2]):
        file.write_text(file.read_text()[:200])
    return root


def test_workers_report_what_one_process_does(tmp_path: Path) -> None:
    root = drives(tmp_path)
    one, two = (validate([root], hands=Hands(workers=workers)) for workers in (1, 2))
    assert two == one
    files = [entry["file"] for entry in two["episodes"]]
    assert [entry["verdict"] for entry in two["episodes"]] == ["bad", "good", "bad", "good"]
    assert [problem["file"] for problem in two["problems"]] == [files[0], files[2]]


def test_an_episode_that_crashes_its_reader_costs_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_drive(tmp_path, name)
    whole = validation.scan_file

    def scan(file: Path, *more: Any, **options: Any) -> Any:
        if file == files[1]:
            raise KeyError("frames")
        return whole(file, *more, **options)

    files = sorted(tmp_path.rglob("*.json"))
    monkeypatch.setattr(validation, "scan_file", scan)
    report = validate([tmp_path])
    assert report["problems"] == [
        {
            "file": str(files[1]),
            "key": "",
            "row": None,
            "episode": None,
            "expected": "a record that its reader survives",
            "found": "KeyError: 'frames'",
        }
    ]
    assert [entry["verdict"] for entry in report["episodes"]] == ["good", "bad"]


def test_threads_are_the_workers_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_drive(tmp_path, "a")
    assert main([str(tmp_path), "--threads", "1", "--json"]) == 0
    assert main([str(tmp_path), "--threads", "0"]) == 64
    assert "--workers is 0; expected at least 1" in capsys.readouterr().err
