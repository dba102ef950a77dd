"""A pretraining by self-distillation: what it follows, what it logs, and that it resumes as it was."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.reader import list_saves, read_newest
from chunkwise.config.experiment import RunConfig
from chunkwise.train import rngs
from driving.config import DrivingConfig, ObjectiveConfig
from driving.data.batches import open_data
from driving.tasks import objectives, pretrain
from driving.tasks.held_out import HeldOut
from driving.train import main
from tests.driving.drives import write_drive
from tests.driving.test_train import pretraining, quick


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(6):
        write_drive(folder, f"drive_{i}", frames=12, start_yaw=float(i))
    return folder


def distilling(folder: Path, drives: Path, **more: float) -> DrivingConfig:
    objective = ObjectiveConfig(distilled=1.0, prototypes=6, projection=8, target_decay=0.9, **more)
    return dataclasses.replace(pretraining(folder, drives), objective=objective)


def test_encoder_and_head_are_followed_slowly(tmp_path: Path, drives: Path):
    settings = distilling(tmp_path, drives)
    task = pretrain.PretrainTask(settings, open_data(settings.data))
    state = quick(task.init)(rngs.key(0, "init"))
    assert set(state.target) == {"encoder", "distilled_head"}
    batch: Any = jax.tree.map(jnp.asarray, next(task.batches(0)))
    new, metrics = quick(task.step)(state, batch)
    assert float(metrics["loss"].value()) == float(metrics["distilled"].value())
    assert float(metrics["distilled"].count) == int(batch["image_valid"].sum())
    for name in ("encoder", "distilled_head"):
        expected = jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, state.target[name], new.params[name])
        for one, other in zip(jax.tree.leaves(new.target[name]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    moved = jax.tree.map(lambda old, now: np.abs(np.asarray(now - old)).max(), state.params, new.params)
    assert moved["distilled_head"]["prototypes"] > 0
    assert moved["encoder"]["join"]["kernel"] > 0


def test_what_is_masked_beside_it_is_as_without_it(tmp_path: Path, drives: Path):
    """The hidden tokens are those of the same key; the crops have one of their own."""
    with_it = distilling(tmp_path, drives, masked=1.0)
    assert with_it.objective is not None
    alone = dataclasses.replace(with_it, objective=ObjectiveConfig(masked=1.0, target_decay=0.9))
    losses = []
    for settings in (with_it, alone):
        task = pretrain.PretrainTask(settings, open_data(settings.data))
        params = quick(task.init)(rngs.key(0, "init")).params
        shared = {"encoder": params["encoder"], "predictor": params["predictor"]}
        if losses:
            shared |= {name: losses[0][1][name] for name in shared}
        batch: Any = jax.tree.map(jnp.asarray, next(task.batches(0)))
        whole = {**params, **shared}
        _, means = quick(task.loss)(whole, task.followed(whole), batch, rngs.key(0, "x"))
        losses.append((float(means["masked"].value()), whole))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-4)


@pytest.mark.long
def test_a_run_of_it_goes_on_with_what_it_followed(tmp_path: Path, drives: Path):
    settings = distilling(tmp_path, drives)
    main(settings, "distilled")
    _, whole = read_newest(tmp_path, {}, plain=("params", "target"))
    shutil.rmtree(list_saves(tmp_path)[0].path)
    main(dataclasses.replace(settings, run=RunConfig(dir=str(tmp_path), resume=True)), "distilled")
    step, again = read_newest(tmp_path, {}, plain=("params", "target"))
    assert step == 6
    jax.tree.map(np.testing.assert_array_equal, whole, again)
    assert not np.array_equal(
        whole["target"]["encoder"]["join"]["kernel"], whole["params"]["encoder"]["join"]["kernel"]
    )


def test_it_is_measured_on_drives_held_out(tmp_path: Path, drives: Path):
    settings = distilling(tmp_path, drives)
    task = pretrain.PretrainTask(settings, open_data(settings.data))
    params = quick(task.init)(rngs.key(0, "init")).params
    measured = HeldOut(task, open_data(settings.data, "val")).measure(params)
    assert measured["holdout/loss"] == pytest.approx(measured["holdout/distilled"])
    assert 0 < measured["holdout/distilled"] < 30


def test_rows_of_one_batch_are_compared(tmp_path: Path, drives: Path):
    base = distilling(tmp_path, drives)
    with pytest.raises(ValueError, match=r"grad_accum_steps is 4, and objective\.cross_camera, temporal and distilled"):
        dataclasses.replace(base, train=dataclasses.replace(base.train, grad_accum_steps=4))
    with pytest.raises(ValueError, match=r"objective\.prototypes is 7, which an objective without distilled"):
        ObjectiveConfig(masked=1.0, prototypes=7)
    with pytest.raises(ValueError, match=r"objective\.target_decay is 0\.5, which an objective without masked and"):
        ObjectiveConfig(ego_motion=1.0, target_decay=0.5)
    with pytest.raises(ValueError, match=r"objective\.distilled_crop is 1"):
        ObjectiveConfig(distilled=1.0, distilled_crop=1)
    assert objectives.weights(ObjectiveConfig(distilled=0.5)) == {"distilled": 0.5}
