import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chunkwise.config.experiment import RunConfig
from chunkwise.errors import PreemptedError
from chunkwise.train import log_file, provenance
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.calls import Calls
from tests.chunkwise.toy import ToyTask, toy_config


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    provenance._repository.cache_clear()
    folder = tmp_path / "mine"
    folder.mkdir()
    git(folder, "init")
    (folder / "a.txt").write_text("a")
    git(folder, "add", "a.txt")
    git(folder, "commit", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def test_a_commit_and_whether_it_is_what_runs(repository: Path):
    found = provenance.describe()["folder_commit"]
    head = (repository / ".git/refs/heads").iterdir()
    assert found == {"commit": next(head).read_text().strip(), "clean": True}
    (repository / "more.txt").write_text("not tracked")
    provenance._repository.cache_clear()
    assert provenance.describe()["folder_commit"]["clean"] is True
    (repository / "a.txt").write_text("b")
    provenance._repository.cache_clear()
    assert provenance.describe()["folder_commit"]["clean"] is False


def test_nothing_that_a_repository_names_is_started(repository: Path, tmp_path: Path):
    script = tmp_path / "monitor.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(script))
    assert provenance.describe()["folder_commit"] is not None
    assert not (tmp_path / "ran").exists()


def test_without_git_and_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    provenance._repository.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = provenance.describe()
    assert (found["commit"], found["folder_commit"]) == (None, None)
    assert found["folder"] == str(tmp_path)
    assert found["versions"]["jax"] is not None
    provenance._repository.cache_clear()
    monkeypatch.undo()
    assert provenance._repository(tmp_path) is None, "git is there, and says that this is no repository"
    provenance._repository.cache_clear()


def test_a_git_that_hangs_is_waited_for_five_seconds(repository: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[float] = []

    def hangs(words: list[str], *, timeout: float, **_: Any) -> Any:
        asked.append(timeout)
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    found = provenance.describe()
    assert (found["commit"], found["folder_commit"]) == (None, None)
    assert asked
    assert set(asked) == {5.0}
    provenance._repository.cache_clear()


def run(config: Any) -> None:
    with RunFolder(config, "toy") as folder:
        fit(config, ToyTask(config), folder)


def test_every_start_leaves_a_line_and_the_log_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = toy_config(tmp_path / "run", dataset=7)

    def stop(step: int) -> None:
        if step == 9:
            os.kill(os.getpid(), 15)

    with pytest.raises(PreemptedError), RunFolder(config, "toy") as folder:
        fit(config, ToyTask(config, on_batch=stop), folder)
    first = (tmp_path / "run" / log_file.NAME).read_text()
    run(dataclasses.replace(config, run=RunConfig(dir=config.run.dir, resume=True)))
    lines = [json.loads(line) for line in (tmp_path / "run" / provenance.NAME).read_text().splitlines()]
    assert lines[0]["step"] == 0
    assert lines[1]["step"] >= 9
    assert [line["dataset"] for line in lines] == [{"dataset": 7}] * 2
    assert [line["seed"] for line in lines] == [0, 0]
    log = (tmp_path / "run" / log_file.NAME).read_text()
    assert log.startswith(first)
    assert "PreemptedError: " in first.splitlines()[-1]
    assert f"resumed from step {lines[1]['step']}" in log
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in log.splitlines() if "PreemptedError" not in line] == printed


def test_what_made_a_start_is_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = Calls(tmp_path, monkeypatch)
    provenance.note(tmp_path, step=0, seed=1, data={})
    size = (tmp_path / "starts.jsonl").stat().st_size
    assert f"fsync starts.jsonl {size} bytes" in calls.seen


def test_what_cannot_be_written_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run" / provenance.NAME).mkdir(parents=True)
    run(toy_config(tmp_path / "run"))
    assert "starts.jsonl: not written: " in capsys.readouterr().err


def test_a_log_shows_lines_as_they_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    streams = sys.stdout, sys.stderr
    with log_file.logged(tmp_path):
        print("a", end="")
        print("b\x1b[31mc")
        print("10 %\r20 %\rdone")
        print("no end", end="")
    assert [line.partition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()] == [
        r"ab\x1b[31mc",
        "done",
        "no end",
    ]
    assert capsys.readouterr().out.startswith("ab\x1b[31mc\n")
    assert (sys.stdout, sys.stderr) == streams
    print("after")
    assert "after" not in (tmp_path / "log.txt").read_text()


def test_who_keeps_a_stream_of_a_run_prints_to_the_real_one_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """As a handler of logging that was made meanwhile."""
    with log_file.logged(tmp_path):
        kept = sys.stderr
        assert kept.write("during\n") == 7
    print("after", file=kept)
    assert capsys.readouterr().err == "during\nafter\n"
    assert [line.partition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["during"]


def test_a_full_disk_does_not_end_a_run_at_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with log_file.logged(tmp_path):
        print("a line")
    assert capsys.readouterr().out == "a line\n"
