"""Which action of which chunk is executed when, by hand; chunks whose actions say their inference and their place."""

import argparse
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from chunkwise.policies.execution import (
    HOWS,
    NOTHING,
    Committed,
    Execution,
    Plan,
    add_flags,
    execution_of,
    padded,
    soft_mask,
)


def chunk(number: int, horizon: int = 6) -> Any:
    """Action i is (number, i)."""
    return np.stack([np.full(horizon, number), np.arange(horizon)], axis=1).astype(np.float32)


def played(execution: Execution, steps: int, horizon: int = 6) -> list[tuple[float, float]]:
    """As evaluation does: the chunk is there at once, and is executed from when it would have been."""
    plan, found = Plan(execution), []
    number = 0
    while len(found) < steps:
        assert plan.due
        plan.begin()
        found += [tuple(action.tolist()) for action in plan.stretch(chunk(number, horizon))]
        assert plan.step == len(found)
        number += 1
    return found[:steps]


def of(number: int, *places: int) -> list[tuple[float, float]]:
    return [(number, place) for place in places]


def values(actions: list[Any]) -> list[tuple[float, float]]:
    return [tuple(action.tolist()) for action in actions]


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (Execution(), of(0, 0, 1, 2, 3, 4, 5) + of(1, 0, 1, 2, 3, 4, 5)),
        (Execution(how="every", execute=2), of(0, 0, 1) + of(1, 0, 1) + of(2, 0, 1)),
        (Execution(how="every", execute=6), of(0, 0, 1, 2, 3, 4, 5) + of(1, 0, 1, 2)),
        # The second inference begins at step 4, and its chunk is there at step 6.
        (Execution(delay=2), of(0, 0, 1, 2, 3, 4, 5) + of(1, 2, 3, 4, 5) + of(2, 2, 3, 4, 5)),
        (Execution(how="every", execute=2, delay=1), of(0, 0, 1, 2) + of(1, 1, 2) + of(2, 1, 2)),
        (Execution(how="every", execute=2, delay=2), of(0, 0, 1, 2, 3) + of(1, 2, 3) + of(2, 2, 3)),
        (Execution(how="realtime"), of(0, 0) + of(1, 0) + of(2, 0)),
        (Execution(how="realtime", delay=2), of(0, 0, 1, 2, 3) + of(1, 2, 3) + of(2, 2, 3)),
        (Execution(how="realtime", execute=3, delay=2), of(0, 0, 1, 2, 3, 4) + of(1, 2, 3, 4) + of(2, 2, 3, 4)),
    ],
)
def test_what_is_executed(execution: Execution, expected: list[tuple[float, float]]) -> None:
    assert played(execution, len(expected)) == expected


def test_without_delay_whole_chunks_are_executed_to_the_bit() -> None:
    chunks = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    plan, found = Plan(Execution()), []
    for one in chunks:
        plan.begin()
        found.append(plan.stretch(one))
    np.testing.assert_array_equal(np.stack(found), chunks, strict=True)


@pytest.mark.parametrize(("delay", "execute"), [(0, None), (0, 2), (2, None), (1, 2)])
def test_ensembling_by_hand(delay: int, execute: int | None) -> None:
    """weights exp(-m i) of the i-th oldest chunk that has arrived and still has an action for the step."""
    horizon, every = 5, execute or max(delay, 1)
    chunks = np.random.default_rng(0).normal(size=(12, horizon, 3)).astype(np.float32)
    plan, found = Plan(Execution(how="ensemble", execute=execute, delay=delay, decay=0.3)), []
    for one in chunks:
        plan.begin()
        found += list(plan.stretch(one))
    for step, action in enumerate(found):
        parts = []
        for number in range(12):
            begun = every * number
            arrived = step >= begun + delay or number == 0
            if arrived and 0 <= step - begun < horizon:
                parts.append(chunks[number, step - begun].astype(np.float64))
        weights = [np.exp(-0.3 * i) for i in range(len(parts))]
        expected = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)
        np.testing.assert_allclose(action, expected, rtol=1e-6, atol=1e-7)
        assert action.dtype == np.float32
    assert len(found) == 12 * every


def test_acts_own_weights_are_the_default() -> None:
    plan = Plan(Execution(how="ensemble"))
    for value in (1.0, 2.0):
        plan.begin()
        (action,) = plan.stretch(np.full((3, 1), value, np.float32))
    np.testing.assert_allclose(action, [(1 + 2 * np.exp(-0.01)) / (1 + np.exp(-0.01))], rtol=1e-6)


def test_what_real_time_chunking_commits() -> None:
    """Chunks of 6, begun every 3 steps, 2 steps late: at step 3 actions 3, 4, 5 of the first are left."""
    plan = Plan(Execution(how="realtime", execute=3, delay=2))
    assert plan.begin() is NOTHING
    plan.stretch(chunk(0))
    committed = plan.begin()
    assert committed is not None
    np.testing.assert_array_equal(committed.actions, chunk(0)[3:])
    # c of the third is (3 - 2) / (3 - 2 + 1) = 1/2.
    np.testing.assert_allclose(committed.weights, [1, 1, 0.5 * (np.exp(0.5) - 1) / (np.e - 1)], rtol=1e-6)
    plan.stretch(chunk(1))
    committed = plan.begin()
    assert committed is not None
    np.testing.assert_array_equal(committed.actions, chunk(1)[3:])
    assert Plan(Execution(how="every", execute=3, delay=2)).begin() is None


def test_the_soft_mask_is_the_papers() -> None:
    """Equation 5 for H = 8, s = 3, d = 2: by hand, 1 for i < 2, then c = (5 - i) / 4."""
    c = np.array([3 / 4, 2 / 4, 1 / 4])
    expected = [1, 1, *(c * (np.exp(c) - 1) / (np.e - 1))]
    np.testing.assert_allclose(soft_mask(5, 2), expected, rtol=1e-6)
    np.testing.assert_array_equal(soft_mask(2, 4), [1, 1])
    np.testing.assert_allclose(soft_mask(1, 0), [0.5 * (np.exp(0.5) - 1) / (np.e - 1)], rtol=1e-6)
    assert soft_mask(0, 3).shape == (0,)


def test_a_chunk_that_is_late_takes_over_when_it_is_there() -> None:
    """As on a robot: begun at step 3 of 6, due at 4, there at step 5; one that never comes leaves it standing."""
    plan = Plan(Execution(how="every", execute=3, delay=1))
    plan.begin()
    plan.take(chunk(0))
    found = [plan.next() for _ in range(3)]
    assert plan.due
    plan.begin()
    found += [plan.next(), plan.next()]
    assert not plan.due
    plan.take(chunk(1))
    found += [plan.next(), plan.next()]
    assert [tuple(map(float, action)) for action in found if action is not None] == [
        *of(0, 0, 1, 2, 3, 4),
        *of(1, 2, 3),
    ]
    assert plan.due
    plan.begin()
    assert [plan.next() is None for _ in range(4)] == [False, False, True, True]
    assert plan.step == 9, "no step passes without an action"
    plan.take(chunk(2))
    assert values([plan.next()]) == of(2, 2), "begun at step 7, executed at step 9"


def test_a_chunk_that_is_early_waits_for_its_step() -> None:
    plan = Plan(Execution(how="every", execute=2, delay=2))
    plan.begin()
    plan.stretch(chunk(0))
    plan.begin()
    plan.take(chunk(1))
    found = [plan.next() for _ in range(3)]
    assert values(found) == of(0, 2, 3) + of(1, 2)


def test_failures_and_restarts() -> None:
    plan = Plan(Execution(how="every", execute=4, delay=2))
    plan.begin()
    plan.take(chunk(0))
    for _ in range(4):
        plan.next()
    plan.begin()
    assert not plan.due
    plan.fail()
    assert plan.due, "again at once"
    plan.begin()
    plan.restart()
    assert plan.due
    assert plan.next() is None
    with pytest.raises(ValueError, match="nobody waits for"):
        plan.take(chunk(1))
    plan.begin()
    plan.take(chunk(1))
    assert values([plan.next()]) == of(1, 0), "the robot stood, so its first action is the next one"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "open_loop", "execute": 2}, "--how open_loop, which executes whole chunks"),
        ({"how": "every"}, "--how every: expected the number of steps"),
        ({"how": "every", "execute": 0}, "--execute is 0; expected a number above 0"),
        ({"delay": -1}, "--delay is -1"),
        ({"how": "ensemble", "decay": -0.1}, "decay is -0.1"),
        ({"how": "Ensemble"}, "--how is 'Ensemble'; expected one of open_loop, every, ensemble, realtime"),
        ({"how": "open-loop"}, "--how is 'open-loop'; expected one of"),
        ({"delay": 1.5}, "--delay is 1.5; expected a whole number of steps"),
        ({"how": "every", "execute": 2.5}, "--execute is 2.5; expected a whole number of steps"),
        ({"how": "every", "execute": True}, "--execute is True; expected a whole number of steps"),
    ],
)
def test_settings_that_contradict_one_another(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Execution(**settings)


@pytest.mark.parametrize(
    ("settings", "horizon", "message"),
    [
        ({"how": "every", "execute": 7}, 6, "--execute is 7; a chunk of this policy has 6 actions"),
        ({"how": "every", "execute": 5, "delay": 2}, 6, "within the 6 actions"),
        ({"how": "realtime", "execute": 1, "delay": 2}, 6, "at least 2, since one is computed at a time"),
        ({"delay": 4}, 6, "--delay is 4; expected at most 3, half of the 6 actions"),
        ({"how": "ensemble", "delay": 4}, 6, "every 4 steps; expected both together within the 6"),
    ],
)
def test_chunks_that_are_too_short(settings: Any, horizon: int, message: str) -> None:
    execution = Execution(**settings)
    with pytest.raises(ConfigError, match=message):
        execution.interval(horizon)
    plan = Plan(execution)
    plan.begin()
    with pytest.raises(ConfigError, match=message):
        plan.take(chunk(0, horizon))


@pytest.mark.parametrize("how", ["open_loop", "ensemble"])
def test_a_stretch_is_not_of_the_policy_s_own_array(how: Any) -> None:
    """Which it may write the next chunk into while an environment in a thread executes this one."""
    plan = Plan(Execution(how=how))
    plan.begin()
    array = chunk(1)
    stretch = plan.stretch(array)
    array[:] = 9
    np.testing.assert_array_equal(stretch, chunk(1)[: len(stretch)])


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, "every, as trained")
    assert vars(parser.parse_args([])) == {"how": None, "execute": None, "delay": None}
    found = vars(parser.parse_args(["--how", "realtime", "--execute", "3", "--delay", "2"]))
    assert found == {"how": "realtime", "execute": 3, "delay": 2}
    with pytest.raises(SystemExit):
        parser.parse_args(["--how", "never"])
    assert "default: every, as trained" in parser.format_help()
    assert execution_of(None, None, None) == Execution()
    assert execution_of(None, 3, None) == Execution(how="every", execute=3)
    assert execution_of("realtime", 3, 2) == Execution(how="realtime", execute=3, delay=2)
    assert HOWS == ("open_loop", "every", "ensemble", "realtime")


def test_rows_are_filled_up_to_whole_chunks() -> None:
    one = Committed(actions=chunk(1, 2), weights=np.array([1, 0.5], np.float32))
    actions, weights = padded([NOTHING, one], 4, 2)
    np.testing.assert_array_equal(actions, [np.zeros((4, 2)), [(1, 0), (1, 1), (0, 0), (0, 0)]])
    np.testing.assert_array_equal(weights, [[0, 0, 0, 0], [1, 0.5, 0, 0]])
    for wrong, horizon in ((one, 1), (Committed(actions=one.actions, weights=one.weights[:1]), 4)):
        with pytest.raises(ConfigError, match="committed: expected at most"):
            padded([wrong], horizon, 2)
    with pytest.raises(ConfigError, match="of 3 numbers"):
        padded([one], 4, 3)
