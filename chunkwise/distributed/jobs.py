"""Jobs, each a number, that are done in any order by processes of this machine or of a Ray cluster.

A job writes what it makes, as a function of its number, under a name that appears when it is whole, and answers little.
So it does not matter who does it, nor how often: one whose worker died is done again elsewhere.
"""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from chunkwise import errors
from chunkwise.config.experiment import FleetConfig
from chunkwise.distributed import children
from chunkwise.distributed.ray_cluster import connected
from chunkwise.errors import ConfigError, RunError, StorageError, exit_reason, one_line

MAX_DEATHS = 3
"""Workers that one job may cost before all ends."""
ASK_AGAIN = 0.5
"""Seconds after which a wait for a cluster looks whether it is to be broken off."""
_LOOK = 1.0
"""Seconds between two looks of a worker whether its parent still lives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hands:
    """How many do jobs, and where; what comes of them does not depend on it."""

    workers: int | None = None
    """Jobs at a time; None: one, in this process; on a cluster as many as it has cores."""
    fleet: FleetConfig | None = None
    """A Ray cluster, whose machines have what is read and written under the same names."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}; expected at least 1")

    @property
    def is_alone(self) -> bool:
        """Whether this process does all jobs itself."""
        return self.fleet is None and (self.workers or 1) == 1


Worker = Callable[[int], Any]
"""Does a job and returns its answer; an OSError means that what it makes could not be written."""
Lost = Callable[[int], Any]
"""Gives the answer of a job that cost MAX_DEATHS workers."""
Answer = tuple[Any, RunError | None]
"""What a job says, or why it failed: an error has to travel."""


def do_all(
    numbers: Sequence[int],
    opener: Callable[[], Worker],
    *,
    workers: int | None,
    fleet: FleetConfig | None = None,
    name: str = "job",
    cores: int = 1,
    lost: Lost | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Yields each job's number and answer when it is done.

    A worker gets its next job when it is done with the last; closing the generator ends the workers.

    Args:
      numbers: Of the jobs.
      opener: Makes a worker, in its process; pickled.
      workers: How many at a time; None: one on this machine, as many as a cluster has cores.
      fleet: Where; without an address, processes of this machine.
      name: Of a job, for messages.
      cores: That a worker takes on a cluster.
      lost: Answers for a job that cost several workers; None: all ends.

    Raises:
      StorageError: A job could not write.
      RunError: Several workers died in one job, or a job failed; an error of a job that is one is raised as it is.
      ConfigError: There is no such cluster.
    """
    if fleet is None or fleet.address is None:
        return _in_processes(numbers, opener, workers or 1, _Deaths(name, lost))
    return _on_a_cluster(numbers, opener, workers, fleet.address, _Deaths(name, lost), cores)


def do_here_or(
    numbers: Sequence[int],
    opener: Callable[[], Worker],
    here: Worker,
    hands: Hands,
    *,
    name: str = "job",
    lost: Lost | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """As `do_all`, but one worker on this machine is this process, whose worker is `here`."""
    if numbers and not hands.is_alone:
        return do_all(numbers, opener, workers=hands.workers, fleet=hands.fleet, name=name, lost=lost)
    return ((number, here(number)) for number in numbers)


def in_order(numbers: Sequence[int], work: Generator[tuple[int, Any], None, None]) -> Generator[Any, None, None]:
    """Yields the answers of jobs in the order of `numbers`; those that come early are kept until it is their turn."""
    early: dict[int, Any] = {}
    with contextlib.closing(work):
        for number in numbers:
            while number not in early:
                done, answer = next(work)
                early[done] = answer
            yield early.pop(number)


def _in_processes(
    numbers: Sequence[int], opener: Callable[[], Worker], workers: int, deaths: "_Deaths"
) -> Generator[tuple[int, Any], None, None]:
    waiting = iter(numbers)
    busy: dict[Any, tuple[BaseProcess, int]] = {}

    def begin(number: int) -> None:
        here, there = multiprocessing.Pipe()
        worker = children.start(_work, there, opener, deaths.name)
        there.close()
        busy[here] = (worker, number)
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is received
            here.send(number)

    idle: list[BaseProcess] = []
    try:
        for number in itertools.islice(waiting, workers):
            begin(number)
        while busy:
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, number = busy.pop(pipe)
                try:
                    answer, failure = pipe.recv()
                except (EOFError, OSError) as error:
                    worker.join()
                    if (given := deaths.count(number, _said_above(worker.exitcode), error)) is None:
                        begin(number)
                        continue
                    if (following := next(waiting, None)) is not None:
                        begin(following)
                    yield number, given[0]
                    continue
                if failure is not None:
                    idle.append(worker)
                    raise failure
                if (following := next(waiting, None)) is None:
                    idle.append(worker)
                else:
                    busy[pipe] = (worker, following)
                    with contextlib.suppress(OSError):
                        pipe.send(following)
                yield number, answer
    finally:
        left = idle + [worker for worker, _ in busy.values()]
        for worker in left:
            worker.kill()  # also one that has been stopped; what it makes gets its name when it is whole
        for worker in left:
            worker.join()


def _work(pipe: Connection, opener: Callable[[], Worker], name: str) -> None:
    """Body of a process: does each job that it is sent, until the pipe is closed or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    worker = _Worker(opener, name)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is done, or gone
        while True:
            pipe.send(worker.do(pipe.recv()))


def _end_with(parent: int) -> None:
    """Ends this process once its parent is gone, in the middle of a job too: the next start does it again."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


class _Worker:
    """Does jobs in its process; the body of an actor of Ray."""

    def __init__(self, opener: Callable[[], Worker], name: str) -> None:
        self._opener, self._name = opener, name
        self._worker: Worker | None = None

    def do(self, number: int) -> Answer:
        """Does a job; whatever it raises is its answer: unsent, only the worker's death would be seen."""
        try:
            self._worker = self._worker or self._opener()
            return self._worker(number), None
        except RunError as error:
            return None, portable(error)
        except OSError as error:
            return None, StorageError(f"{self._name} {number} could not be written: {error}")
        except Exception as error:
            return None, RunError(f"{self._name} {number} failed: {type(error).__name__}: {error}")


def _on_a_cluster(
    numbers: Sequence[int],
    opener: Callable[[], Worker],
    workers: int | None,
    address: str,
    deaths: "_Deaths",
    cores: int,
) -> Generator[tuple[int, Any], None, None]:
    with connected(address):
        import ray
        from ray.exceptions import RayError

        alive = [one["Resources"].get("CPU", 0.0) for one in ray.nodes() if one["Alive"]]
        room = sum(int(found) // cores for found in alive)
        if not room:
            raise ConfigError(f"fleet.address is {address}: expected a machine with {cores} core(s), found {alive}")
        settings: Any = {"num_cpus": cores, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actors: Any = ray.remote(**settings)(_Worker)
        waiting = iter(numbers)
        busy: dict[Any, tuple[Any, int]] = {}

        def begin(number: int) -> None:
            actor = actors.remote(opener, deaths.name)
            busy[actor.do.remote(number)] = (actor, number)

        try:
            for number in itertools.islice(waiting, min(workers or room, room)):
                begin(number)
            while busy:
                # Calls of an actor that waits for a core wait with it. A signal is heeded between two waits.
                for call in ray.wait(list(busy), num_returns=1, timeout=ASK_AGAIN)[0]:
                    actor, number = busy[call]
                    try:
                        answer, failure = ray.get(call)
                    except RayError as error:
                        del busy[call]
                        if (given := deaths.count(number, one_line(error)[:200], error)) is None:
                            begin(number)
                            continue
                        if (following := next(waiting, None)) is not None:
                            begin(following)
                        yield number, given[0]
                        continue
                    if failure is not None:
                        raise failure
                    del busy[call]
                    if (following := next(waiting, None)) is None:
                        ray.kill(actor)
                    else:
                        busy[actor.do.remote(following)] = (actor, following)
                    yield number, answer
        finally:
            for actor, _ in busy.values():
                with contextlib.suppress(RayError, ValueError):
                    ray.kill(actor)


class _Deaths:
    """Counts the workers that each job cost."""

    def __init__(self, name: str, lost: Lost | None) -> None:
        self.name, self._lost = name, lost
        self._counts: Counter[int] = Counter()

    def count(self, number: int, why: str, error: Exception) -> tuple[Any] | None:
        """Says that a job is done again, and returns None; where it cost too many workers, its answer.

        Raises:
          RunError: It cost too many, and nothing gives an answer.
        """
        self._counts[number] += 1
        if self._counts[number] < MAX_DEATHS:
            print(f"\na worker died ({why}); {self.name} {number} is done again", file=sys.stderr, flush=True)
            return None
        if self._lost is not None:
            return (self._lost(number),)
        raise RunError(
            f"{MAX_DEATHS} workers died while they did {self.name} {number} ({why}); give the same command again to do "
            "what is missing, with fewer workers if memory is short"
        ) from error


def portable(error: RunError) -> RunError:
    """An error of its class, or of the nearest above it, that any process can make again from its lines."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return kind(*error.args)


def _said_above(code: int | None) -> str:
    return f"{exit_reason(code)}{', its message is above' * (code is not None and code >= 0)}"
