"""The way of somebody's own recordings, by the commands of docs/own_recordings.md, small."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str | Path) -> str:
    """Runs a module as a user would; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.usefixtures("can_render")
def test_record_inspect_train_measure_evaluate_serve_and_drive(tmp_path: Path):
    data, trained = tmp_path / "episodes", tmp_path / "run"
    scripted = ("--aloha.noise-levels", "0", "--aloha.cameras", "top", "angle", "--aloha.image-size", "24", "32")
    short = ("--env", "aloha-transfer-cube", "--episodes", "3", "--episode-length", "230", *scripted)
    run("qchunk.record", *short, "--path", data)
    assert len(list(data.glob("score_5/*.hdf5"))) == 3
    fields = ("--data.observation", "state", "--data.episodes-per-epoch", "2", "--eval.env", "aloha-transfer-cube")
    fields += ("--eval.episodes", "1", "--eval.final-episodes", "2", "--eval.num-envs", "2", "--eval.max-steps", "60")
    said = run("qchunk.inspect", data, "--config", "qchunk/own_data", *fields)
    assert "top: jpeg uint8 24 x 32" in said
    assert "data.holdout 0.1: 1 of 3 episodes are kept" in said
    assert "training with this config takes this dataset" in said
    tiny = ("--train.steps", "6", "--train.updates-per-call", "2", "--train.log-every", "2", "--train.eval-every", "6")
    tiny += ("--agent.hidden-sizes", "16", "--train.batch-size", "8", "--eval.videos", "0", "--checkpoint.every", "6")
    command = ("chunkwise", "train", "qchunk/own_data", "--data.path", data, "--run.dir", trained)
    assert "held out, 1 episodes: error of an action: policy" in run(*command, *fields, *tiny)
    run("chunkwise", "evaluate", trained, "--episodes", "3", "--num-envs", "1")
    own, evaluation = (trained / f"evaluations/step_00000006{name}.json" for name in ("", "-episodes_3"))
    assert len(json.loads(own.read_text())["outcomes"]) == 2, "what was asked for later stands beside the run's own"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", "chunkwise", "serve", trained, "--port", port, "--batch-sizes", "1"], cwd=ROOT
    )
    try:
        _wait(server, int(port))
        out = tmp_path / "served.json"
        robot = ("--port", port, "--episodes", "3", "--max-steps", "60", "--out", out)
        run("examples.simulated_robot", *robot)
    finally:
        server.terminate()
        server.wait(30)
    assert json.loads(out.read_text())["outcomes"] == json.loads(evaluation.read_text())["outcomes"]
    assert " of 3, " in run("chunkwise", "compare", evaluation, out)


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Until the server listens."""
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail("the server did not listen within 2 minutes")
