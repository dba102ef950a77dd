"""What frames ask to predict, of a whole recording."""

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
    batch = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all").batch(np.arange(6))
    assert batch["waypoint_valid"].sum(axis=1).tolist() == known
