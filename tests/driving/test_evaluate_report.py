"""The table of an evaluation, and what of its file is read back."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.errors import ConfigError, DataError, NonFiniteError
from driving import evaluate
from driving.config import DataConfig, DrivingConfig, WaypointConfig
from driving.data.batches import open_data
from driving.data.split import SPLIT_FILE
from tests.driving.drives import SIZE, write_drive
from tests.driving.test_evaluate import BLIND, Predictors, make_config
from tests.driving.test_evaluate import root as root


def test_the_table_by_hand():
    score = {"mean": 1.0, "low": 0.5, "high": 1.5}
    result = {"kind": "waypoints", "split": "test", "drives": 2, "notes": ["a note"]}
    alone = {"mean": 3.0, "low": None, "high": None}
    one = result | {"rows": {"model": {"ade_1s": score}, "ego_mlp": {"ade_1s": score | {"mean": 2.0}}}}
    other = result | {"rows": {"model": {"ade_1s": alone}, "ego_mlp": {"ade_1s": score}}, "notes": []}
    assert evaluate.text([("one", one), ("other", other)]).strip().splitlines() == [
        "| waypoints, 2 test drives | ade_1s |",
        "|---|---|",
        "| ego_mlp | 2.000 (0.500 to 1.500) |",
        "| ego_mlp (other) | 1.000 (0.500 to 1.500) |",
        "| one | 1.000 (0.500 to 1.500) |",
        "| other | 3.000 |",
        "",
        "one: a note",
    ]
    assert evaluate.text([("ego_mlp", one)]).strip().splitlines()[2:4] == [
        "| ego_mlp | 2.000 (0.500 to 1.500) |",
        "| ego_mlp (run) | 1.000 (0.500 to 1.500) |",
    ]


def test_runs_of_one_name_and_of_other_drives_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Three runs called seed0: of a and b the test drives are the same, those of c others, as the blind row says."""
    for name, drives, blind, model in (("a", 6, 3.0, 1.0), ("b", 6, 3.0, 2.0), ("c", 6, 4.0, 0.5)):
        rows = {
            row: {"ade_1s": {"mean": mean, "low": None, "high": None}}
            for row, mean in (("model", model), ("constant_velocity", blind), ("ego_mlp", blind + model))
        }
        report = {"kind": "waypoints", "split": "test", "drives": drives, "rows": rows, "notes": [f"note of {name}"]}
        (tmp_path / name / "seed0").mkdir(parents=True)
        (tmp_path / name / "seed0" / evaluate.REPORT).write_text(json.dumps(report))
    runs = [str(tmp_path / name / "seed0") for name in "abc"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *runs])
    assert evaluate.main() == 0
    assert capsys.readouterr().out.strip().splitlines() == [
        "| waypoints, 6 test drives | ade_1s |",
        "|---|---|",
        "| constant_velocity | 3.000 |",
        "| ego_mlp | 4.000 |",
        "| ego_mlp (b/seed0) | 5.000 |",
        "| a/seed0 | 1.000 |",
        "| b/seed0 | 2.000 |",
        "",
        "| waypoints, 6 test drives | ade_1s |",
        "|---|---|",
        "| constant_velocity | 4.000 |",
        "| ego_mlp | 4.500 |",
        "| c/seed0 | 0.500 |",
        "",
        *(f"{name}/seed0: note of {name}" for name in "abc"),
    ]
    monkeypatch.setattr(sys, "argv", ["evaluate", runs[0], runs[0]])
    assert evaluate.main() == ConfigError.exit_code
    assert "a run is given twice" in capsys.readouterr().err


def test_a_run_is_not_measured_where_other_drives_are_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After a drive was added and the split drawn anew, one that a run learnt from may be held out."""
    for i in range(4):
        write_drive(tmp_path / "drives", f"e{i}", frames=3, start_yaw=0.1 * i)
    data = DataConfig(path=str(tmp_path / "drives"), image_size=SIZE, val_fraction=0.25, test_fraction=0.25)
    config = DrivingConfig(train=TrainConfig(steps=1, batch_size=1), data=data, waypoints=WaypointConfig())
    saved = {f"dataset.{key}": value for key, value in open_data(data).fingerprint().items()}
    monkeypatch.setattr(evaluate, "read_fingerprint", lambda run, step: saved)
    evaluate._require_same_drives(tmp_path, 3, config)
    write_drive(tmp_path / "drives", "e4", frames=3, start_yaw=0.4)
    (tmp_path / "drives" / SPLIT_FILE).unlink()
    words = rf"expected the training drives that it learnt from, found others .*{SPLIT_FILE}: .*Put back the episodes"
    with pytest.raises(DataError, match=words):
        evaluate._require_same_drives(tmp_path, 3, config)
    monkeypatch.setattr(evaluate, "read_fingerprint", lambda run, step: {})
    evaluate._require_same_drives(tmp_path, 3, config)  # of a version that kept no such thing


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04pickle",
        b"[]",
        b"{}",
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": []}',
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": {"model": {"ade": {"mean": "x"}}}}',
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": {"blind": {}}}',
    ],
)
def test_a_report_that_is_none_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / evaluate.REPORT).write_bytes(content)
    with pytest.raises(DataError, match=r"evaluation\.json: expected what an evaluation wrote, found .*--again"):
        evaluate.read_report(tmp_path)


def test_a_report_comes_back(tmp_path: Path):
    score = {"mean": 1.5, "low": 1.0, "high": 2.0}
    result = {"kind": "waypoints", "drives": 2, "split": "test", "rows": {"model": {"ade": score}}, "notes": ["x"]}
    (tmp_path / evaluate.REPORT).write_text(json.dumps(result))
    assert evaluate.read_report(tmp_path) == result
    (tmp_path / "checkpoints" / "9").mkdir(parents=True)
    assert evaluate.read_report(tmp_path) == result, "of an earlier version, which wrote no step"
    for step, notes in ((9, ["x"]), (7, ["x", "figures of step 7; --again measures step 9"])):
        (tmp_path / evaluate.REPORT).write_text(json.dumps({"step": step} | result))
        assert evaluate.read_report(tmp_path)["notes"] == notes


def test_rows_are_predicted_in_their_order_whatever_the_size_of_a_part():
    for count, size in ((5, 2), (4, 2), (1, 4)):
        rows = np.arange(10, 10 + count)
        parts = evaluate.parts(rows, size)
        assert {len(part) for part in parts} == {size}
        assert np.concatenate(parts)[:count].tolist() == rows.tolist()
        assert set(np.concatenate(parts)[count:].tolist()) <= {rows[-1]}


@pytest.mark.parametrize("places", [math.nan, math.inf, 1e10])
def test_predictions_that_are_no_numbers_are_no_unknown_futures(
    root: Path, monkeypatch: pytest.MonkeyPatch, places: float
):
    """Left out as unknown, a model that failed at half of the frames was measured on the other half."""
    fake = Predictors(monkeypatch, 0.25, **BLIND)
    plain = fake.predict

    def failing(*arguments: Any) -> np.ndarray:
        found = plain(*arguments)
        found[0, 3, 1] = places
        return found

    monkeypatch.setattr(evaluate, "predict", failing)
    for measure in (evaluate.quick, evaluate.compare):
        with pytest.raises(NonFiniteError, match=r"waypoints are NaN, Inf or beyond 1e\+09 m at 1 of"):
            measure(make_config(root), {})
