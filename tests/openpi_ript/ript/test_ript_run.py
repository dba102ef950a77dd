"""The whole program on the debug config, killed in the middle of a collection and of the updates on it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkwise.envs.evaluate import Evaluation, Manifest
from tests import kill

CONFIG = "configs/openpi_ript/debug_ript.py"
OPTIONS = ["--rollout.start", "100", "--train.steps", "140", "--train.eval-every", "0"]
OPTIONS += ["--checkpoint.every", "10", "--eval.final-episodes", "3"]


def kill_when(folder: Path, moment: Callable[[], bool], options: list[str]) -> None:
    process = kill.launch(CONFIG, folder, options)
    while not moment():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "rollouts").rglob("*.npz"))


@pytest.mark.long
@pytest.mark.parametrize("staleness", [0, 1])
def test_killed_while_collecting_and_while_training(tmp_path: Path, staleness: int):
    options = [*OPTIONS, "--rollout.staleness", str(staleness)]
    digest = kill.finish(CONFIG, tmp_path / "a", options)
    rounds = sorted({path.parent.name for path in files(tmp_path / "a")})
    assert [int(name[5:13]) for name in rounds] == [100, 120]

    kill_when(tmp_path / "b", lambda: len(files(tmp_path / "b")) >= 3, options)
    found = files(tmp_path / "b")
    written = [path.stat().st_mtime_ns for path in found]
    line = '"step": 120, "split": "train"'
    kill_when(tmp_path / "b", lambda: line in (tmp_path / "b/metrics.jsonl").read_text(), options)
    assert [path.stat().st_mtime_ns for path in found] == written, "they were taken as they lay there"
    assert kill.finish(CONFIG, tmp_path / "b", options) == digest
    assert kill.written(tmp_path / "b") == kill.written(tmp_path / "a")

    manifest = Manifest.load(tmp_path / "b/manifest.json")
    last = Evaluation.load(tmp_path / "b/evaluations/step_00000140.json")
    assert [outcome["init_hash"] for outcome in last.outcomes] == [state.init_hash for state in manifest.states[:3]]
    metrics = [json.loads(one) for one in (tmp_path / "b/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["policy/success"] == last.successes / 3
    assert {row["step"] for row in metrics if "rollouts/success" in row} == {120, 140}
    compared = subprocess.run(
        [sys.executable, "-m", "openpi_ript.evaluate", "run", str(tmp_path / "b"), "--episodes", "3"],
        cwd=kill.ROOT,
        capture_output=True,
        text=True,
    )
    assert compared.returncode == 0, compared.stderr
    again = Evaluation.load(tmp_path / "b/evaluations/step_00000140.json")
    assert again == last, "the command plays what the run played"
