"""A few of `python -m tests.bombs` through the real programs; all of them take minutes."""

from pathlib import Path

import pytest

from tests.bombs import all_cases
from tests.bombs.__main__ import judge, run

NAMES = (
    pytest.param("npz_header_bomb", marks=pytest.mark.long),
    pytest.param("hdf5_deflate_that_outgrows_its_chunk", marks=pytest.mark.long),
    "json_of_many_cameras",
    "pipe_as_table",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_is_refused_by_the_program(name: str, tmp_path: Path) -> None:
    case, folder = all_cases()[name], tmp_path / "files"
    folder.mkdir()
    result = judge(case, run(case.build(folder), tmp_path), start_mb=100)
    assert result.outcome == "refused", result
    assert 0 < result.peak_mb < 1000


def test_cases_have_words_and_names_of_their_own() -> None:
    cases = all_cases().values()
    assert len(cases) > 60
    assert all(case.build.__doc__ for case in cases)
