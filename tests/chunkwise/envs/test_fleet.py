"""A node's environments, asked by several threads as its actor is; what is refused; and, long, two Ray nodes."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest

from chunkwise.config.experiment import FleetConfig
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.fleet import Answer, NodeWorkers, _owned, make_workers
from chunkwise.envs.workers import ProcessWorkers, Request, Reset, Run, Start, Stretch
from chunkwise.errors import RunError
from tests.chunkwise.envs.countdown import Countdown, Waits

ACTIONS = np.ones((3, 3), np.float32)
SOON = 25.0
"""Seconds in which answers come on a busy machine; less than a call waits that nobody wakes."""


@pytest.fixture
def node() -> Iterator[Callable[..., NodeWorkers]]:
    """Makes a node's workers, whose processes end with the test, also where it fails."""
    with contextlib.ExitStack() as stack:

        def make(task: str = "", kind: type[Countdown] = Countdown, silence: float = 300.0) -> NodeWorkers:
            opener = functools.partial(kind, EnvSpec(suite="own", task=task))
            workers = NodeWorkers(opener, 3, "countdown", True, silence)
            stack.callback(workers.close)
            return workers

        yield make


def answers(workers: NodeWorkers, count: int, *requests: tuple[int, Request]) -> dict[int, Answer]:
    """So many of them to what is asked, in as many calls as it takes."""
    found = dict(workers.exchange(list(requests)))
    while len(found) < count:
        found |= dict(workers.exchange([]))
    return found


def test_what_is_asked_during_a_wait_is_answered(node: Callable[..., NodeWorkers], tmp_path: Path) -> None:
    """Slot 0 waits for a file that is made once the others, which are asked while it is waited for, have answered."""
    workers = node(str(tmp_path / "mark"), Waits)
    assert isinstance(answers(workers, 1, (0, Reset(3)))[0], Start)
    found: dict[int, Answer] = {}
    with ThreadPoolExecutor() as pool:
        calls = {pool.submit(workers.exchange, [(0, Run(ACTIONS))])}
        time.sleep(0.2)  # so that it listens already; the others are answered in either case
        calls.add(pool.submit(workers.exchange, [(1, Reset(2)), (2, Reset(5))]))
        while len(found) < 2:
            done, calls = wait(calls, timeout=SOON, return_when=FIRST_COMPLETED)
            assert done, "nobody hears them before a beat is over"
            found |= {slot: answer for call in done for slot, answer in call.result()}
            calls = calls or {pool.submit(workers.exchange, [])}
        starts = {slot: start.observation["state"][0] for slot, start in found.items() if isinstance(start, Start)}
        assert starts == {1: 2, 2: 5}
        calls.add(pool.submit(workers.exchange, []))  # one more than there are slots to listen to
        (tmp_path / "mark").touch()
        results = sorted((call.result(SOON) for call in calls), key=len)
    assert results[:-1] == [[]] * (len(calls) - 1), "a call that nothing is left for comes back"
    ((slot, last),) = results[-1]
    assert slot == 0
    assert isinstance(last, Stretch)
    assert len(last.actions) == 3


def test_a_worker_that_dies_is_told_and_a_silent_one_too(node: Callable[..., NodeWorkers]) -> None:
    workers = node("deadly", silence=60.0)
    found = answers(workers, 2, (0, Reset(4)), (1, Reset(2)))
    assert found[0] is None
    assert isinstance(found[1], Start)
    pid = workers._workers.pid(1)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    workers._workers.silence = 0.0
    assert answers(workers, 1, (1, Run(ACTIONS))) == {1: None}
    workers._workers.silence = 60.0
    assert isinstance(answers(workers, 1, (1, Reset(2)))[1], Start)


def test_what_comes_out_of_rays_store_is_copied_and_nothing_of_it_is_lost() -> None:
    views = np.arange(6, dtype=np.float32).reshape(2, 3)
    views.flags.writeable = False
    answer = Stretch({"state": views}, views, views[:, 0], views[:, 0] > 1, over=True, busy_s=0.5)
    owned = _owned(answer)
    assert isinstance(owned, Stretch)
    assert (owned.over, owned.busy_s) == (True, 0.5)
    for mine, theirs in ((owned.observations["state"], views), (owned.actions, views), (owned.rewards, views[:, 0])):
        np.testing.assert_array_equal(mine, theirs)
        assert not np.shares_memory(mine, views)


def test_where_nothing_is_there_it_says_so_soon(node: Callable[..., NodeWorkers], tmp_path: Path) -> None:
    workers = node(str(tmp_path / "mark"), Waits, silence=60.0)
    assert workers.exchange([]) == [], "nothing was asked"
    assert isinstance(answers(workers, 1, (0, Reset(3)))[0], Start)
    workers._beat = 0.1
    assert workers.exchange([(0, Run(ACTIONS))]) == [], "its actor would seem to be gone"
    (tmp_path / "mark").touch()
    assert isinstance(answers(workers, 1)[0], Stretch)


def test_errors_come_as_answers(node: Callable[..., NodeWorkers]) -> None:
    workers = node("broken")
    error = answers(workers, 1, (0, Reset(4)))[0]
    assert isinstance(error, RunError)
    assert str(error).startswith("the environment countdown (reset with seed 4, step 0) failed: ZeroDivisionError")


def test_calls_that_nothing_is_left_for_do_not_fill_the_pipe_that_wakes(node: Callable[..., NodeWorkers]) -> None:
    """It holds some thousand messages; the call after them would wait for ever."""
    workers = node()
    for _ in range(50):
        assert workers.exchange([]) == []
    left = 0
    while workers._wake.poll():
        workers._wake.recv()
        left += 1
    assert left <= 1


def test_without_an_address_there_is_no_ray() -> None:
    workers = make_workers(FleetConfig(silence=7.0), Countdown, 2, name="countdown")  # pyright: ignore[reportArgumentType]
    assert isinstance(workers, ProcessWorkers)
    assert (workers.count, workers.silence) == (2, 7.0)


def test_addresses_are_checked() -> None:
    for address in ("local", "auto", "ray://host:10001", "10.0.0.1:6379"):
        assert FleetConfig(address=address).address == address
    with pytest.raises(ValueError, match=r"fleet.address is 'lokal'; expected auto, local, ray://host:port"):
        FleetConfig(address="lokal")
    with pytest.raises(ValueError, match=r"FleetConfig.silence is 0; expected a number above 0"):
        FleetConfig(silence=0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_nodes_play_what_processes_play_whatever_is_taken_away() -> None:
    subprocess.run([sys.executable, "-m", "tests.fleet"], cwd=Path(__file__).parents[3], check=True)


@pytest.mark.long
def test_what_a_node_raises_is_told_and_not_played_again_elsewhere() -> None:
    spec = EnvSpec(suite="own")
    workers = make_workers(FleetConfig(address="local"), lambda: Countdown(spec), 1, name="countdown")
    workers.submit(0, Reset(1))
    with pytest.raises(RunError, match=r"the environments on 127\.0\.0\.1 failed: .*lambda.*") as raised:
        workers.receive([0])
    assert len(raised.value.args) > 1, "where it happened"
    workers.close()
