import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.config.load import load
from chunkwise.errors import ConfigError, DataError, PreemptedError
from chunkwise.train import rngs
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from openpi_ript import train
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality, toy
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.model.guidance import guided_loss
from openpi_ript.model.lora import only_where, trainable
from openpi_ript.model.pi0 import Observation, Pi0, init_params
from openpi_ript.policies.policy import Policy
from openpi_ript.policies.saved import read_run_weights
from openpi_ript.tasks.supervised import SupervisedTask
from openpi_ript.train import main
from openpi_ript.weights import by_path, save_openpi
from tests.openpi_ript.small_run import (
    RECORD,
    make_dataset,
    make_task,
    other_tokenizer,
    quick_compiling,
    small_config,
    supervised,
)
from tests.openpi_ript.toy_policy import compiled, make_model, random_params, save_safetensors
from tests.openpi_ript.toy_rollouts import point


class EnoughError(Exception):
    """Ends a run where a test has seen what it wanted to see."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("train")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


def resumed(config: OpenpiRiptConfig) -> OpenpiRiptConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class StopAt:
    """Sends this process SIGTERM when the batch of a step is asked for."""

    def __init__(self, task: SupervisedTask, step: int) -> None:
        self._batches = task.batches
        self._step = step

    def __call__(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[Any]:
        batches = self._batches(start_step, shard=shard, num_shards=num_shards)
        for step, batch in enumerate(batches, start=start_step):
            if step == self._step:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


@pytest.mark.long
def test_a_run_that_was_stopped_ends_as_one_that_was_not(root: Path, tmp_path: Path):
    untouched, stopped = (small_config(root, tmp_path / name) for name in "ab")
    main(untouched, "test")
    with RunFolder(stopped, "test") as folder:
        task = make_task(stopped)
        task.batches = StopAt(task, 2)
        with pytest.raises(PreemptedError, match="saved at step 3"):
            fit(stopped, task, folder)
    main(resumed(stopped), "test")
    assert (tmp_path / "a/done.json").read_bytes() == (tmp_path / "b/done.json").read_bytes()
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    *logged, evaluated = rows(tmp_path / "a")
    assert [row["step"] for row in logged] == [3, 6]
    counts = dict.fromkeys(("nan", "extreme", "clipped", "capped"), 0.0) | {"negative": 4.0}
    named = {f"advantages_{name}": count for name, count in counts.items()}
    assert evaluated == {"step": 6, "split": "eval"} | named
    expected = {"guided_loss", "flow_loss_positive", "flow_loss_none", "gradient_norm", "step", "split"}
    assert set(logged[0]) == expected
    assert json.loads((tmp_path / "a/norm_stats.json").read_text())["source"]["horizon"] == 8


def test_one_update_is_the_documented_one(root: Path, tmp_path: Path):
    """By hand: the loss with the key of that update, Adam on what trains."""
    config = small_config(root, tmp_path)
    task = make_task(config)
    state = compiled(task.init)(jax.random.key(1))
    batch: Any = jax.tree.map(jnp.asarray, next(task.batches(0)))
    step_of = compiled(task.step)
    after, metrics = step_of(state, batch)

    model, guidance = Pi0(config.model), config.guidance
    assert guidance is not None

    def loss(params: Any, key: jax.Array) -> Any:
        seen = Observation(**batch["observation"])
        label, advantage = batch["optimality"], batch["advantages"]
        args = (batch["actions"], batch["action_is_pad"], label, advantage, guidance, key)
        return guided_loss(model, params, seen, *args)[0]

    by_hand = compiled(jax.value_and_grad(loss))
    value, gradient = by_hand(state.params, rngs.key(config.run.seed, "loss", 0))
    np.testing.assert_allclose(metrics["guided_loss"].value(), value, rtol=1e-5)
    later = step_of(state.replace(step=state.step + 3), batch)[1]["guided_loss"].value()
    np.testing.assert_allclose(later, by_hand(state.params, rngs.key(config.run.seed, "loss", 3))[0], rtol=1e-5)
    assert abs(later - value) > 1e-3 * value, "other noise and times"
    trains = by_path(trainable(state.params, config.model))
    gradient = {name: np.asarray(leaf) for name, leaf in by_path(gradient).items() if trains[name]}
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in gradient.values()))
    np.testing.assert_allclose(metrics["gradient_norm"].value(), norm, rtol=1e-4)
    scale = min(1.0, 1.0 / norm)  # clip_norm 1
    before, now = by_path(state.params), by_path(after.params)
    for name, leaf in before.items():
        if not trains[name]:
            np.testing.assert_array_equal(now[name], leaf)
            continue
        g = gradient[name] * scale
        step = g / (np.abs(g) + 1e-8)  # Adam's first: its moments are corrected to g and g^2
        sure = np.abs(g) > 1e-5  # below, rounding decides the sign
        np.testing.assert_allclose((now[name] - leaf)[sure], -1e-2 * step[sure], rtol=2e-2, atol=1e-6, err_msg=name)
    assert int(after.step) == 1


def test_frozen_weights_have_no_optimiser_state(root: Path, tmp_path: Path):
    task = make_task(small_config(root, tmp_path))
    state = jax.eval_shape(task.init, jax.random.key(0))
    trained = only_where(state.params, trainable(state.params, task.config.model))
    frozen = len(jax.tree.leaves(state.params)) - len(jax.tree.leaves(trained))
    assert frozen > 0
    adam = [part for part in jax.tree.leaves(state.opt_state, is_leaf=is_adam) if is_adam(part)]
    assert len(adam) == 1
    assert len(jax.tree.leaves(adam[0].mu)) == len(jax.tree.leaves(trained))
    assert jax.tree.structure(state.ema) == jax.tree.structure(trained), "only these have an average"
    assert state.target == {}


def is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def test_supervised_training_keeps_no_average_and_needs_no_outcomes(root: Path, tmp_path: Path):
    config = supervised(small_config(root, tmp_path), train=TrainConfig(steps=6, batch_size=4))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, advantage=None))
    task = make_task(config)
    state = compiled(task.init)(jax.random.key(1))
    assert state.ema == {}
    _, metrics = compiled(task.step)(state, next(task.batches(0)))
    assert set(metrics) == {"flow_loss", "gradient_norm"}
    assert task.evaluate(state, final=True) == {}


def test_weights_of_openpi_are_where_training_and_its_average_start(root: Path, tmp_path: Path):
    stored = random_params(make_model("pi0"))  # no condition, as openpi's
    save_openpi(stored, tmp_path / "pi0/params")
    task = make_task(small_config(root, tmp_path / "run", weights=str(tmp_path / "pi0")))
    fresh = task.init(jax.random.key(0))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(fresh.params)), "nothing is drawn in vain"
    state = task.load(fresh)
    loaded = by_path(state.params)
    for name, leaf in by_path(stored).items():
        np.testing.assert_array_equal(loaded[name], leaf)
    assert not np.asarray(loaded["condition_embedding/embedding"]).any()
    for name, leaf in by_path(state.ema).items():
        np.testing.assert_array_equal(leaf, loaded[name])


@pytest.mark.long
def test_weights_are_loaded_when_a_run_begins_and_never_again(root: Path, tmp_path: Path):
    """The run goes on although the file is gone."""
    save_openpi(random_params(make_model("pi0")), tmp_path / "pi0/params")
    config = small_config(root, tmp_path / "run", weights=str(tmp_path / "pi0"))
    short = dataclasses.replace(config, train=TrainConfig(steps=2, batch_size=4, log_every=3))
    main(short, "test")
    shutil.rmtree(tmp_path / "pi0")
    main(resumed(dataclasses.replace(config, train=TrainConfig(steps=3, batch_size=4, log_every=3))), "test")
    assert json.loads((tmp_path / "run/done.json").read_text())["step"] == 3
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "train"] == [2, 3]


def test_weights_of_another_model_are_refused_with_what_differs(root: Path, tmp_path: Path):
    save_safetensors(random_params(make_model("pi05")), tmp_path / "pi05.safetensors")
    task = make_task(small_config(root, tmp_path, weights=str(tmp_path / "pi05.safetensors")))
    with pytest.raises(DataError, match="not of this model") as caught:
        task.load(task.init(jax.random.key(0)))
    assert "state_proj/kernel: missing" in str(caught.value)
    assert "time_mlp_in/kernel: not in the model" in str(caught.value)
    missing = make_task(small_config(root, tmp_path, weights=str(tmp_path / "nothing")))
    with pytest.raises(DataError, match="expected an openpi checkpoint"):
        missing.load(missing.init(jax.random.key(0)))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"retry_after": 0}, False),
        ({"retry_after": 1}, True),
        ({"retry_after": 4}, True),
        ({"retry_after": 5}, False),
        ({"retry_after": 4, "dataset_share": 1}, False),
        ({"retry_after": 4, "resume": True}, False),
    ],
)
def test_a_rest_that_ends_before_the_next_round_is_refused_before_anything_is_made(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], refused: bool
):
    resume = settings.get("resume", False)
    settings = {name: value for name, value in settings.items() if name != "resume"}
    shown = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
    rollout = RolloutConfig(start=2, updates=4, groups=1, max_groups=1, objective="rejection", **settings)
    config = supervised(small_config(root, tmp_path / "run"), env=point(cameras=shown), eval=EvalConfig())
    data = dataclasses.replace(config.data, advantage=None)
    run = dataclasses.replace(config.run, resume=resume)
    config = dataclasses.replace(config, data=data, run=run, rollout=rollout)

    def opened(*_: Any) -> Any:
        raise EnoughError

    monkeypatch.setattr(train, "RunFolder", opened)
    if refused:
        with pytest.raises(ConfigError, match=r"retry_after is \d and .*updates 4.*Expected 0, or above"):
            main(config, "test")
    else:
        with pytest.raises(EnoughError):
            main(config, "test")
    if resume:
        monkeypatch.undo()
        with pytest.raises(ConfigError, match=r"retry_after is \d and"):
            main(config, "test")  # as a study is always told to go on, also where there is nothing yet


def test_a_task_without_words_is_refused_before_anything_is_made(root: Path, tmp_path: Path):
    shown = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
    config = small_config(root, tmp_path / "run", env=point(prompt="", cameras=shown), eval=EvalConfig())
    with pytest.raises(ConfigError, match=r"point red: its suite does not say it in words; expected env.prompt"):
        main(config, "test")
    assert not (tmp_path / "run").exists()


def test_the_fingerprint_knows_labels_and_tokenizer(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path / "run")
    marks = make_task(config).data_fingerprint()
    assert set(marks) == {"files", "tables", "prompts", "labels", "norm_stats", "tokenizer"}
    weighted = dataclasses.replace(config.data, advantage=None)
    other = make_task(supervised(config, data=weighted)).data_fingerprint()
    assert {name for name in marks if marks[name] != other[name]} == {"labels"}
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_bytes(other_tokenizer(300))
    other = make_task(dataclasses.replace(config, tokenizer=str(tokenizer))).data_fingerprint()
    assert {name for name in marks if marks[name] != other[name]} == {"tokenizer"}
    again = make_task(dataclasses.replace(config, tokenizer=str(tokenizer)))
    tokenizer.write_bytes(other_tokenizer(280))
    assert again.data_fingerprint()["tokenizer"] != other["tokenizer"], "another one of the same name"


def test_the_fingerprint_knows_statistics_and_weights_of_samples(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path / "run")
    data = open_data(config.data)
    marks = SupervisedTask(config, data).data_fingerprint()
    state = dataclasses.replace(data.stats["state"], mean=data.stats["state"].mean + 1)
    rollouts = dataclasses.replace(data.to_ript.rollouts, advantage=data.to_ript.rollouts.advantage * 2)
    for name, other in (
        ("norm_stats", dataclasses.replace(data, stats={**data.stats, "state": state})),
        ("labels", dataclasses.replace(data, to_ript=dataclasses.replace(data.to_ript, rollouts=rollouts))),
    ):
        changed = SupervisedTask(config, other).data_fingerprint()
        assert {mark for mark in marks if marks[mark] != changed[mark]} == {name}


def test_the_fingerprint_knows_which_task_a_frame_is_of(root: Path, tmp_path: Path):
    config = supervised(small_config(root, tmp_path))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, advantage=None))
    task = make_task(config)
    table = task.data.table
    swapped = dataclasses.replace(table, columns={**table.columns, "task_index": 1 - table.columns["task_index"]})
    other = SupervisedTask(config, dataclasses.replace(task.data, table=swapped)).data_fingerprint()
    assert {name for name, mark in task.data_fingerprint().items() if mark != other[name]} == {"prompts"}


def test_guidance_without_a_better_rollout_is_refused(root: Path, tmp_path: Path):
    """Every group of one: with all advantages 0 the positive branch would never be trained."""
    config = small_config(root, tmp_path)
    data = dataclasses.replace(config.data, init_key="index")
    with pytest.raises(ConfigError, match=r"no rollout is better than .*group_by to another than 'init_hash'"):
        make_task(dataclasses.replace(config, data=data))


def test_rewards_that_hide_successes_are_named_where_guidance_is_refused(root: Path, tmp_path: Path):
    """Rewards that nothing was written into: labels by success were there all the time."""
    config = small_config(root, tmp_path)
    data = open_data(config.data)
    rewards = np.zeros_like(data.table.columns["next.reward"])
    table = dataclasses.replace(data.table, columns={**data.table.columns, "next.reward": rewards})
    rollouts = data.to_ript.rollouts
    unlabelled = dataclasses.replace(rollouts, optimality=np.full_like(rollouts.optimality, Optimality.NONE))
    hidden = dataclasses.replace(data, table=table, to_ript=dataclasses.replace(data.to_ript, rollouts=unlabelled))
    with pytest.raises(
        ConfigError, match=r"set data\.reward_key to none, since 'next\.success' differs where the sums"
    ):
        SupervisedTask(config, hidden)


def test_a_run_records_its_dataset_where_there_is_none(root: Path, tmp_path: Path):
    """And refuses another one that is there; nothing is trained here."""
    for folder, record in ((tmp_path / "new", RECORD), (root, dataclasses.replace(RECORD, luck=0.5))):
        config = small_config(folder, tmp_path / "run", record=record)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, fps=99.0))
        message = "expected 99 fps" if folder != root else "luck"
        with pytest.raises((DataError, ConfigError), match=message):
            main(config, "test")
    assert contents(tmp_path / "new") == contents(root)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_does_not_go_together_is_refused(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path)
    data, model = config.data, config.model
    changes: list[tuple[dict[str, Any], str]] = [
        ({"data": dataclasses.replace(data, horizon=4)}, "data.horizon is 4 and model.action_horizon is 8"),
        ({"data": dataclasses.replace(data, image_size=(28, 14))}, r"data.image_size is \(28, 14\)"),
        ({"guidance": None}, "guidance is None and model.optimality True"),
        ({"model": dataclasses.replace(model, optimality=False)}, "model.optimality False"),
        ({"data": dataclasses.replace(data, advantage=None)}, "guidance needs advantages"),
        (
            {"data": dataclasses.replace(data, robot=dataclasses.replace(data.robot, target_state_dim=14))},
            "data.robot.target_state_dim is 14 and model.action_dim 8",
        ),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(config, **change)


def test_the_configs_load_and_take_overrides():
    for name in ("debug", "sft", "cfg_ript", "pi0_full"):
        path = f"configs/openpi_ript/{name}.py"
        config, _ = load(["--config", path, "--train.steps", "7", "--tokenizer", "x", "--data.robot.state-dim", "9"])
        assert isinstance(config, OpenpiRiptConfig)
        assert (config.train.steps, config.tokenizer, config.data.robot.state_dim) == (7, "x", 9)
        assert config.package == "openpi_ript"
    with pytest.raises(ConfigError, match="horizon"):
        load(["--config", "configs/openpi_ript/debug.py", "--data.horizon", "4"])


def test_full_size_states_fit_together_without_being_computed(root: Path, tmp_path: Path):
    """Shapes of the released sizes through init and freezing: 3.2 billion weights, adapters, frozen parts."""
    for name in ("sft", "cfg_ript", "pi0_full"):
        config, _ = load(["--config", f"configs/openpi_ript/{name}.py"])
        assert isinstance(config, OpenpiRiptConfig)
        shapes = jax.eval_shape(lambda key, c=config: init_params(Pi0(c.model), key), jax.random.key(0))
        flags = jax.tree.leaves(trainable(shapes, config.model))
        assert (any(flags), all(flags)) == (True, name == "pi0_full")


@pytest.mark.long
def test_frozen_weights_in_bfloat16_make_the_same_updates(root: Path, tmp_path: Path):
    """Of products in bfloat16; the table of embeddings, which is scaled before it is rounded, holds such numbers."""
    config = small_config(root, tmp_path)
    whole = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="bfloat16"))
    half = dataclasses.replace(whole, model=dataclasses.replace(whole.model, frozen_dtype="bfloat16"))
    tasks = [make_task(one) for one in (whole, half)]
    states = [compiled(task.init)(jax.random.key(3)) for task in tasks]
    table = states[1].params["PaliGemma"]["llm"]["embedder"]["input_embedding"]
    states[0].params["PaliGemma"]["llm"]["embedder"]["input_embedding"] = table.astype(jnp.float32)
    trains = by_path(trainable(states[0].params, config.model))
    kept = {name: leaf.dtype.name for name, leaf in by_path(states[1].params).items()}
    assert {dtype for name, dtype in kept.items() if trains[name]} == {"float32"}
    frozen = {name: dtype for name, dtype in kept.items() if not trains[name]}
    assert {dtype for name, dtype in frozen.items() if name.endswith("scale")} == {"float32"}
    assert {dtype for name, dtype in frozen.items() if not name.endswith("scale")} == {"bfloat16"}
    batches = tasks[0].batches(0)
    for _ in range(2):
        batch = next(batches)
        (first, metrics), (second, ours) = (
            compiled(task.step)(state, batch) for task, state in zip(tasks, states, strict=True)
        )
        states = [first, second]
        for name in metrics:
            np.testing.assert_allclose(ours[name].value(), metrics[name].value(), rtol=1e-6, err_msg=name)
    for name, leaf in by_path(states[0].params).items():
        got = by_path(states[1].params)[name]
        if trains[name]:
            np.testing.assert_allclose(got, leaf, rtol=0, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(got, leaf.astype(got.dtype), err_msg=name)


@pytest.mark.long
def test_a_run_with_frozen_weights_in_bfloat16_is_saved_and_acts(root: Path, tmp_path: Path):
    config = small_config(root, tmp_path / "run")
    model = dataclasses.replace(config.model, frozen_dtype="bfloat16")
    main(dataclasses.replace(config, model=model), "test")
    _, params = read_run_weights(tmp_path / "run", config=dataclasses.replace(config, model=model))
    assert by_path(params)["PaliGemma/llm/embedder/input_embedding"].dtype == jnp.bfloat16
    policy = Policy.from_checkpoint(tmp_path / "run")
    assert np.isfinite(policy.infer(policy.example() | {"prompt": "move"})["actions"]).all()


def test_a_dtype_of_frozen_weights_needs_some():
    with pytest.raises(ValueError, match=r"model\.freeze is empty"):
        dataclasses.replace(toy("pi0"), frozen_dtype="bfloat16")
