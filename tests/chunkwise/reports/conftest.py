"""What the tests of reports have in common."""

import functools

import pytest

from chunkwise.reports import study_table
from chunkwise.reports.aggregate import bootstrap


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds less a table; tests/chunkwise/reports/test_aggregate.py has the intervals."""
    monkeypatch.setattr(study_table, "bootstrap", functools.partial(bootstrap, draws=500))
