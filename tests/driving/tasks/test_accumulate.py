"""Updates from parts of a batch: of waypoints, of pretraining, and what cannot be parted."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from chunkwise.train import rngs
from driving.config import DrivingConfig, ObjectiveConfig
from driving.data.batches import open_data
from driving.tasks import pretrain, waypoints
from tests.driving.drives import write_drive
from tests.driving.test_train import config, pretraining
from tests.evened import assert_same_update, even_draws

quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(3):
        write_drive(folder, f"drive_{i}", frames=40, start_yaw=float(i))
    return folder


def parted(config: DrivingConfig) -> DrivingConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, grad_accum_steps=4))


def test_parts_make_the_update_of_the_whole(tmp_path: Path, drives: Path):
    one = config(tmp_path, drives)
    tasks = [waypoints.WaypointTask(each, open_data(each.data)) for each in (one, parted(one))]
    state = quick(tasks[0].init)(rngs.key(0, "init"))
    batch: Any = jax.tree.map(jnp.asarray, next(tasks[0].batches(0)))
    steps = batch["waypoint_valid"].shape[1]
    batch["waypoint_valid"] &= jnp.arange(steps)[None] < jnp.array([steps, 1, 0, 7, 3, steps, 0, 2])[:, None]
    assert_same_update(tasks[0], tasks[1], state, batch, quick)


@pytest.mark.long
def test_parts_of_a_pretraining_that_compares_no_rows(tmp_path: Path, drives: Path, monkeypatch: pytest.MonkeyPatch):
    one = dataclasses.replace(pretraining(tmp_path, drives), objective=ObjectiveConfig(masked=1.0, ego_motion=0.5))
    tasks = [pretrain.PretrainTask(each, open_data(each.data)) for each in (one, parted(one))]
    state = quick(tasks[0].init)(rngs.key(0, "init"))
    batch: Any = jax.tree.map(jnp.asarray, next(tasks[0].batches(0)))
    batch["image_valid"] &= jnp.arange(8)[:, None, None] != 3
    batch["relative_pose_valid"] &= jnp.array([True, False, True, True, False, False, True, True])[:, None]
    even_draws(monkeypatch)
    for task in tasks:  # they describe the parts, each of its own rows
        step = task.step
        task.step = lambda state, batch, step=step: without(*step(state, batch))  # pyright: ignore[reportAttributeAccessIssue]
    assert_same_update(tasks[0], tasks[1], state, batch, quick)


def without(state: Any, metrics: Any) -> tuple[Any, Any]:
    return state, {name: mean for name, mean in metrics.items() if name not in ("feature_std", "effective_rank")}


def test_negatives_of_the_whole_batch_cannot_be_parted(tmp_path: Path, drives: Path):
    with pytest.raises(
        ValueError, match=r"train\.grad_accum_steps is 4, and objective\.cross_camera, temporal and distilled"
    ):
        parted(pretraining(tmp_path, drives))


def test_objectives_that_could_learn_nothing_are_refused(tmp_path: Path, drives: Path):
    config = pretraining(tmp_path, drives)
    with pytest.raises(ValueError, match=r"train\.batch_size is 1, .* expected 2 or more"):
        dataclasses.replace(config, train=dataclasses.replace(config.train, batch_size=1))
    with pytest.raises(ValueError, match=r"data\.cameras is \('front',\); expected two or more"):
        dataclasses.replace(config, data=dataclasses.replace(config.data, cameras=("front",)))
    with pytest.raises(
        ValueError, match=r"objective\.temperature is 0\.5, which an objective without cross_camera and"
    ):
        ObjectiveConfig(masked=1.0, temperature=0.5)
    with pytest.raises(ValueError, match=r"objective\.hidden_share is 0\.3, which an objective without masked does"):
        ObjectiveConfig(temporal=1.0, hidden_share=0.3)
