"""Parts of an evaluation that two processes compute, here two threads; real processes do in a test marked long."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import StorageError
from driving.eval.divided import Divided

PARTS = 5


class Turns:
    """A division whose second process is another thread."""

    def __init__(self, index: int, both: threading.Barrier) -> None:
        self.index, self.both = index, both

    def mine(self, number: int) -> bool:
        return number % 2 == self.index

    def work(self, part: Callable[[Any], Any], stopping: Any = None) -> list[Any]:
        mine = part(lambda: False)
        self.both.wait(60)
        return [mine]


def test_each_computes_its_own_parts_and_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    who, both = threading.local(), threading.Barrier(2)
    monkeypatch.setattr("driving.eval.divided.processes.is_multiprocess", lambda: True)
    monkeypatch.setattr("driving.eval.divided.processes.count", lambda: 2)
    monkeypatch.setattr("driving.eval.divided.processes.index", lambda: who.index)

    def run(index: int) -> tuple[list[int], list[Any]]:
        who.index = index
        divided, computed = Divided(tmp_path), []
        monkeypatch.setattr(divided, "_division", Turns(index, both))

        def make(number: int) -> tuple[np.ndarray, ...]:
            computed.append(number)
            return np.full(2, number), np.array(10.0 * number)

        return computed, divided.at(7)(PARTS, make)

    with ThreadPoolExecutor(2) as pool:
        (first, all_of_first), (second, all_of_second) = pool.map(run, (0, 1))
    assert (first, second) == ([0, 2, 4], [1, 3])
    for whole in (all_of_first, all_of_second):
        assert [(a.tolist(), float(b)) for a, b in whole] == [([n, n], 10.0 * n) for n in range(PARTS)]
    assert list((tmp_path / "evaluations").iterdir()) == []


def test_a_full_disk_ends_all_processes_as_one_of_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("driving.eval.divided.processes.is_multiprocess", lambda: True)
    divided = Divided(tmp_path)
    (tmp_path / "evaluations").write_text("no folder")
    monkeypatch.setattr(divided._division, "work", lambda part, stopping=None: part(lambda: False))
    with pytest.raises(
        StorageError, match=r"cannot write .*evaluations/step_00000007.*: Not a directory. Last durable step: None"
    ):
        divided.at(7)(PARTS, lambda number: (np.zeros(2),))
