"""Environments on the nodes of a Ray cluster, asked as those of worker processes are.

One actor a node owns that node's environment processes (`ProcessWorkers`). What a batch asks of a node is one call of
its actor, which comes back with whatever is ready there, so that small messages do not pay two calls each. A slot stays
on its node while that lives. Where a worker dies or is silent, an actor is killed, a node is gone or frozen, the
rollouts under way there are lost, as with a process that dies; their slots go to the other nodes, which wait for
nothing.
"""

import contextlib
import dataclasses
import math
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed.ray_cluster import connected
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
"""An actor answers at least so often in the time after which its silence counts as death."""

Answer = Start | Stretch | RunError | None
"""None: the worker is gone."""


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
    """The environments of a node: the body of its actor, whose calls run in threads, one for each slot at most."""

    def __init__(self, opener: Opener, count: int, name: str, every_frame: bool, silence: float) -> None:
        """Starts nothing yet; arguments are those of ProcessWorkers."""
        self._wake, self._waker = multiprocessing.Pipe(duplex=False)
        self._workers = ProcessWorkers(
            opener, count, name=name, every_frame=every_frame, silence=silence, wake=self._wake
        )
        self._beat = silence / BEATS
        self._asked: dict[int, None] = {}  # slots, the one that was asked longest ago first
        self._calls = 0
        self._lock, self._listening = threading.Lock(), threading.Lock()

    def exchange(self, requests: list[tuple[int, Request]]) -> list[tuple[int, Answer]]:
        """Asks slots for something, and returns all answers that are there once there is one, to whatever call.

        An empty list where there is none for a while, or other calls wait for all that were asked. One call for both:
        two took 5 ms of a chunk longer than a pipe where two environments played, one takes 3 to 4.
        """
        for slot, request in requests:
            self._workers.submit(slot, request)
        with self._lock:
            self._calls += 1
            self._asked |= dict.fromkeys(slot for slot, _ in requests)
        self._waker.send(None)  # for the call that listens, to listen to these too
        with self._listening:
            try:
                return self._receive()
            finally:
                with self._lock:  # before the next call listens, which would take itself for a spare one
                    self._calls -= 1

    def _receive(self) -> list[tuple[int, Answer]]:
        answers: list[tuple[int, Answer]] = []
        until = time.monotonic() + self._beat
        while True:
            with self._lock:
                while self._wake.poll():  # or they would fill the pipe where answers always come first
                    self._wake.recv()
                asked, spare = list(self._asked), self._calls > len(self._asked)
            left = until - time.monotonic()
            if spare and not answers:
                return answers
            try:
                slot, answer = self._workers.receive(asked, within=0.0 if answers else max(left, 0.0))
            except TimeoutError:
                if answers or left <= 0:
                    return answers
                continue  # more was asked for meanwhile
            except WorkerDiedError as error:
                slot, answer = error.slot, None
            except RunError as error:
                return [*answers, (asked[0], error)]
            with self._lock:
                del self._asked[slot]
            answers.append((slot, answer))

    def close(self) -> None:
        """Ends the processes."""
        self._workers.close()


@dataclasses.dataclass(eq=False)
class _Node:
    """What is known here of a node and its actor."""

    id: str
    address: str
    cores: float
    actor: Any
    heard: float
    """When it last answered, or was asked while no call was under way: some call returns several times in `silence`."""
    requests: list[tuple[int, Request]] = dataclasses.field(default_factory=list)
    """Not sent yet."""
    waiting: set[int] = dataclasses.field(default_factory=set)
    """Slots whose answer is awaited."""
    calls: set[Any] = dataclasses.field(default_factory=set)
    """Under way."""


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
            self._answers[slot] = None  # its node went while the policy was asked, and the episode with it
            return
        node = self._node_of[slot] if slot in self._node_of else self._place(slot)
        node.requests.append((slot, request))
        node.waiting.add(slot)

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        until = time.monotonic() + within
        while True:
            self._send()
            there = any(slot in self._answers for slot in slots)
            self._take(0.0 if there else min(ASK_AGAIN, max(until - time.monotonic(), 0.0)))
            for slot in slots:
                if slot not in self._answers:
                    continue
                answer = self._answers.pop(slot)
                if answer is None:
                    raise WorkerDiedError(slot)
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

        with contextlib.suppress(RayError):  # one that hangs is killed all the same
            ray.get([node.actor.close.remote() for node in self._nodes.values()], timeout=10)
        for node in list(self._nodes.values()):
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
            settings: Any = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": self.count + 1}
            actors: Any = ray.remote(**settings)(NodeWorkers)
            here = NodeAffinitySchedulingStrategy(chosen, soft=False)
            actor = actors.options(scheduling_strategy=here).remote(*self._arguments)
            self._nodes[chosen] = _Node(chosen, addresses[chosen], cores[chosen], actor, time.monotonic())
        self._node_of[slot] = self._nodes[chosen]
        return self._nodes[chosen]

    def _send(self) -> None:
        """Sends each node what it is asked for, and has it listened to."""
        for node in self._nodes.values():
            if node.requests or (node.waiting and not node.calls):
                if not node.calls:
                    node.heard = time.monotonic()  # not when it answered last: meanwhile nobody asked
                node.calls.add(node.actor.exchange.remote(node.requests))
                node.requests = []

    def _take(self, seconds: float) -> None:
        """Takes what has come, waiting for it; lets go of nodes that are gone or silent.

        Raises:
          RunError: A node's actor failed, for example since the environment's class cannot be found there.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        calls = {call: node for node in self._nodes.values() for call in node.calls}
        if calls:
            ray.wait(list(calls), num_returns=1, timeout=seconds)
        # All that are there: else a node whose turn has not come yet would seem to be silent.
        done = ray.wait(list(calls), num_returns=len(calls), timeout=0)[0] if calls else []
        for call in done:
            node = calls[call]
            if self._nodes.get(node.id) is not node:  # lost with the call before
                continue
            try:
                answers = ray.get(call)
            except RayTaskError as error:  # raised there, as it would be again on any other node
                lines = [f"  {line}" for line in str(error).splitlines()]
                raise RunError(f"the environments on {node.address} failed: {one_line(error.cause)}", *lines) from error
            except RayError as error:
                self._lose(node, one_line(error))
                continue
            node.heard = time.monotonic()
            node.calls.remove(call)
            for slot, answer in answers:
                node.waiting.discard(slot)
                self._answers[slot] = _owned(answer)
        for node in list(self._nodes.values()):
            if node.calls and time.monotonic() - node.heard > self.silence:
                self._lose(node, f"silent for {self.silence:.0f} s")

    def _lose(self, node: _Node, why: str) -> None:
        """Counts a node's environments as dead."""
        print(f"\nfleet: lost the environments on {node.address}: {why:.200}", flush=True)
        self._losses[node.id] += 1
        self._answers |= dict.fromkeys(node.waiting)
        self._forget(node)

    def _forget(self, node: _Node) -> None:
        import ray
        from ray.exceptions import RayError

        with contextlib.suppress(RayError, ValueError):
            ray.kill(node.actor)
        self._nodes.pop(node.id, None)
        self._node_of = {slot: one for slot, one in self._node_of.items() if one is not node}


def _owned(answer: Answer) -> Answer:
    """An answer whose arrays are this process's own, not views of Ray's store, which would stay full of them."""
    if answer is None or isinstance(answer, RunError):
        return answer
    if isinstance(answer, Start):
        return dataclasses.replace(answer, observation={k: np.array(v) for k, v in answer.observation.items()})
    return dataclasses.replace(
        answer,
        observations={name: np.array(value) for name, value in answer.observations.items()},
        actions=np.array(answer.actions),
        rewards=np.array(answer.rewards),
        success=np.array(answer.success),
    )
