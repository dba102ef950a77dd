"""The whole program with drives between its updates: killed in a round and in the updates on it; in two processes."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import kill, pod

CONFIG = "configs/driving/debug_rollouts.py"


def kill_when(folder: Path, options: list[str], moment: Callable[[], bool]) -> None:
    process = kill.launch(CONFIG, folder, options)
    while not moment():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "rollouts").rglob("*-??.npz"))


@pytest.mark.long
def test_killed_while_driving_and_while_training(tmp_path: Path):
    options = ["--data.path", str(tmp_path / "drives")]
    digest = kill.finish(CONFIG, tmp_path / "a", options)
    rounds = sorted({path.parent.name for path in files(tmp_path / "a")})
    assert [int(name[5:13]) for name in rounds] == [20, 30]

    kill_when(tmp_path / "b", options, lambda: len(files(tmp_path / "b")) >= 2)
    written = [path.stat().st_mtime_ns for path in files(tmp_path / "b")]
    found = files(tmp_path / "b")
    line = '"step": 30, "split": "train"'
    kill_when(tmp_path / "b", options, lambda: line in (tmp_path / "b/metrics.jsonl").read_text())
    assert [path.stat().st_mtime_ns for path in found] == written, "they were taken as they lay there"
    assert kill.finish(CONFIG, tmp_path / "b", options) == digest
    assert kill.written(tmp_path / "b") == kill.written(tmp_path / "a")
    metrics = [json.loads(one) for one in (tmp_path / "b/metrics.jsonl").read_text().splitlines()]
    assert {row["step"] for row in metrics if "drives/score" in row} == {30, 40}
    assert {row["step"] for row in metrics if "ppo_loss" in row} == {30, 40}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_processes_end_as_one_of_two_devices(tmp_path: Path):
    """Digest, metrics and every file of the rounds: two numbers have one sum, whoever adds them."""
    options = [*pod.OWN[CONFIG], "--data.path", str(tmp_path / "drives")]
    one, two = tmp_path / "one", tmp_path / "two"
    digest = pod.finish(CONFIG, one, options, processes=1, devices=2)
    assert pod.finish(CONFIG, two, options, processes=2, devices=1) == digest
    assert kill.written(two) == kill.written(one)
    found = [
        {path.relative_to(run): path.read_bytes() for path in (run / "rollouts").rglob("*.*") if path.is_file()}
        for run in (one, two)
    ]
    assert found[0] == found[1]
    assert len(files(one)) == 8
