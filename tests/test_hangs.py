"""The short form of `python -m tests.hangs`; the bounds in seconds are the long form's."""

from pathlib import Path

import pytest

from tests import hangs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("restore", marks=pytest.mark.long),
        pytest.param("reader_after_interaction", marks=pytest.mark.long),
        pytest.param("evaluation", marks=pytest.mark.long),
        pytest.param("compile", marks=pytest.mark.long),
        "checkpoints_unwritable",
        pytest.param("evaluation_worker_killed", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_blocked_or_broken_ends_as_it_must(name: str, tmp_path: Path):
    passed, line = hangs.run(name, tmp_path / name, patience=6.0)
    assert passed, line
