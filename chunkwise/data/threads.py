"""Threads for work that releases Python's lock, such as decoding, resizing and copying images, and writing files."""

import itertools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

from chunkwise.distributed.cores import cores

Given = ParamSpec("Given")

BACKGROUND_NICENESS = 5
"""Of threads that load what is needed later: where cores are short, one gets a third of a training thread's share.

Measured with pools of episodes, on one core for everything: at 0 steps take twice as long while a pool loads (63
against 32 ms), at 10 an eighth longer, but the pool may not be there in time; the sum is the same.
"""


def step_back() -> None:
    """Lowers the calling thread's priority for good, and that of the threads it starts, where threads have their own.

    It is counted from the main thread's: a process that was started with less priority may not take more, and a thread
    that has stepped back already stays where it is. The main thread keeps its own: its threads would start with less.
    Linux alone gives each thread a niceness; elsewhere this would slow the whole process, and nothing is done.
    """
    if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
        thread, lowest = threading.get_native_id(), 19
        wanted = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + BACKGROUND_NICENESS, lowest)
        if wanted > os.getpriority(os.PRIO_PROCESS, thread):
            os.setpriority(os.PRIO_PROCESS, thread, wanted)


class Workers:
    """Shares out the pieces of a piece of work between the calling thread and some others.

    Pieces are handed out one at a time, by a counter, so that a slow one holds up nobody; threads that are asked too
    late find nothing to do.
    """

    def __init__(self, threads: int) -> None:
        """Starts nothing yet.

        Args:
          threads: The caller's own included; 0 takes one a core.
        """
        self.threads = threads or len(cores())
        others = self.threads - 1
        self._others = ThreadPoolExecutor(others, thread_name_prefix="workers") if others else None

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Calls work(0) to work(count - 1), each once, in any order.

        Raises:
          Exception: The first that a piece raised; pieces that were not begun are left.
        """
        counter = itertools.count()

        def drain() -> None:
            while (i := next(counter)) < count:
                try:
                    work(i)
                except BaseException:
                    for _ in zip(range(count), counter, strict=False):  # nobody begins another piece
                        pass
                    raise

        helpers = min(self.threads, count) - 1
        pending = [] if self._others is None else [self._others.submit(drain) for _ in range(helpers)]
        try:
            drain()
        finally:
            # A helper that never began is not waited for; one that did writes into the caller's memory.
            for future in pending:
                if not future.cancel():
                    future.exception()
        for future in pending:
            if not future.cancelled():
                future.result()


class Behind:
    """Does work by one thread, in order, while its caller goes on; leave its block to have all of it done."""

    def __init__(self, name: str, *, waiting: int) -> None:
        """Starts nothing yet.

        Args:
          name: Of the thread.
          waiting: Pieces of work that may be under way; for one more `do` waits.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._room = threading.Semaphore(waiting)
        self._given: list[Future[None]] = []

    def do(self, work: Callable[Given, object], *args: Given.args, **named: Given.kwargs) -> None:
        """Has `work` called with these arguments. Raises what an earlier piece of work raised."""

        def worked() -> None:
            try:
                work(*args, **named)
            finally:
                self._room.release()

        for future in [future for future in self._given if future.done()]:
            self._given.remove(future)
            future.result()
        self._room.acquire()
        try:
            self._given.append(self._thread.submit(worked))
        except BaseException:
            self._room.release()
            raise

    def wait(self) -> None:
        """Returns when all work is done. Raises what the first that failed raised; what others did is lost with it."""
        given, self._given = self._given, []
        for failed in [error for future in given if (error := future.exception()) is not None]:
            raise failed

    def __enter__(self) -> "Behind":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._thread.shutdown()
        except BaseException:  # Ctrl-C: whoever asked for the work goes on as if none were under way
            self._thread.shutdown()
            raise
        if kind is None:
            self.wait()
