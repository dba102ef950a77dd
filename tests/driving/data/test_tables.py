"""What frames ask to predict, of a whole recording."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from driving.config import DataConfig, DrivingConfig, ObjectiveConfig
from driving.data.batches import HEADED, open_data
from driving.tasks.pretrain import PretrainTask
from tests.driving.drives import SIZE, write_drive


@pytest.mark.parametrize(("driven", "known"), [(True, [10, 9, 8, 7, 6, 5]), (False, [20] * 6)])
def test_a_plan_that_ends_in_a_stand_is_no_padding_where_it_was_not_driven(
    tmp_path: Path, driven: bool, known: list[int]
):
    """The plan moves for 0.5 s, then stands; the recording ends after 1 s, at 8 m/s."""

    def change(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": driven}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[min(float(j), 5.0), 0.0] for j in range(1, 21)]}

    write_drive(tmp_path, "a", frames=11, change=change)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
    assert data.batch(np.arange(6))["waypoint_valid"].sum(axis=1).tolist() == known
    # A run says so, so that one of an earlier version, which masked them, does not go on with other waypoints.
    said = {"plans_that_were_not_driven": "believed where they end in a stand"}
    assert data.derived() == ({} if driven else said)
    assert not open_data(dataclasses.replace(data.config, waypoint_source="poses"), "all").derived()


def test_plans_that_go_on_are_no_news(tmp_path: Path):
    """Not driven, and no place repeats; or the car stands at the end, where plans to stand were believed before."""

    def moving(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": False}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[float(j), 0.0] for j in range(1, 21)]}

    def standing(tree: dict[str, Any]) -> None:
        tree["waypoint_spec"] = {"dt": 0.1, "driven": False}
        for frame in tree["frames"]:
            frame["expert"] = {"waypoints": [[0.0, 0.0]] * 20}
            frame["observations"]["state"]["speed_mps"] = 0.0

    for change in (moving, standing):
        folder = tmp_path / change.__name__
        write_drive(folder, "a", frames=11, change=change)
        assert not open_data(DataConfig(path=str(folder), image_size=SIZE), "all").derived()


def without_yaw(kept: int) -> Callable[[dict[str, Any]], None]:
    """Forgets the yaw but in every so many frames; all for 0."""

    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            if not kept or i % kept:
                del frame["observations"]["state"]["yaw_rad"]

    return change


def test_a_yaw_that_is_rare_loses_no_waypoints(tmp_path: Path):
    """On its circle the heading lies on the line between two that are recorded: targets are the whole drive's."""
    write_drive(tmp_path / "all", "a")
    write_drive(tmp_path / "rare", "a", change=without_yaw(7))
    whole, rare = (open_data(DataConfig(path=str(tmp_path / name), image_size=SIZE), "all") for name in ("all", "rare"))
    ours, theirs = rare.batch(np.arange(30)), whole.batch(np.arange(30))
    for mask in ("waypoint_valid", "relative_pose_valid"):
        np.testing.assert_array_equal(ours[mask], theirs[mask])
    np.testing.assert_allclose(ours["waypoints"][:29], theirs["waypoints"][:29], atol=1e-5)  # frame 28 is the last
    assert ours["yaw_valid"][:, 0].nonzero()[0].tolist() == [0, 7, 14, 21, 28], "an input says what is recorded"
    assert (whole.derived(), whole.headed()) == ({}, {})
    assert rare.derived() == rare.headed() == {HEADED: "interpolated, or the direction of travel"}


def test_a_run_s_fingerprint_names_headings_where_it_is_compared_with_them(tmp_path: Path):
    """A drive without any yaw was taken as it is now; one whose motion nobody is asked for is not told."""
    for name, kept in (("rare", 7), ("none", 0)):
        for i in range(3):
            write_drive(tmp_path / name, f"d{i}", start_yaw=float(i), change=without_yaw(kept))
        for asked in (True, False):
            data = DataConfig(path=str(tmp_path / name), image_size=(16, 32), offsets_s=(0.0, 0.5))
            train, objective = (
                TrainConfig(steps=1, batch_size=2),
                ObjectiveConfig(temporal=1.0, ego_motion=float(asked)),
            )
            config = DrivingConfig(train=train, data=data, objective=objective, waypoints=None)
            told = HEADED in PretrainTask(config, open_data(data)).data_fingerprint()
            assert told == (name == "rare" and asked)
        assert (HEADED in open_data(data).derived()) == (name == "rare")
