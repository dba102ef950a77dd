"""Schedule-free AdamW: its numbers, who sees its average; and that a run with any method ends the same if stopped."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.checkpoint.weights import read_weights
from chunkwise.config.experiment import CheckpointConfig, OptimConfig, TrainConfig
from chunkwise.errors import MismatchError, PreemptedError
from chunkwise.state import TrainState, average_of
from chunkwise.train import rngs
from chunkwise.train.loop import fit
from chunkwise.train.metrics import Mean, mean_of
from chunkwise.train.optimizer import learning_rate, make_optimiser
from chunkwise.train.run_dir import RunFolder
from tests.chunkwise.toy import ToyConfig, ToyTask, toy_config

START = np.array([1.0, -2.0, 3.0])
GRADIENTS = np.array([[3.0, 0.5, -4.0], [1.0, -1.0, 2.0], [-0.1, 0.0, 0.3]])


def free(**changes: Any) -> OptimConfig:
    return dataclasses.replace(OptimConfig(method="schedule_free", learning_rate=0.05, beta1=0.8), **changes)


def reference(config: OptimConfig) -> tuple[np.ndarray, np.ndarray]:
    """Training weights y and average x after the three gradients, in float64, as arXiv:2405.15682 has them."""
    x, z, v, weights = START.copy(), START.copy(), np.zeros(3), 0.0
    y = START.copy()
    rate: Any = learning_rate(config, 3)
    for i, g in enumerate(GRADIENTS):
        v = config.beta2 * v + (1 - config.beta2) * g**2
        step = g / (np.sqrt(v / (1 - config.beta2 ** (i + 1))) + config.epsilon) + config.weight_decay * y
        z = z - float(rate(i)) * step
        weight = max(float(rate(j)) for j in range(i + 1)) ** 2
        weights += weight
        x = x + weight / weights * (z - x)
        y = config.beta1 * x + (1 - config.beta1) * z
    return y, x


@pytest.mark.parametrize("change", [{}, {"weight_decay": 0.1}, {"warmup_steps": 2}, {"epsilon": 0.1}], ids=str)
def test_weights_and_average_after_three_updates(change: Any):
    config = free(**change)
    optimiser = make_optimiser(config, 3)
    state = TrainState.create({"w": jnp.asarray(START, jnp.float32)}, optimiser)
    for gradient in GRADIENTS:
        state = jax.jit(lambda s, g: s.apply_gradients(g, optimiser))(state, {"w": jnp.asarray(gradient, jnp.float32)})
    y, x = reference(config)
    np.testing.assert_allclose(state.params["w"], y, rtol=1e-5)
    np.testing.assert_allclose(state.averaged().params["w"], x, rtol=1e-5)
    kept = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.size == 3]
    assert len(kept) == 2, "the second moment and the sequence; no first moment"


def test_what_is_frozen_stays_in_the_average_too():
    optimiser = make_optimiser(free(weight_decay=0.5), 3)
    params = {"still": jnp.ones(2), "w": jnp.ones(2)}
    state = TrainState.create(params, optimiser)
    for _ in range(3):
        state = state.apply_gradients(jax.tree.map(jnp.zeros_like, params), optimiser, frozen=["still"])
    average = state.averaged().params
    np.testing.assert_allclose(average["still"], 1, rtol=1e-6)
    assert (average["w"] < 0.99).all()


def test_what_the_optimiser_does_not_see_is_no_part_of_the_average():
    trains = {"w": True, "still": False}
    optimiser = optax.chain(optax.masked(make_optimiser(free(), 3), trains), optax.identity())
    state = TrainState.create({"w": jnp.ones(2), "still": jnp.full(2, 7.0)}, optimiser)
    moved = state.replace(params={"w": jnp.full(2, 3.0), "still": state.params["still"]})
    np.testing.assert_array_equal(moved.averaged().params["still"], 7)
    np.testing.assert_allclose(moved.averaged().params["w"], (3.0 - 0.2 * 1.0) / 0.8, rtol=1e-6)


def test_a_run_that_begins_with_other_weights_averages_those():
    optimiser = make_optimiser(free(), 3)
    state = TrainState.create({"w": jnp.zeros(3)}, optimiser)
    loaded = state.starting_from({"w": jnp.asarray(START, jnp.float32)}, ema={})
    np.testing.assert_allclose(loaded.averaged().params["w"], START, rtol=1e-6)


class FreeTask(ToyTask):
    """The toy, with a matrix too and the config's own optimiser; it remembers what it was asked to evaluate."""

    def __init__(self, config: ToyConfig, **hooks: Any) -> None:
        super().__init__(config, **hooks)
        self.own = make_optimiser(config.optim, config.train.steps)
        self.evaluated: list[np.ndarray] = []

    def init(self, key: Any) -> TrainState:
        return TrainState.create(fresh(self.config, key), self.own)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        def loss(params: Any) -> Any:
            x, y = batch["x"], batch["y"]
            return ((x @ params["w"] - y) ** 2).mean() + ((x @ params["kernel"] - y[:, None]) ** 2).mean()

        gradient = jax.grad(loss)(state.params)
        metrics = {"loss": mean_of(gradient["w"] ** 2), "gradient_norm": mean_of(optax.tree.norm(gradient))}
        return state.apply_gradients(gradient, self.own), metrics

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        self.evaluated.append(np.asarray(state.params["w"]))
        return super().evaluate(state, final=final)


def fresh(config: ToyConfig, key: Any) -> dict[str, Any]:
    keys = jax.random.split(key)
    return {"w": jax.random.normal(keys[0], (config.width,)), "kernel": jax.random.normal(keys[1], (config.width, 2))}


def config_of(folder: Path, optim: OptimConfig | None = None) -> ToyConfig:
    train = TrainConfig(steps=20, batch_size=8, log_every=5, eval_every=8)
    return toy_config(folder, train=train, optim=optim or free(), checkpoint=CheckpointConfig(every=8))


def train(config: ToyConfig, **hooks: Any) -> tuple[str, FreeTask]:
    with RunFolder(config, "toy") as folder:
        task = FreeTask(config, **hooks)
        return fit(config, task, folder), task


@pytest.mark.parametrize(
    ("step", "optim"),
    [
        (3, free()),
        (12, free()),
        pytest.param(12, OptimConfig(method="muon"), marks=pytest.mark.long),
        (12, OptimConfig(method="muon", first_moment="bfloat16")),
        pytest.param(12, OptimConfig(first_moment="bfloat16", schedule="cosine"), marks=pytest.mark.long),
    ],
    ids=["free_early", "free", "muon", "muon_bfloat16", "adamw_bfloat16"],
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, step: int, optim: OptimConfig):
    untouched, whole = train(config_of(tmp_path / "a", optim))

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    config = config_of(tmp_path / "b", optim)
    with pytest.raises(PreemptedError):
        train(config, on_batch=stop)
    digest, rest = train(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True)))
    assert digest == untouched
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    np.testing.assert_array_equal(rest.evaluated[-1], whole.evaluated[-1])


def test_evaluated_and_read_for_use_is_the_average(tmp_path: Path):
    config = config_of(tmp_path)
    _, task = train(config)
    plain = FreeTask(config)
    state, batches = plain.init(rngs.key(config.run.seed, "init")), plain.batches(0)
    update = jax.jit(plain.step)
    for _ in range(20):
        state, _ = update(state, next(batches))
    expected = state.averaged().params["w"]
    assert np.abs(np.asarray(expected - state.params["w"])).max() > 1e-3
    np.testing.assert_allclose(task.evaluated[-1], expected, rtol=1e-5)
    step, params = read_weights(tmp_path, config, lambda: fresh(config, jax.random.key(0)))
    assert step == 20
    np.testing.assert_array_equal(params["w"], task.evaluated[-1])
    step, earlier = read_weights(tmp_path, config, lambda: fresh(config, jax.random.key(0)), checkpoint=16)
    assert step == 16
    np.testing.assert_array_equal(earlier["w"], task.evaluated[-2])
    with pytest.raises(MismatchError, match="another tree"):
        read_weights(tmp_path, config, lambda: {"w": jnp.zeros(config.width + 1)})


def test_the_state_of_another_optimiser_has_no_average():
    params = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="found that of another"):
        average_of(make_optimiser(OptimConfig(), 1).init(params), params)
    with pytest.raises(ValueError, match=r"average of an array of \(3,\), found one of \(2,\)"):
        average_of(make_optimiser(free(), 1).init(params), {"w": jnp.ones(3)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "cosine"}, r"optim\.schedule is cosine and optim\.method schedule_free.*expected constant"),
        ({"beta1": 0.0}, r"optim\.beta1 is 0\.0 and optim\.method schedule_free.*expected a number above 0"),
        ({"first_moment": "bfloat16"}, r"optim\.first_moment is bfloat16.*expected float32"),
    ],
)
def test_settings_that_contradict_it_are_refused(change: Any, message: str):
    with pytest.raises(ValueError, match=message):
        free(**change)


def test_a_moving_average_beside_it_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"train\.ema_decay is 0\.9 and optim\.method schedule_free.*expected None"):
        toy_config(tmp_path, train=TrainConfig(steps=2, batch_size=8, ema_decay=0.9), optim=free())
