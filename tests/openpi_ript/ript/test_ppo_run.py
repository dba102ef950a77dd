"""The whole program with PPO, killed in the middle of a collection and of the updates on it."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chunkwise.envs.rollout import load
from tests import kill

CONFIG = "configs/openpi_ript/debug_ppo.py"
OPTIONS = ["--rollout.start", "100", "--train.steps", "140", "--train.eval-every", "0", "--train.ema-decay", "0.9"]
OPTIONS += ["--checkpoint.every", "10", "--eval.final-episodes", "3", "--rollout.size", "8"]


def kill_when(folder: Path, moment: Callable[[], bool]) -> None:
    process = kill.launch(CONFIG, folder, OPTIONS)
    while not moment():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "rollouts").rglob("*.npz"))


@pytest.mark.long
def test_killed_while_collecting_and_while_training(tmp_path: Path):
    digest = kill.finish(CONFIG, tmp_path / "a", OPTIONS)
    assert [int(name[5:13]) for name in sorted({path.parent.name for path in files(tmp_path / "a")})] == [100, 120]

    kill_when(tmp_path / "b", lambda: len(files(tmp_path / "b")) >= 3)
    found = files(tmp_path / "b")
    written = [path.stat().st_mtime_ns for path in found]
    saved = tmp_path / "b/checkpoints/110"
    kill_when(tmp_path / "b", saved.is_dir)
    assert [path.stat().st_mtime_ns for path in found] == written, "they were taken as they lay there"
    assert kill.finish(CONFIG, tmp_path / "b", OPTIONS) == digest
    assert kill.written(tmp_path / "b") == kill.written(tmp_path / "a")

    metrics = [json.loads(one) for one in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    updated = [row for row in metrics if "ppo_loss" in row]
    assert {row["step"] for row in updated} <= {120, 140}
    for row in updated:
        assert row["approx_kl"] > 0
        assert 0 <= row["clipped_share"] <= 1
        assert row["ratio"] == pytest.approx(1, abs=0.5)
    assert {"flow_loss", "rollouts/success"} & set(updated[0]) == {"rollouts/success"}
    for path in files(tmp_path / "a"):
        rollout = load(path)
        chunks = -(-rollout.length // 4)
        assert {name: value.shape for name, value in rollout.notes.items()} == {
            "chain": (chunks, 6, 8, 8),
            "log_prob": (chunks, 5, 8),
        }
        assert np.isfinite(rollout.notes["log_prob"]).all()
