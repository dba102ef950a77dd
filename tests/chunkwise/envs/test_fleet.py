"""A node's environments, asked as its actor is; what is refused; and, long, two Ray nodes."""

import contextlib
import functools
import importlib
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed.connections import connect, hang_up
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.fleet import Answer, NodeWorkers, _read, make_workers
from chunkwise.envs.workers import ProcessWorkers, Request, Reset, Run, Start, Stretch
from chunkwise.errors import RunError
from tests.chunkwise.envs.countdown import Countdown, Waits

ACTIONS = np.ones((3, 3), np.float32)
SOON = 25.0
"""Seconds in which answers come on a busy machine."""
HERE = "127.0.0.1"


class Node:
    """A node's workers, served in a thread, and a connection to them."""

    def __init__(self, task: str = "", kind: type[Countdown] = Countdown, beat: float = SOON) -> None:
        opener, workers = functools.partial(kind, EnvSpec(suite="own", task=task)), NodeWorkers()
        self.port, self.key = workers.listen(HERE, opener, 3, "countdown", True, 60.0)
        workers._beat = beat
        self.thread = threading.Thread(target=workers.serve)
        self.thread.start()

    def connect(self) -> Connection:
        self.connection = connect(HERE, self.port, self.key)
        return self.connection

    def ask(self, *requests: tuple[int, Request]) -> None:
        for slot, request in requests:
            self.connection.send_bytes(struct.pack("!i", slot) + pickle.dumps(request))

    def answers(self, count: int) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        while len(found) < count:
            assert self.connection.poll(SOON), f"expected {count} answers, found those of slots {list(found)}"
            if said := self.connection.recv_bytes():
                found[struct.unpack("!i", said[:4])[0]] = pickle.loads(said[4:])
        return found

    def end(self) -> None:
        """Leaves, as whoever asked does; or calls, so that it stops to wait for them."""
        with contextlib.suppress(OSError):  # it is served already, and listens no more
            self.connect()
        self.connection.close()
        self.thread.join(SOON)
        assert not self.thread.is_alive()


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Makes nodes, whose processes end with the test, also where it fails."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **settings: Any) -> Node:
            made = Node(*arguments, **settings)
            stack.callback(made.end)
            return made

        yield make


def test_what_is_asked_during_a_wait_is_answered(node: Callable[..., Node], tmp_path: Path) -> None:
    """Slot 0 waits for a file that is made once the others, which are asked while it is waited for, have answered."""
    served = node(str(tmp_path / "mark"), Waits, beat=1000.0)
    served.connect()
    served.ask((0, Reset(3)))
    assert isinstance(served.answers(1)[0], Start)
    served.ask((0, Run(ACTIONS)))
    time.sleep(0.2)  # so that it is waited for already; the others are answered in either case
    served.ask((1, Reset(2)), (2, Reset(5)))
    found = served.answers(2)
    starts = {slot: start.observation["state"][0] for slot, start in found.items() if isinstance(start, Start)}
    assert starts == {1: 2, 2: 5}
    (tmp_path / "mark").touch()
    last = served.answers(1)[0]
    assert isinstance(last, Stretch)
    assert len(last.actions) == 3


def test_a_worker_that_dies_is_told_and_the_others_play_on(node: Callable[..., Node]) -> None:
    served = node("deadly")
    served.connect()
    served.ask((0, Reset(4)), (1, Reset(2)))
    found = served.answers(2)
    assert found[0] == "exit code 1"
    assert isinstance(found[1], Start)
    served.ask((0, Reset(2)))
    assert isinstance(served.answers(1)[0], Start), "a new process for its slot"


def test_it_says_that_it_is_there_while_it_is_waited_for_alone(node: Callable[..., Node], tmp_path: Path) -> None:
    served = node(str(tmp_path / "mark"), Waits, beat=0.1)
    connection = served.connect()
    served.ask((0, Reset(3)))
    assert isinstance(served.answers(1)[0], Start)
    assert not connection.poll(0.5), "nobody waits"
    served.ask((0, Run(ACTIONS)))
    for _ in range(3):
        assert connection.poll(SOON), "it would seem to be gone"
        assert connection.recv_bytes() == b""
    (tmp_path / "mark").touch()
    assert isinstance(served.answers(1)[0], Stretch)


def test_errors_come_as_answers(node: Callable[..., Node]) -> None:
    served = node("broken")
    served.connect()
    served.ask((0, Reset(4)))
    error = served.answers(1)[0]
    assert isinstance(error, RunError)
    assert str(error).startswith("the environment countdown (reset with seed 4, step 0) failed: ZeroDivisionError")


def test_neither_side_waits_for_the_other_to_read(node: Callable[..., Node]) -> None:
    """Requests and answers of 24 MB each, of which more are asked while the first answer is on its way."""
    served = node()
    served.connect()
    served.ask((0, Reset(2)), (1, Reset(2)), (2, Reset(2)))
    assert len(served.answers(3)) == 3
    large = np.ones((1, 6_000_000), np.float32)
    served.ask((0, Run(large)))
    assert served.connection.poll(SOON), "its answer is under way"
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    asked: Any = None
    reader = threading.Thread(target=_read, args=(asked, served.connection, said), daemon=True)
    reader.start()  # as of RayWorkers
    served.ask((1, Run(large)), (2, Run(large)))
    found = dict(said.get(timeout=SOON)[1] for _ in range(3))
    assert [len(found[slot].actions[0]) for slot in range(3)] == [6_000_000] * 3
    hang_up(served.connection)
    reader.join(SOON)


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
def test_what_a_node_raises_is_told_and_not_played_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec(suite="own")
    (tmp_path / "only_here.py").write_text("class Env:\n    def __init__(self):\n        pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_here")
    for opener, error in ((lambda: Countdown(spec), "lambda"), (module.Env, "only_here")):
        workers = make_workers(FleetConfig(address="local"), opener, 1, name="countdown")
        workers.submit(0, Reset(1))
        with pytest.raises(RunError, match=rf"the environments on 127\.0\.0\.1 failed: .*{error}.*") as raised:
            workers.receive([0])
        assert len(raised.value.args) > 1, "where it happened"
        workers.close()
