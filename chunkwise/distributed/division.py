"""Numbered work that the processes of a run divide among themselves, each of which may be asked to stop meanwhile.

What is asked of one process alone, to stop, or what one alone meets, an error, ends the work of all of them within a
second or two of their next question: they learn it through jax's coordinator, as in chunkwise/distributed/processes.py.
"""

import itertools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from chunkwise import errors
from chunkwise.distributed import processes
from chunkwise.errors import RunError, StopRequested

T = TypeVar("T")

ASK_AGAIN = 1.0
"""Seconds between two questions whether another process has stopped."""


class Division:
    """Stretches of work, one after the other, of which every process does its part.

    All processes make one at the same place of the program, and use it in the same order; one thread at a time does,
    which need not be the main one.
    """

    def __init__(self) -> None:
        """Asks nothing of the others yet."""
        self._key = f"chunkwise/divided/{processes.next_call()}"
        self._stretches = itertools.count()
        self._before: _Question | None = None

    def mine(self, number: int) -> bool:
        """Whether a piece is done by this process, whose index is its number modulo the processes."""
        return number % processes.count() == processes.index()

    def work(
        self, part: Callable[[Callable[[], bool]], T | None], stopping: Callable[[], bool] = lambda: False
    ) -> list[T] | None:
        """Does this process's part, and waits for those of the others.

        Args:
          part: Gets a question, which it asks every second or two: whether to stop. Returns a JSON value; None, or
            raises StopRequested, where it stopped.
          stopping: Whether this process was asked to stop.

        Returns:
          What the parts gave, by process, the same on all of them; None if any was stopped.

        Raises:
          RunError: The first that a part raised, on every process.
        """
        if not processes.is_multiprocess():
            alone = part(stopping)
            return None if alone is None else [alone]
        question = _Question(f"{self._key}/{next(self._stretches)}", stopping)
        failed: RunError | None = None
        try:
            said: list[Any] = ["value", part(question)]
        except StopRequested:
            said = ["value", None]
        except RunError as error:
            failed, said = error, [processes.kind(error), error.args]
        if failed is not None or said[1] is None:
            question.tell()
        answers = question.answers(said)
        if self._before is not None:
            self._before.forget()
        self._before = question
        if failed is not None:
            raise failed
        for kind, value in answers:
            if kind != "value":
                raise getattr(errors, kind)(*value)
        values = [value for _, value in answers]
        return None if any(value is None for value in values) else values


class _Question:
    """Whether to stop: because this process was asked to, or another has."""

    def __init__(self, key: str, stopping: Callable[[], bool]) -> None:
        self._key, self._stopping = key, stopping
        self._stopped, self._asked = False, 0.0

    def __call__(self) -> bool:
        if not self._stopped and self._stopping():
            self.tell()
        if not self._stopped and time.monotonic() - self._asked > ASK_AGAIN:
            self._asked = time.monotonic()
            self._stopped = processes.is_told(f"{self._key}/stop")
        return self._stopped

    def tell(self) -> None:
        """Has the others stop."""
        self._stopped = True
        processes.tell(f"{self._key}/stop", "")

    def answers(self, said: list[Any]) -> list[Any]:
        """What every process says, by index; waiting for them this one still hears that it is to stop."""
        processes.tell(f"{self._key}/{processes.index()}", json.dumps(said))
        found = []
        for index in range(processes.count()):
            while (text := processes.heard(f"{self._key}/{index}", ASK_AGAIN)) is None:
                self()
            found.append(json.loads(text))
        return found

    def forget(self) -> None:
        """Removes what this process said, once all have come to a later question."""
        processes.forget(f"{self._key}/stop")
        processes.forget(f"{self._key}/{processes.index()}")
