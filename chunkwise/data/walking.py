"""Goes through the records of a dataset by any number of processes; a record that crashes its reader costs its line."""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, Protocol

from chunkwise.data.problems import Problem
from chunkwise.distributed.jobs import MAX_DEATHS, Hands, do_here_or, in_order
from chunkwise.errors import RunError, one_line
from chunkwise.files import budget

CRASH = "a record that its reader survives"
"""What is expected of one that crashed its reader."""


class Records(Protocol):
    """The records of a dataset, by number; pickled to other processes."""

    def __len__(self) -> int: ...

    def open(self) -> Callable[[int], Any]:
        """Opens the dataset in a process; returns what says of a record what it holds."""
        ...

    def crashed(self, number: int, found: str) -> Any:
        """Says the same of a record whose reader failed otherwise than by a DataError, or died; `found` is how."""
        ...


def walk(records: Records, hands: Hands) -> Generator[Any, None, None]:
    """Yields what is said of each record, in their order.

    Raises:
      RunError: As `do_all`, but for records that cost several workers.
    """
    numbers, opener = range(len(records)), _Opener(records, budget.current())
    yield from in_order(numbers, do_here_or(numbers, opener, opener(), hands, name="record", lost=opener.lost))


def crash(file: str, found: str, *, episode: int | None = None) -> Problem:
    """Makes the line of a record that crashed its reader."""
    return Problem(file=file, episode=episode, expected=CRASH, found=found)


@dataclasses.dataclass(frozen=True)
class _Opener:
    records: Records
    limits: budget.Limits

    def __call__(self) -> Callable[[int], Any]:
        budget.use(self.limits)
        look = self.records.open()

        def guarded(number: int) -> Any:
            try:
                return look(number)
            except RunError:
                raise
            except Exception as error:  # whatever a reader raises is about this record
                return self.records.crashed(number, f"{type(error).__name__}: {one_line(error)}")

        return guarded

    def lost(self, number: int) -> Any:
        return self.records.crashed(number, f"the death of {MAX_DEATHS} processes that read it")
