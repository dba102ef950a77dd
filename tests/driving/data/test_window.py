"""What the page shows of training is the sample that training draws; looking writes nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from driving.config import AugmentConfig, DrivingConfig
from driving.data.augment import draw
from driving.data.batches import open_data
from driving.data.recordings import DrivingRecordings
from driving.data.window import TrainingWindows
from tests.driving.drives import write_drive
from tests.driving.policies.test_policy import change, config_of

FRAMES = 12


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    for i in range(6):
        write_drive(folder, f"drive_{i}", frames=FRAMES, dt=0.25, start_yaw=float(i), change=change)
    return folder


def windows_of(drives: Path, **data: Any) -> tuple[DrivingConfig, TrainingWindows]:
    config = config_of(drives, drives / "run")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    return config, TrainingWindows(config, "mine", DrivingRecordings(drives))


def test_a_window_is_the_sample_of_its_frame(drives: Path):
    config, windows = windows_of(drives, offsets_s=(0.0, 0.5))
    data = open_data(config.data, "all")
    for episode, frame in ((0, 0), (3, 7), (5, 11)):
        batch = data.batch(np.array([episode * FRAMES + frame]))
        assert (batch["episode"], batch["frame"]) == (episode, frame)
        window = windows.window(episode, frame)
        assert (window.over, window.in_plane) == ("expert waypoints", True)
        np.testing.assert_array_equal(window.recorded, batch["waypoints"][0])
        np.testing.assert_array_equal(window.valid, batch["waypoint_valid"][0])
        for name in ("past_motion", "past_motion_valid", "speed_mps", "relative_pose_valid", "route_command"):
            np.testing.assert_array_equal(window.arrays[name], batch[name][0])  # pyright: ignore[reportTypedDictNotRequiredAccess]
        there = batch["image_valid"][0]
        for k, camera in enumerate(config.data.cameras):
            np.testing.assert_array_equal(window.arrays[f"image_valid {camera}"], there[:, k])
            for n, offset in enumerate(("+0", "+0.5")):
                assert (f"{camera} at {offset} s" in window.images) == there[n, k]
                if there[n, k]:
                    np.testing.assert_array_equal(window.images[f"{camera} at {offset} s"], batch["images"][0, n, k])
    assert not windows.window(5, 11).valid.any(), "nothing is known beyond the last frame"
    with pytest.raises(DataError, match="expected a frame below 12, found 12"):
        windows.window(0, 12)


def test_augmented_images_are_one_draw(drives: Path):
    changes = AugmentConfig(crop=0.3, brightness=0.4, flip=1.0)
    config, windows = windows_of(drives, augment=changes)
    window, data = windows.window(2, 5), open_data(config.data, "all")
    row = 2 * FRAMES + 5
    batch = data.batch(np.array([row]), draw([(0, row)], seed=config.run.seed, times=1, cameras=5))
    np.testing.assert_array_equal(window.images["front, augmented"], batch["images"][0, 0, 0])
    plain = data.batch(np.array([row]))
    np.testing.assert_array_equal(window.images["front"], plain["images"][0, 0, 0])
    np.testing.assert_array_equal(window.recorded, plain["waypoints"][0], err_msg="numbers are before it")
    assert "Augmented: one draw" in window.notes[-1]


def test_the_split_is_told_and_not_written(drives: Path):
    before = sorted(path.name for path in drives.iterdir())
    config, windows = windows_of(drives)
    told = [" ".join(windows.window(episode, 0).notes) for episode in range(6)]
    assert sorted(path.name for path in drives.iterdir()) == before
    for episode in range(6):
        side = next(s for s in ("train", "val", "test") if episode in open_data(config.data, s).episodes)
        assert (f"of the split {side}" in told[episode]) == (side != "train")
    assert any("split val" in words for words in told)
    assert any("split test" in words for words in told)
    (drives / "_split.json").unlink()


def test_one_recording_is_shown_although_it_cannot_be_split(tmp_path: Path):
    file = write_drive(tmp_path, "alone", frames=FRAMES, dt=0.25, change=change)
    for path in (file, tmp_path):
        config = config_of(path, tmp_path / "run")
        window = TrainingWindows(config, "mine", DrivingRecordings(path)).window(0, 3)
        assert any("split this episode is, is not known: 1 recording(s) cannot be split" in n for n in window.notes)
        np.testing.assert_array_equal(
            window.images["front"], open_data(config.data, "all").batch(np.array([3]))["images"][0, 0, 0]
        )
    assert not (tmp_path / "_split.json").exists()
