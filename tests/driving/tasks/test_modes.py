"""Several trajectories with probabilities: their loss by hand, where they begin, which one drives and is measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import CheckpointConfig, OptimConfig, RunConfig, TrainConfig
from chunkwise.errors import ConfigError
from driving.config import (
    AugmentConfig,
    ConvConfig,
    DataConfig,
    DrivingConfig,
    EvalConfig,
    ModelConfig,
    WaypointConfig,
)
from driving.data.batches import DrivingData, open_data
from driving.eval.metrics import least, measures
from driving.model.heads import Modes
from driving.policies.policy import WaypointPolicy
from driving.tasks import modes, waypoints
from driving.train import main
from tests.driving.drives import write_drive

MODES = WaypointConfig(hidden_sizes=(8,), modes=3, mode_weight=0.5)


def config(path: Path, **more: Any) -> DrivingConfig:
    base: dict[str, Any] = {
        "run": RunConfig(dir=str(path / "run")),
        "train": TrainConfig(steps=2, batch_size=4),
        "data": DataConfig(path=str(path / "drives"), image_size=(16, 24), val_fraction=0.2, test_fraction=0.2),
        "model": ModelConfig(conv=ConvConfig(channels=(8,), blocks=(0,)), camera_width=8, scene_width=8),
        "optim": OptimConfig(learning_rate=1e-2),
        "waypoints": MODES,
        "eval": EvalConfig(batch_size=8, every=8, blind_updates=2, plotted_moments=0),
        "checkpoint": CheckpointConfig(every=1),
    }
    return DrivingConfig(**base | more)


def sample() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Modes, logits, truth and what is known of it: the last sample's future is unknown, and NaN."""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(4, 5, 2)).astype(np.float32)
    valid = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    predicted = (truth[:, None] + rng.normal(size=(4, 3, 5, 2))).astype(np.float32)
    predicted[1, 0, 2:] = 50.0  # nearest on the steps that are known, far away on the others
    predicted[1, 0, :2] = truth[1, :2] + 0.01
    truth[~valid] = np.nan
    return predicted, rng.normal(size=(4, 3)).astype(np.float32), truth, valid


def test_the_loss_is_that_of_the_nearest_mode_and_of_its_probability():
    predicted, logits, truth, valid = sample()
    found = modes.losses(Modes(*map(jnp.asarray, (predicted, logits))), jnp.asarray(truth), jnp.asarray(valid))
    per_step, log_probabilities, right = [], [], []
    for row in range(3):
        known = valid[row]
        error = np.sqrt(((predicted[row] - truth[row]) ** 2).sum(-1)[:, known] + 0.01) - 0.1
        nearest = int(error.mean(axis=1).argmin())
        per_step += error[nearest].tolist()
        log_probabilities.append(logits[row, nearest] - np.log(np.exp(logits[row]).sum()))
        right.append(logits[row].argmax() == nearest)
    assert float(found["trajectory"].value()) == pytest.approx(np.mean(per_step), rel=1e-5)
    assert float(found["trajectory"].count) == valid.sum()
    assert float(found["mode"].value()) == pytest.approx(-np.mean(log_probabilities), rel=1e-5)
    assert float(found["mode"].count) == 3
    assert float(found["nearest"].value()) == pytest.approx(np.mean(right))


def test_only_the_nearest_mode_moves_and_only_by_known_steps():
    predicted, logits, truth, valid = sample()

    def loss(predicted: Any, logits: Any) -> Any:
        found = modes.losses(Modes(predicted, logits), jnp.asarray(truth), jnp.asarray(valid))
        return found["trajectory"].value() + found["mode"].value()

    places, scores = map(np.asarray, jax.grad(loss, (0, 1))(jnp.asarray(predicted), jnp.asarray(logits)))
    moved = np.abs(places).max(-1) > 0
    for row in range(4):
        taken = np.flatnonzero(moved[row].any(axis=1))
        assert len(taken) == (1 if row < 3 else 0)
        for mode in taken:
            np.testing.assert_array_equal(moved[row, mode], valid[row])
    nearest = [int(np.flatnonzero(moved[row].any(axis=1))[0]) for row in range(3)]
    assert nearest[1] == 0
    probability = np.exp(logits[:3]) / np.exp(logits[:3]).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores[:3], (probability - np.eye(3)[nearest]) / 3, atol=1e-6)
    assert not scores[3].any()


def test_the_least_error_is_over_all_modes_at_each_horizon():
    truth, valid = np.zeros((1, 20, 2)), np.ones((1, 20), bool)
    several = np.zeros((1, 2, 20, 2))
    several[0, 0, :, 0] = np.repeat([1.0, 9.0], 10)  # nearer within a second
    several[0, 1, :, 0] = 3.0
    found = least(several, truth, valid, 0.1)
    assert {name: value.tolist() for name, value in found.items()} == {"min_ade_1s": [1.0], "min_ade_2s": [3.0]}
    assert measures(several[:, 0], truth, valid, 0.1)["ade_2s"].tolist() == [5.0]
    valid[0, 15] = False
    assert np.isnan(least(several, truth, valid, 0.1)["min_ade_2s"][0])


def opened(path: Path, futures: list[tuple[float, float]], settings: DrivingConfig) -> DrivingData:
    """Drives of cars that say 5 m/s, and go at other speeds, and accelerations to the left; images do not matter."""
    for i, (speed, left) in enumerate(futures):

        def change(tree: dict[str, Any], speed: float = speed, left: float = left) -> None:
            for frame in tree["frames"]:
                t = frame["t"]
                place = {"x_m": speed * t, "y_m": left * t * t / 2, "yaw_rad": 0.0}
                frame["observations"]["state"] |= place | {"speed_mps": 5.0, "yaw_rate_radps": 0.0}

        write_drive(path / "drives", f"drive_{i}", frames=22, change=change, images=False, start_yaw=float(i))
    data = dataclasses.replace(settings.data, min_cameras=0, missing_files="mask")
    return open_data(data, "all")


def test_modes_begin_at_what_futures_do_beside_going_on(tmp_path: Path):
    settings = config(tmp_path)
    data = opened(tmp_path, [(0.0, 0.0), (0.0, 0.0), (5.0, 0.0), (5.0, 0.0), (5.0, 0.0), (8.0, 0.0)], settings)
    found = modes.anchors(data, settings)
    assert found.shape == (3, 20, 2)
    np.testing.assert_allclose(sorted(found[:, -1].tolist()), [[-10.0, 0.0], [0.0, 0.0], [6.0, 0.0]], atol=1e-4)
    np.testing.assert_array_equal(found, modes.anchors(data, settings))
    absolute = config(tmp_path, waypoints=dataclasses.replace(MODES, use_ego=False))
    ends = sorted(modes.anchors(data, absolute)[:, -1].tolist())
    np.testing.assert_allclose(ends, [[0.0, 0.0], [10.0, 0.0], [16.0, 0.0]], atol=1e-4)
    lost = data.tables.waypoint_valid.copy()
    lost[: 22 * 2, 0] = False  # the futures of those that stood are not known whole
    unknown = dataclasses.replace(data, tables=dataclasses.replace(data.tables, waypoint_valid=lost))
    two = config(tmp_path, waypoints=dataclasses.replace(MODES, modes=2))
    np.testing.assert_allclose(sorted(modes.anchors(unknown, two)[:, -1, 0].tolist()), [0.0, 6.0], atol=1e-4)


def test_frames_of_unknown_motion_have_anchors_and_no_whole_future_is_said(tmp_path: Path):
    """Where the yaw rate is unknown it is 0, in the model as here; a dataset may know none."""
    settings = config(tmp_path)
    data = opened(tmp_path, [(0.0, 0.0), (0.0, 0.0), (5.0, 0.0), (5.0, 0.0), (5.0, 0.0), (8.0, 0.0)], settings)
    tables = dataclasses.replace(data.tables, yaw_rate_valid=np.zeros_like(data.tables.yaw_rate_valid))
    found = modes.anchors(dataclasses.replace(data, tables=tables), settings)
    np.testing.assert_array_equal(found, modes.anchors(data, settings))
    some = data.tables.yaw_rate_valid.copy()
    some[: 22 * 2] = False  # of those that stood: what the others do is what modes begin at
    two = config(tmp_path, waypoints=dataclasses.replace(MODES, modes=2))
    partly = dataclasses.replace(data, tables=dataclasses.replace(data.tables, yaw_rate_valid=some))
    np.testing.assert_allclose(sorted(modes.anchors(partly, two)[:, -1, 0].tolist()), [0.0, 6.0], atol=1e-4)
    cut = data.tables.waypoint_valid.copy()
    cut[:, -1] = False
    tables = dataclasses.replace(data.tables, waypoint_valid=cut)
    with pytest.raises(
        ConfigError, match=r"no training frame whose waypoints are known to the end, data\.waypoint_steps"
    ):
        modes.anchors(dataclasses.replace(data, tables=tables), settings)


def test_mirrored_futures_count_where_training_mirrors(tmp_path: Path):
    two = config(tmp_path, waypoints=dataclasses.replace(MODES, modes=2))
    data = opened(tmp_path, [(5.0, 0.0)] * 3, two)
    with pytest.raises(ConfigError, match=r"waypoints\.modes is 2; expected no more than the training split"):
        modes.anchors(data, two)
    known = data.tables.waypoints.copy()
    known[..., 1] = 2.0
    aside = dataclasses.replace(data, tables=dataclasses.replace(data.tables, waypoints=known))
    flips = dataclasses.replace(two.data, augment=AugmentConfig(flip=0.5))
    found = modes.anchors(aside, dataclasses.replace(two, data=flips))
    np.testing.assert_allclose(sorted(found[:, -1, 1].tolist()), [-2.0, 2.0], atol=1e-5)


def test_the_most_probable_mode_drives():
    several = Modes(jnp.arange(24.0).reshape(2, 3, 2, 2), jnp.array([[0.0, 2.0, 1.0], [0.5, 0.0, 0.5]]))
    np.testing.assert_array_equal(several.most_probable(), [np.arange(4, 8).reshape(2, 2), [[12, 13], [14, 15]]])
    np.testing.assert_array_equal(several.taken(jnp.array([2, 1], jnp.int32))[:, 0, 0], [8, 16])


def test_a_run_with_modes_trains_is_measured_and_drives(tmp_path: Path):
    for i in range(6):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=30, start_yaw=float(i), change=at_speed(4.0 + 2 * i))
    settings = config(tmp_path, train=TrainConfig(steps=2, batch_size=4, log_every=1, ema_decay=0.5))
    main(settings, "modes")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    trained, measured = lines[0], lines[-1]
    assert trained["loss"] == pytest.approx(trained["trajectory"] + 0.5 * trained["mode"], rel=1e-5)
    assert measured["model/min_ade_2s"] <= measured["model/ade_2s"]
    assert measured["val/min_ade_1s"] <= measured["val/ade_1s"]
    assert "history_mlp/min_ade_2s" not in measured
    assert measured["holdout/loss"] > 0

    params = jax.tree.map(np.asarray, waypoints.init_params(settings, jax.random.key(0)))
    params["logits"]["bias"] = np.array([0.0, 1.0, 0.0], np.float32)
    params["out"]["bias"] = np.repeat(np.arange(3, dtype=np.float32), 40)
    policy = WaypointPolicy(settings, params)
    seen = {
        "images": np.zeros((1, 5, 16, 24, 3), np.uint8),
        "image_valid": np.ones((1, 5), bool),
        "motion": np.zeros((1, 2), np.float32),
        "past_motion": np.zeros((1, 6), np.float32),
        "route_command": np.zeros(1, np.int32),
        "known_motion": np.ones((1, 8), bool),
    }
    np.testing.assert_array_equal(policy.predict(seen), np.ones((1, 20, 2)))
    assert policy.modes(seen)[0][0, :, 0, 0].tolist() == [0, 1, 2]


def at_speed(speed: float) -> Any:
    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            frame["observations"]["state"] |= {"x_m": speed * frame["t"], "y_m": 0.0, "yaw_rad": 0.0}

    return change


def test_a_weight_of_the_probability_of_one_mode_is_refused():
    with pytest.raises(ValueError, match=r"mode_weight is 0\.5 and waypoints\.modes 1"):
        WaypointConfig(mode_weight=0.5)
    with pytest.raises(ValueError, match=r"WaypointConfig\.modes is 0"):
        WaypointConfig(modes=0)
