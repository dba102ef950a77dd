"""Environments on the nodes of a Ray cluster, asked as those of worker processes are.

Ray places one actor on each node, starts it, ends it, and tells what it raises. The actor owns that node's environment
processes (`ProcessWorkers`); requests and answers go through a connection of its own, since a call of an actor takes 1
to 3 ms, where a short chunk takes 5, and it passes them on as they come. A slot stays on its node while that lives.
Where a worker dies or is silent, an actor is killed, a node is gone or frozen, the rollouts under way there are lost,
as with a process that dies; their slots go to the other nodes, which do not wait for it.

A message to a node is a slot's number and the pickle of a request; one from a node, a slot's number and the pickle of
its answer, or nothing, which says that the node is there.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import pickle
import queue
import re
import secrets
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed.connections import accept, connect, hang_up, listen_on
from chunkwise.distributed.ray_cluster import connected
from chunkwise.envs.failures import failure
from chunkwise.envs.workers import (
    ASK_AGAIN,
    Opener,
    ProcessWorkers,
    Request,
    Run,
    Start,
    Stretch,
    WorkerDiedError,
    Workers,
)
from chunkwise.errors import ConfigError, RunError, StopRequested, one_line

BEATS = 8
"""An actor that was asked for something sends at least so often in the time after which its silence counts as death."""
OPENING = 0.05
"""Seconds between two looks whether an actor has started, while others are listened to."""
SECOND_LOOK = 0.5
"""Seconds between two looks at a node that seems silent: this process may have been stopped, its readers too."""
RAISED = 2.0
"""Seconds that an actor's error may come later than the end of its connection."""

GONE = "its node is gone"
SLOT = struct.Struct("!i")
"""A slot's number, as a message begins."""

Answer = Start | Stretch | RunError | str
"""Text: what became of the worker, which is gone."""


def make_workers(fleet: FleetConfig, opener: Opener, count: int, *, name: str, every_frame: bool = True) -> Workers:
    """Makes workers in processes: of this machine, or of a cluster where fleet.address names one.

    Args:
      fleet: Where.
      opener: Makes an environment, in its process; pickled.
      count: Slots.
      name: Of the environment, for errors.
      every_frame: Whether each action's observation is answered.
    """
    if fleet.address is None:
        return ProcessWorkers(opener, count, name=name, every_frame=every_frame, silence=fleet.silence)
    return RayWorkers(fleet, opener, count, name=name, every_frame=every_frame)


class NodeWorkers:
    """The environments of a node: the body of its actor."""

    def listen(
        self, host: str, opener: Opener, count: int, name: str, every_frame: bool, silence: float
    ) -> tuple[int, bytes]:
        """Listens on a free port of an address.

        The arguments are not those of the constructor, since Ray takes an actor whose constructor fails for one that
        died, also where they cannot be unpickled on that node.

        Args:
          host: The address.
          opener: As of ProcessWorkers.
          count: As there.
          name: As there.
          every_frame: As there.
          silence: As there; while something is asked, word is sent more often.

        Returns:
          The port, and the key that whoever connects must know.
        """
        self._workers = functools.partial(
            ProcessWorkers, opener, count, name=name, every_frame=every_frame, silence=silence
        )
        self._beat = silence / BEATS
        self._key = secrets.token_bytes(32)
        self._listener = listen_on(host)
        return self._listener.getsockname()[1], self._key

    def serve(self) -> None:
        """Answers the first who connects and knows the key, until they close the connection."""
        with self._listener:
            connection = accept(self._listener, self._key)
        workers = self._workers(wake=connection)
        try:
            self._answer(workers, connection)
        except (EOFError, ConnectionError):
            return  # who asked is gone
        finally:
            workers.close()
            connection.close()

    def _answer(self, workers: ProcessWorkers, connection: Connection) -> None:
        """Passes on requests and answers, in one thread: whoever asks reads in another one than that which sends.

        With a thread that read requests, and every message unpickled, a chunk took this process 0.18 ms and more, and
        takes it 0.1.
        """
        asked: dict[int, None] = {}  # slots, the one that was asked longest ago first
        beat = 0.0
        while True:
            if not asked or connection.poll():
                request = memoryview(connection.recv_bytes())
                beat = beat if asked else time.monotonic() + self._beat
                (slot,) = SLOT.unpack_from(request)
                asked[slot] = None
                workers.pass_on(slot, request[SLOT.size :])
                continue
            try:
                slot, answer = workers.receive_pickled(asked, within=max(beat - time.monotonic(), 0.0))
            except TimeoutError:
                if time.monotonic() >= beat:
                    beat = time.monotonic() + self._beat
                    connection.send_bytes(b"")
                continue  # or more is asked for
            except WorkerDiedError as error:
                slot, answer = error.slot, pickle.dumps(error.why)
            del asked[slot]
            beat = time.monotonic() + self._beat
            connection.send_bytes(SLOT.pack(slot) + answer)


@dataclasses.dataclass(eq=False)
class _Node:
    """What is known here of a node and its actor."""

    id: str
    address: str
    cores: float
    actor: Any
    call: Any
    """Under way: `listen`, and once that has returned `serve`."""
    heard: float
    """When it last said something whole, or was asked while it owed nothing."""
    suspected: float = math.inf
    """When it seemed silent first, since it was heard."""
    reaching: "concurrent.futures.Future[Connection] | None" = None
    """Under way once `listen` has returned; the connection that comes of it."""
    connection: Connection | None = None
    reader: threading.Thread | None = None
    """Of the connection."""
    requests: list[tuple[int, Request]] = dataclasses.field(default_factory=list)
    """Not sent yet."""
    waiting: set[int] = dataclasses.field(default_factory=set)
    """Slots whose answer is awaited."""


class RayWorkers:
    """Environments in processes of the nodes of a Ray cluster."""

    def __init__(self, fleet: FleetConfig, opener: Opener, count: int, *, name: str, every_frame: bool = True) -> None:
        """Connects to nothing yet. Arguments are those of `make_workers`; fleet.address is set."""
        self.count, self.every_frame = count, every_frame
        self.silence = fleet.silence
        self._address = fleet.address
        self._arguments = (opener, count, name, every_frame, fleet.silence)
        self._nodes: dict[str, _Node] = {}
        self._node_of: dict[int, _Node] = {}
        self._answers: dict[int, Answer] = {}
        self._losses: Counter[str] = Counter()
        self._connection: contextlib.ExitStack | None = None
        self._said = queue.SimpleQueue[tuple[_Node, Any]]()
        """Messages of nodes in the order in which they have come whole, of each at last why its connection ended."""
        self._threads = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="fleet")
        self._asked_ray = 0.0

    @property
    def parallel(self) -> int:
        """Of the nodes that have slots; before there are any, all slots."""
        if not self._nodes:
            return self.count
        loads = Counter(node.id for node in self._node_of.values())
        return max(1, int(sum(min(loads[node.id], node.cores) for node in self._nodes.values())))

    def submit(self, slot: int, request: Request) -> None:
        self._answers.pop(slot, None)
        if slot not in self._node_of and isinstance(request, Run):
            self._answers[slot] = GONE  # while the policy was asked, and the episode with it
            return
        node = self._node_of[slot] if slot in self._node_of else self._place(slot)
        if not node.waiting:
            node.heard = time.monotonic()  # not when it answered last: meanwhile nobody asked
        node.requests.append((slot, request))
        node.waiting.add(slot)
        self._send(node)

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        until = time.monotonic() + within
        while True:
            there = any(slot in self._answers for slot in slots)
            self._take(0.0 if there else min(ASK_AGAIN, max(until - time.monotonic(), 0.0)))
            for slot in slots:
                if slot not in self._answers:
                    continue
                answer = self._answers.pop(slot)
                if isinstance(answer, str):
                    raise WorkerDiedError(slot, answer)
                if isinstance(answer, RunError):
                    raise answer
                return slot, answer
            if time.monotonic() >= until:
                raise TimeoutError
            if stopping():
                raise StopRequested

    def close(self) -> None:
        if self._connection is None:
            return
        import ray
        from ray.exceptions import RayError

        nodes = list(self._nodes.values())
        for node in nodes:
            if node.connection is not None:
                hang_up(node.connection)
        with contextlib.suppress(RayError):  # one that hangs is killed all the same
            ray.wait([node.call for node in nodes], num_returns=len(nodes), timeout=10)
        for node in nodes:
            self._forget(node)
        self._answers.clear()
        self._losses.clear()
        self._connection.close()
        self._connection = None

    def _place(self, slot: int) -> _Node:
        """Gives a slot to the node that has the fewest slots a core, of those that were lost least often."""
        if self._connection is None:  # before Ray is imported, which reads the environment then
            connection = contextlib.ExitStack()
            connection.enter_context(connected(self._address or "local"))
            self._connection = connection
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cores = {one["NodeID"]: one["Resources"].get("CPU", 0.0) for one in ray.nodes() if one["Alive"]}
        addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes()}
        if not any(cores.values()):
            raise ConfigError(f"fleet.address is {self._address}: expected a cluster with cores, found none alive")
        loads = Counter(node.id for node in self._node_of.values())
        chosen = min(
            (one for one in cores if cores[one]),
            key=lambda one: (self._losses[one], (loads[one] + 1) / cores[one], one),
        )
        if chosen not in self._nodes:
            # Its processes are counted by num_envs: it needs no core of its own.
            settings: Any = {"num_cpus": 0, "max_restarts": 0}
            actors: Any = ray.remote(**settings)(NodeWorkers)
            here = NodeAffinitySchedulingStrategy(chosen, soft=False)
            actor = actors.options(scheduling_strategy=here).remote()
            host = addresses[chosen]
            call = actor.listen.remote(host, *self._arguments)
            self._nodes[chosen] = _Node(chosen, host, cores[chosen], actor, call, time.monotonic())
        self._node_of[slot] = self._nodes[chosen]
        return self._nodes[chosen]

    def _send(self, node: _Node) -> None:
        """Sends a node what it is asked for, if it is reached already."""
        if node.connection is None:
            return
        try:
            for slot, request in node.requests:
                node.connection.send_bytes(b"".join([SLOT.pack(slot), ForkingPickler.dumps(request)]))
        except OSError as error:
            self._gone(node, error)
        node.requests.clear()

    def _take(self, seconds: float) -> None:
        """Takes what has come, waiting for it; lets go of nodes that are gone or silent.

        Raises:
          RunError: A node's actor failed, for example since the environment's class cannot be found there.
        """
        self._reach(seconds)
        opening = any(node.connection is None for node in self._nodes.values())
        with contextlib.suppress(queue.Empty):
            self._hear(*self._said.get(timeout=min(seconds, OPENING) if opening else seconds))
        self._drain()
        now = time.monotonic()
        if now - self._asked_ray > ASK_AGAIN:
            self._asked_ray = now
            self._ask_ray()
        for node in self._nodes.copy().values():
            silent = node.waiting and now - node.heard > self.silence
            node.suspected = min(node.suspected, now) if silent else math.inf
            if now - node.suspected > SECOND_LOOK:
                self._lose(node, f"silent for {self.silence:.0f} s")

    def _drain(self) -> None:
        """Takes what has come already."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._hear(*self._said.get_nowait())

    def _ask_ray(self) -> None:
        """Lets go of those whose actors Ray knows to be gone: one without power or network closes no connection."""
        import ray

        calls = {node.call: node for node in self._nodes.values() if node.connection is not None}
        done = ray.wait(list(calls), num_returns=len(calls), timeout=0)[0] if calls else []
        for call in done:
            node = calls[call]
            if node.connection is not None and not node.connection.poll():  # else what it said last is read first
                self._drain()
                if self._nodes.get(node.id) is node:
                    self._gone(node, EOFError())

    def _reach(self, seconds: float) -> None:
        """Connects to the actors that have started; waits for one only where none was reached before.

        In threads, since one that cannot be reached would hold up the others.
        """
        opening = {node.call: node for node in self._nodes.values() if node.connection is None and not node.reaching}
        if opening:
            import ray

            alone = len(opening) == len(self._nodes)
            ray.wait(list(opening), timeout=seconds if alone else 0)
            for call in ray.wait(list(opening), num_returns=len(opening), timeout=0)[0]:  # all of them: see `heard`
                node = opening[call]
                found = self._result(node)
                if found is not None:
                    node.call = node.actor.serve.remote()
                    node.reaching = self._threads.submit(connect, node.address, *found)
                    node.heard = time.monotonic()
        for node in self._nodes.copy().values():
            if node.connection is None and node.reaching and node.reaching.done():
                if error := node.reaching.exception():
                    self._lose(node, f"not reached at its port, as the nodes of a cluster must be: {error!r}")
                    continue
                node.connection = node.reaching.result()
                node.heard = time.monotonic()
                node.reader = threading.Thread(target=_read, args=(node, node.connection, self._said), daemon=True)
                node.reader.start()
                self._send(node)

    def _hear(self, node: _Node, said: Any) -> None:
        """Takes a message of a node. Raises RunError where it cannot be read here."""
        if self._nodes.get(node.id) is not node:
            return  # it is lost, and another one may bear its name
        node.heard = time.monotonic()  # when it is taken: since it was said, the node may have owed nothing
        if isinstance(said, RunError):
            self._forget(node)
            raise said
        if isinstance(said, Exception):
            self._gone(node, said)
        elif said is not None:
            slot, answer = said
            node.waiting.discard(slot)
            self._answers[slot] = answer

    def _gone(self, node: _Node, error: Exception) -> None:
        """Lets go of a node whose connection ended. Raises RunError with what its actor raised, if that is why."""
        if self._result(node, RAISED) is None and self._nodes.get(node.id) is node:
            self._lose(node, f"its connection ended: {error!r}")

    def _result(self, node: _Node, seconds: float = 0.0) -> Any:
        """What the actor's call returned, None if it is under way still; loses the node where the actor is gone.

        Raises:
          RunError: What the actor raised, or that its class cannot be imported there, as on a node without chunkwise.
        """
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(node.call, timeout=seconds)
        except GetTimeoutError:
            return None
        except RayTaskError as error:  # raised there, as it would be again on any other node
            raise RunError(
                f"the environments on {node.address} failed: {one_line(error.cause)}", *_lines(error)
            ) from error
        except ActorDiedError as error:
            if error.actor_init_failed:  # its constructor does nothing: what failed is the import
                why = f"the environments on {node.address} cannot start; install there what is installed here"
                raise RunError(f"{why}: {_lines(error)[-1].strip()}", *_lines(error)) from error
            self._lose(node, one_line(error))
            return None
        except RayError as error:
            self._lose(node, one_line(error))
            return None

    def _lose(self, node: _Node, why: str) -> None:
        """Counts a node's environments as dead."""
        print(f"\nfleet: lost the environments on {node.address}: {why:.200}", flush=True)
        self._losses[node.id] += 1
        self._answers |= dict.fromkeys(node.waiting, GONE)
        self._forget(node)

    def _forget(self, node: _Node) -> None:
        import ray
        from ray.exceptions import RayError

        if node.connection is not None:
            hang_up(node.connection)
            if node.reader is not None:
                node.reader.join(RAISED)
            if node.reader is None or not node.reader.is_alive():  # else it could read what gets the same number later
                node.connection.close()
            node.connection = node.reader = None
        with contextlib.suppress(RayError, ValueError):
            ray.kill(node.actor)
        self._nodes.pop(node.id, None)
        self._node_of = {slot: one for slot, one in self._node_of.items() if one is not node}


def _read(node: _Node, connection: Connection, said: Any) -> None:
    """Body of a thread that reads what a node says, at last what ends it.

    In one thread for all, a message that comes in slowly would hold up the other nodes.
    """
    message: Any = None
    while not isinstance(message, Exception):
        try:
            connection.poll(None)  # without a limit: while a policy trains nodes say nothing for minutes
            found = connection.recv_bytes()  # one that has begun goes on within REACHED
        except Exception as error:
            message = error
        else:
            message = _message(node, found)
        said.put((node, message))


def _message(node: _Node, said: bytes) -> tuple[int, Answer] | RunError | None:
    """What a node said: a slot and its answer; that it cannot be read; None: that the node is there."""
    if not said:
        return None
    try:
        (slot,) = SLOT.unpack_from(said)
        return slot, pickle.loads(memoryview(said)[SLOT.size :])
    except Exception as error:  # of another version of numpy, for example, or whatever its classes raise
        return failure(f"what the environments on {node.address} answered cannot be read here", error)


def _lines(error: Exception) -> list[str]:
    """The lines of an error of Ray's, without its colours."""
    return [f"  {line}" for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()]
