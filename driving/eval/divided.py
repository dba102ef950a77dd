"""Arrays that the processes of a run compute in parts: part n by the process whose number is n modulo their count.

    <run>/evaluations/step_00000100.part-0-1.npz    what process 1 computed of the first of them, until all have read it

A part is computed by one process on its first device, as by one process alone, so its numbers are the same.
"""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.distributed.stopping import is_requested
from chunkwise.errors import StopRequested
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.npz import read_npz
from chunkwise.train.run_dir import storage_error

Arrays = tuple[np.ndarray, ...]
Over = Callable[[int, Callable[[int], Arrays]], list[Arrays]]
"""Gives the arrays of so many parts, in their order, by a function that computes one."""


def here(count: int, make: Callable[[int], Arrays]) -> list[Arrays]:
    """Computes all parts in this process; an Over."""
    return [make(number) for number in range(count)]


class Divided:
    """Parts that all processes of a run compute together; made and used as a Division."""

    def __init__(self, run: Path) -> None:
        """Computes nothing yet; `run` is the folder of the run, on storage that all processes see."""
        self._run, self._folder = run, run / "evaluations"
        self._division = Division()

    def at(self, step: int) -> Over:
        """Returns what divides the parts of one evaluation, that of the weights behind `step` updates.

        It raises StopRequested, on all processes, where any of them was asked to stop.
        """
        if not processes.is_multiprocess():
            return here
        calls = itertools.count()
        return lambda count, make: self._together(f"step_{step:08d}.part-{next(calls)}", count, make)

    def _together(self, name: str, count: int, make: Callable[[int], Arrays]) -> list[Arrays]:
        paths = [self._folder / f"{name}-{index}.npz" for index in range(processes.count())]

        def part(stopping: Callable[[], bool]) -> bool | None:
            computed: dict[str, np.ndarray] = {}
            for number in filter(self._division.mine, range(count)):
                if stopping():
                    return None
                computed |= {f"{number}/{place}": array for place, array in enumerate(make(number))}
            arrays: Any = computed
            with storage_error(self._run):
                make_folders(self._folder)
                write_durably(paths[processes.index()], lambda file: np.savez(file, **arrays))
            return True

        try:
            if self._division.work(part, is_requested) is None:
                raise StopRequested("the evaluation was broken off; what was finished before stands")
            found = {name: array for path in paths for name, array in read_npz(path).items()}
            self._division.work(lambda _: True)  # all have read
        finally:
            with contextlib.suppress(OSError):  # of a disk that is full or gone, which has been said
                paths[processes.index()].unlink()
        places = range(sum(name.startswith("0/") for name in found))
        return [tuple(found[f"{number}/{place}"] for place in places) for number in range(count)]
