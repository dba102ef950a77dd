"""driving/tasks/held_out.py: the objectives of a pretraining on the validation drives."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.state import TrainState
from chunkwise.train import rngs
from driving.config import AugmentConfig, DrivingConfig
from driving.data.batches import open_data
from driving.model.encoders import SceneEncoder, grid
from driving.tasks import objectives, pretrain
from driving.tasks.held_out import HeldOut
from driving.train import EvaluatedPretrain
from tests.driving.drives import write_drive
from tests.driving.test_train import pretraining, quick


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(8):
        write_drive(folder, f"drive_{i}", frames=12, start_yaw=float(i))
    return folder


def config(folder: Path, drives: Path, **changes: Any) -> DrivingConfig:
    base = pretraining(folder, drives)
    evaluation = dataclasses.replace(base.eval, every=2)
    data = dataclasses.replace(base.data, val_fraction=0.25, test_fraction=0.125, **changes)
    return dataclasses.replace(base, data=data, eval=evaluation)


@pytest.mark.long
def test_the_loss_is_that_of_the_objectives_on_samples_of_all_drives(tmp_path: Path, drives: Path):
    """Two drives of twelve frames, every second one: twelve samples, eight of them in one full batch."""
    settings = config(tmp_path, drives, augment=AugmentConfig(brightness=0.9, camera_dropout=0.9))
    task = pretrain.PretrainTask(settings, open_data(settings.data))
    data = open_data(settings.data, "val")
    assert len(data.episodes) == 2
    held = HeldOut(task, data)
    anchors = data.anchors[::2]
    assert held.rows.tolist() == [anchors[[0, 2, 3, 5, 6, 8, 9, 11]].tolist()]  # 11/7 k, rounded
    params = quick(lambda key: pretrain.init_params(settings, key))(rngs.key(0, "init"))
    metrics = held.measure(params)
    batch: Any = jax.tree.map(jnp.asarray, pretrain.inputs(data.batch(held.rows[0]), data))
    b, n, k, h, w, _ = batch["images"].shape
    hidden = objectives.draw_hidden(rngs.key(0, "holdout", 0), (b, n, k, *grid(settings.model, h, w)), 0.5)
    flat = (batch["images"].reshape(b * n, k, h, w, 3), batch["image_valid"].reshape(b * n, k))
    seen: Any = quick(SceneEncoder(settings.model).apply)({"params": params["encoder"]}, *flat)
    out: Any = quick(task.model.apply)({"params": params}, batch["images"], batch["image_valid"], hidden)
    loss, means = objectives.total(out, seen.tokens, hidden, batch, task.settings)
    expected = {"holdout/loss": float(loss)}
    expected |= {f"holdout/{name}": float(mean.value()) for name, mean in means.items()}
    assert metrics == pytest.approx(expected, rel=1e-4)
    assert held.measure(params) == metrics


def test_each_batch_has_samples_of_all_drives(tmp_path: Path, drives: Path):
    settings = config(tmp_path, drives)
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, batch_size=4))
    data = open_data(settings.data, "val")
    rows = HeldOut(pretrain.PretrainTask(settings, open_data(settings.data)), data).rows
    anchors = data.anchors[::2]
    assert rows.tolist() == [anchors[first::3].tolist() for first in range(3)]
    for line in rows:
        assert np.bincount(data.index.episode_of(line), minlength=8)[data.episodes].tolist() == [2, 2]


def test_without_validation_drives_there_is_none(tmp_path: Path, drives: Path):
    """Which is a choice: a pretraining needs none."""
    own = shutil.copytree(drives, tmp_path / "own", ignore=shutil.ignore_patterns("_split.json"))
    settings = config(tmp_path, own)
    settings = dataclasses.replace(settings, data=dataclasses.replace(settings.data, val_fraction=0.0))
    task = EvaluatedPretrain(settings, open_data(settings.data), tmp_path)
    state = TrainState(step=2, params={}, opt_state={}, target={})
    assert task.evaluate(state, final=False) == {}


def test_times_are_counted_from_the_beginning_of_their_drive(tmp_path: Path):
    """On a clock that began in 1970, in float32, all twelve frames would be at one moment."""

    def by_clock(began: float) -> DrivingConfig:
        def late(tree: dict[str, Any]) -> None:
            for frame in tree["frames"]:
                frame["t"] = round(began + frame["t"], 3)

        for i in range(4):
            write_drive(tmp_path / str(began), f"drive_{i}", frames=12, start_yaw=float(i), change=late)
        return config(tmp_path, tmp_path / str(began))

    def seen(settings: DrivingConfig) -> dict[str, np.ndarray]:
        data = open_data(settings.data)
        return pretrain.inputs(data.batch(data.anchors), data)

    mine, theirs = seen(by_clock(0.0)), seen(by_clock(1.7e9))
    assert mine["t"].max() > 1.0
    np.testing.assert_allclose(theirs["t"], mine["t"], atol=1e-6)
