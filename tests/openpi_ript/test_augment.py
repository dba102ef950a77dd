"""Augmentation in the train step: drawn from (run.seed, step) alone, so that a run goes on with the same images."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.augmentation import AugmentationConfig
from chunkwise.errors import PreemptedError
from chunkwise.models.augmentation import augmented
from chunkwise.train import rngs
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from openpi_ript.config import OpenpiRiptConfig
from openpi_ript.model.pi0 import Observation, Pi0, encode
from openpi_ript.train import main
from tests.openpi_ript.small_run import make_dataset, make_task, quick_compiling, small_config
from tests.openpi_ript.test_train import StopAt, resumed
from tests.openpi_ript.toy_policy import compiled, make_model, make_observation, random_params


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("augment")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


def config_of(root: Path, run: Path, **changes: Any) -> OpenpiRiptConfig:
    return small_config(root, run, augment=AugmentationConfig(), **changes)


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_images_of_one_that_was_not(root: Path, tmp_path: Path) -> None:
    untouched, stopped = (config_of(root, tmp_path / name) for name in "ab")
    main(untouched, "test")
    with RunFolder(stopped, "test") as folder:
        task = make_task(stopped)
        task.batches = StopAt(task, 2)
        with pytest.raises(PreemptedError, match="saved at step 3"):
            fit(stopped, task, folder)
    main(resumed(stopped), "test")
    assert (tmp_path / "a/done.json").read_bytes() == (tmp_path / "b/done.json").read_bytes()
    plain = small_config(root, tmp_path / "c")
    main(plain, "test")
    assert (tmp_path / "a/done.json").read_bytes() != (tmp_path / "c/done.json").read_bytes()


@pytest.mark.long
def test_an_update_sees_images_of_its_own_draw_and_leaves_the_wrists_geometry(root: Path, tmp_path: Path) -> None:
    still = dataclasses.replace(config_of(root, tmp_path), augment=AugmentationConfig(colour_probability=0.0))
    task = make_task(still)
    batch: Any = jax.tree.map(jnp.asarray, next(task.batches(0)))
    seen, again, later = (task._augmented(batch, jnp.asarray(step))["observation"] for step in (2, 2, 3))
    images = batch["observation"]["images"]
    assert still.augment is not None
    key = rngs.key(still.run.seed, "augmentation", 2)
    np.testing.assert_array_equal(seen["images"], augmented(images, key, still.augment, (True, False)))
    np.testing.assert_array_equal(seen["images"], again["images"])
    assert np.abs(seen["images"][:, 0] - later["images"][:, 0]).max() > 1
    np.testing.assert_allclose(seen["images"][:, 1], images[:, 1].astype(jnp.float32), atol=1e-3)
    np.testing.assert_array_equal(seen["tokens"], batch["observation"]["tokens"])
    plain = make_task(dataclasses.replace(still, augment=None))
    assert plain._augmented(batch, jnp.asarray(2)) is batch


def test_images_of_floats_are_seen_as_those_of_bytes() -> None:
    model = make_model("pi0")
    params, seen = random_params(model), make_observation(model.config)
    floats = seen._replace(images=seen.images.astype(jnp.float32))

    @compiled
    def keys(observation: Observation) -> Any:
        return encode(model, params, observation).cache

    for got, expected in zip(keys(floats), keys(seen), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"images are int32 .*; expected uint8"):
        Pi0(model.config).apply(
            {"params": params}, floats._replace(images=seen.images.astype(jnp.int32)), method="encode"
        )


def test_without_cameras_there_is_nothing_to_change(root: Path, tmp_path: Path) -> None:
    config = small_config(root, tmp_path)
    blind = dataclasses.replace(config.data, cameras={})
    with pytest.raises(ValueError, match=r"augment is set and data.cameras is empty"):
        dataclasses.replace(config, data=blind, augment=AugmentationConfig())
