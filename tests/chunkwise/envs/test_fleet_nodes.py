"""Workers on nodes that start late, stall, lie or are gone; a stand-in for Ray runs their actors in threads."""

import concurrent.futures
import contextlib
import os
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed import connections
from chunkwise.distributed.connections import accept, hang_up
from chunkwise.envs import fleet
from chunkwise.envs.fleet import NodeWorkers, RayWorkers
from chunkwise.envs.workers import Reset, Start, WorkerDiedError
from chunkwise.errors import RunError

HERE = "127.0.0.1"


class StandInError(Exception):
    """As ray.exceptions.RayError: the actor is gone."""


class TimeoutOfGetError(StandInError):
    pass


class RaisedError(StandInError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class DiedError(StandInError):
    """As ray.exceptions.ActorDiedError."""

    def __init__(self, message: str, *, actor_init_failed: bool) -> None:
        super().__init__(message)
        self.actor_init_failed = actor_init_failed


class Body(NodeWorkers):
    """Of an actor that answers each request at once, unless `talk` is another one."""

    connection: Connection | None = None
    late = 0.0
    """Seconds that it takes to start."""
    port: int | None = None
    """Where it says that it listens, instead of where it does."""

    def listen(
        self, host: str, opener: Any, count: int, name: str, every_frame: bool, silence: float
    ) -> tuple[int, bytes]:
        time.sleep(self.late)
        port, key = super().listen(host, opener, count, name, every_frame, silence)
        if self.port is None:
            return port, key
        self._listener.close()
        return self.port, key

    def serve(self) -> None:
        with self._listener:
            self.connection = accept(self._listener, self._key)
        with contextlib.suppress(EOFError, OSError):
            self.talk(self.connection)

    def talk(self, connection: Connection) -> None:
        while True:
            connection.send_bytes(message(connection.recv_bytes()))


def message(request: bytes, answer: Any = None) -> bytes:
    """That a node answers with, to the slot of a request; by default with a Start."""
    answer = answer or Start({"state": np.zeros(3, np.float32)}, "x")
    return request[:4] + bytes(ForkingPickler.dumps(answer))


class Ray(types.ModuleType):
    """A stand-in for the module."""

    def __init__(self, bodies: dict[str, type[Body]]) -> None:
        super().__init__("ray")
        self.bodies = bodies
        self.threads = ThreadPoolExecutor(16)
        self.exceptions = types.SimpleNamespace(
            RayError=StandInError,
            GetTimeoutError=TimeoutOfGetError,
            RayTaskError=RaisedError,
            ActorDiedError=DiedError,
        )

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": 2.0}, "NodeManagerAddress": HERE}
            for name in self.bodies
        ]

    def remote(self, **settings: Any) -> Callable[[type], Any]:
        return lambda _: types.SimpleNamespace(options=self._options)

    def _options(self, scheduling_strategy: Any) -> Any:
        body = self.bodies[scheduling_strategy.node]()
        methods: Any = {
            name: types.SimpleNamespace(remote=partial(self.threads.submit, getattr(body, name)))
            for name in ("listen", "serve")
        }
        return types.SimpleNamespace(remote=lambda: types.SimpleNamespace(body=body, **methods))

    def wait(self, calls: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        when = FIRST_COMPLETED if num_returns == 1 else concurrent.futures.ALL_COMPLETED
        done, left = concurrent.futures.wait(calls, timeout, when)
        return list(done)[:num_returns], [*list(done)[num_returns:], *left]  # no more than asked for, as Ray

    def get(self, call: Future[Any], timeout: float) -> Any:
        try:
            return call.result(timeout)
        except StandInError:
            raise
        except Exception as error:
            if not call.done():
                raise TimeoutOfGetError from error
            raise RaisedError(error) from error

    def kill(self, actor: Any) -> None:
        with contextlib.suppress(OSError):
            actor.body._listener.shutdown(socket.SHUT_RDWR)  # one that nobody has reached would wait for ever
        if actor.body.connection is not None:
            with contextlib.suppress(OSError):
                hang_up(actor.body.connection)


class Strategies:
    """A stand-in for ray.util.scheduling_strategies."""

    @staticmethod
    def NodeAffinitySchedulingStrategy(node: str, soft: bool) -> Any:
        return types.SimpleNamespace(node=node)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RayWorkers]]:
    """Makes workers with a slot on each of some nodes, a and so on, each of which was asked for a begin."""
    with contextlib.ExitStack() as stack:

        def make(*bodies: type[Body], silence: float = 300.0) -> RayWorkers:
            ray = Ray(dict(zip("abcd", bodies, strict=False)))
            modules = {"ray": ray, "ray.exceptions": ray.exceptions, "ray.util": types.ModuleType("ray.util")}
            for name, module in (modules | {"ray.util.scheduling_strategies": Strategies}).items():
                monkeypatch.setitem(sys.modules, name, module)
            monkeypatch.setattr(fleet, "connected", lambda address: contextlib.nullcontext())
            opener: Any = None
            made = RayWorkers(FleetConfig(address="local", silence=silence), opener, len(bodies), name="x")
            stack.callback(made.close)
            for slot in range(len(bodies)):
                made.submit(slot, Reset(slot))
            return made

        yield make


def died(workers: RayWorkers, *slots: int) -> int:
    """The slot whose worker is gone, of some that were asked."""
    with pytest.raises(WorkerDiedError) as raised:
        workers.receive(slots, within=60.0)
    return raised.value.slot


class Late(Body):
    """Starts while the first has answered already."""

    late = 0.3


def test_nodes_that_start_while_a_policy_compiles_are_alive(workers: Callable[..., RayWorkers]) -> None:
    nodes = workers(Body, Late, Late, silence=2.0)
    assert nodes.receive([0, 1, 2])[0] == 0
    time.sleep(2.5)
    assert {nodes.receive([1, 2])[0], nodes.receive([1, 2])[0]} == {1, 2}


class Stalls(Body):
    """Stops in the middle of a message, after the other node has begun to think."""

    def talk(self, connection: Connection) -> None:
        connection.recv_bytes()
        time.sleep(0.2)
        os.write(connection.fileno(), b"\0\0\0\x63half")
        connection.recv_bytes()


class Thinks(Body):
    """Does not answer, and says that it is there."""

    def talk(self, connection: Connection) -> None:
        connection.recv_bytes()
        while True:
            time.sleep(0.2)
            connection.send_bytes(b"")


def test_what_was_said_while_another_stalled_is_no_silence(
    workers: Callable[..., RayWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REACHED", 3.0)
    monkeypatch.setattr(fleet, "RAISED", 0.1)
    nodes = workers(Thinks, Stalls, silence=2.0)
    assert died(nodes, 0, 1) == 1
    with pytest.raises(TimeoutError):
        nodes.receive([0], within=1.0)


class Pair(Body):
    """Of two environments, the second of which answers a little later, the first the second time later still."""

    def talk(self, connection: Connection) -> None:
        for seconds in (0.0, 0.3, 1.2):
            request = connection.recv_bytes()
            time.sleep(seconds)
            connection.send_bytes(message(request))
        connection.recv_bytes()


def test_what_came_while_the_policy_acted_is_no_silence(workers: Callable[..., RayWorkers]) -> None:
    nodes = workers(Pair, silence=2.0)
    nodes.submit(1, Reset(1))
    assert nodes.receive([0, 1], within=60.0)[0] == 0
    time.sleep(3.0)  # slot 1 has answered since, and the node owes nothing
    nodes.submit(0, Reset(0))
    assert {nodes.receive([0, 1], within=60.0)[0] for _ in range(2)} == {0, 1}


def test_a_node_that_seems_silent_is_looked_at_again(workers: Callable[..., RayWorkers]) -> None:
    nodes = workers(Thinks, silence=60.0)
    with pytest.raises(TimeoutError):
        nodes.receive([0], within=1.0)
    nodes._nodes["a"].heard -= 100.0  # as after this process was stopped: what the node said is not read yet
    with pytest.raises(TimeoutError):
        nodes.receive([0], within=0.0)
    with pytest.raises(TimeoutError):
        nodes.receive([0], within=3.0)


def test_a_message_that_comes_in_slowly_holds_up_no_other_node(workers: Callable[..., RayWorkers]) -> None:
    others = threading.Event()

    class Slow(Body):
        """The end of its answer is on its way until the other node has answered often."""

        def talk(self, connection: Connection) -> None:
            said = message(connection.recv_bytes(), Start({"state": np.ones(3, np.float32)}, "late"))
            whole = struct.pack("!i", len(said)) + said
            os.write(connection.fileno(), whole[:20])
            assert others.wait(10.0), "the other node was held up"
            os.write(connection.fileno(), whole[20:])
            connection.recv_bytes()

    nodes = workers(Body, Slow)
    for _ in range(20):
        assert nodes.receive([0, 1], within=60.0)[0] == 0
        nodes.submit(0, Reset(0))
    others.set()
    found = nodes.receive([1], within=60.0)[1]
    assert isinstance(found, Start)
    np.testing.assert_array_equal(found.observation["state"], np.ones(3))


def test_a_node_that_cannot_be_reached_holds_up_no_other(workers: Callable[..., RayWorkers]) -> None:
    with socket.create_server((HERE, 0)) as mute:

        class Mute(Late):
            port = mute.getsockname()[1]

            def serve(self) -> None:
                pass

        nodes = workers(Body, Mute)
        for _ in range(50):
            assert nodes.receive([0, 1])[0] == 0
            nodes.submit(0, Reset(0))
            time.sleep(0.02)
        assert nodes._nodes["b"].reaching is not None
        assert not nodes._nodes["b"].reaching.done(), "it is still tried"
    assert died(nodes, 1) == 1


def test_who_holds_a_nodes_port_and_is_none_costs_that_node(workers: Callable[..., RayWorkers]) -> None:
    with socket.create_server((HERE, 0)) as listener:

        class Stranger(Body):
            port = listener.getsockname()[1]

            def serve(self) -> None:
                with listener.accept()[0] as found:
                    found.sendall(b"\0\0\0\5hello")

        assert died(workers(Stranger), 0) == 0


class GoneError(StandInError):
    """As ActorDiedError."""


class Gone(Body):
    """Ray knows that it is gone; its connection stays open."""

    def serve(self) -> None:
        with self._listener:
            self.connection = accept(self._listener, self._key)
        raise GoneError("no heartbeat")


def test_a_node_that_ray_knows_to_be_gone_is_not_waited_for(workers: Callable[..., RayWorkers]) -> None:
    assert died(workers(Gone), 0) == 0


class Foreign:
    """Nobody else can unpickle it."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("call", [(__import__, "no_such_module"), (open, "/no_such_file")])
def test_an_answer_that_cannot_be_read_here_is_told(workers: Callable[..., RayWorkers], call: Any) -> None:
    class Alien(Body):
        def talk(self, connection: Connection) -> None:
            connection.send_bytes(message(connection.recv_bytes(), Foreign(*call)))
            connection.recv_bytes()

    with pytest.raises(RunError, match=r"environments on 127\.0\.0\.1 answered cannot be read here: .*no_such"):
        workers(Alien).receive([0], within=60.0)


def test_what_an_actor_raises_is_told_with_its_address(workers: Callable[..., RayWorkers]) -> None:
    class Broken(Body):
        def talk(self, connection: Connection) -> None:
            connection.recv_bytes()
            connection.close()
            raise ZeroDivisionError("in the actor")

    with pytest.raises(RunError, match=r"the environments on 127\.0\.0\.1 failed: in the actor"):
        workers(Broken).receive([0], within=60.0)


class Killed(Body):
    """Of a node that kills what starts there."""

    error = DiedError("The actor died\nout of memory", actor_init_failed=False)

    def listen(
        self, host: str, opener: Any, count: int, name: str, every_frame: bool, silence: float
    ) -> tuple[int, bytes]:
        super().listen(host, opener, count, name, every_frame, silence)
        self._listener.close()
        raise self.error


class NotInstalled(Killed):
    """Of a node on which the class cannot be imported."""

    error = DiedError("The actor died\nModuleNotFoundError: No module named 'chunkwise'", actor_init_failed=True)


def test_a_node_without_what_is_installed_here_is_told_and_one_that_died_is_lost(
    workers: Callable[..., RayWorkers],
) -> None:
    nodes = workers(NotInstalled)
    with pytest.raises(RunError, match=rf"on {HERE} cannot start; install there .*here: ModuleNotFoundError: No mod"):
        nodes.receive([0], within=60.0)
    assert died(workers(Killed), 0) == 0


def test_closed_workers_begin_anew(workers: Callable[..., RayWorkers]) -> None:
    nodes = workers(Body)
    assert nodes.receive([0])[0] == 0
    nodes.close()
    nodes.close()
    nodes.submit(0, Reset(1))
    assert nodes.receive([0])[0] == 0
