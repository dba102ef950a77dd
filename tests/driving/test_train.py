"""Runs from a config to their end: what they write, what a pretraining hands on, what is frozen."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.reader import read_newest
from chunkwise.config.experiment import CheckpointConfig, OptimConfig, RunConfig, TrainConfig
from chunkwise.errors import ConfigError, DataError, MismatchError, require_equal
from chunkwise.state import TrainState
from chunkwise.train import rngs
from driving import evaluate
from driving.config import (
    ConvConfig,
    DataConfig,
    DrivingConfig,
    EvalConfig,
    ModelConfig,
    ObjectiveConfig,
    VitConfig,
    WaypointConfig,
)
from driving.data.batches import open_data
from driving.data.validation import calibrated_note, require_calibrated, require_futures, require_held_out
from driving.tasks import pretrain, waypoints
from driving.train import EvaluatedWaypoints, main
from tests.driving.drives import write_drive

quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
MODEL = ModelConfig(conv=ConvConfig(channels=(8, 8), blocks=(0, 1)), camera_width=8, scene_width=16)
ALL = ObjectiveConfig(cross_camera=1.0, temporal=1.0, masked=1.0, ego_motion=1.0, projection=8)


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drives")
    for i in range(6):
        write_drive(folder, f"drive_{i}", frames=40, start_yaw=float(i))
    return folder


def config(folder: Path, drives: Path, **more: object) -> DrivingConfig:
    base = DrivingConfig(
        run=RunConfig(dir=str(folder)),
        train=TrainConfig(steps=6, batch_size=8, log_every=3),
        data=DataConfig(path=str(drives), image_size=(16, 24), val_fraction=0.2, test_fraction=0.2),
        model=MODEL,
        optim=OptimConfig(learning_rate=1e-2, weight_decay=0.1),
        waypoints=WaypointConfig(hidden_sizes=(16,)),
        eval=EvalConfig(batch_size=8, every=4, blind_updates=20, plotted_moments=1),
        checkpoint=CheckpointConfig(every=3),
    )
    return dataclasses.replace(base, **more)  # pyright: ignore[reportArgumentType]


def pretraining(folder: Path, drives: Path) -> DrivingConfig:
    data = dataclasses.replace(config(folder, drives).data, offsets_s=(0.0, 0.5))
    return config(folder, drives, objective=ALL, waypoints=None, data=data)


@pytest.mark.parametrize(("learnt", "told"), [("these", False), ("others", True), (None, False)])
def test_a_start_that_learnt_from_other_drives_is_told(
    learnt: str | None, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A split that was drawn anew: a drive that is held out now may be one that the start has seen."""
    made_with = {} if learnt is None else {"dataset.manifest": learnt}
    monkeypatch.setattr(waypoints, "list_saves", lambda run: [SimpleNamespace(step=9), SimpleNamespace(step=6)])

    def read(run: Path, step: int) -> dict[str, str]:
        if step == 9:
            raise DataError("damaged: the run begins from step 6")
        return made_with

    monkeypatch.setattr(waypoints, "read_fingerprint", read)
    waypoints.tell_of_other_drives(Path("runs/start"), "these")
    assert ("waypoints.weights runs/start learnt from other drives" in capsys.readouterr().out) == told


@pytest.mark.long
def test_from_pretraining_to_a_frozen_encoder(tmp_path: Path, drives: Path, capsys: pytest.CaptureFixture[str]):
    first = pretraining(tmp_path / "pretrain", drives)
    main(first, "pretrain")
    rows = [json.loads(line) for line in (tmp_path / "pretrain/metrics.jsonl").read_text().splitlines()]
    assert {"cross_camera", "temporal", "masked", "ego_motion", "feature_std", "effective_rank"} <= rows[0].keys()
    assert {"model/speed_r2", "untrained/retrieval_top1"} <= rows[-1].keys()

    frozen = WaypointConfig(hidden_sizes=(16,), weights=str(tmp_path / "pretrain"), freeze=True)
    second = config(tmp_path / "frozen", drives, waypoints=frozen)
    capsys.readouterr()
    main(second, "frozen")
    assert "learnt from other drives" not in capsys.readouterr().out
    shapes = jax.eval_shape(lambda: waypoints.init_params(second, rngs.key(0, "init")))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    _, arrays = read_newest(tmp_path / "frozen", {"params": shapes})
    encoder = waypoints.read_encoder(tmp_path / "pretrain", second)
    jax.tree.map(np.testing.assert_array_equal, arrays["params"]["encoder"], encoder)
    fresh = quick(lambda key: waypoints.init_params(second, key))(rngs.key(0, "init"))
    assert not np.array_equal(arrays["params"]["out"]["kernel"], fresh["out"]["kernel"])

    result = json.loads((tmp_path / "frozen" / evaluate.REPORT).read_text())
    assert set(result["rows"]) == {
        "model",
        "mean_trajectory",
        "constant_velocity",
        "constant_turn",
        "ego_mlp",
        "history_mlp",
    }
    # The drives are circles at constant speed, which this predictor knows.
    assert result["rows"]["constant_turn"]["ade_2s"]["mean"] < 0.01
    straight = np.array([[8 * t - 20 * np.sin(0.4 * t), 20 * (np.cos(0.4 * t) - 1)] for t in np.arange(1, 21) * 0.1])
    expected = float(np.linalg.norm(straight, axis=-1).mean())
    assert result["rows"]["constant_velocity"]["ade_2s"]["mean"] == pytest.approx(expected, rel=0.01)
    assert (tmp_path / "frozen" / evaluate.PLOT).stat().st_size > 10_000
    again = evaluate.evaluate_run(tmp_path / "frozen")
    assert again["rows"] == result["rows"]
    capsys.readouterr()
    probed = json.loads((tmp_path / "pretrain" / evaluate.REPORT).read_text())
    text = evaluate.table([("frozen", result), ("pretrain", probed)])
    assert text.count("| ego_mlp |") == 1
    assert "| frozen |" in text
    assert "| untrained |" in text

    with pytest.raises(ConfigError, match="its model is"):
        waypoints.read_encoder(
            tmp_path / "pretrain", dataclasses.replace(second, model=dataclasses.replace(MODEL, scene_width=32))
        )
    with pytest.raises(ConfigError, match="learnt waypoints"):
        waypoints.read_encoder(tmp_path / "frozen", second)


def test_the_target_follows_the_encoder(tmp_path: Path, drives: Path):
    one = pretraining(tmp_path, drives)
    task = pretrain.PretrainTask(one, open_data(one.data))
    state = quick(task.init)(rngs.key(0, "init"))
    batch = jax.tree.map(jnp.asarray, next(task.batches(0)))
    after, metrics = quick(task.step)(state, batch)
    expected = jax.tree.map(
        lambda old, new: 0.99 * np.asarray(old) + 0.01 * np.asarray(new), state.target, after.params["encoder"]
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.target, expected)
    parts = sum(float(metrics[name].value()) for name in ("cross_camera", "temporal", "masked", "ego_motion"))
    assert float(metrics["loss"].value()) == pytest.approx(parts, rel=1e-5)


@pytest.mark.long  # with the compiler as in training, as `.ci/full` runs it: without its fusion nothing differs
def test_updates_per_call_change_no_bit_of_a_pretraining(
    tmp_path: Path, drives: Path, capsys: pytest.CaptureFixture[str]
):
    """What depends on the batch alone the compiler computed before a call of one update, in another order."""
    objective = ObjectiveConfig(cross_camera=0.2, temporal=0.2, ego_motion=1.0, projection=8)
    for each in (1, 2):
        one = dataclasses.replace(pretraining(tmp_path / f"{each}", drives), objective=objective)
        one = dataclasses.replace(one, train=dataclasses.replace(one.train, steps=4, updates_per_call=each))
        main(one, "test")
    first, second = re.findall(r"digest=(\w+)", capsys.readouterr().out)
    assert first == second


def test_a_run_says_how_motion_was_derived_that_no_file_records(tmp_path: Path, drives: Path):
    """Earlier versions derived it from the frame after as well: their checkpoints lack the entry, and are refused."""

    def forget(*names: str) -> Callable[[dict[str, Any]], None]:
        def change(tree: dict[str, Any]) -> None:
            for frame in tree["frames"]:
                for name in names:
                    del frame["observations"]["state"][name]

        return change

    for i in range(3):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=5, change=forget("speed_mps"), start_yaw=float(i))
        write_drive(tmp_path / "still", f"drive_{i}", frames=1, change=forget("speed_mps"), start_yaw=float(i))
    derived = "dataset.motion_that_no_file_records"
    for root, expected in (
        (drives, {}),
        (tmp_path / "still", {}),  # nothing to derive it from
        (tmp_path / "drives", {derived: "speed_mps, from the frames before alone"}),
    ):
        for learns in (config(tmp_path, root), pretraining(tmp_path, root)):
            task = waypoints.WaypointTask if learns.waypoints else pretrain.PretrainTask
            marks = task(learns, open_data(learns.data)).data_fingerprint()  # pyright: ignore[reportArgumentType]
            found = {f"dataset.{key}": value for key, value in marks.items() if "motion" in key}
            assert found == (expected if learns.waypoints else {}), "a pretraining is given no motion"
    for i in range(3):
        write_drive(tmp_path / "slow", f"drive_{i}", frames=5, dt=0.5, start_yaw=float(i))
    assert open_data(config(tmp_path, tmp_path / "slow").data).derived() == {
        "gaps_of_slow_recordings": "bridged by their own rhythm"
    }
    with pytest.raises(MismatchError, match=r"motion_that_no_file_records: saved None, now 'speed_mps,[^$]*anew"):
        require_equal({}, {derived: "speed_mps, from the frames before alone"}, "the checkpoint was made")


def test_configs_that_make_no_sense_are_refused(tmp_path: Path, drives: Path):
    with pytest.raises(ValueError, match="either objective or waypoints"):
        config(tmp_path, drives, objective=ALL)
    with pytest.raises(ValueError, match="compare two moments"):
        config(tmp_path, drives, objective=ALL, waypoints=None)
    with pytest.raises(ValueError, match="every objective has weight 0"):
        ObjectiveConfig()


def test_images_of_no_whole_number_of_tokens_are_refused_by_the_config(tmp_path: Path, drives: Path):
    """Two stages: tokens of 4 * 2 pixels. Whoever looks at no image may have any size."""
    base = config(tmp_path, drives)
    odd = dataclasses.replace(base.data, image_size=(90, 160))
    words = r"data\.image_size is \(90, 160\); expected multiples of 8 pixels.* example \(88, 160\)"
    for learns in ({}, {"waypoints": None, "objective": ObjectiveConfig(cross_camera=1.0)}):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(base, data=odd, **learns)  # pyright: ignore[reportArgumentType]
    blind = WaypointConfig(hidden_sizes=(16,), use_cameras=False)
    assert dataclasses.replace(base, data=odd, waypoints=blind).data.image_size == (90, 160)
    vit = dataclasses.replace(MODEL, vit=VitConfig(patch_size=10))
    assert dataclasses.replace(base, data=odd, model=vit).model.token_pixels == 10


def test_a_run_without_drives_to_be_measured_on_is_refused_before_it_begins(tmp_path: Path):
    for i in range(4):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=15, start_yaw=float(i))
    none = dataclasses.replace(config(tmp_path, tmp_path / "drives").data, test_fraction=0.0)
    paired = dataclasses.replace(none, offsets_s=(0.0, 0.5))
    for learns in (
        config(tmp_path / "run", tmp_path / "drives", data=none),
        config(tmp_path / "run", tmp_path / "drives", data=paired, objective=ALL, waypoints=None),
    ):
        words = r"_split\.json: expected episodes of test \(eval\.split\).* found 3 train, 1 val, 0 test\. "
        with pytest.raises(DataError, match=words + r"Set --eval\.split val .* data\.test_fraction above 0"):
            main(learns, "none")
    # Without validation drives it is measured at its end alone.
    (tmp_path / "drives" / "_split.json").unlink()
    late = config(tmp_path, tmp_path / "drives", data=dataclasses.replace(none, val_fraction=0.0, test_fraction=0.25))
    data = open_data(late.data)
    require_held_out(data.index, late.data, late.eval.split)
    task = EvaluatedWaypoints(late, data, tmp_path)
    state = TrainState(step=1, params={}, opt_state={}, target={})
    assert task.evaluate(state, final=False) == {}
    task.help_evaluate(state, final=False)


def test_moments_without_images_are_refused_before_a_run_begins(tmp_path: Path):
    """Images in every second of the frames, 0.1 s apart: there is none half a second after a frame with one."""

    def every_second(tree: dict[str, Any]) -> None:
        for frame in tree["frames"][1::2]:
            frame["observations"]["cameras"] = {}

    for i in range(5):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=20, start_yaw=float(i), change=every_second)
    words = r"data\.offsets_s: expected an image at each of \[0\.0, 0\.5\].* found 0\.0% at \+0\.5 s.*"
    with pytest.raises(DataError, match=words + r"0\.2 s apart, so expected for example \(0\.0, 0\.4\)"):
        main(pretraining(tmp_path / "run", tmp_path / "drives"), "none")
    base = config(tmp_path / "run", tmp_path / "drives")
    before = dataclasses.replace(base.data, offsets_s=(-0.3, 0.0))
    moments = WaypointConfig(hidden_sizes=(16,), use_moments=True)
    with pytest.raises(DataError, match=r"found 0\.0% at -0\.3 s.* example \(-0\.2, 0\.0\)"):
        main(dataclasses.replace(base, data=before, waypoints=moments), "none")
    # Whoever looks at one moment alone may have them; a note tells.
    data = open_data(before, "train")
    assert "train: samples with an image: 0.0% at -0.3 s, 100.0% at +0 s" in data.notes
    there = open_data(dataclasses.replace(before, offsets_s=(0.0, 0.4)), "train")
    assert there.shown() == {0.0: 1.0, 0.4: 0.8}  # 10 frames a drive with an image, of which the last two lack it
    assert there.image_step_s() == pytest.approx(0.2)
    # Samples that lack images at a moment are incomplete; without cameras only frames are asked for.
    with pytest.raises(DataError, match=r"no frame is left to draw.* that lack a frame, or its images"):
        open_data(dataclasses.replace(before, incomplete="drop"), "train")
    assert (
        len(open_data(dataclasses.replace(before, offsets_s=(0.0, 0.4), incomplete="drop"), "train").anchors) == 3 * 8
    )
    blind = dataclasses.replace(before, incomplete="drop", min_cameras=0)
    assert len(open_data(blind, "train").anchors) == 3 * 17


def test_a_motion_that_is_never_known_is_not_learnt(tmp_path: Path):
    """Two of four drives lack their poses, then all."""

    def unknown(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            del frame["observations"]["state"]["x_m"], frame["observations"]["state"]["y_m"]

    for i in range(4):
        write_drive(tmp_path / "half", f"drive_{i}", frames=20, start_yaw=float(i), change=unknown if i % 2 else None)
        write_drive(tmp_path / "none", f"drive_{i}", frames=20, start_yaw=float(i), change=unknown)
    data = pretraining(tmp_path / "run", tmp_path / "half").data
    assert open_data(dataclasses.replace(data, offsets_s=(0.0, 0.4)), "all").moved() == pytest.approx(0.5 * 16 / 20)
    with pytest.raises(DataError, match=r"objective\.ego_motion: expected the vehicle's pose .*, found 0\.0%"):
        main(pretraining(tmp_path / "run", tmp_path / "none"), "none")


def test_an_encoder_is_not_given_to_a_model_without_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waypoints, "read_config", lambda run, cls: pretraining(tmp_path, tmp_path))
    blind = dataclasses.replace(config(tmp_path, tmp_path), waypoints=WaypointConfig(use_cameras=False))
    with pytest.raises(ConfigError, match="a pretraining, whose encoder has no place in a model without cameras"):
        waypoints.read_start(tmp_path, blind)


def test_waypoints_are_not_learnt_where_next_to_none_has_a_score(tmp_path: Path):
    """Drives of 0.9 s, of which no moment knows its next second; a pretraining takes them."""
    for i in range(3):
        write_drive(tmp_path / "drives", f"drive_{i}", frames=10, start_yaw=float(i))
    with pytest.raises(DataError, match=r"expected waypoints .* up to 1 s in at least 1% of the windows, found 0\.0%"):
        main(config(tmp_path / "run", tmp_path / "drives"), "none")
    open_data(pretraining(tmp_path / "run", tmp_path / "drives").data)


def test_a_split_without_futures_is_refused_before_a_run_begins(tmp_path: Path):
    """As Waymo's end-to-end test part: no pose, no future; people rated frames of the validation part."""

    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            state = frame["observations"]["state"]
            del state["x_m"], state["y_m"]
            if tree["source"]["split"] != "testing":
                frame["expert"] = {"waypoints": [[0.8 * step, 0.0] for step in range(1, 21)]}
            if tree["source"]["split"] == "validation" and i == 3:
                frame["expert"]["rated_trajectories"] = [{"score": 9, "dt": 0.25, "waypoints": [[2.0, 0.0]]}]

    for i, split in enumerate(("training", "training", "validation", "testing")):
        source = {"dataset": "e2e", "scene_id": str(i), "split": split}
        write_drive(tmp_path / "drives", f"drive_{i}", frames=15, start_yaw=float(i), change=change, source=source)
    learns = config(tmp_path / "run", tmp_path / "drives")
    words = r"_split\.json: expected frames of test \(eval\.split\) .* up to 1 s.* found none of 15 .*--eval\.split val"
    with pytest.raises(DataError, match=words):
        main(learns, "none")
    data = open_data(learns.data)
    known = data.tables.waypoint_valid.copy()
    assert require_futures(data.index, learns.data, "val", known) == ""
    known[data.index.rows(3)] = True
    note = require_futures(data.index, learns.data, "test", known)
    assert note.startswith("no frame of test (eval.split) has rated trajectories, 1 of val have")


def test_rays_are_not_learnt_where_no_image_is_calibrated(tmp_path: Path):
    def uncalibrated(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            for camera in frame["observations"]["cameras"].values():
                del camera["intrinsics"]

    def front_alone(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            for name, camera in frame["observations"]["cameras"].items():
                if name != "front":
                    del camera["extrinsics"]

    for i in range(4):
        start = float(i)
        write_drive(tmp_path / "none", f"drive_{i}", frames=15, start_yaw=start, change=uncalibrated)
        write_drive(tmp_path / "some", f"drive_{i}", frames=15, start_yaw=start, change=front_alone if i % 2 else None)
    rays = WaypointConfig(hidden_sizes=(16,), use_calibration=True)
    with pytest.raises(DataError, match=r"waypoints\.use_calibration: expected intrinsics and extrinsics of some"):
        main(config(tmp_path / "run", tmp_path / "none", waypoints=rays), "none")
    shares = open_data(config(tmp_path, tmp_path / "some").data, "all").calibrated()
    assert shares == {"front": 1.0, "front_left": 0.5, "front_right": 0.5, "side_left": 0.5, "side_right": 0.5}
    require_calibrated({"front": 0.0, "rear": 0.25}, "here")
    words = "images with intrinsics and extrinsics: 0.0% of front, 25.0% of rear"
    assert calibrated_note({"front": 0.0, "rear": 0.25}) == words
