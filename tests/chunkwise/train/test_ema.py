"""The moving average of the weights: its values, who sees it, and that a resumed run has the same."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.reader import read_newest
from chunkwise.config.experiment import TrainConfig
from chunkwise.errors import PreemptedError
from chunkwise.state import TrainState, part_like, tree_merge
from chunkwise.train import rngs
from chunkwise.train.loop import fit
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config

KEEP = 0.75


class AveragedTask(ToyTask):
    """The toy with an average of its only weight, which remembers what it was asked to evaluate."""

    def __init__(self, config: ToyConfig, **hooks: Any) -> None:
        super().__init__(config, **hooks)
        self.evaluated: list[np.ndarray] = []

    def init(self, key: Any) -> TrainState:
        state = super().init(key)
        return TrainState.create(state.params, self.optimiser, state.params, ema=state.params)

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        self.evaluated.append(np.asarray(state.params["w"]))
        return super().evaluate(state, final=final)


def averaged_config(folder: Path) -> ToyConfig:
    return toy_config(folder, train=TrainConfig(steps=20, batch_size=8, log_every=5, eval_every=8, ema_decay=KEEP))


def train(config: ToyConfig, **hooks: Any) -> tuple[str, AveragedTask]:
    with RunFolder(config, "toy") as folder:
        task = AveragedTask(config, **hooks)
        return fit(config, task, folder), task


def test_the_average_is_that_of_all_weights_so_far_and_is_what_is_evaluated(tmp_path: Path):
    config = averaged_config(tmp_path)
    _, task = train(config)
    plain = ToyTask(config)
    update, batches = jax.jit(plain.step), plain.batches(0)
    state = jax.jit(plain.init)(rngs.key(config.run.seed, "init"))
    average = np.asarray(state.params["w"], np.float64)
    expected = {}
    for step in range(1, 21):
        state, _ = update(state, next(batches))
        average = KEEP * average + (1 - KEEP) * np.asarray(state.params["w"])
        expected[step] = average
    assert len(task.evaluated) == 3
    for found, step in zip(task.evaluated, (8, 16, 20), strict=True):
        np.testing.assert_allclose(found, expected[step], rtol=1e-5)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = {"w": jax.ShapeDtypeStruct((config.width,), jnp.float32, sharding=here)}
    _, arrays = read_newest(tmp_path, {"ema": abstract})
    np.testing.assert_array_equal(arrays["ema"]["w"], task.evaluated[-1])
    _, arrays = read_newest(tmp_path, {"params": abstract})
    np.testing.assert_allclose(arrays["params"]["w"], state.params["w"], rtol=1e-5)


@pytest.mark.parametrize("wanted", [True, False])
def test_who_is_evaluated_is_the_average_and_who_acts_if_it_wants(tmp_path: Path, wanted: bool):
    acted: dict[int, TrainState] = {}

    class World:
        start, every, averaged = 1, 1, wanted

        def interact(self, state: TrainState, step: int, stopping: Any) -> dict[str, list[float]]:
            acted[step] = jax.device_get(state)
            return {}

        def position(self) -> dict[str, Any]:
            return {}

        def sync(self) -> None:
            pass

        def close(self) -> None:
            pass

        def rewind(self, position: dict[str, Any] | None) -> None:
            pass

    train = TrainConfig(steps=3, batch_size=8, log_every=3, eval_every=2, ema_decay=KEEP)
    config = toy_config(tmp_path, train=train)
    with RunFolder(config, "toy") as folder:
        task = AveragedTask(config)
        fit(config, task, folder, interaction=World())
    assert list(acted) == [1, 2]
    for state in acted.values():
        assert np.array_equal(state.params["w"], state.ema["w"]) == wanted
    np.testing.assert_array_equal(task.evaluated[0], acted[2].ema["w"])


@pytest.mark.parametrize("step", [3, 12])
def test_a_resumed_run_has_the_same_average(tmp_path: Path, step: int):
    untouched, _ = train(averaged_config(tmp_path / "a"))

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    config = averaged_config(tmp_path / "b")
    with pytest.raises(PreemptedError):
        train(config, on_batch=stop)
    assert train(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True)))[0] == untouched
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()


def test_weights_without_an_average_are_used_as_they_are():
    params = {"frozen": jnp.zeros(1), "trained": {"w": jnp.ones(1)}}
    state = TrainState(step=0, params=params, opt_state={}, target={}, ema={"trained": {"w": jnp.full(1, 5.0)}})
    found = state.averaged().params
    assert (float(found["frozen"][0]), float(found["trained"]["w"][0])) == (0.0, 5.0)
    plain = state.replace(ema={})
    assert plain.averaged() is plain


def test_a_part_is_taken_from_and_tree_merge_its_own_places():
    tree = {"a": {"w": 1, "v": 2}, "b": {"w": 3}, "c": 4}
    assert part_like(tree, {"a": {"v": 0}, "c": 0}) == {"a": {"v": 2}, "c": 4}
    assert part_like(tree, {}) == {}
    assert part_like(tree, tree) == tree
    assert tree_merge(tree, {"a": {"v": 7}, "c": 8}) == {"a": {"w": 1, "v": 7}, "b": {"w": 3}, "c": 8}
    assert tree_merge(tree, {}) == tree
    assert tree == {"a": {"w": 1, "v": 2}, "b": {"w": 3}, "c": 4}


@pytest.mark.parametrize("keep", [0.0, 1.0, 1.5])
def test_a_share_that_is_none_is_refused(keep: float):
    with pytest.raises(ValueError, match=f"train.ema_decay is {keep}; expected a number between 0 and 1"):
        TrainConfig(steps=1, batch_size=1, ema_decay=keep)


def test_parts_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(ValueError, match=r"train\.batch_size is 8 and train\.grad_accum_steps 3; expected a divisor"):
        TrainConfig(steps=1, batch_size=8, grad_accum_steps=3)
