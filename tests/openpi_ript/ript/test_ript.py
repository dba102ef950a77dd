"""The round: which groups are played and trained on, how rollouts become data, what a resumed run takes from disk."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.rollout import load, save
from chunkwise.errors import ConfigError, DataError
from chunkwise.state import TrainState
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.ript.rollout_data import Group, drawn_rows, training_data
from openpi_ript.ript.round import Ript
from openpi_ript.robots.adapter import Adapter
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_rollouts import FakeCollector, FakePolicy, make_rollout, point

ROLLOUT = RolloutConfig(start=2, updates=4, groups=2, max_groups=4, size=4, initial_states=6, retry_after=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("ript"))


def make_config(root: Path, folder: Path, **rollout: Any) -> OpenpiRiptConfig:
    data = DataConfig(
        path=str(root),
        robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3),
        cameras={},
        horizon=8,
        action_norm="mean_std",
    )
    return small_config(
        root,
        folder,
        data=data,
        env=point(),
        rollout=dataclasses.replace(ROLLOUT, **rollout),
        eval=EvalConfig(),
    )


def make_group(*successes: bool, first: int = 0, init_hash: str = "a" * 16) -> Group:
    rollouts = [
        make_rollout(4 + k, success=one, seed=first + k, init_hash=init_hash) for k, one in enumerate(successes)
    ]
    return Group(state=0, files=[f"{first + k}.npz" for k in range(len(rollouts))], rollouts=rollouts)


def make_ript(
    config: OpenpiRiptConfig,
    data: TrainingData,
    folder: Path,
    collector: FakeCollector,
) -> Ript:
    return Ript(config, data, folder, collector, FakePolicy())


def states_of(names: Sequence[str]) -> list[int]:
    """Initial states in the order in which they were begun."""
    return list(dict.fromkeys(int(name.split("_")[1].split("-")[0]) for name in names))


def interact(ript: Ript, step: int, weights: str = "a") -> Any:
    state = TrainState(step=step, params=weights, opt_state={}, target={})
    return ript.interact(state, step, lambda: False)


def test_windows_carry_the_advantage_of_their_rollout(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    assert config.rollout is not None
    groups = [make_group(True, False, False), make_group(True, True, False, first=9, init_hash="b" * 16)]
    env = point(cameras={"base_0_rgb": "agentview_image"})
    data = training_data(open_data(config.data), groups, env, config.rollout)
    assert data is not None
    lengths = [4, 5, 6, 4, 5, 6]
    assert data.table.lengths.tolist() == lengths
    np.testing.assert_allclose(data.to_ript.rollouts.raw_advantage, [1, -0.5, -0.5, 0.5, 0.5, -1])
    labels = [Optimality.POSITIVE, Optimality.NEGATIVE, Optimality.NEGATIVE] + [Optimality.POSITIVE] * 2
    assert data.to_ript.rollouts.optimality.tolist() == [*labels, Optimality.NEGATIVE]
    assert data.rows.tolist() == list(range(sum(lengths))), "every frame is a start"
    assert data.to_ript.rollouts.success.tolist() == [True, False, False, True, True, False]
    assert data.to_ript.rollouts.length.tolist() == lengths
    rollout = groups[0].rollouts[1]
    raw = data.raw(4 + 3)  # frame 3 of the second rollout, which has 5
    np.testing.assert_array_equal(raw["state"], rollout.observations["position"][3])
    np.testing.assert_array_equal(raw["action"], rollout.actions[[3, 4, 4, 4, 4, 4, 4, 4]])
    assert raw["action_is_pad"].tolist() == [False, False] + [True] * 6
    sample = data.sample(4 + 3)
    assert sample["prompt"] == "move to the red disc"
    np.testing.assert_allclose(sample["advantages"], data.to_ript.rollouts.advantage[1])


@pytest.mark.parametrize("handling", ["softplus", "shift", "exponential"])
def test_failures_stay_negative_where_no_weight_is(handling: Any, root: Path, tmp_path: Path):
    """Shaping makes every advantage positive; whether a rollout was better than its group is told by the raw one."""
    advantage = AdvantageConfig(negative_handling=handling)
    config = make_config(root, tmp_path, advantage=advantage)
    assert config.rollout is not None
    data = training_data(open_data(config.data), [make_group(True, False, False)], point(), config.rollout)
    assert data is not None
    assert (data.to_ript.rollouts.advantage >= 0).all()
    labels = [Optimality.POSITIVE, Optimality.NEGATIVE, Optimality.NEGATIVE]
    assert data.to_ript.rollouts.optimality.tolist() == labels


def test_rejection_imitates_all_successes_and_nothing_else(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path, objective="rejection")
    assert config.rollout is not None
    groups = [make_group(True, False), make_group(True, True, first=5, init_hash="b" * 16)]
    data = training_data(open_data(config.data), groups, point(), config.rollout)
    assert data is not None
    assert data.table.lengths.tolist() == [4, 4, 5]
    assert data.to_ript.rollouts.optimality.tolist() == [Optimality.POSITIVE] * 3
    assert data.to_ript.rollouts.advantage.tolist() == [1.0] * 3


def test_images_of_rollouts_are_read_by_frame(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    cameras = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
    data_config = dataclasses.replace(config.data, cameras=cameras, image_size=(12, 12))
    groups = [make_group(True, False)]
    shown = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
    assert config.rollout is not None
    data = training_data(open_data(data_config), groups, point(cameras=shown), config.rollout)
    assert data is not None
    for camera, name in shown.items():
        image = groups[0].rollouts[1].observations[name][2]
        np.testing.assert_array_equal(data.sample(4 + 2)["image"][camera], image)


def test_rollouts_are_seen_as_the_robots_adapter_says(root: Path, tmp_path: Path):
    """Training on them gets the state and the images that the policy acted on."""

    class Turned(Adapter):
        def simulated_state(self, state: np.ndarray) -> np.ndarray:
            return state[..., ::-1].copy()

        def simulated_image(self, image: np.ndarray) -> np.ndarray:
            return image[..., ::-1, :].copy()

    config = make_config(root, tmp_path)
    assert config.rollout is not None
    camera = {"base_0_rgb": "observation.images.base"}
    opened = open_data(dataclasses.replace(config.data, cameras=camera))
    opened = dataclasses.replace(opened, to_openpi=dataclasses.replace(opened.to_openpi, adapter=Turned()))
    group = make_group(True, False)
    shown = {"base_0_rgb": "agentview_image"}
    data = training_data(opened, [group], point(cameras=shown), config.rollout)
    assert data is not None
    raw = data.raw(group.rollouts[0].length + 1)
    rollouts = group.rollouts
    np.testing.assert_array_equal(raw["state"], rollouts[1].observations["position"][1][::-1])
    image = rollouts[1].observations["agentview_image"][1]
    np.testing.assert_array_equal(raw["images"]["observation.images.base"], image[:, ::-1])


def test_rollouts_of_different_initial_states_are_no_group():
    rollouts = [make_rollout(init_hash="a" * 16), make_rollout(init_hash="b" * 16)]
    with pytest.raises(DataError, match=r"0.npz and its group: expected one initial state"):
        Group(state=0, files=["0.npz", "1.npz"], rollouts=rollouts)


def test_groups_alike_are_replaced_and_solved_states_rest(root: Path, tmp_path: Path):
    collector = FakeCollector(lambda state, k: k < 2 if state >= 3 else state == 0)
    config = make_config(root, tmp_path)
    ript = make_ript(config, open_data(config.data), tmp_path, collector)
    ript.rewind(None)
    assert (ript.start, ript.every) == (2, 4)
    told = interact(ript, 2)
    tried = states_of(collector.played)
    mixed = [state for state in tried if state >= 3]
    assert len(mixed) == 2 or len(tried) == 4, "goes on until enough groups are mixed, or too many were tried"
    assert told["rollouts/mixed_groups"] == [float(state >= 3) for state in tried]
    assert len(told["rollouts/success"]) == 4 * len(tried)
    position = ript.position()
    solved = [state for state in tried if state == 0]
    assert position["resting"] == [{"state": state, "init_hash": f"{state:016x}", "step": 2} for state in solved]
    assert [[name.split("-")[0] for name in group] for group in position["rounds"][0]["groups"]] == [
        [f"state_{state:05d}"] * 4 for state in mixed
    ]
    collector.played.clear()
    interact(ript, 6, "b")
    assert not set(states_of(collector.played)) & set(solved), "they rest for 8 updates"
    collector.played.clear()
    interact(ript, 10, "c")
    rested = {rest["state"] for rest in position["resting"]}
    still = {rest["state"] for rest in ript.position()["resting"] if rest["step"] == 2}
    assert not still
    assert rested <= {0}


def test_early_stop_goes_on_with_fewer_groups(root: Path, tmp_path: Path):
    collector = FakeCollector(lambda state, k: k < 2 if state == 3 else True)
    config = make_config(root, tmp_path, early_stop=0.5, max_groups=6)
    ript = make_ript(config, open_data(config.data), tmp_path, collector)
    interact(ript, 2)
    tried = states_of(collector.played)
    assert 3 in tried
    assert tried.index(3) >= len(tried) - 2, "the wave in which the one mixed group was is the last"


def test_rounds_are_let_go_of_by_their_age_and_then_the_weights_stay(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    solved = False
    collector = FakeCollector(lambda state, k: solved or k < 2)
    config = make_config(root, tmp_path, replay_rounds=2, retry_after=100)
    data = open_data(config.data)
    ript = make_ript(config, data, tmp_path, collector)

    def supervised(start: int) -> Any:
        return data.batches(seed=5, batch_size=4, start_step=start)

    def actions(step: int, ript: Ript = ript) -> np.ndarray:
        return next(ript.batches(supervised, step))["action"]

    interact(ript, 2)
    rounds = ript.position()["rounds"]
    solved = True
    interact(ript, 6, "b")
    assert ript.position()["rounds"] == rounds, "the round before last is one of the newest two"
    assert not np.array_equal(actions(6), next(supervised(6))["action"])
    capsys.readouterr()
    told = interact(ript, 10, "c")
    assert ript.position()["rounds"] == []
    resting = len(ript.position()["resting"])
    said = f"step 10: nothing to learn from, every group ended alike and {resting} of 6 initial states rest, solved"
    assert said in capsys.readouterr().out
    assert told is not None
    assert set(told) >= {"rollouts/success", "rollouts/resting_states"}
    for shard in range(2):
        batches = ript.batches(supervised, 10, shard=shard, num_shards=2)
        assert [next(batches)["no_signal"].tolist() for _ in range(2)] == [[True] * 2] * 2

    interact(ript, 14, "d")
    collector.played.clear()
    capsys.readouterr()
    assert interact(ript, 18, "e") == {"rollouts/resting_states": [6.0]}, "all rest, so none is tried"
    assert collector.played == []
    said = "step 18: nothing to learn from, no group was played and 6 of 6 initial states rest, solved; the next 4"
    assert f"{said} updates leave the weights as they are" in capsys.readouterr().out
    again = make_ript(config, data, tmp_path, collector)
    again.rewind(ript.position())
    assert set(next(again.batches(supervised, 18))) == {"no_signal"}
    solved = False
    interact(again, 110, "f")
    assert [one["step"] for one in again.position()["rounds"]] == [110], "they are checked again"
    assert not np.array_equal(actions(110, again), next(supervised(110))["action"])


def test_a_first_round_that_solves_all_goes_on_and_one_that_solves_nothing_is_refused(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    ript = make_ript(config, open_data(config.data), tmp_path / "y", FakeCollector(lambda state, k: True))
    assert interact(ript, 2)["rollouts/success"] == [1.0] * 16
    hopeless = make_ript(config, open_data(config.data), tmp_path / "x", FakeCollector(lambda state, k: False))
    with pytest.raises(ConfigError, match="every group of the first round ended alike"):
        interact(hopeless, 2)


def test_before_any_round_batches_are_the_datasets_also_where_the_first_update_has_one(root: Path, tmp_path: Path):
    """A dry run asks for one without a round."""
    config = make_config(root, tmp_path, start=0)
    data = open_data(config.data)
    ript = make_ript(config, data, tmp_path, FakeCollector(lambda state, k: True))

    def supervised(start: int) -> Any:
        return data.batches(seed=5, batch_size=4, start_step=start)

    np.testing.assert_array_equal(next(ript.batches(supervised, 0))["action"], next(supervised(0))["action"])
    interact(ript, 0)
    assert set(next(ript.batches(supervised, 0))) == {"no_signal"}


def test_a_resumed_round_plays_what_is_missing_alone(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    data = open_data(config.data)
    whole = FakeCollector(lambda state, k: k < 2)
    untouched = make_ript(config, data, tmp_path / "whole", whole)
    told = interact(untouched, 2)

    broken = FakeCollector(lambda state, k: k < 2)
    broken.stop_after = 3
    assert interact(make_ript(config, data, tmp_path / "cut", broken), 2) is None
    (tmp_path / "cut/rollouts" / f"step_00000002-{'a' * 12}" / f"{whole.played[1][:-4]}.npz.part").write_bytes(b"x")
    resumed = FakeCollector(lambda state, k: k < 2)
    again = make_ript(config, data, tmp_path / "cut", resumed)
    again.rewind(None)
    assert interact(again, 2) == told
    assert resumed.played == whole.played[3:]
    assert again.position() == untouched.position()

    other = FakeCollector(lambda state, k: k < 2)
    interact(make_ript(config, data, tmp_path / "cut", other), 2, "b")
    assert other.played == whole.played, "other weights play their own"


def test_rewind_gives_the_same_batches_and_names_what_is_missing(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path, replay_rounds=2)
    data = open_data(config.data)
    collector = FakeCollector(lambda state, k: k < 2)
    ript = make_ript(config, data, tmp_path, collector)
    interact(ript, 2)
    interact(ript, 6, "b")
    position = ript.position()
    assert [one["step"] for one in position["rounds"]] == [2, 6]

    def supervised(start: int) -> Any:
        return data.batches(seed=5, batch_size=4, start_step=start)

    expected = [batch for batch, _ in zip(ript.batches(supervised, 6), range(3), strict=False)]
    halves = [next(ript.batches(supervised, 6, shard=i, num_shards=2)) for i in (0, 1)]
    for name in ("action", "optimality"):
        np.testing.assert_array_equal(np.concatenate([half[name] for half in halves]), expected[0][name])
    other = make_ript(config, data, tmp_path, collector)
    other.rewind(position)
    assert other.position() == position
    found = [batch for batch, _ in zip(other.batches(supervised, 6), range(3), strict=False)]
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one["action"], two["action"])
        np.testing.assert_array_equal(one["optimality"], two["optimality"])
    first = next(ript.batches(supervised, 0))
    assert first["optimality"].tolist() == [Optimality.POSITIVE] * 4, "the dataset before the first round"

    victim = tmp_path / "rollouts" / position["rounds"][0]["folder"] / position["rounds"][0]["groups"][0][0]
    own = victim.read_bytes()
    for wrong in (position["rounds"][0]["groups"][0][1], "weights"):
        if wrong == "weights":
            rollout = load(victim, by_frame=True)
            save(victim, dataclasses.replace(rollout, weights="f" * len(rollout.weights)))
        else:
            victim.write_bytes((victim.parent / wrong).read_bytes())
        with pytest.raises(DataError, match=rf"{victim.name}: expected the rollout of the .*, found that of .*copy"):
            make_ript(config, data, tmp_path, collector).rewind(position)
        victim.write_bytes(own)
    make_ript(config, data, tmp_path, collector).rewind(position)
    victim.write_bytes(own[:700])
    for _ in ("damaged", "missing"):
        with pytest.raises(
            DataError, match=f"{victim.name}.* bring the file back from a copy .* or begin the run anew"
        ):
            make_ript(config, data, tmp_path, collector).rewind(position)
        victim.unlink(missing_ok=True)


def test_what_does_not_go_together_is_refused(root: Path, tmp_path: Path):
    config = make_config(root, tmp_path)
    with pytest.raises(ValueError, match="expected env and eval together"):
        dataclasses.replace(config, eval=None)
    with pytest.raises(ValueError, match=r"env.execute is 9"):
        dataclasses.replace(config, env=point(execute=9))
    with pytest.raises(ValueError, match=r"expected updates after it"):
        dataclasses.replace(config, rollout=dataclasses.replace(ROLLOUT, start=6))
    with pytest.raises(ValueError, match=r"env.cameras"):
        dataclasses.replace(config, env=point(cameras={"base_0_rgb": "agentview_image"}))
    for name in ("num_envs", "rows"):
        with pytest.raises(ValueError, match=rf"env.{name} is 1026; expected at most 1024"):
            point(**{name: 1026})
        with pytest.raises(ValueError, match=rf"EnvConfig.{name} is 0; expected a number above 0"):
            point(**{name: 0})
    for size in ((0, 24), (24, 4097)):
        with pytest.raises(ValueError, match=r"env.image_size is .* expected two numbers from 1 to 4096"):
            point(image_size=size)
    with pytest.raises(ValueError, match=r"rollout.size is 1"):
        dataclasses.replace(ROLLOUT, size=1)


def test_the_interaction_of_a_supervised_run_is_none(root: Path, tmp_path: Path):
    from openpi_ript.tasks.ript import RiptTask

    config = dataclasses.replace(
        make_config(root, tmp_path),
        rollout=None,
        guidance=None,
        model=dataclasses.replace(make_config(root, tmp_path).model, optimality=False),
    )
    task = RiptTask(config, open_data(config.data), tmp_path)
    assert task.ript is None
    assert SimpleNamespace(**next(task.batches(0))).actions.shape == (4, 8, 8)


def test_where_a_value_labels_chunks_half_of_the_rows_are_of_successes(root: Path, tmp_path: Path):
    """Kills: sides told by the groups' labels, which a group that ended alike has none of."""
    config = make_config(root, tmp_path)
    assert config.rollout is not None
    groups = [
        make_group(True, True),
        make_group(False, False, first=5, init_hash="b" * 16),
        make_group(True, False, first=9, init_hash="c" * 16),
    ]
    data = training_data(open_data(config.data), groups, point(), config.rollout)
    assert data is not None
    drawn = np.array(drawn_rows(data, 20_000, "tasks", np.random.default_rng(0)))
    success = data.to_ript.rollouts.success[data.episodes_of(drawn)]
    assert success.mean() == pytest.approx(0.5, abs=0.02)
    of_episode = np.bincount(data.episodes_of(drawn), minlength=6) / len(drawn)
    # By frames inside each side: 4 + 5 + 4 of successes, 4 + 5 + 5 of failures.
    expected = np.array([4, 5, 0, 0, 4, 0]) / 26 + np.array([0, 0, 4, 5, 0, 5]) / 28
    np.testing.assert_allclose(of_episode, expected, atol=0.01)
