"""Images changed inside the train step are those that Pillow changes on the host, but for the rounding to levels."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.models.augmentation import coloured, windowed
from chunkwise.train import rngs
from driving.config import (
    AugmentConfig,
    ConvConfig,
    DataConfig,
    DrivingConfig,
    ModelConfig,
    ObjectiveConfig,
    WaypointConfig,
)
from driving.data.augment import CHANGES
from driving.data.batches import make_batches, open_data
from driving.model.images import changed, changes_pixels
from driving.tasks import pretrain
from driving.tasks.pretrain import PretrainTask
from driving.tasks.waypoints import WaypointTask
from tests.driving.drives import write_drive

ALL = AugmentConfig(crop=0.3, brightness=0.3, contrast=0.3, saturation=0.4, camera_dropout=0.2, flip=0.5)
CAMERAS = ("front", "front_left", "front_right")
ROUNDED = (0.5 * 1.4 + 0.5 * 0.4 + 1) * 1.3 * 1.3 + 0.5
"""Levels by which Pillow's rounding may differ: after the crop and of the grey, stretched by the saturation; a level
that the saturation cuts off; all of it stretched by brightness and contrast; and the table's."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(3):
        write_drive(folder, f"drive_{i}", frames=20, start_yaw=float(i))
    return folder


def config(root: Path, augment: AugmentConfig = ALL, **more: Any) -> DrivingConfig:
    data = DataConfig(path=str(root), cameras=CAMERAS, image_size=(16, 24), augment=augment, offsets_s=(-0.1, 0.0))
    base: dict[str, Any] = {
        "train": TrainConfig(steps=2, batch_size=8),
        "data": data,
        "model": ModelConfig(conv=ConvConfig(channels=(8,), blocks=(0,)), camera_width=8, scene_width=8),
        "waypoints": WaypointConfig(hidden_sizes=(8,), use_moments=True),
    }
    return DrivingConfig(**base | more)


@pytest.mark.parametrize(
    "augment", [ALL, AugmentConfig(crop=0.4), AugmentConfig(saturation=0.9, brightness=0.5), AugmentConfig(flip=0.5)]
)
def test_a_batch_is_changed_on_the_device_as_on_the_host(root: Path, augment: AugmentConfig):
    settings = config(root, augment)
    host = next(make_batches(settings))
    given = next(WaypointTask(settings, open_data(settings.data)).batches(0))
    on_device = changed(jax.tree.map(jnp.asarray, given), augment, CAMERAS)
    assert not set(CHANGES) & set(on_device)
    images, there = np.asarray(on_device["images"]).reshape(8, 2, 3, 16, 24, 3), host["image_valid"]
    np.testing.assert_array_equal(np.asarray(given["image_valid"]).reshape(8, 2, 3), there)
    np.testing.assert_array_equal(given["waypoints"], host["waypoints"])  # mirrored on the host with the rest
    apart = np.abs(images - host["images"])[there]
    assert apart.max() <= (0 if augment == AugmentConfig(flip=0.5) else ROUNDED)
    assert apart.mean() <= 0.8
    as_read = np.asarray(given["images"], np.float64).reshape(8, 2, 3, 16, 24, 3)
    assert np.abs(as_read - host["images"])[there].mean() > 3 * apart.mean()


def test_the_anchor_alone_is_changed_as_the_anchor(root: Path):
    settings = config(root, waypoints=WaypointConfig(hidden_sizes=(8,)))
    host, given = next(make_batches(settings)), next(WaypointTask(settings, open_data(settings.data)).batches(0))
    images = np.asarray(changed(jax.tree.map(jnp.asarray, given), ALL, CAMERAS)["images"])
    there = host["image_valid"][:, 1]
    assert np.abs(images - host["images"][:, 1])[there].max() <= ROUNDED


@pytest.mark.long
def test_both_tasks_learn_from_changed_images(root: Path):
    """The loss of a step is that of images that were changed before, and not that of images as they were read."""
    seen = WaypointConfig(hidden_sizes=(8,), use_moments=True)
    objective = ObjectiveConfig(ego_motion=1.0, cross_camera=1.0, projection=8)
    for settings in (config(root, waypoints=seen), config(root, waypoints=None, objective=objective)):
        data = open_data(settings.data)
        task = WaypointTask(settings, data) if settings.waypoints else PretrainTask(settings, data)
        state = jax.jit(task.init)(rngs.key(0, "init"))
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x, rng=rng: x + jnp.asarray(rng.normal(size=x.shape), x.dtype), state.params)
        state = state.replace(params=params)
        given = jax.tree.map(jnp.asarray, next(task.batches(0)))
        plain = {name: value for name, value in given.items() if name not in CHANGES}
        if settings.waypoints is not None:
            before = plain | {"images": changed(given, ALL, CAMERAS)["images"]}
        else:
            before = plain | {"images": pretrain._changed(given, settings)["images"]}
        step = jax.jit(task.step)
        losses = [float(step(state, batch)[1]["loss"].value()) for batch in (given, before, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert losses[0] != pytest.approx(losses[2], rel=1e-3)


def test_what_is_not_asked_for_is_not_done(root: Path):
    assert not changes_pixels(AugmentConfig(camera_dropout=0.5))
    settings = config(root, AugmentConfig(camera_dropout=0.5))
    given = next(WaypointTask(settings, open_data(settings.data)).batches(0))
    assert not set(CHANGES) & set(given)
    assert changed(given, settings.data.augment, CAMERAS)["images"] is given["images"]
    rows = dataclasses.replace(open_data(config(root).data), on_device=True).batch(np.arange(2))
    assert not set(CHANGES) & set(rows)  # nothing was drawn


def test_a_window_and_colours_by_hand():
    image = jnp.asarray(np.arange(16.0, dtype=np.float32).reshape(1, 1, 16, 1) * 10)
    half = np.asarray(windowed(image, jnp.array([0.5]), jnp.array([[0.0, 1.0]])))[0, 0, :, 0]
    # columns 8 to 16 of 16, twice as wide: centres at 7.75, 8.25, ... ; beyond the last centre the last
    np.testing.assert_allclose(half, np.minimum(np.arange(16) * 5 + 77.5, 150), atol=1e-4)
    np.testing.assert_allclose(windowed(image, jnp.array([0.0]), jnp.array([[0.3, 0.3]])), image, atol=1e-4)
    pixel = jnp.array([[[[200.0, 100.0, 50.0]]]])
    grey = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    np.testing.assert_allclose(coloured(pixel, jnp.array([[1.0, 1.0, 0.0]]))[0, 0, 0], [grey] * 3, rtol=1e-5)
    np.testing.assert_allclose(coloured(pixel, jnp.array([[1.2, 1.0, 1.0]]))[0, 0, 0], [240, 120, 60], rtol=1e-5)
    np.testing.assert_allclose(coloured(pixel, jnp.array([[1.0, 2.0, 1.0]]))[0, 0, 0], [255, 72.5, 0], rtol=1e-5)
