"""Requests to stop, SIGTERM and SIGINT, heeded within seconds whatever the main thread is doing.

Python runs a signal's handler between two bytecodes of the main thread: not while that thread is in a read of a file
system that does not answer, in a simulator's step, or in a compiler. So another thread watches. The kernel's signal
reaches it through `signal.set_wakeup_fd`, without the main thread, and it looks at the section of the program in which
the main thread is:

  outside of `attend`   the main thread comes by itself, soon: it saves, or dispatches an update. Nothing happens
  inside                may be broken off without a loss. `StopRequested` is raised in the main thread once it runs
                        Python, at once or after the section's patience; that ends every wait for a lock, a queue, a
                        pipe or a process. If the section has not been left after GRACE seconds, the watching thread
                        does what is to be done (it saves, say) and ends the process. Without a `rescue` it waits

A call that holds Python's lock all the while stops the watching thread too; no reader here does.
"""

import contextlib
import dataclasses
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn, TypeVar

from chunkwise.distributed import processes
from chunkwise.errors import StopRequested

T = TypeVar("T")

GRACE = 5.0
"""Seconds that the main thread has to leave a section; with the save that may follow, well under 10."""
_TICK = 0.1
_NUDGE = (
    0.5  # seconds after which the main thread is woken by a signal of its own: the first may have met another thread
)


@dataclasses.dataclass(eq=False)
class _Section:
    """What the main thread is doing, as far as a request to stop is concerned."""

    rescue: Callable[[], NoReturn] | None
    """Raises what ends the process, after having done what the main thread does not come to do."""
    patience: float
    """Seconds for which the main thread is left alone."""
    since: float
    raises: bool
    """Whether the handler may raise: not again once it has."""
    nudged: bool = False
    taken: bool = False
    """Whether the watching thread ends the process; the main thread then goes no further than this section's end."""


class Watch:
    """Watches the main thread of this process; see `watched`."""

    def __init__(self, unsaved: str) -> None:
        """Begins in a section that may be broken off.

        Args:
          unsaved: What a request to stop before the first section of its own leaves undone, in a sentence.
        """
        self.requested: int | None = None
        """The signal, once there was a request to stop."""
        self._handled = False
        self._unsaved = unsaved
        self._section = _Section(self._end_unsaved, 0.0, time.monotonic(), raises=True)
        self._nudging = False
        self._heeds = threading.current_thread() is threading.main_thread()  # only that may set handlers
        if not self._heeds:
            return
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        self._fd_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Puts back what was there before."""
        if not self._heeds:
            return
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._waker.close()  # which ends the thread
        self._thread.join()
        self._wake.close()

    def carry_on(self) -> None:
        """From here on the main thread comes by itself: a request is noted, and asked for in `requested`."""
        self._section = _Section(None, 0.0, time.monotonic(), raises=False)

    def attend(self, work: Callable[[], T], rescue: Callable[[], NoReturn] | None, patience: float) -> T:
        """Calls `work`, which a request to stop may break off.

        Args:
          work: A wait for data, an evaluation: what may be dropped.
          rescue: Called by the watching thread if the main thread does not leave `work`; raises what ends the process.
            None: it is waited for, however long it takes.
          patience: Seconds for which `work` is left alone after the request; infinite: until `rescue`.

        Raises:
          StopRequested: It was broken off.
        """
        outer, section = self._section, _Section(rescue, patience, time.monotonic(), raises=True)
        try:
            self._section = section
            return work()
        finally:
            self._section = outer
            while section.taken:
                time.sleep(_TICK)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread."""
        section, again = self._section, self._handled
        self._handled = True
        if self._nudging:
            self._nudging = False
        else:
            if again and number == signal.SIGINT:
                raise KeyboardInterrupt
            if self.requested is None:
                self.requested = number
            if not again and section.rescue != self._end_unsaved:
                say(f"\n{signal.Signals(number).name}: saving, then stopping")
            if section.patience > 0:
                return
        if section.raises:
            section.raises = False
            if section.rescue == self._end_unsaved and self.requested == signal.SIGINT:
                raise KeyboardInterrupt
            raise StopRequested(self._unsaved)

    def _end_unsaved(self) -> NoReturn:
        if self.requested == signal.SIGINT:
            raise KeyboardInterrupt
        raise StopRequested(self._unsaved)

    def _watch(self) -> None:
        """Body of the watching thread."""
        asked: float | None = None
        interrupts: list[float] = []
        while True:
            self._wake.settimeout(None if asked is None else _TICK)
            try:
                numbers = self._wake.recv(64)
                if not numbers:
                    return
            except TimeoutError:
                numbers = b""
            now = time.monotonic()
            interrupts += [now] * numbers.count(signal.SIGINT)
            if asked is None:
                heeded = [number for number in numbers if number in (signal.SIGTERM, signal.SIGINT)]
                if not heeded:
                    continue
                asked = now
                self.requested = self.requested or heeded[0]
            if len(interrupts) > 1 and now - interrupts[1] > GRACE:
                self._end(KeyboardInterrupt())
            self._look_after(self._section, asked, now)

    def _look_after(self, section: _Section, asked: float, now: float) -> None:
        """Wakes the main thread, or ends the process in its place, where it does not leave a section."""
        waited = now - max(asked, section.since)
        if section.raises and waited > section.patience + _NUDGE and not section.nudged:
            section.nudged = self._nudging = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if section.rescue is None or waited <= GRACE:
            return
        section.taken = True
        if self._section is not section:  # it has just been left
            section.taken = False
            return
        say(f"\nstopping without the main thread, which has been {_whereabouts()} for {waited:.0f} s")
        try:
            section.rescue()
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> NoReturn:
        processes.leave(processes.report(error), together=False)


@contextlib.contextmanager
def watched(unsaved: str = "stopped; what was finished before stands") -> Iterator[Watch]:
    """Yields the watch over this process: one for the whole program, where this is called again inside.

    In another thread than the main one, of a program of the user's own, no request is heeded: that is the program's.

    Args:
      unsaved: As in `Watch`.
    """
    global _watch
    if _watch is not None:
        yield _watch
        return
    _watch = Watch(unsaved)
    try:
        yield _watch
    finally:
        _watch.close()
        _watch = None


_watch: Watch | None = None


def is_requested() -> bool:
    """Whether this process was asked to stop; False where nobody watches for it."""
    return _watch is not None and _watch.requested is not None


def say(text: str) -> None:
    """Prints a line without the lock of stdout's buffer, which the main thread may hold."""
    with contextlib.suppress(OSError, ValueError):
        try:
            os.write(sys.stdout.fileno(), f"{text}\n".encode())
        except io.UnsupportedOperation:  # a test has put something else in its place
            print(text, flush=True)


def _whereabouts() -> str:
    """Where the main thread is, as file, line and function."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "away"
    return f"in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
