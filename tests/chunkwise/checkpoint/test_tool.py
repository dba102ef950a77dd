"""The commands for people: they see what training would see, and delete only what they may."""

import dataclasses
import fcntl
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from chunkwise.checkpoint import reader, tool
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.reader import Save, list_saves, verify
from chunkwise.checkpoint.tool import main
from chunkwise.checkpoint.weights import best_step
from chunkwise.config.experiment import CheckpointConfig, ExperimentConfig, TrainConfig
from chunkwise.config.saved import flatten
from tests.chunkwise.checkpoint.test_manager import flip_a_bit, make_state, progress, restored, steps, written

# Orbax leaves reading tasks behind when a file is damaged, and Python reports their exceptions as unraisable.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    written(tmp_path, 4, 5, 6)
    assert steps(tmp_path) == [4, 5, 6]
    return tmp_path


def test_whole_saves_are_listed_and_verified(run: Path, capsys: pytest.CaptureFixture[str]):
    for command in ("ls", "verify"):
        assert main([command, str(run)]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line.split("│") for line in lines if line.startswith("│")]
        assert [int(row[1]) for row in rows] == [6, 5, 4], "newest first"
        # w, half, the step, count, values > 0, target w: 15 + 15 + 1 + 1 + 15 + 15 numbers
        assert [(int(row[3]), int(row[4])) for row in rows] == [(6, 62)] * 3
        assert [row[6].strip() for row in rows] == ["whole"] * 3


def test_damage_is_named_and_nothing_moves(run: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(run / "checkpoints/5/state")
    shutil.copytree(run / "checkpoints/4/state", run / "checkpoints/5/state")
    (run / "checkpoints/5/SHA256SUMS").unlink()
    (run / "checkpoints/4/_CHECKPOINT_METADATA").write_text("{")
    with open(run / "checkpoints/6/state/_METADATA", "a") as file:
        file.write(" ")
    assert main(["ls", str(run)]) == 65
    text = capsys.readouterr().out
    assert text.count("damaged: ") == 1
    assert "1 of 3 damaged" in text
    assert main(["verify", str(run)]) == 65
    text = capsys.readouterr().out
    assert "checksum of opt_state/0/count, opt_state/1" in text
    assert "SHA256SUMS gives another sum for state/_METADATA" in text
    assert "3 of 3 damaged" in text
    assert steps(run) == [4, 5, 6]


def test_prune_keeps_the_newest_and_the_multiples(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["prune", str(run), "--keep-period", "4"]) == 0
    assert steps(run) == [4, 6]
    assert "deleted 1 of 3 steps" in capsys.readouterr().out
    assert main(["prune", str(run)]) == 0
    assert steps(run) == [6]
    found = restored(run)
    assert found is not None
    assert found[1].step == 6


def test_prune_keeps_the_best_of_a_run_that_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = ExperimentConfig(
        train=TrainConfig(steps=9, batch_size=1),
        checkpoint=CheckpointConfig(max_to_keep=9, keep_best="ade_2s", best="lowest"),
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    checkpoints = Checkpoints(tmp_path, config.checkpoint, {})
    for step, error in ((3, 0.5), (4, 0.25), (5, 0.75), (6, 0.3)):
        checkpoints.save_now(make_state(step), dataclasses.replace(progress(step), evaluation={"ade_2s": error}))
    checkpoints.close()
    assert main(["prune", str(tmp_path)]) == 0
    assert steps(tmp_path) == [4, 6]
    assert "deleted 2 of 4 steps" in capsys.readouterr().out


def test_prune_takes_no_save_for_the_best_that_nobody_can_read(tmp_path: Path):
    """Of saves that were made before their evaluation, which metrics.jsonl has."""
    config = ExperimentConfig(
        train=TrainConfig(steps=9, batch_size=1),
        checkpoint=CheckpointConfig(max_to_keep=9, keep_best="ade_2s", best="lowest"),
    )
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    checkpoints = Checkpoints(tmp_path, config.checkpoint, {})
    rows = [{"split": "eval", "ade_2s": 0.1}, ["eval"], "eval"]
    for step, error in ((3, 0.3), (4, 0.25), (5, 0.75), (6, 0.5)):
        checkpoints.save_now(make_state(step), progress(step))
        rows.append({"step": step, "split": "eval", "ade_2s": error})
    checkpoints.close()
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "checkpoints/4/_CHECKPOINT_METADATA").write_text("{}")
    assert best_step(tmp_path, config) == 3
    assert main(["prune", str(tmp_path)]) == 0
    assert steps(tmp_path) == [3, 6]


def test_prune_keeps_the_multiples_that_the_run_keeps_for_good(tmp_path: Path):
    checkpoint = CheckpointConfig(max_to_keep=9, keep_period=2)
    config = ExperimentConfig(train=TrainConfig(steps=9, batch_size=1), checkpoint=checkpoint)
    (tmp_path / "config.json").write_text(json.dumps(flatten(config)))
    checkpoints = Checkpoints(tmp_path, config.checkpoint, {})
    for step in (3, 4, 6, 7):
        checkpoints.save_now(make_state(step), progress(step))
    checkpoints.close()
    assert main(["prune", str(tmp_path)]) == 0
    assert steps(tmp_path) == [4, 6, 7]
    assert main(["prune", str(tmp_path), "--keep-period", "3"]) == 0
    assert steps(tmp_path) == [6, 7]


def test_prune_deletes_nothing_while_the_newest_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]):
    flip_a_bit(run / "checkpoints/6", random.Random(0))
    assert main(["prune", str(run)]) == 65
    assert "step 6, the newest, is damaged" in capsys.readouterr().err
    assert steps(run) == [4, 5, 6]


def test_prune_leaves_a_run_in_use_alone(run: Path, capsys: pytest.CaptureFixture[str]):
    with open(run / "lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["prune", str(run)]) == 73
    assert "in use" in capsys.readouterr().err
    assert steps(run) == [4, 5, 6]


def test_a_step_that_training_removes_meanwhile_is_no_damage(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One goes while the arrays are read, and one between the names and what is in the folders."""
    saves = list_saves(run)
    oldest = saves[-1].path

    def remove_first(save: Save) -> Any:
        if oldest.exists():
            shutil.rmtree(oldest)
        return verify(save)

    monkeypatch.setattr(tool, "verify", remove_first)
    assert main(["verify", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("removed meanwhile") == 1
    assert shown.count("whole") == len(saves) - 1
    steps = [save.step for save in saves]
    monkeypatch.setattr(reader, "steps_in", lambda _: steps)
    assert [save.step for save in list_saves(run)] == steps[:-1]


def test_prune_names_a_folder_that_may_not_be_written(run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "lock").unlink(missing_ok=True)
    (run / "lock").mkdir()  # nobody can open it for writing; root may write everywhere else
    before = list_saves(run)
    assert main(["prune", str(run)]) == 74
    assert f"{run / 'lock'} cannot be opened for writing: Is a directory; nothing was" in capsys.readouterr().err
    assert list_saves(run) == before


def test_a_folder_without_saves_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ls", str(tmp_path)]) == 65
    assert "expected checkpoints" in capsys.readouterr().err
    assert main(["ls", str(tmp_path / "nothing")]) == 65
    assert main(["prune", str(tmp_path), "--max-to-keep", "0"]) == 64
