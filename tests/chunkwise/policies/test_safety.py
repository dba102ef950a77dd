"""What keeps a robot safe: limits to the last bit, commands that drivers change, signals that end the program."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.errors import ConfigError, NonFiniteError
from chunkwise.policies import control
from chunkwise.policies.control import ENDING, Control, Limits, in_a_thread
from chunkwise.policies.execution import Execution
from tests.chunkwise.policies.test_control import RATE, Arm, Numbered, made


@pytest.fixture(autouse=True)
def unhandled() -> Iterator[None]:
    """Signals as a program finds them; what nohup began ignores SIGHUP."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in ENDING}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_a_robot_may_convert_its_command_in_place() -> None:
    """Limits and recording are of what was commanded, not of what became of it."""
    control, arm, policy, _ = made(limits=Limits(speed=np.full(2, 0.8)))

    class Degrees(Arm):
        def act(self, action: np.ndarray) -> None:
            super().act(action)
            action *= 57.3

    robot = Degrees(arm.clock)
    control._robot = robot
    policy.chunk = lambda number: np.full((6, 2), 0.5, np.float32)
    episode = control.run(8)
    steps = np.minimum(0.1 * np.arange(1, 9), 0.5)
    np.testing.assert_allclose(robot.actions, np.stack([steps, steps], 1), atol=1e-6)
    np.testing.assert_allclose(np.stack(episode.actions), robot.actions, atol=1e-6)


@pytest.mark.parametrize("limit", [2.9, 0.1, 0.7, 1e-7, -0.3, 1 / 3])
def test_a_limit_holds_to_the_last_bit(limit: float) -> None:
    """float32(2.9) is 2.9000000953674316."""
    action = np.array([np.sign(limit) * 5, 0.0], np.float32)
    low, high = sorted((limit, -np.sign(limit) * 4.0))
    limited, changed = Limits(low=np.full(2, low), high=np.full(2, high)).apply(action, None, 0.1)
    assert changed
    assert low <= float(limited[0]) <= high
    np.testing.assert_allclose(limited[0], limit, rtol=1e-6)
    assert limited.dtype == np.float32


def test_a_limit_without_a_number_between_gives_the_nearest() -> None:
    limited, _ = Limits(low=np.array([0.1]), high=np.array([0.1])).apply(np.ones(1, np.float32), None, 0.1)
    assert limited.tolist() == [np.float32(0.1)]
    inside = np.array([0.1, 2.9], np.float32)
    same, changed = Limits(low=np.zeros(2), high=np.full(2, 4.0)).apply(inside, None, 0.1)
    assert (same.tolist(), changed) == (inside.tolist(), False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_program_stops_the_robot_first(name: str) -> None:
    number = signal.Signals[name]
    control, arm, _, _ = made()
    arm.then = lambda count: os.kill(os.getpid(), number) if count == 3 else None
    with pytest.raises(SystemExit) as ended:
        control.run(9)
    assert ended.value.code == 128 + number
    assert (control.episode.ended, control.episode.reason, arm.stops) == ("interrupted", name, 1)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_does_not_interrupt_the_stopping() -> None:
    class Slow(Arm):
        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            super().stop()

    control, arm, _, _ = made()
    robot = Slow(arm.clock)
    control._robot = robot
    with pytest.raises(SystemExit) as ended:
        control.run(5)
    assert (ended.value.code, robot.stops, control.episode.ended) == (143, 1, "steps")


def test_a_program_s_own_handling_of_signals_is_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        control, arm, _, _ = made()
        arm.then = lambda count: os.kill(os.getpid(), signal.SIGTERM) if count == 3 else None
        assert control.run(9).ended == "steps"
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_beside_the_main_thread_no_signal_is_touched() -> None:
    control, *_ = made()
    assert in_a_thread(lambda: control.run(5).ended).result(10) == "steps"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_joints_that_are_nan_are_no_measure_of_speed() -> None:
    limits = Limits(low=np.ones(2), speed=np.ones(2))
    action = np.zeros(2, np.float32)
    assert limits.apply(action, np.array([0.5, 1.5]), 0.5)[0].tolist() == [1.0, 1.0]
    with pytest.raises(NonFiniteError, match=r"joints are \[ 0\. nan\]"):
        limits.apply(action, np.array([0.0, np.nan]), 0.5)


def test_a_joint_beyond_the_range_is_led_back_at_the_allowed_speed() -> None:
    """1 unit a second is 1/8 a step: from 1.5 and -1.25 the range of -1 to 1 is four steps and two steps away."""

    class Outward(Numbered):
        def chunk(self, number: int) -> np.ndarray:
            return np.array([[2.0, -2.0]] * self.horizon, np.float32)

    limits = Limits(low=np.full(2, -1.0), high=np.ones(2), speed=np.ones(2))
    control, arm, _, _ = made(limits=limits, policy=Outward())
    arm.qpos[:] = [1.5, -1.25]
    control.run(5)
    assert arm.actions == [[1.375, -1.125], [1.25, -1.0], [1.125, -1.0], [1.0, -1.0], [1.0, -1.0]]


def test_another_loop_of_the_policy_waits_for_the_inference_that_the_last_one_left_under_way() -> None:
    """On one connection two requests at a time would give every later chunk the answer of the request before."""
    execution = Execution(how="every", execute=2, delay=2)
    first, arm, policy, clock = made(3 / RATE, execution=execution)
    under_way: list[int] = []

    def beside(call: Any) -> Any:
        under_way.append(len(clock._running))
        return clock.beside(call)

    first._beside = beside
    assert first.run(6).ended == "steps"
    assert len(clock._running) == 1
    second = Control(arm, policy, rate_hz=RATE, clock=clock, beside=beside, execution=execution, first_s=9.0)
    before, arm.qpos = len(arm.commands), np.full(2, 50, np.float32)
    episode = second.run(3)
    assert (episode.failures, len(clock._running)) == ([], 1)
    # Its chunk is of what its robot was seen at, and of no request that the first loop left behind.
    assert [50, 50] in policy.seen
    chunk = policy.seen.index([50, 50])
    assert arm.actions[before:][:2] == [[chunk, 0], [chunk, 1]]
    # Back to the first, which has an answer of its own of long ago, while one of the second is under way.
    assert first.run(3).failures == []
    assert second.run(3).failures == []
    assert set(under_way) == {0}
    clock.wait(clock.now() + 9)
    assert id(policy) not in control._under_way


def test_an_inference_of_before_that_never_ends_is_named() -> None:
    first, arm, policy, clock = made(None, first_s=0.5)
    assert first.run(3).reason.endswith("the policy has not answered what it was asked at step 0")
    second = Control(arm, policy, rate_hz=RATE, clock=clock, beside=clock.beside, first_s=0.5)
    told = (
        "what it was asked before, by an earlier episode or before a person took over; if it never does, connect anew"
    )
    assert second.run(3).reason == f"no action for 0.5 s; the policy has not answered {told}"
    assert (len(policy.seen), arm.commands) == (0, [])


@pytest.mark.parametrize("after", [0, 4])
def test_a_person_whose_action_is_not_finite_is_named(after: int) -> None:
    nan = np.array([1.0, np.nan])
    loop, arm, policy, _ = made(first_s=0.5, person=lambda seen: nan if len(arm.commands) >= after else None)
    episode = loop.run(9)
    assert (episode.ended, len(episode), arm.stops) == ("watchdog", after, 1)
    assert episode.reason == "no action for 0.5 s; the person's is [1.0, nan], which no robot is told"
    assert len(policy.seen) == (after > 0)


def test_a_base_begins_standing_and_its_part_of_the_actions_is_recorded_apart(tmp_path: Path) -> None:
    """One joint, measured at 0.5, and a velocity; each changes by at most 1/8 a step."""
    loop, arm, policy, _ = made(limits=Limits(speed=np.ones(2)), base_action=1)
    arm.qpos = np.full(1, 0.5, np.float32)
    policy.chunk = lambda number: np.ones((6, 2), np.float32)
    seen = arm.observe
    arm.observe = lambda: {"state": seen()["state"][:1]}
    episode = loop.run(3)
    assert arm.actions == [[0.625, 0.125], [0.75, 0.25], [0.875, 0.375]]
    with h5py.File(episode.save(tmp_path / "e.hdf5", success=True)) as h5:
        np.testing.assert_array_equal(h5["action"], [[0.625], [0.75], [0.875]])  # pyright: ignore[reportArgumentType]
        np.testing.assert_array_equal(h5["base_action"], [[0.125], [0.25], [0.375]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="base_action is -1; expected 0 or more"):
        made(base_action=-1)
    wide, arm, *_ = made(base_action=2)
    with pytest.raises(ConfigError, match="base_action is 2; expected fewer than the 2 of an action"):
        wide.run(3)
    assert (arm.commands, arm.stops) == ([], 1)
