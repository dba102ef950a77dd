"""The table of runs: evaluations that gave NaN, and names that look like intervals."""

from pathlib import Path

from chunkwise.reports import results
from chunkwise.reports.run_record import read_run
from tests.chunkwise.reports.test_page import evaluated, write_run


def test_an_evaluation_that_gave_nan_is_not_replaced_by_an_earlier_one(tmp_path: Path):
    lost = dict.fromkeys(("policy/return", "policy/success_low", "policy/episodes"))
    rows = [evaluated(10, 0.5, **{"policy/return": -50.0}), evaluated(20, 0.25) | lost]
    record = read_run(write_run(tmp_path / "a", rows))
    (row,) = results.rows_of_results({"a": record})
    assert row.step == 20
    assert {name: str(cell) for name, cell in row.cells.items()} == {
        "success": "0.25", "return": "NaN", "length": "9.5",
    }  # fmt: skip
    assert row.episodes is None
    lines = results.texts([row], results.columns_of([row]))
    assert lines == [
        ["run", "policy", "updates", "success", "return", "length"],
        ["a", "policy", "20", "0.25", "NaN", "9.5"],
    ]
    assert record.series("eval")["policy/return"] == [(10, -50.0)], "a curve has no place for it"


def test_only_intervals_get_an_en_dash():
    lines = [["run", "policy", "from 1 to 2"], ["sim to real", "go to x", "0.5 (0.4 to 0.6)"]]
    assert results.latex(lines).splitlines()[2:5:2] == [
        r"run & policy & from 1 to 2 \\",
        r"sim to real & go to x & 0.5 (0.4--0.6) \\",
    ]
