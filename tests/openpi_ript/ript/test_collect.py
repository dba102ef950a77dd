import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunkwise.envs import collect
from chunkwise.envs.collect import Job
from chunkwise.envs.environment import state_hash
from chunkwise.envs.rollout import Rollout, load
from chunkwise.envs.workers import ProcessWorkers, Reset, Start, WorkerDiedError
from chunkwise.errors import ConfigError, NonFiniteError, RunError, StopRequested
from openpi_ript.data.point import DISCS
from openpi_ript.envs.make import make
from openpi_ript.ript.collect import Collector
from tests.openpi_ript.toy_rollouts import Straight, jobs, point


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector(point())
    yield made
    made.close()


def play(collector: Collector, todo: list[Job], actor: Straight) -> dict[int, Rollout]:
    finished: dict[int, Rollout] = {}
    assert collector.collect(todo, actor, lambda job, rollout: finished.update({job.number: rollout}))
    return finished


def pid_of(collector: Collector, slot: int) -> int | None:
    """Process of a slot."""
    assert isinstance(collector.workers, ProcessWorkers)
    return collector.workers.pid(slot)


def assert_same(a: Rollout, b: Rollout) -> None:
    assert (a.seed, a.draw, a.init_hash, a.success) == (b.seed, b.draw, b.init_hash, b.success)
    np.testing.assert_array_equal(a.actions, b.actions)
    for name, value in a.observations.items():
        np.testing.assert_array_equal(value, b.observations[name])


def test_a_rollout_does_not_depend_on_what_runs_beside_it(collector: Collector, tmp_path: Path):
    together = play(collector, jobs(7, tmp_path), Straight())
    assert sorted(together) == list(range(7))
    assert len({rollout.success for rollout in together.values()}) == 2
    for number in (0, 3, 6):
        assert_same(play(collector, [jobs(7, tmp_path)[number]], Straight())[number], together[number])


def test_a_rollout_is_what_the_environment_does_and_can_be_replayed(collector: Collector, tmp_path: Path):
    for rollout in play(collector, jobs(4, tmp_path), Straight()).values():
        env = make(point())
        observed = [env.reset(rollout.seed)]
        assert rollout.init_hash == state_hash(env.state())
        steps = [env.step(action) for action in rollout.actions]
        observed += [step.observation for step in steps]
        np.testing.assert_array_equal(rollout.observations["position"], [one["position"] for one in observed])
        np.testing.assert_array_equal(rollout.rewards, [step.reward for step in steps])
        assert [step.success for step in steps[:-1]] == [False] * (rollout.length - 1), "ends with the first success"
        assert steps[-1].success == rollout.success
        assert rollout.success or rollout.length == 20
        assert (rollout.step, rollout.weights) == (7, "f" * 64)


def test_every_batch_has_the_same_rows(tmp_path: Path):
    collector, actor = Collector(point(num_envs=4, rows=3, max_steps=4)), Straight()
    play(collector, jobs(5, tmp_path), actor)
    collector.close()
    assert {batch["state"].shape for batch in actor.batches} == {(3, 2)}
    assert {tuple(batch["prompt"]) for batch in actor.batches} == {("move to the red disc",) * 3}


def test_every_chunk_of_every_rollout_has_the_noise_of_its_own_numbers(tmp_path: Path):
    """Four rollouts in batches of two rows, each of two chunks, the second of which is cut off at max_steps."""
    collector, actor = Collector(point(num_envs=4, rows=2, max_steps=6)), Straight(threshold=np.inf)  # all go astray
    todo = jobs(4, tmp_path)
    finished = play(collector, todo, actor)
    collector.close()
    env, used = make(point()), []
    for job in todo:
        rollout = finished[job.number]
        assert (rollout.length, rollout.success, rollout.draw, rollout.seed) == (6, False, job.draw, job.seed)
        assert rollout.prompt == "move to the red disc"
        for chunk, (start, stop) in enumerate([(0, 4), (4, 6)]):
            noise = np.random.default_rng([*job.draw, chunk]).standard_normal((8, 3), np.float32)
            rows = [(call, row) for call, all in enumerate(actor.noise) for row in (0, 1) if (all[row] == noise).all()]
            ((call, row),) = rows
            used += rows
            seen = rollout.observations["position"][start]
            np.testing.assert_array_equal(actor.batches[call]["state"][row], seen)
            disc = np.array(DISCS["blue"], np.float32)
            aimed = np.concatenate([disc + 0.01 * noise[:, :2], np.zeros((8, 1))], axis=1)
            executed = [env.clip(action.astype(np.float32)) for action in aimed[: stop - start]]
            np.testing.assert_allclose(rollout.actions[start:stop], executed, atol=1e-6)
    assert len(used) == 8
    others = {(call, row) for call in range(len(actor.noise)) for row in (0, 1)} - set(used)
    assert all((actor.noise[call][row] == 0).all() for call, row in others), "what fills a batch draws nothing"


def test_a_success_in_the_last_step_is_one(collector: Collector, tmp_path: Path):
    """Straight needs so many steps to the disc: with one less the same rollout fails."""
    job = Job(number=0, seed=3, draw=(0, 1), path=tmp_path / "0.npz")
    length = play(collector, [job], Straight(threshold=-np.inf))[0].length
    assert length < 20
    for steps, success in ((length, True), (length - 1, False)):
        short = Collector(point(num_envs=1, max_steps=steps))
        rollout = play(short, [job], Straight(threshold=-np.inf))[0]
        short.close()
        assert (rollout.length, rollout.success) == (steps, success)


def test_rollouts_of_one_start_differ_by_their_draw_alone(collector: Collector, tmp_path: Path):
    one, other = (Job(number=n, seed=3, draw=(0, n), path=tmp_path / f"{n}.npz") for n in (0, 1))
    finished = play(collector, [one, other], Straight())
    assert finished[0].init_hash == finished[1].init_hash
    assert not np.array_equal(finished[0].actions[0], finished[1].actions[0])


def test_a_killed_worker_costs_its_rollout_alone(collector: Collector, tmp_path: Path):
    untouched = play(collector, jobs(6, tmp_path), Straight())

    class Killer(Straight):
        def __call__(self, observation: dict, noise: np.ndarray) -> np.ndarray:
            if len(self.batches) == 4:
                pid = pid_of(collector, 1)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            return super().__call__(observation, noise)

    before = collector.deaths
    found = play(collector, jobs(6, tmp_path), Killer())
    assert collector.deaths == before + 1
    assert sorted(found) == sorted(untouched)
    for number, rollout in untouched.items():
        assert_same(found[number], rollout)


def test_a_rollout_that_kills_every_worker_ends_the_run(tmp_path: Path):
    collector = Collector(point(num_envs=1))

    class Killer(Straight):
        def __call__(self, observation: dict, noise: np.ndarray) -> np.ndarray:
            pid = pid_of(collector, 0)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            return super().__call__(observation, noise)

    with pytest.raises(RunError, match=r"3 workers died .*, the last: killed by SIGKILL\. Has it print"):
        play(collector, jobs(1, tmp_path), Killer())
    assert collector.deaths == collect.MAX_DEATHS


def test_nan_ends_the_run_with_the_rollouts_file(collector: Collector, tmp_path: Path):
    class Broken(Straight):
        def __call__(self, observation: dict, noise: np.ndarray) -> np.ndarray:
            chunk = super().__call__(observation, noise)
            return chunk * np.float32(np.nan) if len(self.batches) > 3 else chunk

    with pytest.raises(NonFiniteError, match=r"episode_000\d.nan.npz: the policy of step 7 answered with NaN") as error:
        play(collector, jobs(4, tmp_path), Broken())
    (file,) = tmp_path.glob("*.nan.npz")
    assert str(file) in str(error.value)
    assert np.isfinite(load(file).actions).all(), "what happened before"
    assert play(collector, jobs(1, tmp_path), Straight()), "the collector is fit for use"


def test_nan_in_a_later_action_of_a_chunk_ends_the_run_too(collector: Collector, tmp_path: Path):
    class Broken(Straight):
        def __call__(self, observation: dict, noise: np.ndarray) -> np.ndarray:
            chunk = np.array(super().__call__(observation, noise))
            chunk[:, 1, 0] = np.nan
            return chunk

    with pytest.raises(NonFiniteError, match="answered with NaN"):
        play(collector, jobs(1, tmp_path), Broken())


def test_stopping_drops_what_is_under_way(collector: Collector, tmp_path: Path):
    with contextlib.suppress(StopRequested):  # where a worker has not answered yet
        assert not collector.collect(jobs(4, tmp_path), Straight(), lambda *_: None, stopping=lambda: True)
    assert len(play(collector, jobs(4, tmp_path), Straight())) == 4


def test_a_silent_worker_keeps_nobody_from_stopping(tmp_path: Path):
    collector = Collector(point(num_envs=1))
    asked: list[int] = []

    class Silencer(Straight):
        def __call__(self, observation: dict, noise: np.ndarray) -> np.ndarray:
            pid = pid_of(collector, 0)
            if len(self.batches) == 2 and pid is not None:
                os.kill(pid, signal.SIGSTOP)
                asked.append(0)
            return super().__call__(observation, noise)

    def stopping() -> bool:
        """True at the first question after that, while it is silent."""
        return bool(asked)

    with pytest.raises(StopRequested):
        collector.collect(jobs(4, tmp_path), Silencer(), lambda *_: None, stopping=stopping)
    assert pid_of(collector, 0) is None, "a stopped worker is ended too"


def test_a_worker_that_is_silent_for_too_long_is_replaced(monkeypatch: pytest.MonkeyPatch, collector: Collector):
    collector.workers.submit(0, Reset(5))
    _, expected = collector.workers.receive([0])
    assert isinstance(expected, Start)
    pid = pid_of(collector, 0)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(collector.workers, "silence", 0.0)
    monkeypatch.setattr("chunkwise.envs.workers.ASK_AGAIN", 0.1)
    collector.workers.submit(0, Reset(5))
    with pytest.raises(WorkerDiedError) as died:
        collector.workers.receive([0])
    assert died.value.slot == 0
    monkeypatch.undo()
    collector.workers.submit(0, Reset(5))
    slot, again = collector.workers.receive([0])
    assert isinstance(again, Start)
    assert (slot, again.init_hash) == (0, expected.init_hash)


def test_what_an_environment_refuses_is_said(tmp_path: Path):
    collector = Collector(point(task="green"))
    with pytest.raises(ConfigError, match=r"env.task is 'green'; expected one of red, blue"):
        play(collector, jobs(1, tmp_path), Straight())


def test_images_reach_the_policy(tmp_path: Path):
    cameras = {"base_0_rgb": "agentview_image", "left_wrist_0_rgb": "robot0_eye_in_hand_image"}
    collector, actor = Collector(point(cameras=cameras, image_size=(20, 24), num_envs=1, max_steps=4)), Straight()
    (rollout,) = play(collector, jobs(1, tmp_path), actor).values()
    collector.close()
    np.testing.assert_array_equal(
        actor.batches[0]["image"]["base_0_rgb"][0], rollout.observations["agentview_image"][0]
    )
    assert rollout.observations["robot0_eye_in_hand_image"].shape == (rollout.length + 1, 20, 24, 3)
