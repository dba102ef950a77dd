"""The pretrain batch contract, key by key, dtype by dtype, in both stacking modes, with parts missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driving.data
from chunkwise.errors import DataError
from driving.config import CAMERAS, DataConfig
from driving.data.batch import Sample
from driving.data.batches import collate, open_data
from tests.driving.drives import SIZE, SPEED, pose_at, write_drive

HEIGHT, WIDTH = SIZE


def without(camera: str, frames: list[int], how: str):
    """An edit that takes a camera out of some frames."""

    def change(tree: dict[str, Any]) -> None:
        for i in frames:
            cameras = tree["frames"][i]["observations"]["cameras"]
            if how == "absent":
                del cameras[camera]
            elif how == "null":
                cameras[camera] = None
            else:
                cameras[camera]["image_path"] = None

    return change


def samples_of(root: Path, rows: list[int], *, decode: bool = True) -> list[Sample]:
    data = open_data(DataConfig(path=str(root), image_size=SIZE), "all")
    return [data.sample(row, decode=decode) for row in rows]


def check_heads(batch: dict[str, Any], size: int) -> None:
    assert list(batch["image_paths_by_cam"]) == list(CAMERAS)
    for paths in batch["image_paths_by_cam"].values():
        assert len(paths) == size
        assert all(path is None or Path(path).is_file() for path in paths)
    for key in ("speed_mps", "yaw_rad"):
        assert batch["state"][key].shape == (size,)
        assert batch["state"][key].dtype == np.float32
    for key in ("speed_valid", "yaw_valid"):
        assert batch["state"][key].shape == (size,)
        assert batch["state"][key].dtype == np.bool_
    assert set(batch["state"]) == {"speed_mps", "yaw_rad", "speed_valid", "yaw_valid"}
    assert set(batch["meta"]) == {"episode_id", "t"}
    assert len(batch["meta"]["episode_id"]) == len(batch["meta"]["t"]) == size
    assert all(isinstance(name, str) for name in batch["meta"]["episode_id"])
    assert all(isinstance(t, float) for t in batch["meta"]["t"])


def test_without_decoding_there_are_no_images(tmp_path: Path):
    write_drive(tmp_path, "a", frames=4)
    batch = collate(samples_of(tmp_path, [0, 3], decode=False))
    check_heads(batch, 2)
    assert set(batch) == {"image_paths_by_cam", "state", "meta"}
    assert batch["meta"] == {"episode_id": ["a", "a"], "t": [0.0, 0.3]}
    np.testing.assert_allclose(batch["state"]["speed_mps"], SPEED)
    np.testing.assert_allclose(batch["state"]["yaw_rad"], [pose_at(0.0)[2], pose_at(0.3)[2]], rtol=1e-6)


@pytest.mark.parametrize("how", ["absent", "null", "null path"])
def test_lists_with_a_camera_missing_in_one_sample(tmp_path: Path, how: str):
    write_drive(tmp_path, "a", frames=4, change=without("side_left", [1], how))
    batch = collate(samples_of(tmp_path, [0, 1]))
    check_heads(batch, 2)
    assert set(batch) == {"image_paths_by_cam", "state", "meta", "images_by_cam"}
    assert list(batch["images_by_cam"]) == list(CAMERAS)
    for camera, images in batch["images_by_cam"].items():
        assert isinstance(images, list)
        for row, image in enumerate(images):
            if (camera, row) == ("side_left", 1):
                assert image is None
                assert batch["image_paths_by_cam"][camera][row] is None
            else:
                assert image.shape == (3, HEIGHT, WIDTH)
                assert image.dtype == np.float32
                assert 0 <= image.min() < image.max() <= 1


@pytest.mark.parametrize("how", ["absent", "null", "null path"])
def test_stacked_with_a_camera_missing_in_one_sample(tmp_path: Path, how: str):
    write_drive(tmp_path, "a", frames=4, change=without("side_left", [1], how))
    samples = samples_of(tmp_path, [0, 1, 2])
    batch = collate(samples, stack_images=True)
    check_heads(batch, 3)
    assert set(batch) == {"image_paths_by_cam", "state", "meta", "images_by_cam", "image_valid_by_cam"}
    for camera in CAMERAS:
        stacked, valid = batch["images_by_cam"][camera], batch["image_valid_by_cam"][camera]
        assert stacked.shape == (3, 3, HEIGHT, WIDTH)
        assert stacked.dtype == np.float32
        assert valid.shape == (3,)
        assert valid.dtype == np.bool_
        assert valid.tolist() == [True, camera != "side_left", True]
        for row in range(3):
            image = samples[row]["images_by_cam"][camera]  # pyright: ignore[reportTypedDictNotRequiredAccess]
            if image is None:
                assert (stacked[row] == 0).all()
            else:
                np.testing.assert_array_equal(
                    stacked[row], image.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
                )


def test_stacked_with_a_camera_missing_in_the_whole_batch(tmp_path: Path):
    write_drive(tmp_path, "a", frames=4, change=without("side_left", [0, 1, 2, 3], "absent"))
    batch = collate(samples_of(tmp_path, [0, 1]), stack_images=True)
    check_heads(batch, 2)
    assert batch["images_by_cam"]["side_left"].shape == (2, 3, HEIGHT, WIDTH)
    assert (batch["images_by_cam"]["side_left"] == 0).all()
    assert not batch["image_valid_by_cam"]["side_left"].any()
    assert batch["image_paths_by_cam"]["side_left"] == [None, None]
    lists = collate(samples_of(tmp_path, [0, 1]))
    assert lists["images_by_cam"]["side_left"] == [None, None]


def test_an_episode_without_yaw(tmp_path: Path):
    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            state = frame["observations"]["state"]
            frame["observations"]["state"] = {"speed_mps": state["speed_mps"]}

    def positions_only(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            del frame["observations"]["state"]["yaw_rad"]

    write_drive(tmp_path, "a", frames=4, change=change)
    write_drive(tmp_path, "b", frames=4, change=positions_only)
    write_drive(tmp_path, "c", frames=4)
    batch = collate(samples_of(tmp_path, [1, 5, 9]), stack_images=True)
    check_heads(batch, 3)
    assert batch["state"]["yaw_valid"].tolist() == [False, True, True]
    assert batch["state"]["yaw_rad"][0] == 0
    came, recorded = pose_at(0.05)[2], pose_at(0.1)[2]  # the chord from the frame before points half way
    np.testing.assert_allclose(batch["state"]["yaw_rad"][1:], [came, recorded], atol=1e-6)
    assert batch["state"]["speed_valid"].all()


def sample(image: np.ndarray | None, yaw: float | None = 0.5) -> Sample:
    state = {"speed_mps": 1.0} if yaw is None else {"speed_mps": 1.0, "yaw_rad": yaw}
    return {
        "image_paths_by_cam": {"front": None if image is None else "a.jpg"},
        "state": state,
        "meta": {"episode_id": "x", "t": 0},
        "images_by_cam": {"front": image},
    }


def test_samples_made_by_hand():
    image = np.full((4, 6, 3), 255, np.uint8)
    batch = collate([sample(image), sample(None, None)], True)
    assert batch["images_by_cam"]["front"].shape == (2, 3, 4, 6)
    assert batch["images_by_cam"]["front"][0].min() == 1
    assert batch["image_valid_by_cam"]["front"].tolist() == [True, False]
    assert batch["state"]["yaw_valid"].tolist() == [True, False]
    nothing = collate([sample(None)], True)
    assert nothing["images_by_cam"]["front"] is None  # no image tells the size; the contract allows it
    assert nothing["image_valid_by_cam"]["front"].tolist() == [False]
    assert collate([sample(None)], True, image_size=(4, 6))["images_by_cam"]["front"].shape == (1, 3, 4, 6)


def test_what_cannot_be_collated():
    one, other = np.zeros((4, 6, 3), np.uint8), np.zeros((6, 4, 3), np.uint8)
    with pytest.raises(DataError, match="camera front, sample 1: expected an image of 4 x 6"):
        collate([sample(one), sample(other)], True)
    with pytest.raises(DataError, match="at least one sample"):
        collate([])
    plain: Sample = {k: v for k, v in sample(one).items() if k != "images_by_cam"}  # pyright: ignore[reportAssignmentType]
    with pytest.raises(DataError, match="in all samples or in none"):
        collate([sample(one), plain])


def test_the_contracts_own_name():
    assert driving.data.collate_batch is collate
    assert driving.data.collate_batch([sample(None)])["meta"] == collate([sample(None)])["meta"]
