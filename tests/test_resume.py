"""The whole program, killed and gone on with: the short form of `python -m tests.kill`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import kill

ROOT = Path(__file__).parent.parent
DEBUG = "configs/qchunk/debug.py"
TOY = "tests/train.py"
# Long enough on any machine to be killed in the middle: a save every ten updates of a very small agent.
OPTIONS = ["--train.steps", "120", "--checkpoint.every", "10", "--train.eval-every", "0", "--eval.env", "None"]


def test_killed_it_ends_the_same(tmp_path: Path):
    counts = kill.run(TOY, 2, tmp_path, [*kill.SHORT, *kill.OWN[TOY], "--train.steps", "120"], seed=1)
    assert counts["run"] + counts["save"] >= 2


@pytest.mark.long
def test_killed_and_stopped_it_ends_the_same(tmp_path: Path):
    counts = kill.run(DEBUG, 2, tmp_path, OPTIONS, seed=1)
    assert counts["run"] + counts["save"] >= 2
    untouched = tmp_path / "untouched"
    digest = json.loads((untouched / "done.json").read_text())["digest"]

    process = kill.launch(DEBUG, tmp_path / "b", OPTIONS)
    while process.poll() is None and kill.training(tmp_path / "b") == 0:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    if process.returncode == 0:  # the run ended before the signal came; nothing was interrupted
        pytest.fail(f"the run is too short to interrupt:\n{output[-1000:]}")
    assert process.returncode == 75, output[-2000:]
    assert "stopped and saved at step" in output
    assert "Traceback" not in output
    kill.expect_end(DEBUG, tmp_path / "b", OPTIONS, untouched, digest)


@pytest.mark.long
def test_with_one_update_a_call_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # as in training: so compiled, updates have the same bits however many a call
    digest = kill.finish(DEBUG, tmp_path / "five", OPTIONS)
    one = [*OPTIONS, "--train.updates-per-call", "1"]  # the config says 5
    kill.expect_end(DEBUG, tmp_path / "one", one, tmp_path / "five", digest)


def run(*arguments: str, config: str = TOY) -> subprocess.CompletedProcess[str]:
    """launch.py on a config."""
    command = [sys.executable, "launch.py", "--config", config, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))


def test_the_end_is_told_and_errors_are_short_and_have_their_exit_code(tmp_path: Path):
    small = ["--train.steps", "20", "--train.eval-every", "0"]
    folder = tmp_path / "run"
    whole = run("--run.dir", str(folder), *small)
    done = json.loads((folder / "done.json").read_text())
    assert whole.stdout.splitlines()[-1] == f"done step=20 digest={done['digest']}"

    refused = run("--run.dir", str(folder), *small)
    assert refused.returncode == 64
    assert "--run.resume" in refused.stderr

    mismatch = run("--run.dir", str(folder), "--run.resume", *small, "--run.seed", "1", "--width", "32")
    assert mismatch.returncode == 78
    assert "width: saved 64, now 32" in mismatch.stderr
    assert "run.seed: saved 0, now 1" in mismatch.stderr

    shutil.copytree(folder, tmp_path / "bad")
    for path in (tmp_path / "bad/checkpoints").rglob("_CHECKPOINT_METADATA"):
        path.write_text("{}")
    damaged = run("--run.dir", str(tmp_path / "bad"), "--run.resume", *small)
    assert damaged.returncode == 65
    assert "every checkpoint" in damaged.stderr

    own = "configs/qchunk/own_data.py"
    missing = run("--run.dir", str(tmp_path / "x"), "--data.path", str(tmp_path / "no"), config=own)
    assert missing.returncode == 65
    assert "does not exist; set --data.path" in missing.stderr

    (tmp_path / "file").write_text("")
    unwritable = run("--run.dir", str(tmp_path / "file/run"), *small)
    assert unwritable.returncode == 74

    for found in (refused, mismatch, damaged, missing, unwritable):
        assert "Traceback" not in found.stderr
        assert len(found.stderr.strip().splitlines()) < 15
