"""The table of an evaluation, and what of its file is read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import DataError
from driving import evaluate


def test_the_table_by_hand():
    score = {"mean": 1.0, "low": 0.5, "high": 1.5}
    result = {"kind": "waypoints", "split": "test", "drives": 2, "notes": ["a note"]}
    alone = {"mean": 3.0, "low": None, "high": None}
    one = result | {"rows": {"model": {"ade_1s": score}, "ego_mlp": {"ade_1s": score | {"mean": 2.0}}}}
    other = result | {"rows": {"model": {"ade_1s": alone}, "ego_mlp": {"ade_1s": score}}, "notes": []}
    assert evaluate.text([("one", one), ("other", other)]).strip().splitlines() == [
        "| waypoints, 2 test drives | ade_1s |",
        "|---|---|",
        "| ego_mlp | 2.000 (0.500 to 1.500) |",
        "| one | 1.000 (0.500 to 1.500) |",
        "| other | 3.000 |",
        "",
        "one: a note",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04pickle",
        b"[]",
        b"{}",
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": []}',
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": {"model": {"ade": {"mean": "x"}}}}',
        b'{"kind": "waypoints", "drives": 1, "split": "test", "rows": {"blind": {}}}',
    ],
)
def test_a_report_that_is_none_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / evaluate.REPORT).write_bytes(content)
    with pytest.raises(DataError, match=r"evaluation\.json: expected what an evaluation wrote, found .*--again"):
        evaluate.read_report(tmp_path)


def test_a_report_comes_back(tmp_path: Path):
    score = {"mean": 1.5, "low": 1.0, "high": 2.0}
    result = {"kind": "waypoints", "drives": 2, "split": "test", "rows": {"model": {"ade": score}}, "notes": ["x"]}
    (tmp_path / evaluate.REPORT).write_text(json.dumps(result))
    assert evaluate.read_report(tmp_path) == result


def test_rows_are_predicted_in_their_order_whatever_the_size_of_a_part():
    for count, size in ((5, 2), (4, 2), (1, 4)):
        rows = np.arange(10, 10 + count)
        parts = evaluate.parts(rows, size)
        assert {len(part) for part in parts} == {size}
        assert np.concatenate(parts)[:count].tolist() == rows.tolist()
        assert set(np.concatenate(parts)[count:].tolist()) <= {rows[-1]}
