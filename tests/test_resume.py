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
# Long enough on any machine to be killed in the middle: a save every ten updates of a very small agent.
OPTIONS = ["--train.steps", "120", "--checkpoint.every", "10", "--train.eval-every", "0", "--eval.env", "None"]


@pytest.fixture(scope="module", autouse=True)
def dataset(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Records the debug dataset once, which every run of this module shares."""
    folder = tmp_path_factory.mktemp("record")
    kill.finish(DEBUG, folder / "run", ["--train.steps", "1", "--eval.env", "None"])


@pytest.mark.slow
def test_sigkill_in_a_save_and_elsewhere(tmp_path: Path):
    counts = kill.run(DEBUG, 4, tmp_path, OPTIONS, seed=1)
    assert counts["run"] + counts["save"] >= 4


@pytest.mark.slow
def test_sigterm_saves_and_exits_75(tmp_path: Path):
    untouched = kill.finish(DEBUG, tmp_path / "a", OPTIONS)
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
    assert kill.finish(DEBUG, tmp_path / "b", OPTIONS) == untouched
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()


def run(*arguments: str, config: str = DEBUG) -> subprocess.CompletedProcess[str]:
    """launch.py on a config."""
    command = [sys.executable, "launch.py", "--config", config, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))


@pytest.mark.slow
def test_updates_per_call_changes_nothing(tmp_path: Path):
    digests = {kill.finish(DEBUG, tmp_path / k, [*OPTIONS, "--train.updates-per-call", k]) for k in ("1", "10")}
    assert len(digests) == 1
    assert (tmp_path / "1/metrics.jsonl").read_bytes() == (tmp_path / "10/metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_errors_are_short_and_have_their_exit_code(tmp_path: Path):
    small = [*OPTIONS, "--train.steps", "20"]
    folder = tmp_path / "run"
    kill.finish(DEBUG, folder, small)

    refused = run("--run.dir", str(folder), *small)
    assert refused.returncode == 64
    assert "--run.resume" in refused.stderr

    mismatch = run("--run.dir", str(folder), "--run.resume", *small, "--run.seed", "1", "--agent.horizon", "3")
    assert mismatch.returncode == 78
    assert "agent.horizon: saved 5, now 3" in mismatch.stderr
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


@pytest.mark.slow
def test_the_last_line_and_done_json_agree(tmp_path: Path):
    found = run("--run.dir", str(tmp_path / "run"), *OPTIONS, "--train.steps", "20")
    done = json.loads((tmp_path / "run/done.json").read_text())
    assert found.stdout.splitlines()[-1] == f"done step=20 digest={done['digest']}"
