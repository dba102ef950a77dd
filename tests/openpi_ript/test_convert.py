"""Rollouts of a run as a LeRobot dataset: what was seen, done and reached, and RIPT's groups again."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.cli import verbs
from chunkwise.data import convert as driver
from chunkwise.data.convert import Jobs
from chunkwise.data.lerobot.meta import read_meta
from chunkwise.envs.rollout import load, save
from chunkwise.envs.suites.metaworld import HARD
from chunkwise.errors import ConfigError, DataError
from chunkwise.train.run_dir import RunFolder
from openpi_ript import convert
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.model import Optimality, toy
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.policies.saved import TOKENIZER
from openpi_ript.ript.layer_4 import load_layer_4
from openpi_ript.robots.adapter import OWN, Adapter
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_rollouts import make_rollout, point

CAMERAS = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
SHOWN = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
OUTCOMES = {(4, 0, 0): True, (4, 0, 1): False, (4, 0, 2): False, (8, 5, 0): True, (8, 5, 1): True, (8, 5, 2): False}
"""Whether a rollout succeeded, by step, initial state and number."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert")
    root = make_dataset(folder)
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(path=str(root), robot=robot, cameras=CAMERAS, horizon=8, image_size=(28, 28))
    acting: dict[str, Any] = {"env": point(cameras=SHOWN), "eval": EvalConfig(), "guidance": None}
    acting["rollout"] = RolloutConfig(start=0, updates=1, groups=1, max_groups=1, size=3, objective="rejection")
    config = small_config(root, folder / "run", data=data, model=toy("pi0"), **acting)
    with RunFolder(config, "test"):
        pass
    (folder / "run" / TOKENIZER).write_bytes((root / "tokenizer.model").read_bytes())
    for (step, state, k), success in OUTCOMES.items():
        one = make_rollout(4 + k, success=success, seed=1000 + state, init_hash=f"{state:016x}")
        save(folder / f"run/rollouts/step_{step:08d}-abc/state_{state:05d}-{k:02d}.npz", one)
    return folder / "run"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_rollout_is_an_episode_and_groups_are_found_again(run: Path, tmp_path: Path, capsys: Any):
    out = tmp_path / "out"
    assert convert.main([str(run), str(out)]) == 0
    assert "wrote 6 episodes" in capsys.readouterr().out
    assert read_meta(out).fps == 10, "the simulated point's"
    data = DataConfig(
        path=str(out),
        robot=RobotConfig(state_dim=2, target_state_dim=2, action_dim=3),
        cameras=CAMERAS,
        horizon=2,
        image_size=(12, 12),
        state_norm="none",
        init_key="group",
        advantage=AdvantageConfig(normalization="none", clipping="none", negative_handling="none"),
    )
    opened = open_data(data)
    # Leave-one-out: 1 0 0 gives 1, -1/2, -1/2; 1 1 0 gives 1/2, 1/2, -1.
    rollouts = opened.to_ript.rollouts
    np.testing.assert_allclose(rollouts.raw_advantage, [1, -0.5, -0.5, 0.5, 0.5, -1])
    assert rollouts.success.tolist() == list(OUTCOMES.values())
    row = 0
    for path in convert.find_rollouts(run):
        rollout = load(path)
        for t in range(rollout.length):
            sample = opened.sample(row)
            np.testing.assert_array_equal(sample["state"], rollout.observations["position"][t])
            np.testing.assert_array_equal(sample["action"][0], rollout.actions[t])
            for name, seen in SHOWN.items():
                np.testing.assert_array_equal(sample["image"][name], rollout.observations[seen][t])
            row += 1
    assert row == len(opened.rows)


def test_the_same_rollouts_give_the_same_bytes_and_later_rounds_alone(run: Path, tmp_path: Path):
    for name, workers in (("a", 1), ("b", 2)):
        convert.convert(run, tmp_path / name, fps=7, jobs=Jobs(workers=workers))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert convert.convert(run, tmp_path / "late", first_step=5, fps=12.5) == 3
    assert read_meta(tmp_path / "late").fps == 12.5


def test_the_description_names_all_tasks(run: Path, tmp_path: Path):
    """A set of the suite by the names of its tasks, as training plays them."""
    shutil.copytree(run, tmp_path / "run")
    saved = tmp_path / "run/config.json"
    before = json.loads(saved.read_text())
    several = {"env.task": "", "env.prompt": ""}
    for changes, expected in (
        ({}, "red"),
        (several | {"env.tasks": ["red", "blue"]}, "red, blue"),
        (several | {"env.suite": "metaworld", "env.tasks": ["hard", "reach-v3"]}, ", ".join((*HARD, "reach-v3"))),
    ):
        saved.write_text(json.dumps(before | changes))
        out = tmp_path / f"out{len(expected)}"
        convert.convert(tmp_path / "run", out, fps=7)
        assert json.loads((out / "meta/info.json").read_text())["synthetic"]["task"] == expected


def test_the_dump_of_a_policy_that_gave_nan_is_no_episode(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run")
    save(tmp_path / "run/rollouts/step_00000004-abc/state_00000-00.nan.npz", make_rollout(2, success=False))
    assert convert.find_rollouts(tmp_path / "run") == [
        tmp_path / "run" / path.relative_to(run) for path in convert.find_rollouts(run)
    ]
    assert convert.convert(tmp_path / "run", tmp_path / "out", fps=7) == 6


def test_a_bad_rollout_is_named_or_left_out_and_the_others_are_numbered_without_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/rollouts/step_00000004-abc/state_00000-01.npz").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"1 problem(.|\n)*state_00000-01\.npz"):
        convert.convert(tmp_path / "run", tmp_path / "out", fps=7)
    monkeypatch.setattr(driver, "MAX_SKIPPED", 1 / 6)
    convert.convert(tmp_path / "run", tmp_path / "out", fps=7, jobs=Jobs(on_bad="skip"))
    (tmp_path / "run/rollouts/step_00000004-abc/state_00000-01.npz").unlink()
    convert.convert(tmp_path / "run", tmp_path / "without", fps=7)
    assert files(tmp_path / "out") == files(tmp_path / "without")
    assert len(read_meta(tmp_path / "out").episodes) == 5


def test_a_start_that_two_rounds_played_is_a_group_of_each(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/rollouts")
    for step, success in ((4, (True, False)), (8, (True, True))):
        for k, one in enumerate(success):
            path = tmp_path / f"run/rollouts/step_{step:08d}-abc/state_00000-{k:02d}.npz"
            save(path, make_rollout(2, success=one, seed=1000, init_hash="0" * 16))
    convert.convert(tmp_path / "run", tmp_path / "out", fps=7)
    table = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out").glob("data/*/*"))])
    assert table["group"].to_pylist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(table["initial_state"].to_pylist()) == {1000}


def test_a_rollout_that_a_run_adds_meanwhile_changes_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(run, tmp_path / "run")
    settle = convert._Conversion.settle

    def played(self: Any, looks: Any) -> Any:
        save(tmp_path / "run/rollouts/step_00000004-abc/state_00000-03.npz", make_rollout(9))
        return settle(self, looks)

    monkeypatch.setattr(convert._Conversion, "settle", played)
    convert.convert(tmp_path / "run", tmp_path / "out", fps=7, jobs=Jobs(workers=2))
    convert.convert(run, tmp_path / "before", fps=7)
    assert files(tmp_path / "out") == files(tmp_path / "before")


def test_a_bad_rollout_is_left_out_of_layer_4_too(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/rollouts/step_00000008-abc/state_00005-01.npz").write_bytes(b"torn")
    monkeypatch.setattr(driver, "MAX_SKIPPED", 1 / 6)
    jobs = Jobs(on_bad="skip")
    convert.convert(tmp_path / "run", tmp_path / "out", fps=7, as_layer_4=True, jobs=jobs)
    labels = [load_layer_4(path)["optimality"] for path in sorted((tmp_path / "out/layer_4").iterdir())]
    good, bad = Optimality.POSITIVE, Optimality.NEGATIVE
    assert labels == [good, bad, bad], "the second group is not whole, and has no advantages"
    assert len(read_meta(tmp_path / "out").episodes) == 5


def test_only_whole_groups_have_advantages_and_those_that_ended_alike_none(run: Path, tmp_path: Path, capsys: Any):
    """In one round: the group of before, one of three successes, and one that a stop left with two of three."""
    shutil.copytree(run, tmp_path / "run")
    for state, successes in ((6, (True, True, True)), (7, (True, False))):
        for k, success in enumerate(successes):
            path = tmp_path / f"run/rollouts/step_00000004-abc/state_{state:05d}-{k:02d}.npz"
            save(path, make_rollout(2, success=success, seed=1000 + state, init_hash=f"{state:016x}"))
    assert convert.main([str(tmp_path / "run"), str(tmp_path / "out"), "--layer-4"]) == 0
    assert "2 of 11 rollouts are of groups that are not there whole" in capsys.readouterr().out
    assert len(read_meta(tmp_path / "out").episodes) == 11
    found = [load_layer_4(path) for path in sorted((tmp_path / "out/layer_4").iterdir())]
    softened = np.log1p(np.exp(np.sqrt(2) * np.array([1, -0.5, -0.5])))  # as without the other two groups
    expected = [*softened, 0, 0, 0, *np.log1p(np.exp(np.sqrt(2) * np.array([0.5, 0.5, -1])))]
    np.testing.assert_allclose([episode["total_reward"] for episode in found], expected, atol=1e-6)
    assert [episode["optimality"] for episode in found[3:6]] == [Optimality.NONE] * 3


def test_layer_4_of_a_run_without_its_cameras_is_refused_before_anything_is_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = convert.read_config(run)
    assert config.env is not None
    blind = dataclasses.replace(config.env, cameras={"base_0_rgb": "agentview_image"})
    shown = dataclasses.replace(config.data, cameras={"base_0_rgb": CAMERAS["base_0_rgb"]})
    monkeypatch.setattr(convert, "read_config", lambda folder: dataclasses.replace(config, env=blind, data=shown))
    with pytest.raises(ConfigError, match=r"env.cameras of the run has no \['robot0_eye_in_hand_image'\]"):
        convert.convert(run, tmp_path / "out", as_layer_4=True)
    assert not list(tmp_path.iterdir())


def test_outcomes_that_the_config_does_not_read_are_no_columns(run: Path):
    config = convert.read_config(run)
    path = convert.find_rollouts(run)[0]
    data = dataclasses.replace(config.data, reward_key="none")
    columns = convert.recorded(load(path), dataclasses.replace(config, data=data), path).columns
    assert "none" not in columns
    assert columns["next.success"].tolist() == [False] * 3 + [True]
    data = dataclasses.replace(data, success_key="none")
    columns = convert.recorded(load(path), dataclasses.replace(config, data=data), path).columns
    assert sorted(columns) == ["action", "group", "initial_state", "observation.state"]


def test_what_cannot_be_converted_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for words, code, message in [
        ([str(run), str(tmp_path / "there")], 64, "exists; convert into a folder that does not exist yet"),
        ([str(run), str(tmp_path / "link")], 64, "exists; convert into a folder that does not exist yet"),
        ([str(run), str(tmp_path / "x"), "--first-step", "9"], 65, "expected rollouts of update 9 or later"),
        ([str(run), str(tmp_path / "x"), "--fps", "0"], 64, "--fps is 0"),
        ([str(run.parent / "dataset"), str(tmp_path / "x")], 64, "is a LeRobot dataset already"),
        ([str(tmp_path), str(tmp_path / "x")], 64, "config.json"),
    ]:
        assert convert.main(words) == code
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    config = convert.read_config(run)
    blind = make_rollout(4)
    blind = dataclasses.replace(blind, observations={"position": blind.observations["position"]})
    with pytest.raises(
        DataError, match=r"one.npz: expected observations \['agentview_image', 'robot0_eye_in_hand_image'\]"
    ):
        convert.recorded(blind, config, tmp_path / "one.npz")


def test_a_run_tells_its_package(run: Path):
    assert verbs.resolve(["convert", str(run), "out"]) == ("openpi_ript.convert", [str(run), "out"])


class Halved(Adapter):
    """A robot whose state is half of the simulator's first number, and whose cameras see the left to the right."""

    def simulated_state(self, state: np.ndarray) -> np.ndarray:
        return state[..., :1] / 2

    def simulated_image(self, image: np.ndarray) -> np.ndarray:
        return image[..., ::-1, :]


def test_state_and_images_are_those_of_the_robot(run: Path):
    config = convert.read_config(run)
    path = convert.find_rollouts(run)[0]
    rollout = load(path)
    plain, made = (convert.recorded(rollout, config, path, adapter) for adapter in (OWN, Halved()))
    key = config.data.state_key
    np.testing.assert_array_equal(made.columns[key], plain.columns[key][:, :1] / 2)
    assert made.columns[key].dtype == np.float32
    np.testing.assert_array_equal(made.columns["action"], rollout.actions, "which the robot executed")
    for name in plain.images:
        for ours, theirs in zip(made.images[name], plain.images[name], strict=True):
            np.testing.assert_array_equal(ours, theirs[:, ::-1])


def test_an_adapter_that_the_run_brought_has_to_be_allowed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    name = "tests.openpi_ript.test_convert:Halved"
    config = convert.read_config(run)
    robot = dataclasses.replace(config.data.robot, adapter=name)
    theirs = dataclasses.replace(config, data=dataclasses.replace(config.data, robot=robot))
    monkeypatch.setattr(convert, "read_config", lambda folder: theirs)
    assert convert.main([str(run), str(tmp_path / "out")]) == 64
    assert f"data.robot.adapter is '{name}', which would import" in capsys.readouterr().err
    assert convert.main([str(run), str(tmp_path / "out"), "--allow-code", name]) == 0


def test_layer_4_lies_beside_the_dataset_and_says_the_same(run: Path, tmp_path: Path, capsys: Any):
    out, plain = tmp_path / "out", tmp_path / "plain"
    assert convert.main([str(run), str(out), "--layer-4"]) == 0
    convert.convert(run, plain)
    both = files(out)
    written = sorted(name for name in both if name.startswith("layer_4/"))
    assert written == [f"layer_4/episode_{number:06d}.npz" for number in range(6)]
    assert {name: content for name, content in both.items() if name not in written} == files(plain)
    # Leave-one-out: of one success in three, 1 - 0 and 0 - 1/2; of two, 1 - 1/2 and 0 - 1. The mean of each round is 0
    # and the deviation the root of 1/2; softplus of what is divided by it.
    expected = [1, -0.5, -0.5, 0.5, 0.5, -1]
    config = convert.read_config(run)
    for name, path, advantage in zip(written, convert.find_rollouts(run), expected, strict=True):
        rollout, episode = load(path), load_layer_4(out / name)
        assert (episode["task"], episode["success"]) == (rollout.prompt, rollout.success)
        assert episode["total_reward"] == pytest.approx(np.log1p(np.exp(advantage * np.sqrt(2))), abs=1e-6), name
        assert episode["optimality"] == (Optimality.POSITIVE if advantage > 0 else Optimality.NEGATIVE)
        assert len(episode["observations"]) == rollout.length
        first, last = episode["observations"][0], episode["observations"][-1]
        assert first["agentview_image"].shape == (*config.data.image_size, 3)
        np.testing.assert_array_equal(last["robot0_eef_pos"], rollout.observations["robot0_eef_pos"][-2])
        assert first["robot0_eef_quat"] == rollout.observations["robot0_eef_quat"][0].tolist()
        np.testing.assert_array_equal(episode["actions"][0][: rollout.length], rollout.actions)
        np.testing.assert_array_equal(episode["action_is_pad"][-1], [False] + [True] * (config.data.horizon - 1))
    data = dataclasses.replace(config.data, path=str(out), horizon=8, norm_stats=None)
    chunks = [open_data(data).raw(row) for row in range(4)]
    first = load_layer_4(out / written[0])
    for row, raw in enumerate(chunks):
        np.testing.assert_array_equal(raw["action"], first["actions"][row])
        np.testing.assert_array_equal(raw["action_is_pad"], first["action_is_pad"][row])


def test_layer_4_that_is_damaged_or_impossible_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    convert.convert(run, out, as_layer_4=True)
    path = out / "layer_4/episode_000000.npz"
    with np.load(path) as found:
        arrays = dict(found)
    for changed, said in (
        ({"action_is_pad": arrays["action_is_pad"][1:]}, "expected 4 rows"),
        ({"observations/agentview_image": None}, "KeyError"),
        ({"optimality": np.array([1, 2])}, "TypeError"),
    ):
        kept: dict[str, Any] = {name: x for name, x in (arrays | changed).items() if x is not None}
        np.savez(path, **kept)
        with pytest.raises(DataError, match=said):
            load_layer_4(path)
    config = convert.read_config(run)
    monkeypatch.setattr(convert, "read_config", lambda folder: dataclasses.replace(config, rollout=None))
    with pytest.raises(DataError, match="expected a run with rollout in its config"):
        convert.convert(run, tmp_path / "none", as_layer_4=True)
    assert not (tmp_path / "none").exists()
