"""The collector: rollouts are functions of their jobs, whatever the number of environments, their order and speed."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.collect import Collector, Job, Task
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.rollout import Rollout, load
from chunkwise.envs.workers import ProcessWorkers, Workers
from chunkwise.errors import ConfigError, NonFiniteError
from chunkwise.policies.execution import Committed, Execution
from tests.chunkwise.envs.countdown import LENGTHS, Countdown, Drawn, actions_of, jobs, threads


def play(workers: Workers, todo: list[Job], actor: Any = None, **settings: Any) -> dict[int, Rollout]:
    collector = Collector(workers, **settings)
    finished: dict[int, Rollout] = {}
    assert collector.play(todo, actor or Drawn(), lambda job, rollout: finished.update({job.number: rollout}))
    collector.close()
    return finished


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (1, {}),
        (2, {}),
        (5, {}),
        (16, {}),
        (4, {"groups": 2}),
        (4, {"groups": 2, "fixed_slots": True}),
        (1, {"groups": 2}),
    ],
)
def test_a_rollout_is_a_function_of_its_job(count: int, settings: Any) -> None:
    finished = play(threads(count, task="slow" if count == 5 else ""), jobs(range(12)), **settings)
    assert [finished[n].length for n in range(12)] == LENGTHS
    for n, rollout in finished.items():
        np.testing.assert_array_equal(rollout.actions, actions_of(n, LENGTHS[n]))
        np.testing.assert_array_equal(rollout.rewards, rollout.actions[:, 0] - 1)
        found = (rollout.seed, rollout.success, rollout.draw, rollout.step, rollout.weights)
        assert found == (n, n % 2 == 0, (5, n), 7, "f" * 64)


def test_rows_of_a_batch_show_where_chunks_start() -> None:
    """Two slots: episodes 0 (one step), 1 (nine), then 2 (three) in the slot that is free."""
    actor = Drawn()
    play(threads(2, cameras=("top",)), jobs([0, 1, 2]), actor)
    states = [observations["state"].tolist() for observations, _ in actor.calls]
    assert states == [[[0, 0], [1, 0]], [[2, 0], [1, 3]], [[1, 6], [1, 6]]]
    assert [draws for _, draws in actor.calls] == [[(5, 0, 0), (5, 1, 0)], [(5, 2, 0), (5, 1, 1)], [None, (5, 1, 2)]]
    assert [observations["top"][:, 0, 0, 0].tolist() for observations, _ in actor.calls] == [[0, 0], [0, 3], [6, 6]]


def test_slots_that_are_free_at_once_are_filled_in_their_order() -> None:
    """Whatever finishes first in time: episodes 1 and 3 are slow, all four end with their third chunk or before."""
    actor = Drawn()
    play(threads(4, task="slow"), jobs([1, 4, 3, 6, 0, 2, 8, 10]), actor)
    rows = [[draw and draw[1] for draw in draws] for _, draws in actor.calls]
    assert rows == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 4, 2, 3], [5, 6, 7, None], [None, None, 7, None]]


def test_fixed_slots_keep_rows_by_number() -> None:
    actor = Drawn()
    play(threads(2), jobs([0, 1, 2, 3])[::-1], actor, fixed_slots=True)
    rows = [[draw and draw[1] for draw in draws] for _, draws in actor.calls]
    assert {draw for row in rows for draw in row[:1]} <= {0, 2, None}
    assert {draw for row in rows for draw in row[1:]} <= {1, 3, None}


def test_chunks_are_cut_and_rollouts_end_where_it_is_said() -> None:
    finished = play(threads(2), jobs([1, 6]), execution=Execution(how="every", execute=2), tasks=(Task(max_steps=5),))
    assert [finished[n].length for n in (0, 1)] == [5, 5]
    chunks = [np.random.default_rng((5, 0, c)).normal(0, 2, (3, 3))[:2] for c in range(3)]
    expected = np.clip(np.concatenate(chunks)[:5], -1, 1).astype(np.float32)
    np.testing.assert_array_equal(finished[0].actions, expected)


class Completing(Drawn):
    """Keeps what was committed, by row and call."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: list[list[Any]] = []

    def complete(self, observations: Any, draws: Any, prompts: Any, committed: Sequence[Committed]) -> Any:
        self.committed.append([one.actions.tolist() for one in committed])
        return self(observations, draws, prompts)


def test_a_chunk_is_late_by_the_delay_and_is_given_what_runs_meanwhile() -> None:
    """Chunks of three, an inference every 2 steps, one step late: 0 1 2 of the first, then 1 2 of each."""
    actor = Completing()
    execution = Execution(how="realtime", execute=2, delay=1)
    finished = play(threads(2), jobs([1, 6]), actor, execution=execution, tasks=(Task(max_steps=5),))
    for n in (0, 1):
        first, second, third = (np.random.default_rng((5, n, c)).normal(0, 2, (3, 3)) for c in range(3))
        expected = np.stack([*first, *second[1:]])
        np.testing.assert_array_equal(finished[n].actions, np.clip(expected, -1, 1).astype(np.float32))
        left = [[], first[2:].astype(np.float32).tolist(), second[2:].astype(np.float32).tolist()]
        assert [committed[n] for committed in actor.committed] == left, "as the policy gave them, not as executed"
        assert third.shape == (3, 3)
    states = [observations["state"][:, 1].tolist() for observations, _ in actor.calls]
    assert states == [[0, 0], [2, 2], [4, 4]], "each inference begins with what is seen then"


def test_another_way_asks_for_no_completion() -> None:
    actor = Completing()
    play(threads(1), jobs([3]), actor, execution=Execution(how="ensemble"))
    assert not actor.committed
    assert len(actor.calls) == 9, "a chunk a step"
    with pytest.raises(ConfigError, match="--how realtime: a Drawn cannot complete chunks"):
        play(threads(1), jobs([3]), execution=Execution(how="realtime"))


class Noting(Drawn):
    """Notes the state that it sees and its first number of each chunk."""

    def noted(self, observations: Any, draws: Any, prompts: Any) -> Any:
        chunks = self(observations, draws, prompts)
        return chunks, {"seen": observations["state"], "first": chunks[:, 0, 0]}


@pytest.mark.parametrize("count", [1, 3, 4])
def test_what_a_policy_notes_of_its_chunks_is_kept_with_the_rollout(count: int) -> None:
    finished = play(threads(count), jobs(range(6)), Noting(), groups=2 if count == 4 else 1)
    for n, rollout in finished.items():
        begun = range(0, LENGTHS[n], 3)
        assert rollout.notes["seen"].tolist() == [[n, t] for t in begun]
        first = [np.random.default_rng((5, n, c)).normal(0, 2) for c in range(len(begun))]
        np.testing.assert_array_equal(rollout.notes["first"], np.array(first, np.float32))
        np.testing.assert_array_equal(rollout.actions, actions_of(n, LENGTHS[n]))
    assert {name: dict(rollout.notes) for name, rollout in play(threads(2), jobs([1])).items()} == {0: {}}


@pytest.mark.slow
def test_a_rollout_that_is_played_again_begins_without_chunks(tmp_path: Path) -> None:
    """Its worker died: what was planned before is forgotten."""
    opener = functools.partial(DiesOnce, EnvSpec(suite="own", task=str(tmp_path / "died")))
    execution = Execution(how="ensemble")
    found = play(ProcessWorkers(opener, 1, name="countdown"), jobs([3]), execution=execution)
    again = play(ProcessWorkers(opener, 1, name="countdown"), jobs([3]), execution=execution)
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found[0].actions, again[0].actions)
    (tmp_path / "died").unlink()
    noted = play(ProcessWorkers(opener, 1, name="countdown"), jobs([3]), Noting())[0].notes
    assert noted["seen"].tolist() == [[3, t] for t in (0, 3, 6)]


class DiesOnce(Countdown):
    """Ends its process at the third step, unless a file is there."""

    def step(self, action: Any) -> Any:
        mark = Path(self.spec.task)
        if self.t == 2 and not mark.exists():
            mark.touch()
            os._exit(1)
        return super().step(action)


def test_processes_keep_every_frame_and_can_be_loaded(tmp_path: Path) -> None:
    opener = functools.partial(Countdown, EnvSpec(suite="own", cameras=("top",)))
    finished = play(ProcessWorkers(opener, 2, name="countdown"), jobs([2, 5]), tasks=(Task(prompt="count"),))
    for rollout in finished.values():
        np.testing.assert_array_equal(rollout.observations["state"][:, 1], np.arange(rollout.length + 1))
        np.testing.assert_array_equal(rollout.observations["top"][:, 0, 0, 0], np.arange(rollout.length + 1))
        assert rollout.prompt == "count"


def test_stopping_drops_what_is_under_way() -> None:
    collector = Collector(threads(2))
    asked: list[int] = []
    done: list[int] = []

    def stopping() -> bool:
        asked.append(0)
        return len(asked) > 2

    assert not collector.play(jobs([1, 3, 5]), Drawn(), lambda job, _: done.append(job.number), stopping)
    assert not done


def test_nan_ends_it_with_the_name_of_the_rollout(tmp_path: Path) -> None:
    class Broken(Drawn):
        def __call__(self, *arguments: Any) -> Any:
            chunks = super().__call__(*arguments)
            chunks[-1, -1] = np.nan if len(self.calls) == 2 else 0
            return chunks

    with pytest.raises(NonFiniteError, match=r"^episode_1: the policy of step 7 answered with NaN or Inf after 3"):
        play(threads(2), jobs([1, 3]), Broken())
    (job,) = jobs([3])
    job = Job(number=0, seed=3, draw=job.draw, path=tmp_path / "episode_3.npz")
    workers = ProcessWorkers(functools.partial(Countdown, EnvSpec(suite="own")), 1, name="countdown")
    with pytest.raises(NonFiniteError, match=r"episode_3.nan.npz: .*its file holds what the policy saw"):
        play(workers, [job], Broken())
    assert load(tmp_path / "episode_3.nan.npz").length == 3


def test_an_episode_without_end_names_the_flag_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("chunkwise.envs.collect.ENDLESS", 5)
    Collector(threads(2)).play(jobs([1, 3, 5]), Drawn(), lambda *_: None)
    assert capsys.readouterr().out.count("has not ended after 6 steps; if its environment has no time limit, ") == 1
    Collector(threads(2), tasks=(Task(max_steps=8),)).play(jobs([1, 3]), Drawn(), lambda *_: None)
    assert "has not ended" not in capsys.readouterr().out
