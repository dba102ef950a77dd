"""What frames ask to predict, of a whole recording."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.config import DataConfig
from driving.data.batches import open_data
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
