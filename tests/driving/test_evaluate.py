"""The table of a driving run, with hand-made drives whose numbers give away which of them were used for what."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from chunkwise.config.experiment import OptimConfig, RunConfig, TrainConfig
from chunkwise.state import TrainState
from chunkwise.train import rngs
from driving import evaluate, train
from driving.config import (
    ConvConfig,
    DataConfig,
    DrivingConfig,
    EvalConfig,
    ModelConfig,
    ObjectiveConfig,
    WaypointConfig,
)
from driving.data.batches import DrivingData, open_data
from driving.data.rater import Rated, rater_feedback_score
from driving.data.split import FORMAT, SPLIT_FILE
from driving.eval import baselines, probes
from driving.eval import metrics as metrics_of_drives
from driving.eval.baselines import EgoStates
from driving.train import EvaluatedPretrain, EvaluatedWaypoints
from tests.driving.drives import write_drive

FRAMES, DT = 12, 0.5
SPEEDS = {"t0": 2.0, "t1": 4.0, "v0": 20.0, "e0": 7.0, "e1": 9.0}
"""m/s, straight on: t are drives of training, v of validation, e of testing."""
SIDES = {"t": "train", "v": "val", "e": "test"}
TRAIN = ModelConfig(conv=ConvConfig(channels=(8,), blocks=(0,)), camera_width=8, scene_width=8)


def straight(speed: float) -> Any:
    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            place = {"x_m": speed * frame["t"], "y_m": 0.0, "yaw_rad": 0.0}
            frame["observations"]["state"] |= place | {"speed_mps": speed, "yaw_rate_radps": 0.0}

    return change


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drives(tmp_path_factory.mktemp("drives"))


def write_drives(folder: Path) -> Path:
    for name, speed in SPEEDS.items():
        write_drive(folder, name, frames=FRAMES, dt=DT, change=straight(speed), start_yaw=speed, size=(16, 24))
    index = open_data(DataConfig(path=str(folder), val_fraction=0.2, test_fraction=0.2), "all").index
    sides: dict[str, dict[str, str]] = {side: {} for side in SIDES.values()}
    for name, drive in zip(index.ids, index.drive_hashes, strict=True):
        sides[SIDES[name[0]]][name] = drive
    (folder / SPLIT_FILE).write_text(json.dumps({"format": FORMAT, **sides}))
    return folder


def make_config(root: Path, *, split: Any = "test", **changes: Any) -> DrivingConfig:
    base: dict[str, Any] = {
        "run": RunConfig(dir=str(root / "run")),
        "train": TrainConfig(steps=2, batch_size=4),
        "data": DataConfig(path=str(root), image_size=(16, 24), waypoint_steps=4, waypoint_dt_s=DT, max_gap_s=0.6),
        "model": TRAIN,
        "waypoints": WaypointConfig(hidden_sizes=(8,)),
        "optim": OptimConfig(learning_rate=1e-2),
        "eval": EvalConfig(split=split, batch_size=4, blind_updates=2, plotted_moments=0),
    }
    return DrivingConfig(**base | changes)


def ids(data: DrivingData) -> set[str]:
    return {data.index.ids[i] for i in data.episodes.tolist()}


def speeds(states: EgoStates) -> set[float]:
    return set(states.motion[:, 0].tolist())


class Predictors:
    """In the places of the model and of the blind predictors: off by so many metres, to the left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: float, **blind: float) -> None:
        self.model, self.off = model, blind
        self.seen: list[DrivingData] = []
        self.train: EgoStates
        self.held_out: EgoStates
        monkeypatch.setattr(evaluate, "predict", self.predict)
        monkeypatch.setattr(evaluate, "blind_predictions", self.blind_predictions)

    def predict(self, config: DrivingConfig, params: Any, data: DrivingData, rows: np.ndarray, *_: Any) -> np.ndarray:
        self.seen.append(data)
        return data.tables.waypoints[rows] + np.array([0, self.model], np.float32)

    def blind_predictions(self, config: DrivingConfig, train: EgoStates, held_out: EgoStates) -> dict[str, np.ndarray]:
        self.train, self.held_out = train, held_out
        return {
            name: (held_out.waypoints + np.array([0, off], np.float32)).astype(np.float32)
            for name, off in self.off.items()
        }


BLIND = {"mean_trajectory": 9.0, "constant_velocity": 5.0, "constant_turn": 4.0, "ego_mlp": 3.0, "history_mlp": 2.0}


@pytest.mark.parametrize("split", ["test", "val"])
def test_the_table_is_of_the_held_out_drives_and_the_blind_learn_on_training_drives(
    root: Path, monkeypatch: pytest.MonkeyPatch, split: str
):
    fake = Predictors(monkeypatch, 0.5, **BLIND)
    result = evaluate.compare(make_config(root, split=split), {})
    held_out = {name for name in SPEEDS if SIDES[name[0]] == split}
    assert [(ids(data), data.split) for data in fake.seen] == [(held_out, split)]
    assert speeds(fake.held_out) == {SPEEDS[name] for name in held_out}
    assert speeds(fake.train) == {2.0, 4.0}
    assert (result["split"], result["drives"], result["rated"]) == (split, len(held_out), 0)
    # The futures of 8 of the 12 frames are known up to 2 s.
    assert result["samples"] == 8 * len(held_out)
    assert set(result["rows"]) == {"model", *BLIND}
    for name, off in {"model": 0.5, **BLIND}.items():
        for measure in ("ade_1s", "fde_1s", "ade_2s", "fde_2s"):
            found = result["rows"][name][measure]
            assert found == {"mean": pytest.approx(off, abs=1e-5), "low": None, "high": None}
    assert set(result["gain"]) == {"ade_1s", "fde_1s", "ade_2s", "fde_2s"}
    for value in result["gain"].values():  # above 0: the model is 1.5 m nearer than the strongest blind predictor
        assert value == {"mean": pytest.approx(1.5, abs=1e-5), "low": None, "high": None}
    words = f"{len(held_out)} drive(s) say too little of how drives differ for intervals, 5 are needed"
    assert result["notes"] == [words]


def test_a_model_that_is_worse_than_the_blind_has_a_gain_below_zero(root: Path, monkeypatch: pytest.MonkeyPatch):
    Predictors(monkeypatch, 2.5, **BLIND)
    result = evaluate.compare(make_config(root), {})
    assert result["gain"]["ade_2s"]["mean"] == pytest.approx(-0.5, abs=1e-5)


def test_intervals_are_over_drives_and_gains_are_paired(root: Path, monkeypatch: pytest.MonkeyPatch):
    """The two drives differ by 2 m in both errors: se 1 m, t 12.7 of one degree of freedom."""
    monkeypatch.setattr(metrics_of_drives, "LEAST_DRIVES", 2)
    fake = Predictors(monkeypatch, 0.0, **BLIND)
    plain = fake.predict

    def by_drive(config: DrivingConfig, params: Any, data: DrivingData, rows: np.ndarray, *_: Any) -> np.ndarray:
        off = np.where(data.tables.speed_mps[rows] > 8, 3.0, 1.0)
        return plain(config, params, data, rows) + np.stack([0 * off, off], -1)[:, None].astype(np.float32)

    monkeypatch.setattr(evaluate, "predict", by_drive)
    plain_blind = fake.blind_predictions

    def blind_by_drive(config: DrivingConfig, train: EgoStates, held_out: EgoStates) -> dict[str, np.ndarray]:
        off = np.where(held_out.motion[:, 0] > 8, 2.0, 0.0)
        more = np.stack([0 * off, off], -1)[:, None].astype(np.float32)
        return {name: one + more for name, one in plain_blind(config, train, held_out).items()}

    monkeypatch.setattr(evaluate, "blind_predictions", blind_by_drive)
    result = evaluate.compare(make_config(root), {})
    assert result["rows"]["model"]["ade_1s"] == pytest.approx({"mean": 2.0, "low": -10.7062, "high": 14.7062}, abs=1e-4)
    assert result["gain"]["ade_1s"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0}, abs=1e-5)


def test_the_curve_is_of_the_validation_drives(root: Path, monkeypatch: pytest.MonkeyPatch):
    fake = Predictors(monkeypatch, 0.25)
    config = make_config(root)
    errors = dict.fromkeys(["val/ade_1s", "val/fde_1s", "val/ade_2s", "val/fde_2s"], 0.25)
    errors["holdout/loss"] = math.sqrt(0.25**2 + 0.1**2) - 0.1
    assert evaluate.quick(config, {}) == pytest.approx(errors, abs=1e-5)
    assert [ids(data) for data in fake.seen] == [{"v0"}]


def test_every_so_many_frames_are_measured_and_all_that_were_rated(root: Path, monkeypatch: pytest.MonkeyPatch):
    fake = Predictors(monkeypatch, 0.0, **BLIND)
    config = make_config(root)
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, every=5))
    assert evaluate.compare(config, {})["rated"] == 0
    data = fake.seen[0]
    assert fake.held_out.rows.tolist() == data.anchors[::5].tolist()
    rated = np.zeros(data.index.frames, np.int32)
    rated[data.anchors[[1, 2]]] = 1, 3
    index = dataclasses.replace(data.index, rated_counts=rated)
    found = evaluate._held_out(dataclasses.replace(data, index=index), 5)
    assert found.tolist() == sorted({*data.anchors[::5].tolist(), *data.anchors[[1, 2]].tolist()})


def test_the_rater_feedback_is_of_each_predictor_at_its_speed(root: Path, monkeypatch: pytest.MonkeyPatch):
    """One frame of the faster test drive was rated: what was driven got 8 of 10."""
    fake = Predictors(monkeypatch, 1.2, **BLIND | {"history_mlp": 1.9})
    data = DataConfig(path=str(root), image_size=(16, 24), waypoint_steps=10, waypoint_dt_s=DT, max_gap_s=0.6)
    config = make_config(root, data=data)
    opened = open_data(config.data, "test")
    row = opened.anchors[opened.tables.speed_mps[opened.anchors] == 9][0]
    places = np.stack([9.0 * 0.25 * np.arange(1, 21), np.zeros(20)], axis=-1)
    rated = Rated(waypoints=places, dt_s=0.25, score=8.0)
    monkeypatch.setattr(type(opened.index), "rated", lambda self, at: (rated,) if at == row else ())
    result = evaluate.compare(config, {})
    assert result["rated"] == 1
    for name, off in {"model": 1.2, "history_mlp": 1.9, "mean_trajectory": 9.0}.items():
        beside = places + np.array([0, off])
        expected = rater_feedback_score(beside, places[None], np.array([8.0]), speed_mps=9.0)
        assert result["rows"][name]["rater_feedback"]["mean"] == pytest.approx(expected, abs=1e-4)
    gain = result["rows"]["model"]["rater_feedback"]["mean"] - result["rows"]["history_mlp"]["rater_feedback"]["mean"]
    assert gain > 0.1
    assert result["gain"]["rater_feedback"]["mean"] == pytest.approx(gain)
    assert len(fake.seen) == 1


def make_states(count: int, **arrays: Any) -> EgoStates:
    """States of a standing car whose every future step is known, but for what is given."""
    states = EgoStates.__new__(EgoStates)
    states.rows = np.arange(count)
    states.motion = np.zeros((count, 2), np.float32)
    states.past = np.zeros((count, 6), np.float32)
    states.known = np.ones((count, 8), bool)
    states.command = np.zeros(count, np.int32)
    states.waypoints = np.zeros((count, 4, 2), np.float32)
    states.valid = np.ones((count, 4), bool)
    states.drive = np.zeros(count, np.int64)
    vars(states).update(arrays)
    return states


def test_blind_formulas_by_hand(root: Path, monkeypatch: pytest.MonkeyPatch):
    """The mean is of what is known of the training futures; the others take the held-out motion."""
    trained = []

    def mlp(config: DrivingConfig, train: EgoStates, held_out: EgoStates, *, use_past: bool) -> np.ndarray:
        trained.append((train, held_out, use_past))
        return np.full(held_out.waypoints.shape, float(use_past), np.float32)

    monkeypatch.setattr(baselines, "_mlp", mlp)
    waypoints = np.zeros((3, 4, 2), np.float32)
    waypoints[:, :, 0] = [[1.0], [2.0], [6.0]]
    valid = np.ones((3, 4), bool)
    valid[2, 1:] = False
    train = make_states(3, waypoints=waypoints, valid=valid, motion=np.full((3, 2), 3.0, np.float32))
    held_out = make_states(2, motion=np.array([[10.0, 0.0], [10.0, 0.5]], np.float32))
    found = baselines.blind_predictions(make_config(root), train, held_out)
    np.testing.assert_allclose(found["mean_trajectory"], [[[3, 0], [1.5, 0], [1.5, 0], [1.5, 0]]] * 2)
    t = DT * np.arange(1, 5)
    line = np.stack([10 * t, 0 * t], -1)
    arc = np.stack([10 / 0.5 * np.sin(0.5 * t), 10 / 0.5 * (1 - np.cos(0.5 * t))], -1)
    np.testing.assert_allclose(found["constant_velocity"], [line, line], atol=1e-4)
    np.testing.assert_allclose(found["constant_turn"], [line, arc], atol=1e-4)
    assert (found["ego_mlp"] == 0).all()
    assert (found["history_mlp"] == 1).all()
    assert trained == [(train, held_out, False), (train, held_out, True)]


@pytest.fixture
def compiled_quickly() -> Iterator[None]:
    """For networks whose training takes less time than their compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("by", ["command", "past"])
@pytest.mark.usefixtures("compiled_quickly")
def test_a_blind_network_learns_on_training_drives_and_on_their_mirror_image(
    root: Path, by: str, monkeypatch: pytest.MonkeyPatch
):
    """Every training car that is told to go left, or has begun to turn left, goes 1 m to the left, and nothing else was
    seen; the held-out ones say so to either side, and go 5 m to the left."""
    left = np.zeros((64, 4, 2), np.float32)
    left[..., 1] = 1.0
    wrong = np.full((2, 4, 2), 5.0, np.float32)
    config = make_config(root)
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, blind_updates=150))
    turned = np.tile(np.array([0, 0, 0, 0.3, 0.3, 0.3], np.float32), (64, 1))
    signs = np.array([[1], [-1]], np.float32)
    seen: dict[str, Any] = {"command": np.full(64, 1, np.int32)} if by == "command" else {"past": turned}
    asked: dict[str, Any] = {"command": np.array([1, 3], np.int32)} if by == "command" else {"past": turned[:2] * signs}
    train, held_out = make_states(64, waypoints=left, **seen), make_states(2, waypoints=wrong, **asked)
    keys: dict[str, Any] = {}
    plain = rngs.key

    def key(seed: int, name: str, step: Any = None) -> Any:
        keys[name] = (seed, step)
        return plain(seed, name, 0 if step is None else step)

    monkeypatch.setattr(baselines.rngs, "key", key)
    found = baselines._mlp(config, train, held_out, use_past=by == "past")
    assert keys["blind MLP"][1] is not None, "each update draws samples of its own"
    assert {seed for seed, _ in keys.values()} == {config.run.seed}
    np.testing.assert_allclose(found[0, :, 1], 1.0, atol=0.15)
    np.testing.assert_allclose(found[1, :, 1], -1.0, atol=0.15)
    np.testing.assert_allclose(found[:, :, 0], 0.0, atol=0.15)


def pretraining(root: Path, **more: Any) -> DrivingConfig:
    data = DataConfig(path=str(root), image_size=(16, 24), offsets_s=(0.0, 0.5), max_gap_s=0.6)
    return make_config(root, waypoints=None, objective=ObjectiveConfig(temporal=1.0), data=data, **more)


class Encoder:
    """In the place of an encoder: what tells a frame's time, and its speed; or the same for all frames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[set[str], bool]] = []
        monkeypatch.setattr(probes, "encode", self.encode)

    def encode(
        self, config: DrivingConfig, params: Any, data: DrivingData, rows: np.ndarray, *, jitter: bool = False
    ) -> np.ndarray:
        self.calls.append((ids(data), jitter))
        t = data.index.t[rows] - (probes.LATER_S if jitter else 0)
        moment = np.round(2 * t).astype(int) * (params != "blind")
        # Unrelated from moment to moment, but for what all have in common.
        place = np.stack([np.random.default_rng([1, i + 9]).normal(size=8) + 5 for i in moment.tolist()])
        moments = [np.random.default_rng(0).normal(size=place.shape)] * len(config.data.offsets_s)
        moments[config.data.anchor] = place
        speed = data.tables.speed_mps[rows][:, None] * (params != "blind")
        return np.concatenate([*moments, speed, 0 * speed], axis=1).astype(np.float32)


def test_probes_are_fitted_on_training_drives_and_measured_on_held_out_ones(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    config = pretraining(root)
    fake = Encoder(monkeypatch)
    train, held_out = open_data(config.data, "train"), open_data(config.data, "test")
    asked: list[Any] = []

    def r_squared(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
        asked.append((set(x[:, -2].tolist()), set(y.tolist()), set(x_test[:, -2].tolist()), set(y_test.tolist())))
        return 0.5

    monkeypatch.setattr(probes, "r_squared", r_squared)
    searched: list[set[str]] = []
    monkeypatch.setattr(probes, "retrieval", lambda *given: searched.append(ids(given[-1])) or {"retrieval_top1": 0.25})
    assert probes.probe(config, "good", train, held_out) == {
        "speed_r2": 0.5,
        "yaw_rate_r2": 0.5,
        "retrieval_top1": 0.25,
    }
    assert [call for call, _ in fake.calls] == [{"t0", "t1"}, {"e0", "e1"}]
    assert asked[0] == ({2.0, 4.0}, {2.0, 4.0}, {7.0, 9.0}, {7.0, 9.0})
    assert asked[1][1] == asked[1][3] == {0.0}
    assert searched == [{"e0", "e1"}]


def test_the_frames_of_a_probe_know_speed_and_yaw_rate(root: Path):
    config = pretraining(root)
    data = open_data(config.data, "test")
    tables = data.tables
    speed_valid, yaw_rate_valid, time_valid = (
        array.copy() for array in (tables.speed_valid, tables.yaw_rate_valid, tables.time_valid)
    )
    speed_valid[data.anchors[1]] = yaw_rate_valid[data.anchors[2]] = time_valid[data.anchors[3], 1] = False
    changed = dataclasses.replace(tables, speed_valid=speed_valid, yaw_rate_valid=yaw_rate_valid, time_valid=time_valid)
    rows = probes._spaced(dataclasses.replace(data, tables=changed))
    whole = probes._spaced(data)
    assert rows.tolist() == [row for row in whole.tolist() if row not in data.anchors[[1, 2, 3]].tolist()]


def test_what_no_frame_can_tell_is_left_out_and_said(root: Path, monkeypatch: pytest.MonkeyPatch):
    config = pretraining(root)
    Encoder(monkeypatch)
    train, held_out = open_data(config.data, "train"), open_data(config.data, "test")
    unknown = dataclasses.replace(train.tables, yaw_rate_valid=np.zeros_like(train.tables.yaw_rate_valid))
    blind_to_speed = dataclasses.replace(train, tables=unknown)
    assert set(probes.probe(config, "good", blind_to_speed, held_out)) == {"retrieval_top1", "retrieval_chance"}
    monkeypatch.setattr(probes, "LATER_S", 0.25)  # no frame lies there: they are half a second apart
    assert set(probes.probe(config, "good", train, held_out)) == {"speed_r2", "yaw_rate_r2"}
    assert probes.probe(config, "good", blind_to_speed, held_out) == {}
    monkeypatch.setattr(probes, "probe", lambda *_: {"speed_r2": 0.5})
    assert evaluate.probe(config, "any")["notes"][0] == "retrieval_top1: no frame has another 0.25 s later"


def test_retrieval_finds_the_frame_half_a_second_before_among_those_of_its_drive(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    config = pretraining(root)
    fake = Encoder(monkeypatch)

    def encode(*args: Any, **more: Any) -> np.ndarray:
        return fake.encode(*args, **more)[:, :16]  # of two moments, without the speed

    monkeypatch.setattr(probes, "encode", encode)
    data = open_data(config.data, "test")
    candidates, later = probes._apart(data, int(data.episodes[0]))
    t = data.index.t
    np.testing.assert_allclose(t[candidates], [0.0, 2.0, 4.0])  # of 6 s, 2 s apart
    np.testing.assert_allclose(t[later], [0.5, 2.5, 4.5])
    assert set(data.index.episode_of(candidates).tolist()) == {int(data.episodes[0])}
    found = probes.retrieval(config, "good", data)
    assert found == {"retrieval_top1": 1.0, "retrieval_chance": pytest.approx(1 / 3)}
    assert fake.calls == [({"e0", "e1"}, False), ({"e0", "e1"}, True)]
    assert probes.retrieval(config, "blind", data)["retrieval_top1"] == pytest.approx(1 / 3), "always the first one"


def test_a_pretraining_is_probed_beside_fresh_weights_on_the_held_out_drives(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = pretraining(root)
    calls = []

    def probe(config: Any, encoder: Any, train: DrivingData, held_out: DrivingData, _: Any) -> dict[str, float]:
        calls.append((encoder if isinstance(encoder, str) else "fresh", ids(train), ids(held_out)))
        return {"speed_r2": 0.75 if encoder == "learnt" else 0.25}

    opened = []
    measured = SimpleNamespace(rows=np.zeros((1, 4)), measure=lambda params: {"holdout/loss": float(len(params))})
    monkeypatch.setattr(train, "HeldOut", lambda _, data: opened.append(ids(data)) or measured)
    monkeypatch.setattr(probes, "probe", probe)
    task = EvaluatedPretrain(config, open_data(config.data), tmp_path)
    state = TrainState(step=2, params={"encoder": "learnt"}, opt_state={}, target={})
    assert task.evaluate(state, final=False) == {"holdout/loss": 1}
    probed = {"model/speed_r2": 0.75, "untrained/speed_r2": 0.25}
    assert task.evaluate(state, final=True) == {"holdout/loss": 1} | probed
    assert opened == [{"v0"}]
    assert calls == [("learnt", {"t0", "t1"}, {"e0", "e1"}), ("fresh", {"t0", "t1"}, {"e0", "e1"})]
    written = json.loads((tmp_path / evaluate.REPORT).read_text())
    assert (written["step"], written["kind"], written["split"], written["drives"]) == (2, "pretraining", "test", 2)


def test_a_run_logs_validation_errors_and_at_its_end_the_table(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Predictors(monkeypatch, 0.5, **BLIND)
    config = make_config(root)
    task = EvaluatedWaypoints(config, open_data(config.data), tmp_path)
    state = TrainState(step=2, params={}, opt_state={}, target={})
    measured = {"val/ade_1s", "val/fde_1s", "val/ade_2s", "val/fde_2s", "holdout/loss"}
    assert set(task.evaluate(state, final=False)) == measured
    metrics = task.evaluate(state, final=True)
    assert metrics["model/ade_1s"] == pytest.approx(0.5)
    assert "history_mlp/fde_2s_low" not in metrics, "two drives have no interval"
    assert metrics["val/ade_1s"] == pytest.approx(0.5), "at the end too, for checkpoint.keep_best"
    assert len(metrics) == 6 * 4 + 5
    monkeypatch.setattr(metrics_of_drives, "LEAST_DRIVES", 2)
    metrics = task.evaluate(state, final=True)
    assert metrics["history_mlp/fde_2s_low"] == pytest.approx(2.0)
    assert len(metrics) == 6 * 4 * 3 + 5
    assert json.loads((tmp_path / evaluate.REPORT).read_text())["rows"]["ego_mlp"]["ade_1s"]["mean"] == pytest.approx(3)


@pytest.mark.parametrize("count", [3, 4, 6])
def test_what_is_predicted_and_encoded_is_of_the_row_that_was_asked_for(
    count: int, root: Path, monkeypatch: pytest.MonkeyPatch
):
    """By parts of four rows, of which the last is filled up with other rows; each answers with its own number."""

    def batch(self: DrivingData, rows: np.ndarray, draws: Any = None) -> Any:
        images = np.tile(rows[:, None, None].astype(np.float32), (1, 2, len(self.config.cameras)))
        return {"rows": rows, "images": images, "image_valid": np.ones(images.shape, bool)}

    def predict(batch: Any) -> np.ndarray:
        return np.tile(batch["rows"][:, None, None], (1, 4, 2)).astype(np.float32)

    monkeypatch.setattr(DrivingData, "batch", batch)
    monkeypatch.setattr(evaluate, "WaypointPolicy", lambda *_: SimpleNamespace(predict=predict))
    monkeypatch.setattr(evaluate.waypoints, "inputs", lambda batch, anchor, settings: batch)
    monkeypatch.setattr(probes, "_apply", lambda _: lambda encoder, images, valid: images[:, :1])
    rows, config = np.arange(10, 10 + count), pretraining(root)
    data = open_data(config.data, "all")
    assert evaluate.predict(make_config(root), {}, data, rows)[:, 0, 0].tolist() == rows.tolist()
    assert probes.encode(config, {}, data, rows).tolist() == [[row, row] for row in rows.tolist()]


def test_motion_that_nobody_knows_is_zero(root: Path):
    data = open_data(make_config(root).data, "test")
    known = np.ones((2, len(data.index.t)), bool)
    known[0, data.anchors[0]] = known[1, data.anchors[1]] = False
    rate = np.full_like(data.tables.yaw_rate_radps, 0.5)
    tables = dataclasses.replace(
        data.tables, speed_valid=known[0], yaw_rate_valid=known[1], yaw_rate_radps=rate, speed_mps=6 * rate
    )
    states = EgoStates(dataclasses.replace(data, tables=tables), data.anchors[:3])
    assert states.motion.tolist() == [[0.0, 0.5], [3.0, 0.0], [3.0, 0.5]]
    assert states.known[:, :2].tolist() == [[False, True], [True, False], [True, True]]


def test_frames_with_ratings_of_unknown_speed_are_counted(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Of four rated frames the speed of one is not known."""
    data = open_data(make_config(root).data, "test")
    states = EgoStates(data, data.anchors[:4])
    known = data.tables.speed_valid.copy()
    known[states.rows[1]] = False
    places = np.stack([9.0 * 0.25 * np.arange(1, 21), np.zeros(20)], axis=-1)
    rated = (Rated(waypoints=places, dt_s=0.25, score=8.0),)
    monkeypatch.setattr(type(data.index), "rated", lambda self, row: rated)
    shown = dataclasses.replace(data, tables=dataclasses.replace(data.tables, speed_valid=known))
    predicted = {"model": np.repeat(places[None, 1::2], 4, axis=0).astype(np.float32)}
    settings = DataConfig(path=str(root), image_size=(16, 24), waypoint_steps=10, waypoint_dt_s=DT, max_gap_s=0.6)
    notes: list[str] = []
    scores, count = evaluate._rater_feedback(make_config(root, data=settings), shown, states, predicted, notes)
    assert count == 3
    assert notes == ["rater_feedback: 1 frame(s) with rated trajectories left out, whose speed is not known"]
    assert np.isnan(scores["model"]).tolist() == [False, True, False, False]
