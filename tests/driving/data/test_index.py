"""The index of one episode, and of several that are put together: each frame keeps what is its own."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.data.calibration import Calibration
from driving.data.index import FORMATS, concatenate, pack, unpack
from driving.data.scan import scan
from tests.driving.drives import write_drive


def own(number: int) -> Any:
    """Changes a drive: its waypoints and the calibration of its cameras tell which one it is."""

    def change(tree: dict[str, Any]) -> None:
        for row, frame in enumerate(tree["frames"]):
            frame["expert"] = {"waypoints": [[10.0 * number + row, 1.0], [float(number), 2.0]]}
            for k, camera in enumerate(frame["observations"]["cameras"].values()):
                camera["intrinsics"] = [100.0 * number + k + 1, 100.0, 24.0, 16.0]

    return change


def test_waypoints_and_calibration_go_with_their_frames(tmp_path: Path):
    for number in range(3):
        write_drive(tmp_path, f"d{number}", frames=2, change=own(number), images=False)
    whole, problems = scan(tmp_path)
    assert whole is not None
    assert [problem for problem in problems if "image" not in str(problem)] == []
    parts = [whole.one(episode) for episode in (2, 0, 1)]
    again = concatenate(parts)
    for index, order in ((whole, (0, 1, 2)), (again, (2, 0, 1)), (parts[2], (1,))):
        for place, number in enumerate(order):
            waypoints = index.expert_waypoints(place)
            assert waypoints[:, 0, 0].tolist() == [10 * number, 10 * number + 1]
            assert waypoints[:, 1].tolist() == [[number, 2], [number, 2]]
            rows = index.calibration[index.rows(place)]
            focal = index.intrinsics[rows][..., 0, 0]
            assert focal.tolist() == [[100 * number + k + 1 for k in range(rows.shape[1])]] * 2
        assert len(index.waypoints) == 4 * len(order)


@pytest.mark.parametrize(("driven", "split", "format"), [(True, "", 0), (True, "training", 1), (False, "", 2)])
def test_an_index_is_written_in_the_first_format_that_can_hold_it(
    tmp_path: Path, driven: bool, split: str, format: int
):
    def change(tree: dict[str, Any]) -> None:
        own(1)(tree)
        tree["waypoint_spec"] = {"driven": driven}
        tree["source"] = {"split": split}

    write_drive(tmp_path, "a", frames=2, change=change)
    write_drive(tmp_path, "b", frames=2, change=own(2))
    whole, _ = scan(tmp_path)
    assert whole is not None
    content = pack(whole)
    with np.load(io.BytesIO(content)) as arrays:
        assert json.loads(arrays["head"].tobytes())["format"] == FORMATS[format]
    again = unpack(content, source="x")
    assert again.waypoints_driven.tolist() == [driven, True]
    assert again.splits == (split, "")
    assert again.history_counts.tolist() == [0] * 4


def test_cameras_of_a_drive_that_is_gone_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An index that the cache had a part of kept them, and was another one than one that was made anew."""

    def turned(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            cameras = frame["observations"]["cameras"]
            cameras["rear"] = {**cameras["front"], "t_offset_s": 0.01}

    for name in ("a", "b"):
        write_drive(tmp_path / "set", name, frames=2)
    write_drive(tmp_path / "set", "c", frames=2, change=turned)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "warm"))
    before, _ = scan(tmp_path / "set")
    assert before is not None
    assert before.cameras == ("front", "front_left", "front_right", "rear", "side_left", "side_right")
    assert concatenate([before.one(2), before.one(0)]).cameras == before.cameras
    (tmp_path / "set/c.json").unlink()
    warm, _ = scan(tmp_path / "set")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cold"))
    cold, _ = scan(tmp_path / "set")
    assert warm is not None
    assert cold is not None
    assert warm.cameras == ("front", "front_left", "front_right", "side_left", "side_right")
    assert pack(warm) == pack(cold)


def test_a_camera_without_calibration_has_none():
    """Of three cameras the second was never calibrated, and of the third there is no image."""
    calibration = Calibration(
        row=np.array([[0, -1, 0]], np.int32),
        intrinsics=np.array([np.diag([50.0, 50.0, 1.0])]),
        extrinsics=np.array([np.diag([2.0, 2.0, 2.0, 1.0])]),
        size=np.array([[[10, 20], [10, 20], [0, 0]]], np.int32),
        t=np.zeros((1, 3)),
        motion=np.zeros((1, 3, 3), np.float32),
    )
    found = calibration.at(np.array([[0]]), np.ones((1, 1), bool), (5, 10))
    assert found["calibration_valid"][0, 0].tolist() == [True, False, False]
    assert [m[0, 0] for m in found["intrinsics"][0, 0]] == [25.0, 1.0, 1.0]
    assert [m[0, 0] for m in found["extrinsics"][0, 0]] == [2.0, 1.0, 1.0]
