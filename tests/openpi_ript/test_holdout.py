"""data.holdout of openpi_ript: what is kept for evaluation is not trained on, and what is measured on it."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.errors import ConfigError, DataError
from chunkwise.train import rngs
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.experiment import GuidanceConfig, OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data.advantage import process
from openpi_ript.data.batch import to_training_batch
from openpi_ript.data.dataset import open_data
from openpi_ript.model.pi0 import Observation, draw_noise_and_time, encode, flow_error
from openpi_ript.tasks.held_out import HeldOut
from openpi_ript.train import _evaluated, main
from tests.lerobot_files import record, write_v21
from tests.openpi_ript.data.test_data import config, rollouts
from tests.openpi_ript.small_run import make_dataset, make_task, quick_compiling, small_config, supervised
from tests.openpi_ript.toy_policy import random_params


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("holdout")
    with quick_compiling(folder / "cache"):
        yield make_dataset(folder)


def with_holdout(config: OpenpiRiptConfig, share: float, **changes: Any) -> OpenpiRiptConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, holdout=share, **changes))


def test_no_batch_draws_them_and_no_statistic_knows_them(tmp_path: Path) -> None:
    """SHA-256 of 0 to 4 begins 5f, 6b, d4, 4e, 4b: episodes 4 and 3 are held out."""
    episodes = record((7, 5, 9, 3, 4))
    data = open_data(config(write_v21(tmp_path / "set", episodes, "image"), holdout=0.4))
    assert data.rows.tolist() == list(range(21))
    assert data.held_rows.tolist() == list(range(21, 28))
    assert "data.holdout 0.4: 2 of 5 episodes are kept for evaluation alone" in data.notes
    rest = open_data(config(write_v21(tmp_path / "rest", episodes[:3], "image")))
    for name in ("state", "actions"):
        for field in ("mean", "std", "q01", "q99"):
            np.testing.assert_array_equal(getattr(data.stats[name], field), getattr(rest.stats[name], field))
    batches, expected = (opened.batches(seed=0, batch_size=7) for opened in (data, rest))
    for _ in range(6):  # two epochs
        np.testing.assert_array_equal(next(batches)["state"], next(expected)["state"])


def test_rollouts_of_one_start_stay_together_and_are_compared_on_their_side(tmp_path: Path) -> None:
    episodes = rollouts()  # two starts; of the first one of three succeeds, of the second none
    root = write_v21(tmp_path / "set", episodes, "image")
    plain = AdvantageConfig(normalization="standard", clipping="none", negative_handling="none", group_by="dataset")
    data = open_data(config(root, advantage=plain, holdout=0.5))
    held = np.isin(np.arange(6), data.episodes_of(data.held_rows))
    assert sorted([np.flatnonzero(held).tolist(), np.flatnonzero(~held).tolist()]) == [[0, 1, 2], [3, 4, 5]]
    raw = np.where(np.arange(6) < 3, [1, -0.5, -0.5, 0, 0, 0], 0.0)  # across the starts they are not compared
    np.testing.assert_allclose(data.to_ript.rollouts.raw_advantage, raw, atol=1e-12)
    for side in (held, ~held):
        np.testing.assert_array_equal(data.to_ript.rollouts.advantage[side], process(raw[side], plain)[0])
    assert any("of 3 rollouts are in groups" in note for note in data.notes)
    dropped = dataclasses.replace(plain, uniform_groups="drop")
    with pytest.raises(ConfigError, match="'drop' and every group"):
        open_data(config(root, advantage=dropped, holdout=0.5))


def test_what_cannot_be_held_out_is_refused(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record((5,)), "image")
    with pytest.raises(DataError, match=r"data\.holdout is 0\.5, and there is one of episodes; expected 2 or more"):
        open_data(config(root, holdout=0.5))
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"data\.holdout is"):
            config(root, holdout=share)


@pytest.mark.parametrize("dropout", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_loss_is_the_mean_over_all_real_steps_of_fixed_windows(root: Path, tmp_path: Path, dropout: bool) -> None:
    """Summed here over windows and steps from what the model says of each, under the noise of the batch's number."""
    run = with_holdout(small_config(root, tmp_path), 0.5)
    if dropout:  # every label would be dropped; measured is the loss under the label
        guidance = GuidanceConfig(loss="label_dropout", dropout=1.0, sample_steps=4)
        run = dataclasses.replace(run, guidance=guidance)
    else:
        run = supervised(run)
    task = make_task(run)
    held = HeldOut(run, task.data, task.inputs)
    assert held.episodes == 4
    assert held.rows.shape == (10, 4)
    assert held.rows.ravel().tolist() == task.data.held_rows.tolist()
    params = random_params(task.model)

    @jax.jit
    def error_of(params: Any, seen: Observation, actions: Any, noise: Any, time: Any, label: Any) -> Any:
        return flow_error(task.model, params, encode(task.model, params, seen), actions, noise, time, label)

    metrics = held.measure(params)
    sums, count, of_label = 0.0, 0, {label: [0.0, 0] for label in Optimality}
    for number, rows in enumerate(held.rows.tolist()):
        samples = [task.data.sample(row) for row in rows]
        batch = task.inputs(to_training_batch(samples))
        seen = Observation(**{name: jnp.asarray(array) for name, array in batch["observation"].items()})
        key, actions = rngs.key(0, "holdout", number), jnp.asarray(batch["actions"])
        noise, time = draw_noise_and_time(jax.random.split(key)[0] if dropout else key, actions)
        label = jnp.asarray(batch["optimality"]) if dropout else None
        error = np.asarray(error_of(params, seen, actions, noise, time, label))
        real = ~batch["action_is_pad"]
        sums, count = sums + float(error[real].sum()), count + int(real.sum())
        for which, pair in of_label.items():
            chosen = real & (batch["optimality"] == which)[:, None]
            pair[0] += float(error[chosen].sum())
            pair[1] += int(chosen.sum())
    assert metrics["holdout/loss"] == pytest.approx(sums / count, rel=1e-5)
    conditions = {f"holdout/flow_loss_{one.name.lower()}": s / n for one, (s, n) in of_label.items() if n}
    expected = {"holdout/loss": sums / count} | (conditions if dropout else {})
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert held.measure(params) == metrics


@pytest.mark.long
def test_a_run_logs_it_at_every_evaluation_and_at_the_end(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_holdout(small_config(root, tmp_path / "run"), 0.4)
    run = dataclasses.replace(supervised(run), train=TrainConfig(steps=5, batch_size=4, eval_every=2, log_every=5))
    main(run, "small")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["holdout/loss"] for line in lines if line["split"] == "eval"}
    assert sorted(found) == [2, 4, 5]
    assert len(set(found.values())) == 3
    said = capsys.readouterr().out
    assert f"step 5: held out, 4 episodes, 40 windows: loss {found[5]:.4g}" in said


def test_a_run_prints_what_was_held_out():
    known: Any = SimpleNamespace(episodes=4, rows=np.zeros(40))
    said = HeldOut.summary(known, {"holdout/loss": 0.123456, "holdout/other": 7.0})
    assert said == "held out, 4 episodes, 40 windows: loss 0.1235, other 7"


def test_what_a_run_evaluates_on_its_device_is_what_is_held_out(tmp_path: Path) -> None:
    """With rows of an update; of a run that evaluates nothing there is no program to compile."""
    run = small_config(tmp_path, tmp_path)
    run = dataclasses.replace(run, train=dataclasses.replace(run.train, grad_accum_steps=2))
    batch = {name: jax.ShapeDtypeStruct((4, 3), jnp.float32) for name in ("state", "returns")}
    with pytest.raises(ConfigError, match=r"evaluates nothing on its device: it has no eval, and data\.holdout is 0"):
        _evaluated(run, batch)
    rows, _ = _evaluated(with_holdout(run, 0.5), batch).inputs
    assert {name: part.shape for name, part in rows.items()} == {"state": (2, 3)}
