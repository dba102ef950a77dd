"""The loop: what is written when, and that an interrupted run ends as one that was left alone."""

import dataclasses
import functools
import json
import os
import signal
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.reader import read_newest
from chunkwise.config.experiment import CheckpointConfig, ExperimentConfig, RunConfig, TrainConfig
from chunkwise.config.saved import read_flat
from chunkwise.distributed import processes
from chunkwise.errors import ConfigError, MismatchError, NonFiniteError, PreemptedError
from chunkwise.train import rngs
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from chunkwise.train.update import run_updates
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config


def train(config: ToyConfig, **hooks) -> str:
    with RunFolder(config, "toy") as folder:
        return fit(config, ToyTask(config, **hooks), folder)


def resumed(config: ToyConfig) -> ToyConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    digest = train(toy_config(tmp_path))
    assert [(row["step"], row["split"]) for row in rows(tmp_path)] == [
        (5, "train"),
        (8, "eval"),
        (10, "train"),
        (15, "train"),
        (16, "eval"),
        (20, "train"),
        (20, "eval"),
    ]
    assert [row["final"] for row in rows(tmp_path) if row["split"] == "eval"] == [0.0, 0.0, 1.0]
    assert json.loads((tmp_path / "done.json").read_text()) == {"step": 20, "digest": digest}
    assert capsys.readouterr().out.splitlines()[-1] == f"done step=20 digest={digest}"
    assert json.loads((tmp_path / "config.json").read_text())["train.batch_size"] == 8
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir()) == [18, 20]


def test_processes_are_to_agree_in_options_data_versions_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compared: dict = {}
    monkeypatch.setattr(processes, "require_same", compared.update)
    train(toy_config(tmp_path))
    assert compared.keys() >= {"run.seed", "train.steps", "jax", "jaxlib", "jax_enable_x64", "jax_default_prng_impl"}
    assert not compared.keys() & {"run.dir", "cores", "cpu", "devices"}, "these may be each one's own"


def test_the_number_of_updates_per_call_changes_nothing(tmp_path: Path):
    digests = []
    for updates in (1, 3, 7):
        config = toy_config(tmp_path / str(updates))
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, updates_per_call=updates))
        digests.append(train(config))
    assert len(set(digests)) == 1
    assert rows(tmp_path / "1") == rows(tmp_path / "7")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Digest and metrics of a run that was left alone."""
    folder = tmp_path_factory.mktemp("whole")
    return train(toy_config(folder)), (folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("step", [0, 3, 8, 12, 19])
def test_sigterm_loses_no_step(tmp_path: Path, whole: tuple[str, bytes], step: int):
    config = toy_config(tmp_path)

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    # The first batch waits for the update to be compiled, which a request to stop does not.
    saved = step + 1 if step else 0
    with pytest.raises(PreemptedError, match=f"saved at step {saved}"):
        train(config, on_batch=stop)
    assert (train(resumed(config)), (tmp_path / "metrics.jsonl").read_bytes()) == whole


@pytest.mark.parametrize("step", [8, 20])
def test_sigterm_in_an_evaluation_repeats_it(tmp_path: Path, whole: tuple[str, bytes], step: int):
    config = toy_config(tmp_path)

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(PreemptedError, match=f"saved at step {step}"):
        train(config, on_evaluate=stop)
    assert (train(resumed(config)), (tmp_path / "metrics.jsonl").read_bytes()) == whole


class Crash(Exception):
    pass


@pytest.mark.parametrize("step", [2, 7, 13, 17])
def test_a_crash_goes_on_from_the_last_save(tmp_path: Path, whole: tuple[str, bytes], step: int):
    config = toy_config(tmp_path)

    def crash(at: int) -> None:
        if at == step:
            raise Crash

    with pytest.raises(Crash):
        train(config, on_batch=crash)
    assert (train(resumed(config)), (tmp_path / "metrics.jsonl").read_bytes()) == whole


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Digest and metrics of a run that is evaluated and saved at the same steps."""
    folder = tmp_path_factory.mktemp("together")
    return train(evaluated_when_saved(folder)), (folder / "metrics.jsonl").read_bytes()


def evaluated_when_saved(folder: Path) -> ToyConfig:
    train = TrainConfig(steps=20, batch_size=8, log_every=5, eval_every=6)
    return toy_config(folder, train=train, checkpoint=CheckpointConfig(every=6))


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("when", ["in the evaluation", "after the save"])
def test_a_step_that_is_evaluated_and_saved_is_so_once(
    tmp_path: Path, together: tuple[str, bytes], how: str, when: str
):
    """Step 12 is both. Whatever ends the run there, the next start evaluates it exactly if no evaluation is saved."""
    config = evaluated_when_saved(tmp_path)
    evaluated: list[int] = []

    def end() -> None:
        if how == "killed":
            raise Crash
        os.kill(os.getpid(), signal.SIGTERM)

    def on_evaluate(step: int) -> None:
        if step == 12 and when == "in the evaluation":
            end()
        evaluated.append(step)

    def on_batch(step: int) -> None:
        if step == 12 and when == "after the save":
            end()

    with pytest.raises(Crash if how == "killed" else PreemptedError):
        train(config, on_batch=on_batch, on_evaluate=on_evaluate)
    assert evaluated == ([6] if when == "in the evaluation" else [6, 12])
    saves = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert saves[-1] == {"killed": {"in the evaluation": 6, "after the save": 12}[when], "stopped": 12}[how] + (
        how == "stopped" and when == "after the save"  # the update under way is made before it stops
    )
    again: list[int] = []
    assert train(resumed(config), on_evaluate=again.append) == together[0]
    assert again == ([12, 18, 20] if when == "in the evaluation" else [18, 20])
    assert (tmp_path / "metrics.jsonl").read_bytes() == together[1]


def test_a_finished_run_can_be_resumed_and_lengthened(tmp_path: Path):
    config = toy_config(tmp_path / "a")
    first = train(config)
    assert train(resumed(config)) == first
    longer = TrainConfig(steps=30, batch_size=8, log_every=5, eval_every=8)
    at_once = train(toy_config(tmp_path / "b", train=longer))
    assert train(dataclasses.replace(resumed(config), train=longer)) == at_once
    assert read_flat(tmp_path / "a")["train.steps"] == 30
    with pytest.raises(ConfigError, match=r"has 30 updates; expected train\.steps of at least that, found 20"):
        train(resumed(config))
    assert read_flat(tmp_path / "a")["train.steps"] == 30, "what is refused changes nothing"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"run": RunConfig(seed=1)}, "run.seed"),
        ({"width": 4}, "width"),
        ({"train": TrainConfig(steps=20, batch_size=4)}, "train.batch_size"),
    ],
)
def test_another_config_is_refused_on_resume(tmp_path: Path, changes: dict, key: str):
    config = toy_config(tmp_path)
    train(config)
    changed: ExperimentConfig = dataclasses.replace(config, **changes)
    run = dataclasses.replace(changed.run, dir=str(tmp_path), resume=True)
    with pytest.raises(MismatchError, match=key):
        train(dataclasses.replace(changed, run=run))


def test_another_dataset_is_refused_on_resume(tmp_path: Path):
    config = resumed(toy_config(tmp_path))
    train(config)
    (tmp_path / "config.json").unlink()  # leaves the checkpoint as the only witness
    with pytest.raises(MismatchError, match=r"dataset\.dataset: saved 0, now 1"):
        train(dataclasses.replace(config, dataset=1))


class Broken(ToyTask):
    """Some batches are NaN."""

    def __init__(self, config: ToyConfig, bad: set[int]) -> None:
        super().__init__(config)
        self.bad = bad

    def batches(self, start_step: int, **rows: int):
        for step, batch in enumerate(super().batches(start_step, **rows), start_step):
            yield {**batch, "y": batch["y"] + np.float32("nan" if step in self.bad else 0)}


def test_updates_that_are_not_finite_are_left_out_and_counted(tmp_path: Path):
    """As if the batches had not been there; the step, and with it batches and noise, goes on."""
    config = toy_config(tmp_path / "run")
    with RunFolder(config, "toy") as folder:
        fit(config, Broken(config, {2, 3, 12}), folder)
    task = ToyTask(config)
    # As the loop compiles it: another program may round otherwise.
    update, batches = jax.jit(functools.partial(run_updates, task.step)), task.batches(0)
    state = jax.jit(task.init)(rngs.key(config.run.seed, "init"))
    losses = []
    for step in range(20):
        new, metrics = update(state, jax.tree.map(lambda x: x[None], next(batches)), jnp.int32(1))
        state = state.replace(step=new.step) if step in (2, 3, 12) else new
        losses.append(float(jax.tree.map(lambda x: x[0], metrics)["loss"].value()))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), state.params)
    _, arrays = read_newest(tmp_path / "run", {"params": abstract})
    np.testing.assert_allclose(arrays["params"]["w"], state.params["w"], rtol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    lines = {line["step"]: line for line in lines if line["split"] == "train"}
    assert {step: line.get("skipped_updates") for step, line in lines.items()} == {5: 2, 10: None, 15: 1, 20: None}
    assert lines[5]["loss"] == pytest.approx(np.mean([losses[0], losses[1], losses[4]]), rel=1e-6)


def test_many_updates_in_a_row_that_are_not_finite_end_the_run(tmp_path: Path):
    config = toy_config(tmp_path)
    broken = Broken(config, set(range(11, 20)))
    with (
        RunFolder(config, "toy") as folder,
        pytest.raises(NonFiniteError, match=r"step 16: gradient_norm, loss not finite, and so for 5 updates in a row"),
    ):
        fit(config, broken, folder)
    assert int(max((tmp_path / "checkpoints").iterdir()).name) in (6, 12), "the weights of step 11, finite"
    again = resumed(config)
    with (
        RunFolder(again, "toy") as folder,
        pytest.raises(NonFiniteError, match=r"step 16: .* for 5 updates"),
    ):
        fit(again, broken, folder)  # the count goes on where the save left it


@pytest.mark.parametrize(
    ("bad", "end"),
    [
        ({0, 1, 2, 3}, None),
        ({0, 1, 2, 3, 5, 6, 7, 8}, None),
        ({0, 1, 2, 3, 4}, 5),
        ({0, 1, 3, 4, 5, 6, 7}, 8),
    ],
)
def test_the_count_of_bad_updates_begins_at_zero_and_anew_after_each_good_one(
    tmp_path: Path, bad: set[int], end: int | None
):
    config = toy_config(tmp_path, train=TrainConfig(steps=10, batch_size=8, log_every=10))
    assert config.train.max_skipped == 5
    with RunFolder(config, "toy") as folder:
        if end is None:
            fit(config, Broken(config, bad), folder)
            assert rows(tmp_path)[0]["skipped_updates"] == len(bad)
            return
        with pytest.raises(NonFiniteError, match=rf"step {end}: .*for 5 updates in a row"):
            fit(config, Broken(config, bad), folder)


def test_processes_that_agree_to_stop_do_so_at_one_step(
    tmp_path: Path, whole: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    """One process that believes to be of several: the request travels with an update, and is read behind it."""
    peers = types.SimpleNamespace(**vars(processes) | {"is_multiprocess": lambda: True})

    def stop(at: int) -> None:
        if at == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    config = toy_config(tmp_path / "stopped")
    with monkeypatch.context() as patched:
        patched.setattr("chunkwise.train.loop.processes", peers)
        # Update 8 takes the request along, and the line of metrics after update 9 waits for it.
        with pytest.raises(PreemptedError, match="saved at step 10"):
            train(config, on_batch=stop)
    assert (train(resumed(config)), (tmp_path / "stopped/metrics.jsonl").read_bytes()) == whole


def test_an_error_while_the_run_is_to_stop_does_not_keep_it_from_saving(tmp_path: Path, whole: tuple[str, bytes]):
    def fail(at: int) -> None:
        if at == 8:
            os.kill(os.getpid(), signal.SIGTERM)
            raise Crash

    config = toy_config(tmp_path)
    with pytest.raises(PreemptedError, match="saved at step 8"):
        train(config, on_batch=fail)
    assert (train(resumed(config)), (tmp_path / "metrics.jsonl").read_bytes()) == whole
