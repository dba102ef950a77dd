"""For whom a batch of inference waits, on a clock of the test's own."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from chunkwise.envs.collect import Collector
from chunkwise.envs.turns import next_of, waits_until
from chunkwise.envs.workers import Reset
from tests.chunkwise.envs.countdown import Cores, Takes, jobs, play


def test_a_batch_waits_for_many_as_long_as_they_keep_the_cores_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight environments on two cores, 0.1 s a chunk: 24 chunks in batches of at least two, not one by one."""
    workers = Cores(8, 2, lambda slot: 0.1 + 0.011 * slot)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    actor = Takes(workers)
    play(workers, jobs([1, 3, 5, 7, 1, 3, 5, 7]), actor)
    assert sum(draw is not None for _, draws in actor.calls for draw in draws) == 24
    assert len(actor.calls) <= 12


def test_a_batch_does_not_wait_for_many_that_keep_no_core_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that wait for something else, 1 to 1.7 s a chunk: each goes on by itself, three chunks for nine steps."""
    workers = Cores(8, 2, lambda slot: 1 + 0.1 * slot, busy=False)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    ended: dict[int, float] = {}
    collector = Collector(workers)
    collector.play(jobs([1] * 8), Takes(workers), lambda job, _: ended.update({job.number: workers.now}))
    for slot in range(8):
        assert ended[slot] < 3 * (1 + 0.1 * slot) + 0.2


def test_a_batch_has_no_more_rows_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four environments that answer at the same time."""
    workers = Cores(4, 4, lambda slot: 0.1, busy=False)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    actor = Takes(workers)
    play(workers, jobs([1] * 4), actor, rows=3)
    assert {len(draws) for _, draws in actor.calls} == {3}


def test_a_batch_does_not_wait_for_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two environments on two cores one takes 1 s, the other 10 s a chunk: each goes on by itself."""
    workers = Cores(2, 2, lambda slot: 10.0 if slot else 1.0)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    ended: dict[int, float] = {}
    collector = Collector(workers)
    collector.play(jobs([1, 3]), Takes(workers), lambda job, _: ended.update({job.number: workers.now}))
    # Nine steps in three chunks each: 3 s, 30 s, and what the inferences take, of which one may wait for the other's.
    assert ended[0] < 3.05
    assert ended[1] < 30.05


def but(usual: float, number: int, other: float) -> Callable[[int], float]:
    """Seconds of a chunk: as usual, but for slot 1 others for the one of that number."""
    chunks = itertools.count(1)
    return lambda slot: other if slot and next(chunks) == number else usual


def test_two_that_are_as_fast_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 0.02 s a chunk, and an inference 0.01 s; in turns they would need one of it for each of 36 chunks.

    They do not begin together, since the first chunk of one takes longer.
    """
    workers = Cores(2, 2, but(0.02, 1, 0.03), busy=False)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    actor = Takes(workers)
    play(workers, jobs([1] * 12), actor)
    assert sum(draw is not None for _, draws in actor.calls for draw in draws) == 36
    assert len(actor.calls) < 27


@pytest.mark.parametrize(
    ("count", "parallel", "seconds"), [(8, 16, 0.0003), (4, 8, 0.002), (2, 2, 0.001), (2, 2, 0.004)]
)
@pytest.mark.parametrize("busy", [True, False])
def test_those_much_faster_than_an_inference_share_it(
    monkeypatch: pytest.MonkeyPatch, count: int, parallel: int, seconds: float, busy: bool
) -> None:
    """64 rollouts of 3 chunks: an answer that was there while others were inferred did not take as long as that."""
    workers = Cores(count, parallel, lambda slot: seconds * (1 + 0.002 * slot), busy=busy)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    actor = Takes(workers)
    play(workers, jobs([1] * 64), actor)
    assert len(actor.calls) < 1.1 * 64 * 3 / count


def test_a_batch_waits_shortly_for_one_that_was_fast_and_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take 0.2 s a chunk, until the fifth of one takes 100 s."""
    workers = Cores(2, 2, but(0.2, 5, 100.0), busy=False)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    ended: list[float] = []
    Collector(workers).play(jobs([1] * 6), Takes(workers), lambda job, _: ended.append(workers.now))
    # The other one goes on, three chunks of 0.21 s a rollout, having waited for three inferences once.
    assert ended[2:5] == pytest.approx([1.26 + 0.03, 1.89 + 0.03, 2.52 + 0.03])
    assert ended[5] > 100


@pytest.mark.parametrize(
    ("ready", "expected", "until"),
    [
        ([4], [(8.4, 4, 4)], 12.5),  # the first of the ready has waited since 9.5: until 12.5 at most
        ([4], [(8.5, 4.1, 4.1)], 10.0),  # due at 12.6
        ([4], [(6, 4, 4)], 11.0),  # due now: it gains 1, and is late by a quarter of 4 at most
        ([4], [(5.5, 4, 4)], 10.5),  # late by 0.5
        ([4], [(5, 4, 4)], 10.0),  # late by that quarter
        ([0.1], [(9.7, 0.1, 0.1)], 10.05),  # late by 0.2, and by a quarter of an inference at most
        ([4], [(7, 4.2, 4.2)], 12.25),  # once they are together one waits for 0.2: 0.8 / 5.2 - 0.2 / 5
        ([4], [(7, 3.8, 3.8)], 11.75),
        ([4], [(9.4, 1, 1)], 10.65),  # 0.6 / 2 - 0.4 / 5
        ([4], [(9.8, 1, 1)], 10.0),  # 0.2 / 2 - 0.8 / 5
        ([4, 4], [(9.4, 1, 1)], 10.65),  # 0.6 / 2 - 2 * 0.4 / 5
        ([4, 4], [(9.6, 1, 1)], 10.0),  # 0.4 / 2 - 2 * 0.6 / 5
        ([4, 4], [(9.6, 1, 1), (9.6, 1, 1)], 10.85),  # 2 * 0.4 / 2 - 2 * 0.6 / 5
        ([4, 1], [(9.4, 1, 1)], 10.65),  # 0.6 / 2 - 0.4 / 5 - 0.4 / 2
        ([4, 0.2], [(9.4, 1, 1)], 10.0),  # 0.6 / 2 - 0.4 / 5 - 0.4 / 1.2
        ([1], [(6.2, 4, 4)], 11.2),  # 0.8 / 5 - 0.2 / 2
        ([1], [(6.3, 4, 4)], 10.0),  # 0.7 / 5 - 0.3 / 2
        ([4], [(9, 1.4, 4)], 10.75),  # asked for something else than a chunk: 0.6 / 5 - 0.4 / 5
        ([4], [(9, 1.4, 9)], 10.0),  # 0.6 / 10 - 0.4 / 5
        ([4], [(8.4, 4, 1)], 10.0),  # that took as long as a chunk of the other, of its own one takes 1: 2.4 away
        ([4], [(7, 4.2, 4.2), (math.inf, 4, 4)], 10.0),  # as fast, but not alone with it: 1.2 away
        ([4], [(9.4, 1, 1), (9.4, 1, 1)], 10.65),
        ([4], [(3, 4, 4)], 10.0),  # by more
        ([4], [(5, 4, 4), (9.6, 1, 1)], 10.85),  # the first is no longer expected: 0.4 / 2 - 0.6 / 5
        ([4], [(9.4, 1, 1), (9.7, 1, 1)], 10.65),  # with the second it would be 2 * 0.3 / 2 - 0.7 / 5
        ([4], [(9, math.inf, 4), (math.inf, 4, 4), (math.inf, math.inf, 0)], 10.0),
        ([0], [(9.4, 1, 1)], 10.0),  # as if a chunk took no time: 0.6 / 2 - 0.4
        ([0], [(9.1, 1, 1), (9, math.inf, 0)], 10.35),  # 0.9 / 2 - 0.1
        ([4], [], 10.0),
    ],
)
def test_a_batch_waits_for_those_that_gain_more(ready: Any, expected: Any, until: float) -> None:
    """At 10 s by the clock, with an inference of 1 s."""
    assert waits_until(10.0, 9.5, ready, 9, expected, 1.0) == pytest.approx(until)
    assert waits_until(10.0, 9.5, ready, 9, expected, math.inf) == 10.0, "it is not known how long one takes"


def test_a_batch_waits_for_no_more_than_it_takes() -> None:
    """Two that are due in 0.6 s gain 2 * 0.4 / 2, one 0.4 / 2, and those that are ready lose 2 * 0.6 / 5."""
    assert waits_until(10.0, 9.5, [4, 4], 2, [(9.6, 1, 1)] * 2, 1.0) == pytest.approx(10.85)
    assert waits_until(10.0, 9.5, [4, 4], 1, [(9.6, 1, 1)] * 2, 1.0) == 10.0


def test_a_batch_of_half_of_them_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of 0.01 s a chunk but one of 0.05 s, four rows: at least 0.9 of what each would do alone."""
    workers = Cores(8, 16, lambda slot: 0.01 if slot else 0.05, busy=False)
    monkeypatch.setattr("chunkwise.envs.collect.time.monotonic", lambda: workers.now)
    ended: list[float] = []
    Collector(workers, rows=4).play(jobs([1] * 160), Takes(workers), lambda job, _: ended.append(workers.now))
    alone = 7 / (3 * 0.02) + 1 / (3 * 0.06)
    assert 100 / (ended[119] - ended[19]) > 0.9 * alone


@pytest.mark.parametrize(
    ("starts", "last", "playing", "place"),
    [
        ("aabb", None, "", 0),
        ("aabb", None, "a", 2),
        ("aabb", "b", "a", 2),
        ("abab", "b", "b", 1),
        ("aabb", "c", "", 0),
        ("aaa", "c", "a", 0),
        ("aabc", "d", "ab", 3),
    ],
)
def test_a_worker_gets_the_start_that_it_has_or_one_that_nobody_plays(
    starts: str, last: str | None, playing: str, place: int
) -> None:
    assert next_of(list(starts), last, playing) == place


def test_each_worker_plays_a_start_to_the_end_and_helps_with_what_is_left() -> None:
    """Three starts, four rollouts each, on two workers as fast as one another; the third start falls to both."""
    workers = Cores(2, 2, lambda slot: 0.1)
    begun: dict[int, list[int]] = {0: [], 1: []}
    submit = workers.submit

    def noted(slot: int, request: Any) -> None:
        if isinstance(request, Reset):
            begun[slot].append(request.seed)
        submit(slot, request)

    workers.submit = noted
    play(workers, jobs([1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5]))
    assert begun == {0: [1, 1, 1, 1, 5, 5], 1: [3, 3, 3, 3, 5, 5]}
