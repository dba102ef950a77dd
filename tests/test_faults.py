"""Reads and writes that fail: the short form of `python -m tests.faults`."""

import types
from pathlib import Path

import pytest

from chunkwise.files import trouble
from tests import faults


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is tried again at once, not after 1.75 s in all."""
    monkeypatch.setattr(trouble, "time", types.SimpleNamespace(sleep=lambda seconds: None))


# Orbax leaves tasks behind where a save fails, and Python reports their exceptions as unraisable.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("every", [997, pytest.param(97, marks=pytest.mark.long)])
def test_a_fault_moves_nothing_and_loses_nothing(every: int, tmp_path: Path):
    endings, cases = faults.run(tmp_path.resolve(), every=every)
    assert cases >= 6000 // every
    assert {ended for counts in endings.values() for ended in counts} == {"went on", "74"}
