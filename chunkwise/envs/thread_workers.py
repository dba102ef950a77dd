"""Environments in threads of this process: the `Workers` for simulators that step in C in a millisecond."""

import concurrent.futures
import functools
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from chunkwise.distributed.cores import cores
from chunkwise.envs.workers import ASK_AGAIN, Opener, Request, Reset, Seat, Start, Stretch
from chunkwise.errors import StopRequested

P = ParamSpec("P")
T = TypeVar("T")

TO_CLOSE = 3.0
"""Seconds that environments in threads may take to end what they do, and to close."""


class ThreadWorkers:
    """Environments in threads of this process, which answer with the last observation of a stretch alone.

    They share nothing; MuJoCo lets go of Python's lock (1.7 times faster on two cores). Whatever a slot's environments
    do is done by a thread of their own, from their making on: a GL context belongs to one thread, and environments
    whose observations are images render in `reset` and `step`.
    """

    every_frame = False

    def __init__(self, opener: Opener, count: int, *, name: str) -> None:
        """Makes nothing yet.

        Args:
          opener: Makes an environment.
          count: Slots.
          name: Of the environment, for errors.
        """
        self.count = count
        self.parallel = min(count, len(cores()))
        self._opener, self._name = opener, name
        self._seats: list[Seat | None] = [None] * count
        self._hands: list[OwnThread | None] = [None] * count
        self._answers: dict[int, concurrent.futures.Future[Start | Stretch]] = {}

    def submit(self, slot: int, request: Request) -> None:
        seat, hands = self._seats[slot], self._hands[slot]
        if seat is None or hands is None:
            seat = self._seats[slot] = Seat(self._opener, self._name, time.thread_time)
            hands = self._hands[slot] = OwnThread(f"environment {slot}")
        self._answers[slot] = _turns().submit(lambda: hands.begin(_answer_of, seat, request).result())

    def receive(
        self, slots: Collection[int], stopping: Callable[[], bool] = lambda: False, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        until = time.monotonic() + within
        waiting = {slot: self._answers[slot] for slot in slots}
        while True:
            seconds = min(ASK_AGAIN, max(until - time.monotonic(), 0.0))
            done, _ = concurrent.futures.wait(waiting.values(), seconds, concurrent.futures.FIRST_COMPLETED)
            for slot, future in waiting.items():
                if future in done:
                    del self._answers[slot]
                    return slot, future.result()
            if time.monotonic() >= until:
                raise TimeoutError
            if stopping():
                raise StopRequested

    def close(self) -> None:
        concurrent.futures.wait(self._answers.values(), TO_CLOSE)
        self._answers.clear()
        pairs = zip(self._hands, self._seats, strict=True)
        end_all([(hands, seat.close) for hands, seat in pairs if hands is not None and seat is not None])
        self._seats, self._hands = [None] * self.count, [None] * self.count


@functools.cache
def _turns() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that wait for those of environments: so many of them work in one moment, in the order of asking."""
    # At least two: with one, an environment that sleeps or waits keeps all the others waiting.
    return concurrent.futures.ThreadPoolExecutor(max_workers=max(2, len(cores())))


_MAKING = threading.Lock()
"""Environments of this process are made one after another: simulators import and read what they share."""


def _answer_of(seat: Seat, request: Request) -> Start | Stretch:
    if isinstance(request, Reset):
        with _MAKING:
            seat.sit(request.task)
    return seat.answer(request, every_frame=False)


class OwnThread:
    """A thread in which all that an environment does is done, since a GL context belongs to one."""

    def __init__(self, name: str) -> None:
        """Starts nothing yet."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)

    def begin(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> concurrent.futures.Future[T]:
        """Has something done there, after what was begun before; returns its future."""
        return self._thread.submit(work, *arguments, **named)

    def end(self) -> None:
        """Has the thread end with what it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def end_all(closing: Collection[tuple[OwnThread, Callable[[], None]]]) -> None:
    """Ends threads, with what each is to do last; those that do not come to it within TO_CLOSE seconds are left."""
    concurrent.futures.wait([hands.begin(close) for hands, close in closing], TO_CLOSE)
    for hands, _ in closing:
        hands.end()
