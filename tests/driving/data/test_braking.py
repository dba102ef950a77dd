"""Frames at which the driver brakes: which they are, and how often an epoch draws them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.config import DataConfig
from driving.data.batches import open_data
from tests.driving.data.test_data import config
from tests.driving.drives import write_drive


def steady(tree: dict[str, Any]) -> None:
    """Straight on at 25 m/s."""
    for frame in tree["frames"]:
        place = {"x_m": 25.0 * frame["t"], "y_m": 0.0, "yaw_rad": 0.0}
        frame["observations"]["state"] |= place | {"speed_mps": 25.0, "yaw_rate_radps": 0.0}


def test_frames_at_which_the_driver_brakes_are_drawn_more_often(tmp_path: Path):
    """From 8 m/s at 4 m/s^2 the way of 2 s is 8 m, not 16; at 1.9 m/s^2 it is 12.2 m, which is no 4 m shorter."""

    def slowing(rate: float) -> Any:
        def change(tree: dict[str, Any]) -> None:
            for frame in tree["frames"]:
                t = min(frame["t"], 8.0 / rate)
                place = {"x_m": 8 * t - rate * t * t / 2, "y_m": 0.0, "yaw_rad": 0.0}
                frame["observations"]["state"] |= place | {"speed_mps": 8.0 - rate * t, "yaw_rate_radps": 0.0}

        return change

    for name, rate in (("hard", 4.0), ("soft", 1.9)):
        write_drive(tmp_path, name, frames=30, change=slowing(rate), images=False)
    more: dict[str, Any] = {"braking_repeats": 3, "min_cameras": 0, "missing_files": "mask"}
    settings = config(tmp_path, **more)
    data = open_data(settings.data, "all")
    hard = data.index.ids.index("hard")
    braking = data.anchors[data.brakes(data.anchors)]
    # v 2 - way is 2 x 4 m while the car does not come to a stand, v (2 - v / 8) after it: 4 m at 2.34 m/s, 1.41 s
    np.testing.assert_array_equal(braking, data.index.starts[hard] + np.arange(10))  # the end is known up to 0.9 s
    counts = np.bincount(data.drawn)
    assert len(data.drawn) == 60 + 2 * 10
    assert set(counts[braking]) == {3}
    epoch = [next(data.batches(seed=0, batch_size=80)), next(data.batches(seed=1, batch_size=80))]
    for batch in epoch:
        frames = data.index.starts[batch["episode"]] + batch["frame"]
        np.testing.assert_array_equal(np.sort(frames), np.sort(data.drawn))
    assert data.notes[-1] == "all: 10 frames at which the driver brakes are drawn 3 times an epoch"
    once = open_data(config(tmp_path, **more | {"braking_repeats": 1}).data, "all")
    np.testing.assert_array_equal(once.drawn, once.anchors)
    # Where 2 s are no whole number of steps, those looked at are 4 of 0.45 s: 25 m/s for 1.8 s are 45 m, not 50.
    fast = tmp_path / "fast"
    write_drive(fast, "steady", frames=30, change=steady, images=False)
    even = open_data(config(fast, **more | {"waypoint_dt_s": 0.45, "waypoint_steps": 5}).data, "all")
    assert even.tables.waypoint_valid[:, :4].all(axis=1).any()
    assert not even.brakes(even.anchors).any()
    with pytest.raises(ValueError, match="waypoints end before 2 s"):
        DataConfig(path="x", braking_repeats=2, waypoint_steps=19)
    with pytest.raises(ValueError, match=r"waypoint_dt_s 4 is too long for braking to be told over 2 s"):
        DataConfig(path="x", braking_repeats=2, waypoint_dt_s=4.0)
    DataConfig(path="x", braking_repeats=2, waypoint_dt_s=3.0)
