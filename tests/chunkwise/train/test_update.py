"""Updates in one dispatch, in numbers that can be followed by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chunkwise.state import TrainState
from chunkwise.train.metrics import Mean
from chunkwise.train.update import run_updates, stack
from tests import xla


def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
    """Takes the batch from every weight; the optimiser's state counts updates, the target is the weight before."""
    before = state.params["a"]["w"]
    params = {name: {key: w - batch["b"] for key, w in layer.items()} for name, layer in state.params.items()}
    new = state.replace(step=state.step + 1, params=params, opt_state=state.opt_state + 1, target={"w": before})
    return new, {"loss": Mean(before + batch["bad"], jnp.float32(2)), "b": Mean(batch["b"], jnp.float32(1))}


def state_of(ema: Any = None) -> TrainState:
    params = {"a": {"w": jnp.float32(10), "v": jnp.float32(20)}, "c": {"w": jnp.float32(30)}}
    return TrainState(
        step=jnp.int32(5), params=params, opt_state=jnp.int32(0), target={"w": jnp.float32(0)}, ema=ema or {}
    )


def batches(*values: float, bad: int | None = None) -> Any:
    nan = [np.nan if i == bad else 0 for i in range(len(values))]
    return {"b": jnp.asarray(values, jnp.float32), "bad": jnp.asarray(nan, jnp.float32)}


def numbers(metrics: dict[str, Mean]) -> dict[str, tuple[list[float], list[float]]]:
    return {name: (np.asarray(mean.sum).tolist(), np.asarray(mean.count).tolist()) for name, mean in metrics.items()}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_batches_are_taken_in_turn_and_the_metrics_of_the_others_are_zero(count: int):
    state, metrics = run_updates(step, state_of(), batches(1, 2, 4), jnp.int32(count))
    before, after = ([10.0, 9.0, 7.0], [9.0, 7.0, 3.0])
    assert (int(state.step), int(state.opt_state)) == (5 + count, count)
    assert float(state.params["a"]["w"]) == after[count - 1]
    assert float(state.params["c"]["w"]) == after[count - 1] + 20
    assert float(state.target["w"]) == before[count - 1]
    none = [0.0] * (3 - count)
    assert numbers(metrics) == {
        "loss": (before[:count] + none, [2.0] * count + none),
        "b": ([1.0, 2.0, 4.0][:count] + none, [1.0] * count + none),
    }


def test_an_update_that_is_not_finite_moves_the_step_and_nothing_else():
    average = {"a": {"w": jnp.float32(2)}}
    state, metrics = run_updates(step, state_of(average), batches(1, 2, 4, bad=1), jnp.int32(3), ema=0.75)
    assert (int(state.step), int(state.opt_state)) == (8, 2)
    assert float(state.params["a"]["w"]) == 10 - 1 - 4
    assert float(state.target["w"]) == 9
    # 0.75 * 2 + 0.25 * 9 = 3.75, which the second update leaves; 0.75 * 3.75 + 0.25 * 5 = 4.0625.
    assert float(state.ema["a"]["w"]) == 4.0625
    loss, _ = numbers(metrics)["loss"]
    assert (loss[0], np.isnan(loss[1]), loss[2]) == (10, True, 9)


def test_the_average_is_of_the_weights_that_have_one_at_their_own_places():
    """Of layer a the weight v, of layer c all: nothing of the others is taken in."""
    average = {"a": {"v": jnp.float32(0)}, "c": {"w": jnp.float32(4)}}
    state, _ = run_updates(step, state_of(average), batches(2), jnp.int32(1), ema=0.5)
    assert {name: {key: float(w) for key, w in layer.items()} for name, layer in state.ema.items()} == {
        "a": {"v": 9.0},
        "c": {"w": 16.0},
    }
    seen = state.averaged().params
    assert {name: {key: float(w) for key, w in layer.items()} for name, layer in seen.items()} == {
        "a": {"w": 8.0, "v": 9.0},
        "c": {"w": 16.0},
    }


def test_without_a_share_an_average_stays_as_it_is():
    state, _ = run_updates(step, state_of({"a": {"w": jnp.float32(2)}}), batches(1), jnp.int32(1))
    assert float(state.ema["a"]["w"]) == 2


def test_batches_are_stacked_in_order_and_filled_up_with_the_last():
    one, other = {"x": np.array([1, 2])}, {"x": np.array([3, 4])}
    assert stack([one, other], 2)["x"].tolist() == [[1, 2], [3, 4]]
    assert stack([one, other], 4)["x"].tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    alone = stack([one], 1)["x"]
    assert alone.tolist() == [[1, 2]]
    assert np.shares_memory(alone, one["x"])


def test_a_fresh_state_shares_no_memory():
    """Else the first update, which takes the memory of its arguments, would take the target's with the weights'."""
    weights = {"w": jnp.arange(4.0)}
    state = TrainState.create(weights, optax.sgd(1.0), weights, ema=weights)
    places = {part["w"].unsafe_buffer_pointer() for part in (state.params, state.target, state.ema)}
    assert len(places) == 3


def test_gradients_move_weights_by_the_optimiser_and_the_step_by_one():
    optimiser = optax.chain(optax.trace(0.5), optax.add_decayed_weights(0.1), optax.scale(-1.0))
    params = {"a": {"w": jnp.float32(10)}, "c": {"w": jnp.float32(30)}}
    state = TrainState.create(params, optimiser, {"w": jnp.float32(7)})
    gradient = {"a": {"w": jnp.float32(2)}, "c": {"w": jnp.float32(4)}}
    one = state.apply_gradients(gradient, optimiser, frozen=["c"])
    two = one.apply_gradients(gradient, optimiser)
    # a: 10 - 2 - 0.1 * 10 = 7; then the trace is 2 + 0.5 * 2 = 3, and 7 - 3 - 0.7 = 3.3. c: 30, 30 - 6 - 3 = 21.
    assert (int(one.step), int(two.step)) == (1, 2)
    assert [float(state.params[name]["w"]) for state in (one, two) for name in "ac"] == pytest.approx([7, 30, 3.3, 21])
    assert float(two.target["w"]) == 7


def test_what_depends_on_the_batch_alone_is_computed_in_the_loop_for_one_batch_too() -> None:
    """Computed before it, as XLA did where a call has one update, the last bits were others than with several."""

    def sines(state: TrainState, batch: jax.Array) -> tuple[TrainState, dict[str, Mean]]:
        grown = state.params["w"] + jnp.sin(batch).sum()
        return state.replace(params={"w": grown}, step=state.step + 1), {"loss": Mean(grown, jnp.float32(1))}

    one = jax.jit(functools.partial(run_updates, sines), compiler_options=dict(xla.QUICK))
    state = TrainState(step=jnp.int32(0), params={"w": jnp.float32(2)}, opt_state=(), target=())
    text = one.lower(state, jnp.ones((1, 300, 400)), jnp.int32(1)).compile().as_text()
    assert text is not None
    assert " sine(" in text
    before = text[text.index("ENTRY") :]
    assert " while(" in before
    assert " sine(" not in before
