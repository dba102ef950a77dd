"""A node's environments, asked by two threads as its actor is; what is refused; and, long, two Ray nodes."""

import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from chunkwise.config.experiment import FleetConfig
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.fleet import Answer, NodeWorkers, _owned, make_workers
from chunkwise.envs.workers import ProcessWorkers, Reset, Run, Start, Stretch
from chunkwise.errors import RunError
from tests.chunkwise.envs.countdown import Countdown, Waits

ACTIONS = np.ones((3, 3), np.float32)


def node(task: str = "", kind: type[Countdown] = Countdown, silence: float = 300.0) -> NodeWorkers:
    return NodeWorkers(functools.partial(kind, EnvSpec(suite="own", task=task)), 3, "countdown", True, silence)


def answers(workers: NodeWorkers, count: int) -> dict[int, Answer]:
    """So many of them, in as many calls as it takes."""
    found: dict[int, Answer] = {}
    while len(found) < count:
        found |= dict(workers.receive())
    return found


def test_what_is_asked_during_a_wait_is_answered(tmp_path: Path) -> None:
    """Slot 0 waits for a file that is made once slot 1, which was asked after the wait began, has answered."""
    workers = node(str(tmp_path / "mark"), Waits)
    workers.submit([(0, Reset(3))])
    assert isinstance(answers(workers, 1)[0], Start)
    workers.submit([(0, Run(ACTIONS))])
    found: list[dict[int, Answer]] = []
    waiting = threading.Thread(target=lambda: found.append(answers(workers, 1)))
    waiting.start()
    workers.submit([(1, Reset(2)), (2, Reset(5))])
    waiting.join()
    later = found[0] | answers(workers, 2 - len(found[0])) if len(found[0]) < 2 else found[0]
    assert {slot: start.observation["state"][0] for slot, start in later.items() if isinstance(start, Start)} == {
        1: 2,
        2: 5,
    }
    (tmp_path / "mark").touch()
    last = answers(workers, 1)[0]
    assert isinstance(last, Stretch)
    assert len(last.actions) == 3
    workers.close()


def test_a_worker_that_dies_is_told_and_a_silent_one_too() -> None:
    workers = node("deadly", silence=60.0)
    workers.submit([(0, Reset(4)), (1, Reset(2))])
    found = answers(workers, 2)
    assert found[0] is None
    assert isinstance(found[1], Start)
    pid = workers._workers.pid(1)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    workers._workers.silence = 0.0
    workers.submit([(1, Run(ACTIONS))])
    assert answers(workers, 1) == {1: None}
    workers._workers.silence = 60.0
    workers.submit([(1, Reset(2))])
    assert isinstance(answers(workers, 1)[1], Start)
    workers.close()


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


def test_where_nothing_is_there_it_says_so_soon_and_errors_come_as_answers() -> None:
    workers = node("broken", silence=0.8)
    assert workers.receive() == []
    workers._workers.silence = 60.0
    workers.submit([(0, Reset(4))])
    error = answers(workers, 1)[0]
    assert isinstance(error, RunError)
    assert str(error).startswith("the environment countdown (reset with seed 4, step 0) failed: ZeroDivisionError")
    workers.close()


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
