"""What the page shows of training is the row that training draws, as the model gets it."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.augmentation import AugmentationConfig
from chunkwise.errors import DataError
from openpi_ript.data.recordings import LeRobotRecordings
from openpi_ript.tasks.supervised import augmented_images
from openpi_ript.tasks.window import TrainingWindows
from tests.openpi_ript.small_run import make_dataset, make_task, small_config
from tests.openpi_ript.test_value_run import GUIDANCE, acting


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("windows"))


def test_a_window_is_the_row_that_the_model_gets(root: Path, tmp_path: Path):
    """Rows of some batches, found again by frame: actions, padding, state, labels, images, tokens."""
    config = small_config(root, tmp_path)
    windows = TrainingWindows(config, "mine", LeRobotRecordings(root))
    found = [windows.window(episode, frame) for episode in range(8) for frame in range(10)]
    batches, met = make_task(config).batches(0), set()
    for _ in range(25):
        batch = next(batches)
        for row in range(4):
            actions = batch["actions"][row][:, :3]
            (place,) = [k for k, one in enumerate(found) if np.array_equal(one.arrays["actions"], actions)]
            met.add(place)
            window, seen = found[place], batch["observation"]
            np.testing.assert_array_equal(window.arrays["action_is_pad"], batch["action_is_pad"][row])
            np.testing.assert_array_equal(window.valid, ~batch["action_is_pad"][row])
            np.testing.assert_array_equal(window.arrays["state"], seen["state"][row])
            np.testing.assert_array_equal(window.arrays["tokens"], seen["tokens"][row][seen["token_mask"][row]])
            assert window.arrays["advantage"] == batch["advantages"][row]
            label = ("negative", "positive", "none")[batch["optimality"][row]]
            assert f"optimality ({label})" in window.arrays
            for k, name in enumerate(("base_0_rgb", "left_wrist_0_rgb")):
                np.testing.assert_array_equal(window.images[name], seen["images"][row, k])
                assert window.arrays[f"image_mask {name}"]
    assert len(met) > 60
    assert found[9].valid.tolist() == [True, *[False] * 7], "the last frame's chunk is padding but for its first"
    assert found[0].notes[0].startswith("Prompt: move to the red disc. ")
    with pytest.raises(DataError, match="training draws starts below 10 in this episode, found frame 10"):
        windows.window(0, 10)


def test_a_label_by_the_value_is_told_where_the_value_judges(root: Path, tmp_path: Path):
    """Rollouts are judged; demonstrations count as positive, whatever the value says of them."""
    judged, demonstrated = small_config(root, tmp_path, guidance=GUIDANCE), acting(root, tmp_path)
    said = [
        TrainingWindows(config, "mine", LeRobotRecordings(root)).window(2, 4).notes[-1]
        for config in (judged, demonstrated)
    ]
    assert said == [
        "Training labels this chunk by its value function, not by the optimality below.",
        "Training takes this chunk as positive, whatever its value function says: it was demonstrated.",
    ]


def test_augmented_images_are_those_of_an_update(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path, augment=AugmentationConfig(colour_probability=1.0))
    window = TrainingWindows(config, "mine", LeRobotRecordings(root)).window(2, 4)
    names = list(window.images)
    assert names[2:] == [f"{name}, augmented" for name in names[:2]]
    images = np.stack([window.images[name] for name in names[:2]])[None]
    task = make_task(config)
    batch = task._augmented({"observation": {"images": jnp.asarray(images)}}, jnp.int32(4))
    expected = np.asarray(batch["observation"]["images"])[0]
    for k, name in enumerate(names[2:]):
        assert np.abs(window.images[name].astype(float) - np.clip(expected[k], 0, 255)).max() <= 0.51
        assert (window.images[name] != window.images[names[k]]).any()


def test_images_of_a_wrist_are_neither_cropped_nor_rotated(root: Path, tmp_path: Path):
    """Of base_0_rgb and left_wrist_0_rgb; colours would be changed of both."""
    config = small_config(root, tmp_path, augment=AugmentationConfig(colour_probability=0.0))
    images = np.random.default_rng(0).integers(0, 256, (2, 2, 16, 16, 3), np.uint8)
    changed = np.asarray(augmented_images(config, jnp.asarray(images), jnp.int32(0)))
    np.testing.assert_allclose(changed[:, 1], images[:, 1], atol=1e-3)
    assert np.abs(changed[:, 0] - images[:, 0]).mean() > 10


def test_whom_training_never_draws_is_said(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path)
    data = dataclasses.replace(config.data, holdout=0.5)
    windows = TrainingWindows(dataclasses.replace(config, data=data), "mine", LeRobotRecordings(root))
    held = ["held out" in " ".join(windows.window(episode, 0).notes) for episode in range(8)]
    assert held in ([True] * 4 + [False] * 4, [False] * 4 + [True] * 4), "groups of four stay together"
    wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, action_key="torque"))
    with pytest.raises(DataError, match="Training would not begin"):
        TrainingWindows(wrong, "mine", LeRobotRecordings(root)).window(0, 0)
