"""The collector: rollouts are functions of their jobs, whatever the number of environments, their order and speed."""

import dataclasses
import errno
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
from chunkwise.envs.thread_workers import ThreadWorkers
from chunkwise.envs.workers import ProcessWorkers
from chunkwise.errors import ConfigError, NonFiniteError, RunError, StopRequested
from chunkwise.policies.execution import Committed, Execution
from tests.chunkwise.envs.countdown import LENGTHS, Cores, Countdown, Drawn, Waits, actions_of, jobs, play, threads


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (1, {}),
        (2, {}),
        (5, {}),
        (16, {}),
        (4, {"rows": 2}),
        (5, {"rows": 3}),
        (2, {"rows": 4}),
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


@pytest.mark.parametrize(("count", "rows"), [(2, 2), (4, 3), (1, 3)])
def test_a_batch_is_of_those_that_wait_and_filled_up(count: int, rows: int) -> None:
    """Each chunk of each rollout is one row of one call, with what is seen then; the rest shows the first row again."""
    actor = Drawn()
    play(threads(count, cameras=("top",)), jobs(range(6)), actor, rows=rows)
    seen: dict[Any, float] = {}
    for observations, draws in actor.calls:
        states = observations["state"]
        assert states.shape == (rows, 2)
        assert (observations["top"][:, 0, 0, 0] == states[:, 1]).all()
        filled = draws.index(None) if None in draws else rows
        assert filled > 0
        assert draws[filled:] == [None] * (rows - filled)
        assert (states[filled:] == states[0]).all()
        for row, draw in enumerate(draws[:filled]):
            assert draw is not None
            assert draw not in seen
            assert states[row, 0] == draw[1], "the seed is the job's number here"
            seen[draw] = states[row, 1]
    assert seen == {(5, n, c): 3 * c for n in range(6) for c in range(-(-LENGTHS[n] // 3))}


def test_each_row_is_told_its_own_task() -> None:
    """Rollouts of two tasks share batches; the draw of a row says whose it is."""
    told: set[tuple[int, str]] = set()
    mixed: list[bool] = []

    class Listens(Drawn):
        def __call__(self, observations: Any, draws: Any, prompts: Any) -> Any:
            told.update((draw[1] % 2, prompt) for draw, prompt in zip(draws, prompts, strict=True) if draw is not None)
            mixed.append(len(set(prompts)) == 2)
            return super().__call__(observations, draws, prompts)

    tasks = (Task(name="even", prompt="push"), Task(name="odd", prompt="pull"))
    workers = ThreadWorkers(lambda task: Countdown(EnvSpec(suite="own", task=task)), 4, name="countdown")
    todo = [dataclasses.replace(job, task=tasks[job.number % 2].name) for job in jobs(range(8))]
    play(workers, todo, Listens(), rows=4, tasks=tasks)
    assert told == {(0, "push"), (1, "pull")}
    assert any(mixed)


def test_a_slow_environment_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It answers only once all the other rollouts have ended."""
    mark = tmp_path / "others have ended"
    opener = functools.partial(Waits, EnvSpec(suite="own", task=str(mark)))
    collector, ended = Collector(ProcessWorkers(opener, 3, name="countdown"), rows=2), list[int]()

    def done(job: Job, rollout: Rollout) -> None:
        ended.append(job.seed)
        if len(ended) == 6:
            mark.touch()

    assert collector.play(jobs(range(1, 8)), Drawn(), done)
    collector.close()
    assert sorted(ended) == list(range(1, 8))
    assert ended[-1] == 3


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
    both = Cores(2, 2, lambda slot: 0.1)  # they answer at the same time, so that each batch has both
    finished = play(both, jobs([1, 6]), actor, execution=execution, tasks=(Task(max_steps=5),))
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
    finished = play(threads(count), jobs(range(6)), Noting(), rows=2 if count == 4 else None)
    for n, rollout in finished.items():
        begun = range(0, LENGTHS[n], 3)
        assert rollout.notes["seen"].tolist() == [[n, t] for t in begun]
        first = [np.random.default_rng((5, n, c)).normal(0, 2) for c in range(len(begun))]
        np.testing.assert_array_equal(rollout.notes["first"], np.array(first, np.float32))
        np.testing.assert_array_equal(rollout.actions, actions_of(n, LENGTHS[n]))
    assert {name: dict(rollout.notes) for name, rollout in play(threads(2), jobs([1])).items()} == {0: {}}


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


class Faulty(Countdown):
    """Cannot be closed after its fault."""

    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("the fault")


def test_an_environment_that_cannot_be_closed_hides_neither_its_fault_nor_a_request_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = EnvSpec(suite="own", task="stuck")
    with pytest.raises(RunError, match=r"\(reset with seed 3, step 1\) failed: ZeroDivisionError: the fault"):
        play(ThreadWorkers(functools.partial(Faulty, spec), 1, name="faulty"), jobs([3]))
    workers = ThreadWorkers(functools.partial(Countdown, spec), 2, name="countdown")

    def receive(*_: Any, **__: Any) -> Any:
        raise StopRequested

    monkeypatch.setattr(workers, "receive", receive)
    with pytest.raises(StopRequested):
        play(workers, jobs([3, 5]))


class Grown(Countdown):
    """Shows as many numbers as its seed says."""

    def _observe(self) -> Any:
        return super()._observe() | {"objects": np.zeros(self.seed, np.float32)}


def test_environments_of_a_batch_must_show_the_same() -> None:
    workers = ThreadWorkers(functools.partial(Grown, EnvSpec(suite="own")), 2, name="grown")
    told = r"episode_{}: its environment \(seed {}\) observed 'objects' with shape \({},\); expected \({},\), as before"
    either = [told.format(1, 5, 5, 3), told.format(0, 3, 3, 5)]  # whose reset is answered first
    with pytest.raises(RunError, match=f"^({'|'.join(either)})$"):
        play(workers, jobs([3, 5]), rows=2)
    with pytest.raises(RunError, match=f"^({'|'.join(either)})$"):  # one after another, so never in one batch
        play(ThreadWorkers(functools.partial(Grown, EnvSpec(suite="own")), 1, name="grown"), jobs([3, 5]), rows=2)
    play(ThreadWorkers(functools.partial(Grown, EnvSpec(suite="own")), 1, name="grown"), jobs([3, 5]), rows=1)


def test_nan_ends_it_with_the_name_of_the_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Drawn):
        """Answers with NaN in the second chunk of one rollout, whoever shares its batch."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def __call__(self, observations: Any, draws: Any, prompts: Any) -> Any:
            chunks = super().__call__(observations, draws, prompts)
            for row, draw in enumerate(draws):
                if draw is not None and draw[1:] == (self.number, 1):
                    chunks[row, -1] = np.nan
            return chunks

    with pytest.raises(NonFiniteError, match=r"^episode_1: the policy of step 7 answered with NaN or Inf after 3"):
        play(threads(2), jobs([1, 3]), Broken(1))
    (job,) = jobs([3])
    job = Job(number=0, seed=3, draw=job.draw, path=tmp_path / "episode_3.npz")
    workers = ProcessWorkers(functools.partial(Countdown, EnvSpec(suite="own")), 1, name="countdown")
    with pytest.raises(NonFiniteError, match=r"episode_3.nan.npz: .*its file holds what the policy saw"):
        play(workers, [job], Broken(0))
    assert load(tmp_path / "episode_3.nan.npz").length == 3

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("chunkwise.envs.collect.save", full)
    workers = ProcessWorkers(functools.partial(Countdown, EnvSpec(suite="own")), 1, name="countdown")
    with pytest.raises(NonFiniteError, match=r"NaN or Inf .*could not be written: No space left"):
        play(workers, [job], Broken(0))


def test_an_episode_without_end_names_the_flag_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("chunkwise.envs.collect.ENDLESS", 5)
    Collector(threads(2)).play(jobs([1, 3, 5]), Drawn(), lambda *_: None)
    assert capsys.readouterr().out.count("has not ended after 6 steps; if its environment has no time limit, ") == 1
    Collector(threads(2), tasks=(Task(max_steps=8),)).play(jobs([1, 3]), Drawn(), lambda *_: None)
    assert "has not ended" not in capsys.readouterr().out
