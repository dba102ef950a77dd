"""Labels by a value: the law against numpy, and a chain on which every value is known."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.model import Optimality
from openpi_ript.config.value import ValueConfig
from openpi_ript.model.value import cross_entropy
from openpi_ript.tasks.value_labels import ValueLabels, quantiles, remembered
from tests.openpi_ript.small_run import small_config
from tests.openpi_ript.toy_policy import compiled

TASKS = ("reach", "push")


def make_config(
    value: ValueConfig, *, batch_size: int = 6, micro_batches: int = 1, steps: int = 100
) -> OpenpiRiptConfig:
    """State only."""
    config = small_config(Path("nowhere"), Path("nowhere"))
    assert config.guidance is not None
    return dataclasses.replace(
        config,
        train=TrainConfig(steps=steps, batch_size=batch_size, grad_accum_steps=micro_batches),
        data=dataclasses.replace(config.data, cameras={}),
        guidance=dataclasses.replace(config.guidance, labels="value", value=value),
    )


def make_labels(value: ValueConfig, **settings: int) -> ValueLabels:
    return ValueLabels(make_config(value, **settings), value, TASKS)


def make_batch(rows: int, seed: int = 0, *, lookahead: bool = True) -> Any:
    """Random returns of two tasks; every third row is forced."""
    rng = np.random.default_rng(seed)
    returns: dict[str, Any] = {
        "observed": -rng.random(rows).astype(np.float32),
        "ahead": -rng.random(rows).astype(np.float32) / 4,
        "continues": rng.random(rows) < 0.5,
        "task": rng.integers(0, 2, rows).astype(np.int32),
        "forced": np.arange(rows) % 3 == 0,
    }
    if lookahead:
        returns["later"] = {"state": rng.normal(size=(rows, 8)).astype(np.float32)}
    state = rng.normal(size=(rows, 8)).astype(np.float32)
    return jax.tree.map(jnp.asarray, {"observation": {"state": state}, "returns": returns})


def labelled(labels: ValueLabels, state: Any, batch: Any, step: int = 0) -> tuple[np.ndarray, Any, dict[str, Any]]:
    label, after, metrics = compiled(labels.step)(state, batch, jnp.int32(step), jax.random.key(0))
    return np.asarray(label), after, metrics


class ByHand:
    """The law in numpy, one row after another; the values themselves are the network's."""

    def __init__(self, labels: ValueLabels, value: ValueConfig) -> None:
        self.labels, self.value = labels, value
        self.newest: list[list[float]] = [[] for _ in TASKS]

    def __call__(self, state: Any, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        returns = batch["returns"]
        task, forced = (np.asarray(returns[name]) for name in ("task", "forced"))
        here = self.labels.values(state["params"], {"state": batch["observation"]["state"], "task": returns["task"]})
        estimate = np.asarray(returns["observed"])
        if self.value.lookahead is not None:
            there = self.labels.values(state["params"], {**returns["later"], "task": returns["task"]})
            reached = np.asarray(returns["ahead"]) + np.asarray(there)
            estimate = np.where(np.asarray(returns["continues"]), reached, estimate)
        advantage = estimate - np.asarray(here)
        for row, number in enumerate(task):
            if not forced[row]:
                self.newest[number] = [*self.newest[number], float(advantage[row])][-self.value.window :]
        label = []
        for row, number in enumerate(task):
            threshold = np.quantile(self.newest[number], 1 - self.value.positive_share) if not forced[row] else -np.inf
            label.append(Optimality.POSITIVE if advantage[row] > threshold else Optimality.NEGATIVE)
        return np.array(label), advantage


@pytest.mark.parametrize("lookahead", [None, 3])
def test_labels_are_the_law_written_out(lookahead: int | None):
    """Over batches that fill the window and go round in it."""
    value = ValueConfig(lookahead=lookahead, window=14, positive_share=0.3, bins=21, width=16)
    labels = make_labels(value, batch_size=12)
    state, by_hand = labels.init(jax.random.key(1)), ByHand(labels, value)
    for number in range(6):
        batch = make_batch(12, number, lookahead=lookahead is not None)
        expected, _ = by_hand(state, batch)
        label, state, metrics = labelled(labels, state, batch, number)
        assert label.tolist() == expected.tolist(), number
        forced, task = (np.asarray(batch["returns"][name]) for name in ("forced", "task"))
        assert (label[forced] == Optimality.POSITIVE).all()
        positive = label == Optimality.POSITIVE
        np.testing.assert_allclose(metrics["positive_share"].value(), positive[~forced].mean(), rtol=1e-6)
        for i, name in enumerate(TASKS):
            mine = ~forced & (task == i)
            share = metrics[f"positive_share/{name}"]
            np.testing.assert_allclose([share.sum, share.count], [positive[mine].sum(), mine.sum()])
    counts = np.asarray(state["judged"])
    assert counts.sum() == 6 * 8
    assert (counts > 14).all(), "the window went round"


def test_an_update_moves_the_value_towards_what_was_observed():
    """Adam's first step is the learning rate against the sign of the gradient, that of the mean cross entropy."""
    value = ValueConfig(lookahead=3, bins=21, width=16, learning_rate=1e-3)
    labels, batch = make_labels(value), make_batch(6)
    state = labels.init(jax.random.key(2))

    def loss(params: Any) -> Any:
        logits = labels._network.apply(
            {"params": params}, batch["observation"]["state"], batch["returns"]["task"], None
        )
        return cross_entropy(logits, batch["returns"]["observed"]).mean()  # pyright: ignore[reportArgumentType]

    by_hand, gradient = jax.value_and_grad(loss)(state["params"])
    _, after, metrics = labelled(labels, state, batch)
    np.testing.assert_allclose(metrics["value_loss"].value(), by_hand, rtol=1e-5)
    for before, now, slope in zip(*map(jax.tree.leaves, (state["params"], after["params"], gradient)), strict=True):
        steep = np.abs(slope) > 1e-5
        moved = (np.asarray(now) - np.asarray(before))[steep]
        np.testing.assert_allclose(moved, -1e-3 * np.sign(slope)[steep], rtol=5e-3)


def test_micro_batches_change_nothing():
    value = ValueConfig(lookahead=3, bins=21, width=16)
    batch = make_batch(6)
    whole, parts = (make_labels(value, micro_batches=count) for count in (1, 3))
    state = whole.init(jax.random.key(2))
    (label, after, _), (label2, after2, _) = (labelled(labels, state, batch) for labels in (whole, parts))
    assert label.tolist() == label2.tolist()
    for one, other in zip(*map(jax.tree.leaves, (after["params"], after2["params"])), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_what_is_as_good_as_the_others_is_not_positive():
    """Rows that are all alike have one advantage, and so has the quantile."""
    value = ValueConfig(lookahead=3, bins=21, width=16)
    labels, batch = make_labels(value), make_batch(6)
    alike = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[1:2], leaf.shape), batch)
    label, _, metrics = labelled(labels, labels.init(jax.random.key(2)), alike)
    assert label.tolist() == [Optimality.NEGATIVE] * 6
    assert metrics["positive_share"].count == 6


def test_before_the_warm_up_ends_labels_are_none():
    value = ValueConfig(lookahead=3, bins=21, width=16, warmup=2)
    labels, batch = make_labels(value), make_batch(6)
    state = labels.init(jax.random.key(2))
    forced = np.asarray(batch["returns"]["forced"])
    for step in (0, 1):
        label, _, metrics = labelled(labels, state, batch, step)
        assert label.tolist() == np.where(forced, Optimality.POSITIVE, Optimality.NONE).tolist()
        assert metrics["positive_share"].count == 0, "the value labels nothing yet"
    assert Optimality.NONE not in labelled(labels, state, batch, 2)[0].tolist()


def test_what_is_remembered():
    """Two tasks, a window of 3: rows of a batch go in order into the columns after those of before."""
    newest, counts = jnp.zeros((2, 3)), jnp.array([2, 0])
    advantage = jnp.array([1.0, 2.0, 3.0, 4.0])
    task, judged = jnp.array([0, 1, 0, 0]), jnp.array([True, True, False, True])
    after, counts = remembered(newest, counts, advantage, task, judged)
    np.testing.assert_array_equal(np.asarray(after), [[4, 0, 1], [2, 0, 0]])
    assert counts.tolist() == [4, 1]


def test_quantiles_by_hand():
    newest = jnp.array([[3.0, 1.0, 9.0, 9.0], [4.0, 1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    got = np.asarray(quantiles(newest, jnp.array([2, 9, 0]), 0.75))
    np.testing.assert_allclose(got[:2], [2.5, 3.25], rtol=1e-6)
    assert np.isnan(got[2])


LIMIT, FORK = 8, 3


def chain(fate: bool, frame: int) -> np.ndarray:
    """What is seen: the place in the chain, and from the fork on how it is going to end."""
    state = np.zeros(8, np.float32)
    state[:4] = frame / LIMIT, frame == 0, frame >= FORK, (frame >= FORK) * (1 if fate else -1)
    return state


def exact(fate: bool, frame: int) -> float:
    """Half of the episodes succeed with their last step, the 8th, the others fail with it; failing costs 8 more."""
    left = LIMIT - 1 - frame
    if frame < FORK:
        return -(left + 0.5 * LIMIT) / (2 * LIMIT)
    return -(left + (0 if fate else LIMIT)) / (2 * LIMIT)


@pytest.mark.long
def test_values_of_a_chain_are_learned():
    """Within 0.02, and then only the step at which fate turned out well is better than expected."""
    value = ValueConfig(lookahead=1, bins=201, width=64, window=64, positive_share=1 / 16, learning_rate=3e-3)
    labels = ValueLabels(make_config(value, batch_size=16, steps=600), value, ("chain",))
    rows = [(fate, frame) for fate in (True, False) for frame in range(LIMIT)]
    last = [frame == LIMIT - 1 for _, frame in rows]
    returns = {
        "observed": np.array([-(LIMIT - 1 - frame + (0 if fate else LIMIT)) for fate, frame in rows], np.float32) / 16,
        "ahead": np.where(last, 0, -1 / (2 * LIMIT)).astype(np.float32),
        "continues": ~np.array(last),
        "task": np.zeros(16, np.int32),
        "forced": np.zeros(16, bool),
        "later": {"state": np.stack([chain(fate, min(frame + 1, LIMIT - 1)) for fate, frame in rows])},
    }
    seen = np.stack([chain(fate, frame) for fate, frame in rows])
    batch = jax.tree.map(jnp.asarray, {"observation": {"state": seen}, "returns": returns})
    state = labels.init(jax.random.key(0))

    def update(step: Any, state: Any) -> Any:
        return labels.step(state, batch, step, jax.random.key(0))[1]

    state = jax.jit(lambda state: jax.lax.fori_loop(0, 600, update, state))(state)
    got = np.asarray(
        labels.values(state["params"], {"state": batch["observation"]["state"], "task": jnp.zeros(16, jnp.int32)})
    )
    np.testing.assert_allclose(got, [exact(*row) for row in rows], atol=0.02)
    label, _, _ = labelled(labels, state, batch, 600)
    better = [row for row, one in zip(rows, label, strict=True) if one == Optimality.POSITIVE]
    assert better == [(True, FORK - 1)]
