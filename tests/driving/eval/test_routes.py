"""`evaluate RUN --closed-loop`: who drives, what is reported, and that it is the same for any number of workers."""

import dataclasses
import errno
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import OptimConfig, RunConfig, TrainConfig
from chunkwise.errors import ConfigError, StorageError
from chunkwise.policies.load import load_policy
from chunkwise.reports.run_record import settings_of
from driving import evaluate, train
from driving.config import (
    CAMERAS,
    ConvConfig,
    DataConfig,
    DrivingConfig,
    EvalConfig,
    ModelConfig,
    RecordConfig,
    WaypointConfig,
)
from driving.data.batches import open_data
from driving.eval import routes
from driving.eval.closed_loop import Result
from driving.policies.policy import WaypointPolicy
from driving.policies.town import named
from driving.record import record
from tests.driving.drives import write_drive

GOOD = Result(
    no_fault_collision=1.0,
    drivable_area=1.0,
    driving_direction=1.0,
    traffic_light=1.0,
    ttc=1.0,
    comfort=1.0,
    metres=100.0,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    record(
        RecordConfig(episodes=4, seconds=3.0, image_size=(32, 48), processes=1), folder / "town", report=lambda _: None
    )
    config = DrivingConfig(
        run=RunConfig(dir=str(folder / "run")),
        train=TrainConfig(steps=2, batch_size=4),
        data=DataConfig(path=str(folder / "town"), image_size=(32, 48), val_fraction=0.25, test_fraction=0.25),
        model=ModelConfig(conv=ConvConfig(channels=(8, 8), blocks=(0, 1)), camera_width=8, scene_width=16),
        optim=OptimConfig(learning_rate=1e-2),
        waypoints=WaypointConfig(hidden_sizes=(16,)),
        eval=EvalConfig(batch_size=4, blind_updates=5, plotted_moments=0),
    )
    train.main(config, "test")
    return folder / "run"


@pytest.mark.long
def test_a_report_does_not_depend_on_the_number_of_workers(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    one = routes.evaluate_run(run, episodes=2, seed=4, workers=1, video=1, seconds=0.8)
    assert one["video"] == one["file"].replace(".json", ".mp4")
    assert Path(one["video"]).stat().st_size > 1000
    assert json.loads(Path(one["file"]).read_text()) == one
    two = routes.evaluate_run(run, episodes=2, seed=4, workers=2, seconds=0.8)
    assert two == one | {"video": None}
    assert list(one["rows"]) == ["expert", "stationary", "constant_velocity", "history_mlp", "model"]
    assert one["rows"]["expert"]["progress"]["mean"] == 1.0
    assert (one["routes"], one["seed"], one["step"]) == (2, 4, 2)
    seeds = [[drive["seed"] for drive in drives] for drives in one["drives"].values()]
    assert len({tuple(row) for row in seeds}) == 1
    assert len(set(seeds[0])) == 2
    assert all(drive["steps"] == 8 for drives in one["drives"].values() for drive in drives)
    metres = {name: [drive["metres"] for drive in drives] for name, drives in one["drives"].items()}
    # It brakes.
    assert all(less < more for less, more in zip(metres["stationary"], metres["constant_velocity"], strict=True))
    # An untrained model is the constant turn; cameras add little after two updates.
    np.testing.assert_allclose(metres["model"], metres["constant_velocity"], atol=3)
    assert "| run | " in routes.text(one, "run")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(routes.render, "write_some", fail)
    with pytest.raises(OSError, match="No space left"):
        routes.evaluate_run(run, episodes=2, seed=4, workers=1, video=1, seconds=1.0, lead_s=3.0, hold=5)
    name = "closed_loop-step_00000002-episodes_2-seed_4-seconds_1.0-lead_s_3.0-hold_5.json"
    led = json.loads((run / "evaluations" / name).read_text())  # written before the video
    # A step is 0.5 s for all but the town's own driver.
    assert [led["drives"][name][0]["steps"] for name in ("expert", "stationary", "model")] == [10, 2, 2]
    assert (one["settings"], led["settings"]) == ({"seconds": 0.8}, {"seconds": 1.0, "lead_s": 3.0, "hold": 5})
    assert {one["init_hash"] for one in led["outcomes"]}.isdisjoint(drive["init_hash"] for drive in one["outcomes"])

    monkeypatch.setattr(routes, "write_json", fail)
    capsys.readouterr()
    with pytest.raises(StorageError, match="No space left"):
        routes.evaluate_run(run, episodes=2, seed=4, workers=1, seconds=0.2, out=tmp_path / "full.json")
    assert "| run | " in capsys.readouterr().out, "what was driven is not lost"


@pytest.mark.long
def test_a_run_drives_a_recording_whatever_the_number_of_workers(run: Path, tmp_path: Path):
    config = RecordConfig(episodes=2, seconds=0.6, image_size=(32, 48), processes=1, driver=str(run), seed=7)
    record(config, tmp_path / "one", report=lambda _: None)
    record(dataclasses.replace(config, processes=2), tmp_path / "two", report=lambda _: None)
    record(dataclasses.replace(config, driver=None), tmp_path / "expert", report=lambda _: None)
    name = "episode_00001.json"
    one, two, expert = ((tmp_path / folder / name).read_text() for folder in ("one", "two", "expert"))
    assert one == two
    assert one != expert
    made = json.loads((tmp_path / "one/_dataset.json").read_text())["config"]["driver"]
    assert made == f"{run} at step 2, {load_policy(run).digest()}"  # pyright: ignore[reportAttributeAccessIssue]


def test_reports_that_list_no_settings_are_read_by_the_usual_ones():
    assert settings_of({"kind": "closed_loop", **routes._USUAL}) == {}
    asked = {"seconds": 5.0, "lead_s": 2.0, "hold": 3}
    assert settings_of({"kind": "closed_loop", **asked}) == asked


def test_the_table_is_of_routes_and_its_score_is_paired():
    hit = Result(**(vars(GOOD) | {"no_fault_collision": 0.0}))
    half = Result(**(vars(GOOD) | {"metres": 50.0}))
    results = {"expert": [GOOD] * 5, "history_mlp": [hit] * 5, "model": [GOOD, half, half, half, half]}
    table = routes.table_of(results)
    model = table["rows"]["model"]
    less = (5 + 5 * 0.5 + 2) / 12
    assert model["score"]["mean"] == pytest.approx((1 + 4 * less) / 5)
    assert model["progress"]["mean"] == pytest.approx(0.6)
    assert model["no_fault_collision"] == pytest.approx(
        {"mean": 1.0, "low": 0.5655, "high": 1.0}, abs=1e-4
    )  # Wilson, 5 of 5
    assert table["rows"]["history_mlp"]["no_fault_collision"]["high"] == pytest.approx(0.4345, abs=1e-4)
    assert table["rows"]["history_mlp"]["score"]["mean"] == 0.0
    assert table["gain"]["history_mlp"]["mean"] == pytest.approx(model["score"]["mean"])
    assert table["gain"]["expert"]["mean"] == pytest.approx(model["score"]["mean"] - 1)
    # t quantile of 4 degrees of freedom 2.7764, deviation of (1, .5, .5, .5, .5) 0.2236.
    assert model["progress"]["high"] == pytest.approx(0.6 + 2.7764 * 0.2236 / np.sqrt(5), abs=1e-3)
    wide = routes.table_of(results | {"model": [GOOD, GOOD, GOOD, GOOD, half]})["rows"]["model"]["progress"]
    assert (wide["mean"], wide["high"]) == (0.9, 1.0)  # 1.18 without the bound


def test_progress_is_measured_by_the_expert_of_the_same_route():
    far = Result(**(vars(GOOD) | {"metres": 200.0}))
    results = {"expert": [GOOD, far], "model": [far, GOOD]}
    assert routes.table_of(results)["rows"]["model"]["progress"]["mean"] == pytest.approx((1.0 + 0.5) / 2)


class Asked(WaypointPolicy):
    """A policy that notes what it is asked."""

    spec: Any = None  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, names: tuple[str, ...]) -> None:
        self.spec = SimpleNamespace(observation=dict.fromkeys(names))
        self.seen: list[Mapping[str, Any]] = []

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        self.seen.append(observation)
        return {"actions": np.full((1, 20, 2), observation["speed_mps"], np.float32)}


def test_a_policy_is_asked_for_each_car_by_its_own_names():
    policy = Asked(("image/front", "speed_mps", "past_speed_mps", "route_command"))
    driver = routes._Policy(policy=policy)
    seen = {
        "front": np.arange(2 * 12, dtype=np.uint8).reshape(2, 2, 2, 3),
        "side_left": np.zeros((2, 2, 2, 3), np.uint8),
        "speed_mps": np.array([3.0, 4.0], np.float32),
        "past_speed_mps": np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        "route_command": np.array([1.0, 3.0], np.float32),
    }
    plans = driver(seen, [(0,), (1,)], ["", ""])
    np.testing.assert_array_equal(plans, np.repeat([[[3.0]], [[4.0]]], 40, axis=2))
    first, second = policy.seen
    assert (first["route_command"], second["route_command"]) == (["left"], ["right"])
    assert list(first["image"]) == ["front"]
    np.testing.assert_array_equal(second["image"]["front"], seen["front"][1:])
    np.testing.assert_array_equal(second["past_speed_mps"], [[4, 5, 6]])


def test_those_who_see_nothing_go_straight_on_or_stand():
    seen = {"speed_mps": np.array([5.0], np.float32)}
    on = routes._Straight(steps=4, dt_s=0.5)(seen, [(0,)], [""])
    np.testing.assert_allclose(on, [[[2.5, 0, 5.0, 0, 7.5, 0, 10.0, 0]]])
    assert not routes._Straight(share=0.0)(seen, [(0,)], [""]).any()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--episodes", "3", "--json"], "--episodes, --json: expected with --closed-loop"),
        (["--closed-loop", "--episodes", "0"], "--episodes is 0; expected at least 1"),
        (["--closed-loop", "--seed", "-1"], "--seed is -1; expected at least 0"),
        (["--closed-loop", "--seconds", "nan"], "--seconds is nan; expected at least 0.1"),
        (["--closed-loop", "--lead-s", "inf"], "--lead-s is inf; expected at least 0, and a finite number"),
    ],
)
def test_flags_that_have_no_effect_are_refused(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(sys, "argv", ["evaluate", str(tmp_path), *flags])
    assert evaluate.main() == 64
    assert said in capsys.readouterr().err


def test_the_least_values_are_taken():
    words = "RUN --closed-loop --episodes 1 --seed 0 --workers 1 --video 0 --lead-s 0 --hold 1"
    given = {"episodes": 1, "seed": 0, "workers": 1, "video": 0, "lead-s": 0.0, "hold": 1}
    assert evaluate.read_arguments(words.split()).driving == given


def test_reports_can_be_read_by_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    asked: list[dict[str, float]] = []
    places: list[Path | None] = []
    table = routes.table_of({"expert": [GOOD], "model": [GOOD]})
    report = {"routes": 1, "seconds": 5.0, "lead_s": 12.0, "file": "x.json", "video": None, **table}

    def drives(run: Path, out: Path | None, **given: float) -> dict[str, Any]:
        asked.append(given)
        places.append(out)
        return report

    monkeypatch.setattr(routes, "evaluate_run", drives)
    words = ["evaluate", "--again", str(tmp_path), "--closed-loop", "--episodes", "7", "--lead-s", "12", "--hold", "5"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    assert evaluate.main() == 0
    assert json.loads(capsys.readouterr().out) == report
    monkeypatch.setattr(sys, "argv", [*words, "--out", "mine.json"])
    assert evaluate.main() == 0
    said = capsys.readouterr().out
    assert f"| {tmp_path.name} | 1.000 | 1.000 |" in said
    assert "| closed loop, 1 routes of 5 s behind up to 12 s of the expert |" in said
    assert asked == [{"episodes": 7, "lead_s": 12.0, "hold": 5}] * 2
    assert places == [None, Path("mine.json")]


def test_the_town_shows_what_a_run_was_trained_on():
    data, steps = DataConfig(path="x", image_size=(32, 48)), TrainConfig(steps=1, batch_size=1)
    config = DrivingConfig(train=steps, data=data, waypoints=WaypointConfig())
    spec = routes.spec_of(config)
    assert (spec.cameras, spec.image_size) == (CAMERAS, (32, 48))
    assert routes.open_town(spec, config, seconds=1.0).action_dim == 40


@pytest.mark.parametrize(
    ("seen", "recorded", "shown"),
    [
        ((64, 64), (64, 96), (64, 96)),  # stretched: the vertical angle stays that of the recording
        ((32, 48), (64, 96), (32, 48)),  # the same angles, at less cost
        ((64, 96), (64, 96), (64, 96)),
        ((64, 64), None, (64, 64)),
    ],
)
def test_the_town_is_shown_with_the_angles_of_the_recording(
    seen: tuple[int, int], recorded: tuple[int, int] | None, shown: tuple[int, int]
):
    record = None if recorded is None else RecordConfig(image_size=recorded)
    data, steps = DataConfig(path="x", image_size=seen), TrainConfig(steps=1, batch_size=1)
    config = DrivingConfig(train=steps, data=data, waypoints=WaypointConfig(), record=record)
    assert routes.spec_of(config).image_size == shown


def test_where_nothing_was_to_be_recorded_the_data_say_the_angles(tmp_path: Path):
    """As of a dataset that was recorded before, and of a config with record None."""
    write_drive(tmp_path, "one", frames=4, size=(32, 48))
    data, steps = DataConfig(path=str(tmp_path), image_size=(32, 32)), TrainConfig(steps=1, batch_size=1)
    config = DrivingConfig(train=steps, data=data, waypoints=WaypointConfig())
    index = open_data(data, "all").index
    assert routes.spec_of(config, index).image_size == (32, 48)
    same = dataclasses.replace(config, data=dataclasses.replace(data, image_size=(64, 96)))
    assert routes.spec_of(same, index).image_size == (64, 96)
    elsewhere = dataclasses.replace(config, data=dataclasses.replace(data, cameras=("roof",)))
    assert routes.spec_of(elsewhere, index).image_size == (32, 32), "no image, no angle"
    packed = dataclasses.replace(config, record=RecordConfig(image_size=(90, 160)))
    assert routes.spec_of(packed, index).image_size == (32, 48), "config.record made other data than these"


def test_cameras_of_several_ratios_are_told(tmp_path: Path):
    """The town has one size for all; whichever is named first is shown as it was recorded."""
    write_drive(tmp_path, "one", frames=4, size=(32, 48))
    data, steps = DataConfig(path=str(tmp_path), image_size=(32, 32)), TrainConfig(steps=1, batch_size=1)
    config = DrivingConfig(train=steps, data=data, waypoints=WaypointConfig())
    index = open_data(data, "all").index
    assert routes.other_angles(config, index) == ""
    sizes = index.image_size.copy()
    sizes[:, index.cameras.index("front_left")] = (24, 48)
    sizes[:, index.cameras.index("front_right")] = (64, 96)
    several = dataclasses.replace(index, image_size=sizes)
    said = routes.other_angles(config, several)
    assert said.startswith(
        "images were recorded as front 32 x 48, front_left 24 x 48, and the town renders all cameras"
    )
    blind = dataclasses.replace(config, waypoints=WaypointConfig(use_cameras=False))
    alone = dataclasses.replace(config, data=dataclasses.replace(data, cameras=("front",)))
    assert routes.other_angles(blind, several) == routes.other_angles(alone, several) == ""


def test_a_camera_that_no_episode_has_is_off_in_the_town(tmp_path: Path):
    """In training it was masked in every sample: what the model makes of its images nothing has taught."""

    def front_alone(tree: dict[str, Any]) -> None:
        tree["cameras"] = ["front"]
        for frame in tree["frames"]:
            seen = frame["observations"]
            seen["cameras"] = {"front": seen["cameras"]["front"]}

    write_drive(tmp_path, "one", frames=4, size=(32, 48), change=front_alone)
    seen = DataConfig(path=str(tmp_path), image_size=(32, 48), cameras=("side_left", "front"), offsets_s=(-0.1, 0.0))
    settings = WaypointConfig(use_moments=True, use_calibration=True)
    config = DrivingConfig(train=TrainConfig(steps=1, batch_size=1), data=seen, waypoints=settings)
    index = open_data(seen, "all").index
    spec = routes.spec_of(config, index)
    assert spec.cameras == ("front@-0.1", "front")
    policy: Any = SimpleNamespace(spec=SimpleNamespace(observation=dict.fromkeys(NAMES)))
    shown = {name: np.zeros(1) for name in (*spec.cameras, "intrinsics/front", "extrinsics/front")}
    given = named(policy, shown)
    off = {kind for kind, entries in given.items() for camera, value in entries.items() if value is None}
    assert off == {"image", "intrinsics", "extrinsics"}
    assert [*given["image"]] == ["side_left@-0.1", "front@-0.1", "side_left", "front"]
    assert [camera for camera, value in given["image"].items() if value is None] == ["side_left@-0.1", "side_left"]


NAMES = (
    *(f"image/{name}" for name in ("side_left@-0.1", "front@-0.1", "side_left", "front")),
    *(f"{matrix}/{name}" for matrix in ("intrinsics", "extrinsics") for name in ("side_left", "front")),
)


def test_a_run_that_sees_what_the_town_does_not_show_is_refused_before_anything_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    policy = WaypointPolicy.__new__(WaypointPolicy)
    data, steps = DataConfig(path="x", offsets_s=(-1.4, 0.0)), TrainConfig(steps=1, batch_size=1)
    policy.config = DrivingConfig(train=steps, data=data, waypoints=WaypointConfig(use_moments=True))
    monkeypatch.setattr(routes, "load_policy", lambda run: policy)
    monkeypatch.setattr(routes, "open_data", lambda *_: pytest.fail("the dataset was opened"))
    with pytest.raises(
        ConfigError, match=r"drive in the town, and data\.offsets_s is \(-1\.4, 0\.0\); expected moments"
    ):
        routes.evaluate_run(tmp_path)
    with pytest.raises(ConfigError, match=r"o\.mp4, and --video writes there too; expected a name that ends in \.json"):
        routes.evaluate_run(tmp_path, video=1, out=tmp_path / "o.mp4")
    policy.config = DrivingConfig(train=steps, data=DataConfig(path="x"), waypoints=WaypointConfig())
    with pytest.raises(ConfigError, match=r"--hold is 21 tenths of a second; expected at most 20, where a plan"):
        routes.evaluate_run(tmp_path, hold=21)
    others = dataclasses.replace(data, cameras=("rear",), offsets_s=(0.0,))
    policy.config = DrivingConfig(train=steps, data=others, waypoints=WaypointConfig())
    with pytest.raises(ConfigError, match=r"data\.cameras is \('rear',\); expected some of the town's"):
        routes.evaluate_run(tmp_path)


@pytest.mark.parametrize(("place", "code"), [("folder", 64), ("file/report.json", 74)])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, code: int
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    policy = WaypointPolicy.__new__(WaypointPolicy)
    steps = TrainConfig(steps=1, batch_size=1)
    policy.config = DrivingConfig(train=steps, data=DataConfig(path="x"), waypoints=WaypointConfig())
    policy.step = 1
    monkeypatch.setattr(routes, "load_policy", lambda run: policy)
    monkeypatch.setattr(routes, "open_data", lambda *_: pytest.fail("the dataset was opened"))
    words = [str(tmp_path), "--closed-loop", "--out", str(tmp_path / place)]
    monkeypatch.setattr(sys, "argv", ["driving.evaluate", *words])
    assert evaluate.main() == code
    assert str(tmp_path / place) in capsys.readouterr().err


def test_a_full_disk_does_not_take_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """At the end of a run, and of a command."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rows = {"model": {"speed_r2": 0.5}, "untrained": {"speed_r2": 0.1}}
    result = {"kind": "pretraining", "split": "test", "drives": 3, "rows": rows, "notes": []}
    monkeypatch.setattr(evaluate, "write_json", fail)
    with pytest.raises(StorageError, match=r"evaluation.json: No space left.*Last durable step"):
        evaluate.report(result, tmp_path, 7)
    assert "0.500" in capsys.readouterr().out
    monkeypatch.setattr(evaluate, "read_config", lambda *_: SimpleNamespace(objective=object(), run=None))
    monkeypatch.setattr(evaluate, "read_weights", lambda *_: (2, {"encoder": {}}))
    monkeypatch.setattr(evaluate, "_require_same_drives", lambda *_: None)
    monkeypatch.setattr(evaluate, "probe", lambda *_: result)
    with pytest.raises(StorageError, match="make room, and --again writes it"):
        evaluate.evaluate_run(tmp_path)
    assert "0.500" in capsys.readouterr().out
