"""The loop of a robot on a clock of its own: nothing here waits, and nothing is timed."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import ConfigError, DataError
from chunkwise.policies.control import Control, Limits, in_a_thread
from chunkwise.policies.execution import Execution, Plan
from chunkwise.policies.spec import Entry, Spec

RATE = 8.0  # its period has no rounding


class Clock:
    """Time that passes by being waited for, and inferences that take some of it."""

    def __init__(self, latency: float | None = 0.0) -> None:
        self.time = 100.0
        self.latency = latency
        """Seconds of an inference; None: it never ends."""
        self._running: list[tuple[float, concurrent.futures.Future[Any], Callable[[], Any]]] = []

    def now(self) -> float:
        return self.time

    def wait(self, until: float, answer: concurrent.futures.Future[Any] | None = None) -> None:
        for begun in sorted(self._running, key=lambda one: one[0]):
            at, future, call = begun
            if at > max(until, self.time):
                break
            self._running.remove(begun)
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
            if future is answer:
                self.time = max(self.time, at)
                return
        self.time = max(self.time, until)

    def beside(self, call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if self.latency is not None:
            self._running.append((self.time + self.latency, future, call))
        return future


class Arm:
    """Goes where it is told to at once; two joints."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.qpos = np.zeros(2, np.float32)
        self.commands: list[tuple[float, list[float]]] = []
        self.stops = self.looks = 0
        self.then: Callable[[int], object] = lambda count: None
        """Called after each command with their number."""
        self.breaks_at: int | None = None

    def observe(self) -> dict[str, Any]:
        self.looks += 1
        if self.breaks_at == self.looks:
            raise OSError("the bus is gone")
        return {"state": self.qpos.copy()}

    def act(self, action: np.ndarray) -> None:
        self.clock.time += self.seconds
        self.commands.append((round(self.clock.time - 100, 6), np.round(action.astype(float), 6).tolist()))
        self.qpos = action.copy()
        self.then(len(self.commands))

    def stop(self) -> None:
        self.stops += 1

    @property
    def actions(self) -> list[list[float]]:
        return [action for _, action in self.commands]


class Numbered:
    """Action i of the k-th chunk is (k, i); keeps what it was asked."""

    def __init__(self, horizon: int = 6) -> None:
        self.horizon = horizon
        self.seen: list[Any] = []
        self.committed: list[Any] = []
        self.answers: dict[int, Any] = {}
        """In the place of a chunk: what is returned, or raised."""

    def infer(self, observation: Any, *, committed: Any = None) -> Any:
        number = len(self.seen)
        self.seen.append(observation["state"].tolist())
        self.committed.append(committed)
        answer = self.answers.get(number, self.chunk(number))
        if isinstance(answer, Exception):
            raise answer
        return {"actions": answer}

    def chunk(self, number: int) -> np.ndarray:
        return np.stack([np.full(self.horizon, number), np.arange(self.horizon)], axis=1).astype(np.float32)


def made(latency: float | None = 0.0, seconds: float = 0.0, **settings: Any) -> tuple[Control, Arm, Numbered, Clock]:
    clock, policy = Clock(latency), settings.pop("policy", None) or Numbered()
    arm = Arm(clock, seconds)
    control = Control(arm, policy, rate_hz=RATE, clock=clock, beside=clock.beside, **settings)
    return control, arm, policy, clock


def as_evaluated(execution: Execution, steps: int) -> list[list[float]]:
    """What the collector executes of the same chunks."""
    plan, found, policy = Plan(execution), [], Numbered()
    while len(found) < steps:
        plan.begin()
        found += plan.stretch(policy.chunk(len(policy.seen))).astype(float).round(6).tolist()
        policy.seen.append(None)
    return found[:steps]


WAYS = [
    Execution(),
    Execution(delay=2),
    Execution(how="every", execute=2),
    Execution(how="every", execute=3, delay=2),
    Execution(how="ensemble"),
    Execution(how="ensemble", delay=3),
    Execution(how="realtime", delay=1),
    Execution(how="realtime", execute=3, delay=3),
]


@pytest.mark.parametrize("execution", WAYS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_was_evaluated_is_what_the_robot_does(execution: Execution, share: float) -> None:
    """However quick the inference is, up to its delay; with delay 0 it is waited for within the step."""
    latency = (execution.delay or 0.75) * share / RATE
    control, arm, _, _ = made(latency, execution=execution)
    episode = control.run(20)
    assert arm.actions == as_evaluated(execution, 20)
    assert (episode.ended, episode.reason, episode.missed, episode.limited, arm.stops) == ("steps", "", 0, 0, 1)
    assert episode.failures == []
    assert [action.tolist() for action in episode.actions] == [pytest.approx(action) for action in arm.actions]
    at = [time for time, _ in arm.commands]
    if execution.delay or not share:
        np.testing.assert_allclose(np.diff(at), 1 / RATE, atol=1e-6)


def test_real_time_chunking_is_told_what_is_committed() -> None:
    control, _, policy, _ = made(2 / RATE, execution=Execution(how="realtime", execute=3, delay=2))
    control.run(9)
    assert len(policy.committed[0].actions) == 0
    np.testing.assert_array_equal(policy.committed[1].actions, policy.chunk(0)[3:])
    assert policy.seen[1] == [0.0, 2.0], "asked with what is seen before step 3"

    class Client:
        def infer(self, observation: Any) -> Any: ...

    with pytest.raises(ConfigError, match="the infer of a Client takes no `committed`"):
        Control(Arm(Clock()), Client(), rate_hz=RATE, execution=Execution(how="realtime"))
    Control(Arm(Clock()), Client(), rate_hz=RATE, execution=Execution(how="ensemble"))


def test_the_first_chunk_is_waited_for_while_the_robot_stands() -> None:
    control, arm, policy, _ = made(30.0, execution=Execution(delay=2))
    episode = control.run(4)
    assert arm.actions == as_evaluated(Execution(delay=2), 4)
    assert arm.commands[0][0] == 30.0
    assert (len(policy.seen), episode.missed, episode.delays) == (1, 0, [0])
    control, arm, _, clock = made(30.0, execution=Execution(delay=2), first_s=20.0)
    episode = control.run(4)
    assert (episode.ended, arm.commands, arm.stops) == ("watchdog", [], 1)
    assert episode.reason == "no action for 20 s; the policy has not answered what it was asked at step 0"
    assert clock.time == 120


def test_a_late_chunk_is_executed_from_when_it_is_there() -> None:
    """Chunks of 6, a new one every 3 steps, expected after 1 step; the second takes 2."""
    control, arm, _, clock = made(0.0, execution=Execution(how="every", execute=3, delay=1))
    arm.then = lambda count: setattr(clock, "latency", 2 / RATE) if count == 3 else None
    episode = control.run(8)
    assert arm.actions == [[0, i] for i in range(5)] + [[1, 2], [1, 3], [1, 4]]
    assert episode.delays == [0, 2]


@pytest.mark.parametrize("fate", ["hangs", "nan", "server gone", "no actions"])
def test_the_watchdog_stops_the_robot_when_actions_stay_out(fate: str) -> None:
    """One chunk, and then nothing: its rest is executed, and 0.5 s after the last command the robot is stopped."""
    control, arm, policy, clock = made(0.0, execution=Execution(how="every", execute=4, delay=1))
    bad = {
        "nan": np.full((6, 2), np.nan),
        "server gone": ConnectionError("connection closed"),
        "no actions": np.zeros(3),
        "hangs": None,
    }[fate]
    policy.answers = dict.fromkeys(range(1, 99), bad)
    if fate == "hangs":
        arm.then = lambda count: setattr(clock, "latency", None)
    episode = control.run(100)
    assert arm.actions == [[0, i] for i in range(6)], "nothing of what is no chunk is executed"
    assert (episode.ended, len(episode), arm.stops) == ("watchdog", 6, 1)
    assert clock.time == 100 + 6 / RATE + 0.5
    why = {
        "hangs": "no action for 0.5 s; the policy has not answered what it was asked at step 4",
        "nan": "inferences failed: actions: expected finite numbers, found nan at step 0",
        "server gone": "inferences failed: connection closed",
        "no actions": r"inferences failed: actions: expected [t, a] numbers, found shape [3]",
    }[fate]
    assert why in episode.reason
    assert bool(episode.failures) == (fate != "hangs")


def test_one_failure_costs_nothing_while_the_old_chunk_lasts() -> None:
    control, arm, policy, _ = made(1 / RATE, execution=Execution(how="every", execute=3, delay=1))
    policy.answers = {1: TimeoutError("late")}
    episode = control.run(9)
    # Asked at step 3, known to have failed at 4, asked again then, there at 5.
    assert arm.actions == [[0, i] for i in range(5)] + [[2, 1], [2, 2], [2, 3], [3, 1]]
    assert episode.failures == ["late"]
    assert episode.ended == "steps"


@pytest.mark.parametrize("how", ["every", "ensemble"])
@pytest.mark.parametrize(
    ("shape", "wanted"), [((6, 3), "[t, 2]"), ((6, 1), "[t, 2]"), ((3, 2), None), ((6, 2, 1), "[t, a] numbers")]
)
def test_a_chunk_of_another_shape_than_the_first_is_none(how: Any, shape: tuple[int, ...], wanted: str | None) -> None:
    """Kills: a command of another width, an average of chunks of two widths, an error for a chunk that is shorter."""
    control, arm, policy, _ = made(execution=Execution(how=how, execute=4, delay=1))
    policy.answers = {1: np.ones(shape)}
    episode = control.run(8)
    # Asked at step 4, known at 5 to be none, asked again then; its answer is executed from step 6 on.
    np.testing.assert_allclose(arm.actions, [[0, i] for i in range(6)] + [[2, 1], [2, 2]])
    assert (episode.ended, len(policy.seen)) == ("steps", 3)
    said = f"actions: expected {wanted}, found shape {list(shape)}"
    assert episode.failures == [said if wanted else "--execute is 4; a chunk of this policy has 3 actions"]
    policy.answers = {3: np.ones(shape)}
    assert len(control.run(1).failures) == 1, "in the next episode too"


def test_a_chunk_may_be_longer_or_shorter_where_its_policy_says_nothing_of_it() -> None:
    control, arm, policy, _ = made(execution=Execution(how="every", execute=2, delay=1))
    policy.answers = {1: np.full((4, 2), 5.0), 2: np.full((9, 2), 7.0)}
    assert control.run(8).failures == []
    assert arm.actions[3:7] == [[5, 5], [5, 5], [7, 7], [7, 7]]


def test_the_first_chunk_has_the_shape_that_the_policy_says() -> None:
    class Knows(Numbered):
        spec = Spec(observation={}, actions=Entry(shape=(6, 2), dtype="float32", unit="", meaning=""))

    control, arm, policy, _ = made(policy=Knows())
    policy.answers = {0: np.ones((6, 3))}
    assert control.run(1).failures == ["actions: expected [6, 2], as all chunks of this policy, found shape [6, 3]"]
    assert arm.actions == [[1, 0]]
    control, arm, *_ = made(policy=Knows(), person=lambda observation: np.zeros(3))
    with pytest.raises(DataError, match=r"person: expected an action of 2 numbers, found float64 of shape \[3\]"):
        control.run(1)
    assert (arm.commands, arm.stops) == ([], 1)


def test_missed_deadlines_are_counted_and_not_caught_up_with() -> None:
    """A command takes two steps."""
    control, arm, _, _ = made(0.0, seconds=0.25)
    episode = control.run(4)
    assert [time for time, _ in arm.commands] == [0.25, 0.5, 0.75, 1.0]
    assert (episode.missed, episode.ended) == (4, "steps")
    assert episode.ticks == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    # By hand, in periods of 1/8 s: step k begins after 1.4 k, or 1.6 k, of them, rounded; of two equal ones the later.
    [(1.4 / RATE, [0, 1, 3, 4, 6, 7, 8, 10, 11, 13]), (1.6 / RATE, [0, 2, 3, 5, 6, 8, 10, 11, 13, 14])],
)
def test_a_step_is_where_the_clock_stands(seconds: float, ticks: list[int]) -> None:
    control, *_ = made(0.0, seconds=seconds)
    episode = control.run(10)
    assert episode.ticks == ticks
    assert episode.missed == 10


@pytest.mark.parametrize(("share", "missed"), [(1.004, 0), (1.016, 4)])
def test_a_hundredth_of_a_step_is_not_late(share: float, missed: int) -> None:
    control, *_ = made(0.0, seconds=share / RATE)
    assert control.run(2 if not missed else 4).missed == missed


def test_limits() -> None:
    """A policy that jumps: 1 unit a second is 1/8 a step, from the measured joints on."""

    class Jumps(Numbered):
        def chunk(self, number: int) -> np.ndarray:
            return np.array([[0.05, -3.0], [3.0, -3.0], [3.0, -3.0]], np.float32)

    limits = Limits(low=np.array([-1.0, -0.25]), high=np.array([0.2, 1.0]), speed=np.array([1.0, 1.0]))
    control, arm, _, _ = made(limits=limits, policy=Jumps(3))
    arm.qpos[:] = 0.1
    episode = control.run(5)
    expected = [[0.05, -0.025], [0.175, -0.15], [0.2, -0.25], [0.075, -0.25], [0.2, -0.25]]
    np.testing.assert_allclose(arm.actions, expected, atol=1e-6)
    assert episode.limited == 5
    np.testing.assert_allclose(np.stack(episode.actions), arm.actions, atol=1e-6)

    control, arm, _, _ = made(limits=Limits(high=np.ones(3)))
    with pytest.raises(ConfigError, match=r"Limits\.high: expected 2 numbers, as an action has, found \(3,\)"):
        control.run(5)
    assert (arm.commands, arm.stops, control.episode.ended) == ([], 1, "error")
    control, arm, _, _ = made(limits=Limits(speed=np.ones(2)))
    arm.qpos = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match=r"Limits\.speed: expected qpos .* of 2 joints"):
        control.run(5)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"low": [0.0, np.nan]}, r"Limits\.low: expected a finite number for each"),
        ({"high": [np.inf, 1.0]}, r"Limits\.high: expected a finite number for each"),
        ({"speed": [1.0, 0.0]}, r"Limits\.speed: expected numbers above 0"),
        ({"low": [0.0, 2.0], "high": [1.0, 1.0]}, r"Limits\.low: expected at most Limits\.high"),
    ],
)
def test_limits_that_would_command_anything_are_refused(limits: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Limits(**{name: np.array(value) for name, value in limits.items()})


def test_a_person_takes_over_and_hands_back() -> None:
    """From step 3 to 5: their actions are executed and marked, and the policy begins anew with what it sees then."""
    looks = [0]

    def person(observation: Any) -> np.ndarray | None:
        looks[0] += 1
        return np.array([9, looks[0]]) if looks[0] in (3, 4, 5) else None

    control, arm, policy, _ = made(2 / RATE, execution=Execution(how="every", execute=3, delay=2), person=person)
    looks[0] = -2  # the robot stands for two steps until the first chunk is there
    episode = control.run(9)
    assert arm.actions[:5] == [[0, 0], [0, 1], [9, 3], [9, 4], [9, 5]]
    assert arm.actions[5:] == [[1, 0], [1, 1], [1, 2], [1, 3]]
    assert policy.seen[1] == [9.0, 5.0]
    assert episode.interventions == [False] * 2 + [True] * 3 + [False] * 4
    assert episode.ticks == [2, 3, 4, 5, 6, 9, 10, 11, 12], "it stood for two steps while the policy was asked"


def test_a_chunk_that_was_asked_for_before_a_person_took_over_is_forgotten() -> None:
    control, arm, policy, _ = made(
        3 / RATE,
        execution=Execution(how="every", execute=3, delay=3),
        patience_s=2.0,
        person=lambda observation: np.array([9.0, 9.0]) if observation["state"].tolist() == [0, 3] else None,
    )
    episode = control.run(7)
    assert arm.actions == [[0, 0], [0, 1], [0, 2], [0, 3], [9, 9], [2, 0], [2, 1]]
    assert episode.interventions == [False] * 4 + [True] + [False] * 2
    assert len(policy.seen) == 3


@pytest.mark.parametrize(
    ("wrong", "found"),
    [(np.zeros(7), r"float64 of shape \[7\]"), ("x", r"<U1 of shape \[\]"), (np.zeros((1, 2)), r"float64 of shape")],
)
def test_an_action_of_a_person_that_is_none_is_refused(wrong: Any, found: str) -> None:
    looks = iter([None, [1, 2], wrong])
    control, arm, *_ = made(person=lambda observation: next(looks))
    with pytest.raises(DataError, match=f"person: expected an action of 2 numbers, found {found}"):
        control.run(5)
    assert (arm.actions, arm.stops) == ([[0, 0], [1, 2]], 1)


def test_a_person_who_acts_first_says_how_wide_an_action_is() -> None:
    looks = iter([np.zeros(3)])
    control, arm, *_ = made(person=lambda observation: next(looks, None))
    episode = control.run(5)
    assert (arm.actions, episode.ended) == ([[0, 0, 0]], "watchdog")
    assert episode.reason.endswith("inferences failed: actions: expected [t, 3], found shape [6, 2]")


def interrupted(count: int) -> None:
    if count == 6:
        raise KeyboardInterrupt


def test_the_robot_is_stopped_whatever_is_raised() -> None:
    control, arm, _, _ = made(execution=Execution(how="every", execute=3))
    arm.breaks_at = 5
    with pytest.raises(OSError, match="the bus is gone"):
        control.run(9)
    found = (control.episode.ended, control.episode.reason, len(control.episode), arm.stops)
    assert found == ("error", "the bus is gone", 4, 1)
    arm.then, arm.breaks_at = interrupted, None
    episode = control.run(9)
    assert (episode.ended, len(episode), arm.stops) == ("interrupted", 1, 2)


def test_an_observation_that_cannot_be_recorded_is_refused_before_the_robot_moves() -> None:
    class Droid(Arm):
        def observe(self) -> dict[str, Any]:
            return {"observation/joint_position": self.qpos}

    class Same(Numbered):
        def infer(self, observation: Any, *, committed: Any = None) -> Any:
            return {"actions": self.chunk(1)}

    clock = Clock()
    settings: dict[str, Any] = {"rate_hz": RATE, "clock": clock, "beside": clock.beside}
    arm = Droid(clock)
    with pytest.raises(DataError, match=r"expected state or qpos .*found \['joint_position'\]; give Control\(joints="):
        Control(arm, Same(), **settings).run(3)
    assert (arm.commands, arm.stops) == ([], 1)
    # Of 1 unit a second 1/8 a step, from the joints that the function tells.
    control = Control(
        arm, Same(), limits=Limits(speed=np.ones(2)), joints=lambda seen: seen["observation/joint_position"], **settings
    )
    assert len(control.run(1)) == 1
    assert arm.actions == [[0.125, 0.0]]


@pytest.mark.parametrize("name", ["state", "qpos"])
def test_joints_that_a_function_tells_are_the_measured_ones_whatever_else_is_seen(name: str) -> None:
    """Kills: a first command that jumps, since the speed is measured from the hand's pose in place of the joints."""

    class Hand(Arm):
        def observe(self) -> dict[str, Any]:
            return {name: np.full(2, 5.0), "joints": self.qpos}

    class Far:
        def infer(self, observation: Any) -> Any:
            return {"actions": np.full((6, 2), 5.0, np.float32)}

    clock = Clock()
    control = Control(
        (arm := Hand(clock)),
        Far(),
        rate_hz=RATE,
        limits=Limits(speed=np.ones(2)),
        joints=lambda seen: seen["joints"],
        clock=clock,
        beside=clock.beside,
    )
    episode = control.run(2)
    assert (arm.actions, episode.limited) == ([[0.125, 0.125], [0.25, 0.25]], 2)
    assert episode.measured({name: np.full(2, 5.0), "joints": np.array([1, 2])}).tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match=r"joints: expected a vector of numbers, found float64 of \[\]"):
        episode.measured({name: np.zeros(2), "joints": 0.5})


def test_somebody_says_that_it_is_done() -> None:
    control, arm, _, _ = made()
    episode = control.run(9, done=lambda observation: observation["state"].tolist() == [0, 4])
    assert (episode.ended, len(episode), arm.stops) == ("done", 5, 1)
    again = control.run(2)
    assert (again.ended, len(again), len(episode)) == ("steps", 2, 5)


def test_chunks_that_are_too_short_are_refused_before_the_robot_moves() -> None:
    control, arm, _, _ = made(0.0, execution=Execution(how="every", execute=5, delay=3))
    with pytest.raises(ConfigError, match="expected both together within the 6 actions"):
        control.run(9)
    with pytest.raises(ConfigError, match="steps is 0; expected at least 1"):
        control.run(0)
    assert (arm.commands, arm.stops) == ([], 2)


@pytest.mark.parametrize("value", [0.0, "20"])
@pytest.mark.parametrize("name", ["rate_hz", "patience_s", "first_s"])
def test_numbers_out_of_range(name: str, value: Any) -> None:
    settings: dict[str, Any] = {"rate_hz": 1.0, name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; expected a number above 0"):
        Control(Arm(Clock()), Numbered(), **settings)


def test_with_the_machines_clock_and_a_thread() -> None:  # a policy that answers, and one that hangs for ever
    arm, policy = Arm(Clock()), Numbered()
    episode = Control(arm, policy, rate_hz=200.0, execution=Execution(how="every", execute=3, delay=1)).run(20)
    assert (episode.ended, len(episode), arm.stops) == ("steps", 20, 1)
    never: concurrent.futures.Future[Any] = concurrent.futures.Future()

    class Hangs(Numbered):
        def infer(self, observation: Any, *, committed: Any = None) -> Any:
            return super().infer(observation) if not self.seen else never.result()

    arm = Arm(Clock())
    episode = Control(arm, Hangs(), rate_hz=200.0, patience_s=0.05).run(20)
    assert (episode.ended, len(episode), arm.stops) == ("watchdog", 6, 1)
    with pytest.raises(ZeroDivisionError):
        in_a_thread(lambda: 1 // 0).result(10)
