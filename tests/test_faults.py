"""Reads and writes that fail: the short form of `python -m tests.faults`."""

from pathlib import Path

import pytest

from tests import faults


# Orbax leaves tasks behind where a save fails, and Python reports their exceptions as unraisable.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("every", [1999, pytest.param(97, marks=pytest.mark.long)])
def test_a_fault_moves_nothing_and_loses_nothing(every: int, tmp_path: Path):
    result = faults.run(tmp_path.resolve(), every=every)
    assert result.failures == []
    assert result.cases >= 6000 // every
    assert {ended for counts in result.endings.values() for ended in counts} == {"went on", "74"}
