"""What a blind predictor may know of the past."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving import evaluate
from driving.config import DataConfig
from driving.data.batches import open_data
from driving.eval.baselines import EgoStates
from driving.eval.metrics import score
from tests.driving.drives import SIZE, SPEED, TURN, write_drive
from tests.driving.test_evaluate import BLIND, Predictors, make_config, write_drives

GAINED, TURNED = 2.0, 0.3
"""Of the car, each second: m/s and rad/s."""


def _changing(tree: dict[str, Any]) -> None:
    """Speed and yaw rate grow; frame 12 says neither."""
    for i, frame in enumerate(tree["frames"]):
        state = frame["observations"]["state"]
        state |= {"speed_mps": SPEED + GAINED * frame["t"], "yaw_rate_radps": TURN + TURNED * frame["t"]}
        for key in ("x_m", "y_m", "yaw_rad", "speed_mps", "yaw_rate_radps"):
            if i == 12:
                del state[key]


def test_the_past_is_of_the_same_drive_and_by_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_drive(tmp_path, name, frames=30, dt=0.25, change=_changing)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE, max_gap_s=0.2), "all")
    states = EgoStates(data)
    frame = states.rows % 30
    for column, before in enumerate((1, 2, 4)):  # frames of 0.25 s: 0.25, 0.5 and 1 s
        known = (frame >= before) & (frame != 12) & (frame - before != 12)
        seconds = np.where(known, 0.25 * before, 0)
        rows = frame != 12
        np.testing.assert_allclose(states.past[rows, column], (GAINED * seconds)[rows], atol=1e-5)
        np.testing.assert_allclose(states.past[rows, column + 3], (TURNED * seconds)[rows], atol=1e-5)


def test_formulas_are_measured_where_their_speed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three frames do not know their speed, where the formulas are 99 m off, and two more no yaw rate."""

    class Partly(EgoStates):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.known[:3, 0] = self.known[:5, 1] = False

    monkeypatch.setattr(evaluate, "EgoStates", Partly)
    fake = Predictors(monkeypatch, 0.5, **BLIND)

    def blind(*given: Any) -> dict[str, np.ndarray]:
        found = fake.blind_predictions(*given)
        found["constant_velocity"][:3] += 99
        found["constant_turn"][:5] += 99
        return found

    monkeypatch.setattr(evaluate, "blind_predictions", blind)
    result = evaluate.compare(make_config(write_drives(tmp_path)), {})
    assert {name: round(row["ade_1s"]["mean"], 4) for name, row in result["rows"].items()} == {"model": 0.5, **BLIND}
    assert result["notes"][1:] == [
        "constant_velocity: measured at 21 of 24 frames, whose speed is known",
        "constant_turn: measured at 19 of 24 frames, whose speed and yaw rate are known",
    ]


def test_runs_of_other_drives_have_a_table_of_their_own_where_no_speed_is_known() -> None:
    """By the mean trajectory's error then; it does not part runs where a speed is known."""

    def result(mean: float, straight: float | None) -> dict[str, Any]:
        values = {"mean_trajectory": mean, "constant_velocity": straight, "model": mean / 2}
        rows = {
            name: {} if value is None else {"ade_1s": {"mean": value, "low": None, "high": None}}
            for name, value in values.items()
        }
        return {"kind": "waypoints", "split": "test", "drives": 1, "rows": rows}

    for straight, tables in ((None, 2), (5.0, 1)):
        found = evaluate.table([("slow", result(1.0, straight)), ("fast", result(9.0, straight))])
        assert found.count("| waypoints, 1 test drives |") == tables


def test_cuts_of_one_recording_count_as_one_drive(tmp_path: Path) -> None:
    """Eighteen cuts of three recordings had an interval, and a narrow one; episodes of their own are what they were."""
    for i in range(18):
        source = {"dataset": "mine", "scene_id": f"recording-{i % 3}"}
        write_drive(tmp_path / "cuts", f"cut_{i:02d}", frames=2, images=False, start_yaw=0.1 * i, source=source)
        write_drive(tmp_path / "whole", f"cut_{i:02d}", frames=2, images=False, start_yaw=0.1 * i)
    found = {}
    for name in ("cuts", "whole"):
        config = DataConfig(path=str(tmp_path / name), min_cameras=0, missing_files="mask")
        states = EgoStates(open_data(config, "all"))
        found[name] = score(np.arange(36.0), states.drive), states.drive.tolist()
    assert found["cuts"][1] == [i % 3 for i in range(18) for _ in range(2)]
    assert found["whole"][1] == [i for i in range(18) for _ in range(2)]
    assert (found["cuts"][0].mean, found["cuts"][0].low, found["cuts"][0].high) == (17.5, None, None)
    assert found["whole"][0].low is not None
