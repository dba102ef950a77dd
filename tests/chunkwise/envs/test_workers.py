"""Workers in processes and in threads: the same answers to the same requests, in any order, and what failures say."""

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.envs import environment
from chunkwise.envs import workers as workers_lib
from chunkwise.envs.environment import EnvSpec, Step, state_hash
from chunkwise.envs.failures import require_finite
from chunkwise.envs.thread_workers import ThreadWorkers
from chunkwise.envs.workers import ProcessWorkers, Reset, Run, Start, Stretch, answer
from chunkwise.errors import RunError, StopRequested
from tests.chunkwise.envs.countdown import Countdown

ACTIONS = np.linspace(-2, 2, 9, dtype=np.float32).reshape(3, 3)


def opener(task: str = "", cameras: tuple[str, ...] = ()) -> Callable[[], Any]:
    return functools.partial(Countdown, EnvSpec(suite="own", task=task, cameras=cameras))


@pytest.fixture(params=["processes", "threads"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def workers(count: int, **which: Any) -> Any:
        if request.param == "threads":
            made.append(ThreadWorkers(opener(**which), count, name="countdown"))
        else:
            made.append(ProcessWorkers(opener(**which), count, name="countdown", every_frame=False))
        return made[-1]

    yield workers
    for one in made:
        one.close()


def test_answers_of_processes_and_threads_are_the_same(make: Callable[..., Any]) -> None:
    workers = make(1, cameras=("top",))
    for _ in range(2):
        workers.submit(0, Reset(2))
        _, start = workers.receive([0])
        assert start.init_hash == state_hash(np.array([2.0, 0.0]))
        np.testing.assert_array_equal(start.observation["state"], [2, 0])
        assert (start.observation["top"] == 0).all()
        workers.submit(0, Run(ACTIONS[:2]))
        _, first = workers.receive([0])
        assert not first.over
        np.testing.assert_array_equal(first.actions, np.clip(ACTIONS[:2], -1, 1))
        np.testing.assert_array_equal(first.rewards, np.clip(ACTIONS[:2, 0], -1, 1) - 1)
        np.testing.assert_array_equal(first.observations["state"], [[2, 2]])
        assert (first.observations["top"] == 2).all()
        workers.submit(0, Run(ACTIONS))
        _, last = workers.receive([0])
        assert (last.over, last.success.tolist(), len(last.actions)) == (True, [True], 1)
        assert set(last.observations) == {"state"}, "nobody looks at the end of an episode"
    workers.close()
    workers.submit(0, Reset(2))
    assert isinstance(workers.receive([0])[1], Start), "a later request begins anew"


def test_the_seconds_of_processors_are_told_but_not_those_that_passed_asleep(make: Callable[..., Any]) -> None:
    for task, least, most in (("busy", 0.09, 9.0), ("slow", 0.0, 0.12)):  # 0.15 s asleep
        workers = make(1, task=task)
        workers.submit(0, Reset(3))
        workers.receive([0])
        workers.submit(0, Run(ACTIONS))
        assert least <= workers.receive([0])[1].busy_s <= most


def test_the_first_that_is_there_is_received(make: Callable[..., Any]) -> None:
    workers = make(3, task="slow")
    for slot, seed in enumerate((1, 4, 3)):
        workers.submit(slot, Reset(seed))
    waiting = {0, 1, 2}
    while waiting:
        slot, start = workers.receive(sorted(waiting))
        waiting.remove(slot)
        assert start.observation["state"][0] == (1, 4, 3)[slot]
    for slot in range(3):
        workers.submit(slot, Run(ACTIONS))
    assert workers.receive([0, 1, 2])[0] == 1, "the others sleep at every step"
    slot, _ = workers.receive([0, 2])
    assert workers.receive([2 - slot])[0] == 2 - slot


def test_a_silent_worker_does_not_keep_a_run_from_stopping(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("workers", "thread_workers"):
        monkeypatch.setattr(f"chunkwise.envs.{room}.ASK_AGAIN", 0.01)
    workers = make(1, task="slow")
    workers.submit(0, Reset(1))
    workers.receive([0])
    workers.submit(0, Run(ACTIONS))
    with pytest.raises(StopRequested):
        workers.receive([0], lambda: True)
    workers.close()


def test_what_a_simulator_raises_is_said(make: Callable[..., Any]) -> None:
    workers = make(1, task="broken")
    workers.submit(0, Reset(4))
    with pytest.raises(RunError) as error:
        workers.receive([0])
    first, *lines = str(error.value).split("\n")
    assert first == "the environment countdown (reset with seed 4, step 0) failed: ZeroDivisionError: seed 4"
    assert "countdown.py, line " in lines[-1]
    assert not [line for line in lines if "concurrent" in line or "chunkwise/envs/workers" in line]
    assert lines[-1].endswith('in reset: raise ZeroDivisionError("seed 4")')


def test_an_environment_that_exits_ends_no_run(make: Callable[..., Any]) -> None:
    workers = make(1, task="exits")
    workers.submit(0, Reset(4))
    with pytest.raises(RunError, match=r"countdown \(reset with seed 4, step 0\) failed: SystemExit: 0"):
        workers.receive([0])


def test_the_step_is_named_and_what_is_not_finite(make: Callable[..., Any]) -> None:
    workers = make(1, task="nan")
    workers.submit(0, Reset(1))
    workers.receive([0])
    workers.submit(0, Run(ACTIONS[:2]))
    workers.receive([0])
    workers.submit(0, Run(ACTIONS))
    said = (
        r"^the environment countdown \(reset with seed 1, step 3\): step\(\) observed 'state' with 1 of 2 numbers not "
        r"finite in 32 bits: \[0\] = nan$"
    )
    with pytest.raises(RunError, match=said):
        workers.receive([0])


def test_a_constructor_that_fails_is_named() -> None:
    def opener() -> Any:
        raise TypeError("no such argument")

    workers = ThreadWorkers(opener, 1, name="mine")
    workers.submit(0, Reset(0))
    with pytest.raises(RunError, match="the environment mine could not be made: TypeError: no such argument"):
        workers.receive([0])
    spec = EnvSpec(suite=f"{__name__}:takes_two", allow_code=True)
    with pytest.raises(RunError, match=r"takes_two could not be made: TypeError: takes_two\(\) missing 1") as error:
        environment.make(spec)
    assert error.value.exit_code == 70


def takes_two(spec: EnvSpec, more: str) -> None:
    """No factory."""


def test_only_what_is_not_finite_is_refused() -> None:
    large = np.full(4, 3e38, np.float32)  # whose sum is infinite
    require_finite("step()", {"large": large, "pixels": np.zeros((2, 2, 3), np.uint8)})
    with pytest.raises(
        RunError, match=r"^step\(\) observed 'x' with 1 of 4 numbers not finite in 32 bits: \[2\] = -inf$"
    ):
        require_finite("step()", {"x": np.array([[0, 1], [-np.inf, 2]])})
    with pytest.raises(
        RunError, match=r"^step\(\) observed 'x' with 1 of 2 numbers not finite in 32 bits: \[0\] = 1e\+39$"
    ):
        require_finite("step()", {"x": np.array([1e39, 1.0])})  # infinite in the 32 bits that are kept
    require_finite("step()", {"half": np.ones(2, np.float16), "none": np.zeros(0, np.float16)})
    for bad in (np.array([1, -np.inf], np.float16), np.float16(np.nan)):
        with pytest.raises(RunError, match="not finite in 32 bits"):
            require_finite("step()", {"x": bad})


def test_a_step_is_numbers_and_arrays_by_name() -> None:
    step = Step({"state": np.zeros(1)}, 0.0, False, False, False)
    for reward in (jnp.float32(1), np.array(1.0), np.float32(1), True, 2):
        workers_lib.require_step("step()", dataclasses.replace(step, reward=reward))
    wrong: list[tuple[str, Any, str]] = [
        ("reward", np.ones(1), r"gave the reward array\(\[1\.\]\); expected one number or bool, not an array"),
        ("reward", jnp.ones(1), "gave the reward .*; expected one number or bool, not an array"),
        ("reward", None, "gave the reward None; expected one number or bool"),
        ("reward", "high", "gave the reward 'high'; expected one number or bool"),
        ("terminated", "no", "gave the terminated 'no'; expected one number or bool"),
        ("success", None, "gave the success None; expected one number or bool"),
        ("success", np.array([True, False]), "gave the success .*; expected one number or bool, not an array"),
        ("terminated", [True], "gave the terminated .*; expected one number or bool, not an array"),
        ("observation", None, "observed a NoneType; expected a dict of arrays by name"),
    ]
    for name, value, said in wrong:
        with pytest.raises(RunError, match=rf"^step\(\) {said}$"):
            workers_lib.require_step("step()", dataclasses.replace(step, **{name: value}))


@pytest.mark.parametrize(
    ("reward", "refused"), [(3.4e38, False), (-3.5e38, True), (np.float16(np.inf), True), (np.nan, True)]
)
def test_a_reward_is_finite_in_32_bits(reward: float, refused: bool) -> None:
    step = environment.Step({}, reward, success=False)
    if not refused:
        workers_lib.require_step("step()", step)
        return
    with pytest.raises(RunError, match=r"^step\(\) gave the reward .*; expected a finite number, at most 3\.4e\+38$"):
        workers_lib.require_step("step()", step)


def test_numbers_in_a_list_and_of_another_library_are_looked_at_too() -> None:
    for value in ([0.0, float("nan")], jnp.array([0.0, jnp.nan])):
        with pytest.raises(
            RunError, match=r"^step\(\) observed 'x' with 1 of 2 numbers not finite in 32 bits: \[1\] = nan$"
        ):
            require_finite("step()", {"x": value})
    require_finite("step()", {"x": [0.0, 1.0], "words": ["pick"], "count": 3})


class Changes(Countdown):
    """Shows one number more with every step, its goal at a reset alone, or goals as many as its seed; by seed."""

    def _observe(self) -> Any:
        more = {"goal": np.zeros(self.seed, np.float32)} if self.seed != 1 or self.t == 0 else {}
        more |= {"contact": np.zeros(1, np.float32)} if self.t else {}
        return super()._observe() | {"counts": np.zeros(1 + self.t * (self.seed == 0), np.float32)} | more


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (0, r"step\(\) observed 'counts' with shape \(2,\); expected \(1,\), as before"),
        (1, r"step\(\) observed \['contact', 'counts', 'state'\]; expected goal too, as before"),
    ],
)
def test_what_is_observed_keeps_its_names_and_shapes(seed: int, said: str) -> None:
    workers = ThreadWorkers(functools.partial(Changes, EnvSpec(suite="own")), 1, name="mine")
    workers.submit(0, Reset(seed))
    workers.receive([0])
    workers.submit(0, Run(ACTIONS))
    with pytest.raises(RunError, match=rf"^the environment mine \(reset with seed {seed}, step 1\): {said}$"):
        workers.receive([0])


class Looks(Countdown):
    """Its cameras fail from the second frame on; how, its seed says. No seed of these solves it in a step."""

    def images(self) -> Any:
        good = {name: np.zeros((2, 3, 3), np.uint8) for name in ("front", "wrist")}
        wrong: list[Any] = [np.zeros((4, 3, 3), np.uint8), np.zeros((2, 3, 3), np.float32), None]
        if not self.t:
            return good
        return {"front": good["front"]} if self.seed == 9 else good | {"wrist": wrong[self.seed - 1]}


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (9, r"images\(\) observed \['front'\]; expected wrist too, as before"),
        (1, r"images\(\) observed 'wrist' with shape \(4, 3, 3\); expected \(2, 3, 3\), as before"),
        (2, r"images\(\) gave 'wrist' as float32; expected uint8 \[h, w, 3\] in 0\.\.255; multiply floats .*"),
        (3, r"images\(\) gave 'wrist' as object; expected uint8 \[h, w, 3\] in 0\.\.255"),
    ],
)
def test_a_camera_that_fails_is_named(seed: int, said: str) -> None:
    workers = ThreadWorkers(functools.partial(Looks, EnvSpec(suite="own")), 1, name="mine")
    workers.submit(0, Reset(seed))
    workers.receive([0])
    workers.submit(0, Run(ACTIONS[:1]))
    with pytest.raises(RunError, match=rf"^the environment mine \(reset with seed {seed}, step 1\): {said}$"):
        workers.receive([0])


def test_another_episode_may_show_another_goal_and_a_step_more_than_the_reset() -> None:
    workers = ThreadWorkers(functools.partial(Changes, EnvSpec(suite="own")), 1, name="mine")
    for seed in (3, 5):
        workers.submit(0, Reset(seed))
        workers.receive([0])
        workers.submit(0, Run(ACTIONS))
        _, stretch = workers.receive([0])
        assert isinstance(stretch, Stretch)
        assert stretch.observations["goal"].shape[1:] == (seed,)


def test_a_process_does_not_go_before_the_one_that_asks_it() -> None:
    workers = ProcessWorkers(opener(), 1, name="countdown")
    try:
        workers.submit(0, Reset(1))
        workers.receive([0])
        pid = workers.pid(0)
        assert pid is not None
        assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    finally:
        workers.close()


@pytest.mark.parametrize(("seed", "steps"), [(2, 3), (11, 5), (1, 9), (13, 9)])
def test_a_stretch_ends_with_the_episode(seed: int, steps: int) -> None:
    """By success, by termination without, and at the environment's own limit."""
    env = opener()()
    answer(env, Reset(seed), every_frame=True)
    stretch = answer(env, Run(np.zeros((12, 3), np.float32)), every_frame=True)
    assert isinstance(stretch, Stretch)
    assert (len(stretch.actions), stretch.over, bool(stretch.success[-1])) == (steps, True, seed == 2)
    np.testing.assert_array_equal(stretch.observations["state"][:, 1], np.arange(1, steps + 1))


def test_actions_are_kept_as_they_were_asked_for() -> None:
    """Of a simulator that changes them into its drives' units in place."""
    env = opener()()
    stepped = env.step

    def halved(action: Any) -> environment.Step:
        action *= 0.5
        return stepped(action)

    env.step = halved
    answer(env, Reset(1), every_frame=True)
    stretch = answer(env, Run(ACTIONS.copy()), every_frame=True)
    assert isinstance(stretch, Stretch)
    np.testing.assert_array_equal(stretch.actions, np.clip(ACTIONS, -1, 1))


def test_images_are_taken_of_every_frame_or_of_the_last_alone() -> None:
    for every_frame, looks in ((True, 4), (False, 2)):
        env = opener(cameras=("top",))()
        answer(env, Reset(1), every_frame=every_frame)
        stretch = answer(env, Run(ACTIONS), every_frame=every_frame)
        assert isinstance(stretch, Stretch)
        assert env.looks == looks
        shown = stretch.observations["top"][:, 0, 0, 0].tolist()
        assert shown == ([1, 2, 3] if every_frame else [3])


def test_frames_are_kept_as_they_were_seen() -> None:
    """Of a simulator that shows the array in which it counts."""

    class Counter(Countdown):
        def reset(self, seed: int) -> Any:
            self.shown = super().reset(seed)
            return self.shown

        def step(self, action: Any) -> Any:
            step = super().step(action)
            for name, array in step.observation.items():
                self.shown[name][...] = array
            return dataclasses.replace(step, observation=self.shown)

    expected, found = (one(EnvSpec(suite="countdown")) for one in (Countdown, Counter))
    start, shown = (answer(env, Reset(1), every_frame=True) for env in (expected, found))
    stretch, frames = (answer(env, Run(ACTIONS), every_frame=True) for env in (expected, found))
    for one, other in ((start.observation, shown.observation), (stretch.observations, frames.observations)):  # pyright: ignore
        np.testing.assert_array_equal(one["state"], other["state"])


def test_all_that_an_environment_does_is_done_by_one_thread_of_its_own() -> None:
    """As a GL context asks for, of an environment that renders in its reset and steps too."""
    did: dict[int, list[str]] = {}

    class Told(Countdown):
        def __init__(self, spec: EnvSpec) -> None:
            super().__init__(spec)
            self._note("made")

        def _note(self, what: str) -> None:
            did.setdefault(threading.get_ident(), []).append(what)

        def reset(self, seed: int) -> Any:
            self._note("reset")
            return super().reset(seed)

        def step(self, action: Any) -> Step:
            self._note("step")
            return super().step(action)

        def images(self) -> Any:
            self._note("images")
            return super().images()

        def close(self) -> None:
            self._note("closed")

    workers = ThreadWorkers(functools.partial(Told, EnvSpec(suite="own")), 3, name="told")
    for request in (Reset(1), Run(ACTIONS[:2])):
        for slot in range(3):
            workers.submit(slot, request)
        for slot in range(3):
            workers.receive([slot])
    workers.close()
    assert list(did.values()) == 3 * [["made", "reset", "images", "step", "step", "images", "closed"]]
    assert threading.get_ident() not in did


def test_threads_close_their_environments() -> None:
    made: list[Countdown] = []

    def make() -> Countdown:
        made.append(Countdown(EnvSpec(suite="own")))
        return made[-1]

    workers = ThreadWorkers(make, 3, name="countdown")
    for slot in (0, 2):
        workers.submit(slot, Reset(0))
    workers.close()
    assert [env.closed for env in made] == [True, True]


def test_an_environment_that_cannot_be_closed_is_said_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers_lib, "OPEN", 2)
    made: list[Countdown] = []

    def opener(task: str = "") -> Countdown:
        made.append(Countdown(EnvSpec(suite="own", task="stuck" if task == "b" else task)))
        return made[-1]

    workers = ThreadWorkers(opener, 2, name="countdown")
    for slot, task in ((0, "b"), (0, "a"), (0, "c"), (1, "a"), (1, "b")):
        workers.submit(slot, Reset(2, task))
        workers.receive([slot])
    line = "the environment countdown b could not be closed: OSError: the display is gone\n"
    assert capsys.readouterr().err == line, "c came in its place"
    workers.close()
    assert capsys.readouterr().err == line
    assert all(env.closed for env in made)


def test_a_slot_has_an_environment_of_each_task_and_closes_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_lib, "OPEN", 2)
    made: list[Countdown] = []

    def opener(task: str = "") -> Countdown:
        made.append(Countdown(EnvSpec(suite="own", task=task)))
        return made[-1]

    workers = ThreadWorkers(opener, 1, name="countdown")

    def play(task: str) -> None:
        workers.submit(0, Reset(2, task))
        workers.receive([0])
        workers.submit(0, Run(ACTIONS[:1]))
        workers.receive([0])

    for task in ("a", "b", "a", "c", "a", "b"):
        play(task)
        latest = next(env for env in reversed(made) if env.spec.task == task)
        assert latest.t == 1, "the actions went to the task that was reset"
        latest.t = 0
    assert [env.spec.task for env in made] == ["a", "b", "c", "b"], "b was reset longest ago when c came, then c"
    assert [env.closed for env in made] == [False, True, True, False]
    workers.close()
    assert all(env.closed for env in made)


def test_an_environments_failure_names_its_task() -> None:
    workers = ProcessWorkers(opener_of_task, 1, name="countdown")
    workers.submit(0, Reset(4, "broken"))
    with pytest.raises(RunError, match=r"the environment countdown broken \(reset with seed 4, step 0\) failed"):
        workers.receive([0])
    workers.close()
    workers.submit(0, Reset(4, "other"))
    assert isinstance(workers.receive([0])[1], Start)
    workers.close()


def opener_of_task(task: str = "") -> Countdown:
    return Countdown(EnvSpec(suite="own", task=task))
