"""Runs with labels by a value: what a config may ask, a run that was stopped, rounds of rollouts."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.envs.collect import Task
from chunkwise.errors import PreemptedError
from chunkwise.state import TrainState
from chunkwise.train.loop import fit
from chunkwise.train.metrics import mean_of
from chunkwise.train.run_dir import RunFolder
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import GuidanceConfig, OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.config.value import ValueConfig
from openpi_ript.data.batch import to_training_batch
from openpi_ript.data.dataset import TrainingData, open_data
from openpi_ript.envs.make import tasks_of
from openpi_ript.ript.round import Ript
from openpi_ript.tasks import supervised
from openpi_ript.tasks.supervised import SupervisedTask
from openpi_ript.tasks.value_labels import ValueLabels, task_names, with_returns
from openpi_ript.train import main
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config
from tests.openpi_ript.test_train import StopAt, resumed, rows
from tests.openpi_ript.toy_policy import compiled
from tests.openpi_ript.toy_rollouts import FakeCollector, FakePolicy, point

VALUE = ValueConfig(lookahead=4, bins=21, width=16, window=8)
GUIDANCE = GuidanceConfig(sample_steps=4, labels="value", value=VALUE)
ROLLOUT = RolloutConfig(start=2, updates=4, groups=2, max_groups=2, size=3, initial_states=6, dataset_share=0.5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("value")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


def acting(root: Path, folder: Path, **changes: Any) -> OpenpiRiptConfig:
    """A policy of states that acts in the simulated point."""
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(path=str(root), robot=robot, cameras={}, horizon=8, state_norm="none", action_norm="none")
    settings = {"data": data, "guidance": GUIDANCE, "env": point(), "rollout": ROLLOUT, "eval": EvalConfig()}
    return small_config(root, folder, **settings | changes)


def test_a_task_is_called_as_the_environment_calls_it(root: Path, tmp_path: Path):
    """What the dataset's prompts are called in metrics; the network has a number for each."""
    config = acting(root, tmp_path)
    data = open_data(config.data)
    prompts = with_returns(data, VALUE, ()).returns.prompts  # pyright: ignore[reportOptionalMemberAccess]
    known = [Task(name="first", prompt=prompts[0])]
    task = SupervisedTask(config, data, known)
    assert task._labels is not None
    assert task._labels._tasks == ("first", *prompts[1:])


def test_recorded_rollouts_are_judged_and_demonstrations_are_positive(root: Path, tmp_path: Path):
    """A dataset is one of rollouts where data.advantage says how they are compared."""
    rollouts = small_config(root, tmp_path).data
    assert rollouts.advantage is not None
    for data, positive in ((rollouts, False), (dataclasses.replace(rollouts, advantage=None), True)):
        batch = next(with_returns(open_data(data), VALUE, ()).batches(seed=0, batch_size=4, start_step=0))
        assert "returns" in batch
        assert batch["returns"]["forced"].tolist() == [positive] * 4


class Judge(ValueLabels):
    """A value that labels the rows 0, 1, 0 and is at 1 after an update."""

    def __init__(self) -> None:
        """Needs no config."""

    def step(self, state: Any, batch: Any, step: Any, key: Any) -> Any:
        assert "returns" in batch
        return jnp.array([0, 1, 0], jnp.int32), state + 1, {"value_loss": mean_of(jnp.ones(3))}


def test_an_update_takes_the_labels_and_keeps_the_value_after_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without the policy's gradient, which a test marked long has too."""
    learned_from: list[set[str]] = []

    def gradient(loss: Any, weights: Any, params: Any, trains: Any, batch: Any, *rest: Any) -> Any:
        learned_from.append(set(batch))
        return jax.tree.map(jnp.zeros_like, params), {"labels": batch["optimality"]}

    monkeypatch.setattr(supervised, "trained_gradient", gradient)
    task = supervised.Imitation(small_config(root, tmp_path, guidance=GUIDANCE), Judge())
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), task._shapes)

    @compiled
    def updated(params: Any, batch: Any) -> Any:
        return task.step(TrainState.create(params, task._optimiser, jnp.zeros(())), batch)

    after, metrics = updated(params, {"returns": {}, "optimality": jnp.full(3, 2, jnp.int32)})
    assert learned_from == [{"optimality"}]
    assert metrics["labels"].tolist() == [0, 1, 0]
    assert (int(after.step), float(after.target)) == (1, 1.0)
    assert {"value_loss", "gradient_norm", "labels"} == set(metrics)


def test_settings_without_effect_are_refused(tmp_path: Path):
    config = small_config(tmp_path, tmp_path)
    data = config.data

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=match):
            small_config(tmp_path, tmp_path, **{"guidance": GUIDANCE} | changes)

    with pytest.raises(ValueError, match="labels 'rloo', which has none"):
        GuidanceConfig(value=VALUE)
    with pytest.raises(ValueError, match="expected 'indicator'"):
        dataclasses.replace(GUIDANCE, positive_weight="advantage")
    refused("data.holdout 0.5", data=dataclasses.replace(data, holdout=0.5))
    refused("window is 8 and train.batch_size 9", train=TrainConfig(steps=6, batch_size=9))
    late = dataclasses.replace(GUIDANCE, value=dataclasses.replace(VALUE, warmup=6))
    refused("warmup is 6 and train.steps 6", guidance=late)
    corrected = dataclasses.replace(data, correction_key="by_hand")
    small_config(tmp_path, tmp_path, guidance=GUIDANCE, data=corrected)
    refused("correction_key is 'by_hand'", guidance=GuidanceConfig(), data=corrected)
    with pytest.raises(ValueError, match="correction_key"):
        acting(tmp_path, tmp_path, data=dataclasses.replace(acting(tmp_path, tmp_path).data, correction_key="by_hand"))
    for share, count in ((0.01, 0), (0.99, 4)):
        with pytest.raises(
            ValueError, match=rf"dataset_share is {share} and train.batch_size 4, .* rounded {count} rows"
        ):
            acting(tmp_path, tmp_path, rollout=dataclasses.replace(ROLLOUT, dataset_share=share))
    with pytest.raises(ValueError, match=r"dataset_share 1, with which no rollouts are played"):
        acting(tmp_path, tmp_path, rollout=dataclasses.replace(ROLLOUT, dataset_share=1.0))
    with pytest.raises(ValueError, match=r"rollout\.objective 'rejection'"):
        acting(tmp_path, tmp_path, rollout=dataclasses.replace(ROLLOUT, objective="rejection"))
    with pytest.raises(ValueError, match=r"rollout\.advantage"):
        acting(tmp_path, tmp_path, rollout=dataclasses.replace(ROLLOUT, advantage=AdvantageConfig(clip_value=1.0)))


@pytest.mark.parametrize(
    ("setting", "number"),
    [("bins", 1), ("lookahead", 0), ("positive_share", 0.0), ("positive_share", 1.0), ("failure_cost", 0.0)],
)
def test_numbers_that_a_value_cannot_have(setting: str, number: float):
    settings: Any = {setting: number}
    with pytest.raises(ValueError, match=rf"{setting} is {number}"):
        ValueConfig(**settings)


@pytest.mark.long
def test_a_run_that_was_stopped_ends_as_one_that_was_not(root: Path, tmp_path: Path):
    """With cameras; the digest is over the value, its optimiser and the newest advantages too."""
    untouched, stopped = (small_config(root, tmp_path / name, guidance=GUIDANCE) for name in "ab")
    main(untouched, "test")
    with RunFolder(stopped, "test") as folder:
        task = SupervisedTask(stopped, open_data(stopped.data))
        task.batches = StopAt(task, 2)
        with pytest.raises(PreemptedError, match="saved at step 3"):
            fit(stopped, task, folder)
    main(resumed(stopped), "test")
    assert (tmp_path / "a/done.json").read_bytes() == (tmp_path / "b/done.json").read_bytes()
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    logged = [row for row in rows(tmp_path / "a") if row["split"] == "train"]
    shares = {f"positive_share/move to the {disc} disc" for disc in ("red", "blue")}
    for row in logged:
        assert {"value_loss", "positive_share", "guided_loss"} <= set(row)
        assert 0 <= row["positive_share"] <= 1
    assert shares <= {name for row in logged for name in row}
    evaluated = [row for row in rows(tmp_path / "a") if row["split"] == "eval"]
    assert not any(name.startswith("advantages") for row in evaluated for name in row), "nothing of them is used"


@pytest.mark.long
def test_the_policy_learns_from_the_labels_of_the_value(root: Path, tmp_path: Path):
    """Its gradient is that of a plain task on a batch with these labels; the value's own is none of it."""
    config = small_config(root, tmp_path, guidance=GUIDANCE)
    task = SupervisedTask(config, open_data(config.data))
    plain_config = small_config(root, tmp_path)
    plain = SupervisedTask(plain_config, open_data(plain_config.data))
    state = compiled(task.init)(jax.random.key(1))
    batch: Any = next(task.batches(0))
    batch["optimality"][:] = Optimality.NONE  # that of whole rollouts, which nothing is to learn from
    after, metrics = compiled(task.step)(state, batch)
    labels = task._labels
    assert labels is not None
    label, value, _ = compiled(labels.step)(state.target, batch, state.step, jax.random.key(0))
    assert len(set(np.asarray(label).tolist())) == 2
    given = {name: part for name, part in batch.items() if name != "returns"} | {"optimality": label}
    expected, by_hand = compiled(plain.step)(state.replace(target={}), given)
    np.testing.assert_allclose(metrics["guided_loss"].value(), by_hand["guided_loss"].value(), rtol=1e-5)
    for one, other in zip(*map(jax.tree.leaves, (after.params, expected.params)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)  # a hundredth of Adam's step: two programs round differently
    for one, other in zip(*map(jax.tree.leaves, (after.target, value)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    fresh = compiled(plain.init)(jax.random.key(1))
    for one, other in zip(*map(jax.tree.leaves, (state.params, fresh.params)), strict=True):
        np.testing.assert_array_equal(one, other, "the policy starts where it would without a value")


def test_rounds_are_judged_whole_and_demonstrations_are_positive(root: Path, tmp_path: Path):
    """Every rollout is trained on, also of groups that ended alike, and no longer forced; half of a batch is the
    dataset's, which is."""
    config = acting(root, tmp_path)
    assert config.env is not None
    data = with_returns(open_data(config.data), VALUE, tasks_of(config.env))
    assert task_names(data, tasks_of(config.env)) == ("move to the blue disc", "red")
    alike = [Task(name=name, prompt="move to the red disc") for name in ("red", "crimson")]
    assert task_names(data, alike) == ("move to the blue disc", "red+crimson")
    ript = Ript(config, data, tmp_path, FakeCollector(lambda state, k: state % 2 == 0), FakePolicy())

    def supervised(first: int) -> Any:
        return data.batches(seed=5, batch_size=4, start_step=first)

    before = next(ript.batches(supervised, 0))
    assert "returns" in before
    assert before["returns"]["forced"].all()
    ript.interact(TrainState(step=2, params="a", opt_state={}, target={}), 2, lambda: False)
    position = ript.position()
    assert [len(group) for group in position["rounds"][0]["groups"]] == [3, 3], "none of them holds both outcomes"
    batch = next(ript.batches(supervised, 2))
    assert "returns" in batch
    assert batch["returns"]["forced"].tolist() == [False, False, True, True]
    training = ript._training
    assert isinstance(training, TrainingData)
    all_rows = to_training_batch([training.sample(row) for row in training.rows.tolist()])
    assert "returns" in all_rows
    outcomes = np.repeat(training.to_ript.rollouts.success, 4)
    left = np.tile([3, 2, 1, 0], 6)
    limit = 20  # of the environment: no episode is as long
    np.testing.assert_allclose(
        all_rows["returns"]["observed"], -(left + np.where(outcomes, 0, limit)) / (2 * limit), rtol=1e-6
    )
    assert {Optimality.POSITIVE} == set(before["optimality"].tolist())
    json.dumps(position)
