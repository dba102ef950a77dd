"""What a model is given of motion, and compared with, where drives record only a part of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.config import DataConfig
from driving.data.batches import JUDGED, DrivingData, open_data
from driving.validate import validate
from tests.driving.drives import SIZE, write_drive

Tree = dict[str, Any]


def opened(folder: Path, change: Callable[[Tree], None], frames: int = 30, **settings: Any) -> DrivingData:
    """A drive at 10 Hz without images."""
    write_drive(folder, "a", frames=frames, change=change, images=False)
    more: dict[str, Any] = {"min_cameras": 0, "missing_files": "mask", **settings}
    return open_data(DataConfig(path=str(folder), image_size=SIZE, **more), "all")


def states(tree: Tree, *, x: np.ndarray, y: np.ndarray | None = None, **others: np.ndarray) -> None:
    """Puts other states in place of a tree's; NaN leaves a number out."""
    columns = {"x_m": x, "y_m": np.zeros(len(x)) if y is None else y, **others}
    for i, frame in enumerate(tree["frames"]):
        known = {name: float(values[i]) for name, values in columns.items() if np.isfinite(values[i])}
        frame["observations"]["state"] = known


@pytest.mark.parametrize(("every", "x"), [(0, -0.3), (2, -0.3), (0, 0.3)])
def test_a_speed_from_places_is_negative_in_reverse(tmp_path: Path, every: int, x: float) -> None:
    """Facing along x, 0.3 m a frame either way: 3 m/s with its sign, whether some of it is recorded or not."""
    speed = np.full(30, np.nan)
    if every:
        speed[::every] = 10 * x
    data = opened(tmp_path, lambda tree: states(tree, x=x * np.arange(30), yaw_rad=np.zeros(30), speed_mps=speed))
    batch = data.batch(np.arange(1, 30))
    np.testing.assert_allclose(batch["speed_mps"][:, 0], 10 * x, rtol=1e-6)
    assert batch["speed_valid"].all()
    np.testing.assert_allclose(batch["waypoints"][0, 0], [x, 0.0], atol=1e-6)
    np.testing.assert_allclose(batch["past_motion"], 0.0, atol=1e-5)
    said = {JUDGED: "speeds from places are negative in reverse"}
    assert {name: text for name, text in data.derived().items() if name == JUDGED} == (said if x < 0 else {})


def test_the_yaw_of_the_frame_before_tells_reverse_too_and_none_that_comes_later(tmp_path: Path) -> None:
    yaw = np.full(30, np.nan)
    yaw[10] = 0.0
    data = opened(tmp_path, lambda tree: states(tree, x=-0.3 * np.arange(30), yaw_rad=yaw))
    assert data.batch(np.array([9, 10, 11, 12]))["speed_mps"][:, 0].tolist() == pytest.approx([3.0, -3.0, -3.0, 3.0])


def forth_and_back(tree: Tree) -> None:
    """0.5 m a frame along x, then back."""
    states(tree, x=0.5 * np.concatenate([np.arange(15), np.arange(15)[::-1]]))


def late_yaw(tree: Tree) -> None:
    """Backwards along x, facing it; the yaw is recorded from frame 6 on."""
    yaw = np.where(np.arange(30) < 6, np.nan, 0.0)
    states(tree, x=-0.5 * np.arange(30), yaw_rad=yaw)


@pytest.mark.parametrize(("change", "masked", "rates"), [(forth_and_back, [16], 28), (late_yaw, [6], 29)])
def test_a_direction_that_turns_round_is_no_turn(
    tmp_path: Path, change: Callable[[Tree], None], masked: list[int], rates: int
) -> None:
    """By hand: all other rates are 0. Of frame 0 none is known, of frame 1 where no direction came before."""
    data = opened(tmp_path, change)
    batch = data.batch(np.arange(30))
    np.testing.assert_allclose(batch["yaw_rate_radps"], 0.0, atol=1e-6)
    unknown = np.flatnonzero(~batch["yaw_rate_valid"][:, 0]).tolist()
    assert set(masked) <= set(unknown) <= {0, 1, *masked, 15}
    assert "yaw rates of sudden turns are masked" in data.derived()[JUDGED]
    remarks = [remark for remark in validate([tmp_path], images=False)["remarks"] if "yaw_rate" in remark["key"]]
    assert [remark["key"] for remark in remarks] == [f"frames[{masked[0]}].observations.state.yaw_rate_radps"]


def test_a_car_that_stands_among_noisy_places_does_not_spin(tmp_path: Path) -> None:
    """Of 5 cm of noise rates of up to 31 rad/s were taken; a car turns by less than 0.5 rad in 0.1 s."""
    rng = np.random.default_rng(0)
    data = opened(tmp_path, lambda tree: states(tree, x=0.05 * rng.normal(size=60), y=0.05 * rng.normal(size=60)), 60)
    rates = data.batch(np.arange(60))["yaw_rate_radps"]
    assert np.abs(rates).max() <= (0.35 + 1.5 * 0.1) / 0.1


def test_a_recorded_yaw_may_turn_as_it_will(tmp_path: Path) -> None:
    """What is recorded is taken: validate refuses such a jump."""
    yaw = np.where(np.arange(30) < 15, 0.0, 1.0)
    data = opened(tmp_path, lambda tree: states(tree, x=0.5 * np.arange(30), yaw_rad=yaw))
    assert data.batch(np.array([15]))["yaw_rate_radps"][0, 0] == pytest.approx(10.0)
    assert JUDGED not in data.derived()


@pytest.mark.parametrize("driven", [True, False])
def test_frames_without_a_plan_are_masked_where_none_was_driven(tmp_path: Path, driven: bool) -> None:
    """Every other frame lists where an expert would have gone, 1 m to the left of the car's own way."""

    def change(tree: Tree) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": driven}
        for frame in tree["frames"][1::2]:
            frame["expert"] = {"waypoints": [[0.8 * j, 1.0] for j in range(1, 21)]}

    data = opened(tmp_path / "plans", change)
    batch = data.batch(np.array([2, 3]))
    np.testing.assert_allclose(batch["waypoints"][1, 0], [0.8, 1.0])
    assert batch["waypoint_valid"][:, 0].tolist() == [driven, True]
    assert np.abs(batch["waypoints"][0]).max() == 0 or driven
    notes = [note for note in data.notes if "list no waypoints" in note]
    assert len(notes) == (0 if driven else 1)
    if not driven:
        assert notes[0].startswith("all: 15 frames list no waypoints")  # frame 28 knows one place, of frame 29
        assert data.derived()[JUDGED] == "frames without a plan are masked where none was driven"
    poses = opened(tmp_path / "poses", change, waypoint_source="poses")
    assert poses.batch(np.array([2]))["waypoint_valid"][0, 0]
    assert JUDGED not in poses.derived()


def test_a_history_that_knows_no_speed_leaves_what_frames_record(tmp_path: Path) -> None:
    """The speed rises by 0.1 m/s a frame, so by 0.3 since the frame 0.25 s before, which is 0.3 s or 0.2 s off."""

    def change(tree: Tree) -> None:
        for i, frame in enumerate(tree["frames"]):
            frame["observations"]["state"] |= {"speed_mps": 8 + 0.1 * i, "yaw_rate_radps": 0.4}
        places = [[-2.0 * k, 0.0] for k in range(4, -1, -1)]
        tree["frames"][12]["observations"]["history"] = {"dt": 0.25, "position": places}

    data = opened(tmp_path, change)
    batch = data.batch(np.array([11, 12]))
    assert batch["past_motion_valid"].all()
    np.testing.assert_allclose(batch["past_motion"][1], batch["past_motion"][0], atol=1e-5)
    np.testing.assert_allclose(batch["past_motion"][1, 1:3], [0.5, 1.0], atol=1e-5)
    assert data.derived()[JUDGED] == "past motion is the frames' own where their history knows none"


@pytest.mark.parametrize(("factor", "remarks"), [(1.0, 0), (1000.0, 1)])
def test_times_in_milliseconds_are_a_remark(tmp_path: Path, factor: float, remarks: int) -> None:
    """So far apart that nothing else is judged: no speed, no turn, no waypoint."""

    def change(tree: Tree) -> None:
        for frame in tree["frames"]:
            frame["t"] *= factor

    write_drive(tmp_path, "a", change=change, images=False)
    found = [remark for remark in validate([tmp_path], images=False)["remarks"] if remark["key"] == "frames[*].t"]
    assert [remark["found"] for remark in found] == ["steps of 100"] * remarks
