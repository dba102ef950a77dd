"""The tests that `make check` leaves out: which are chosen, and that those listed exist."""

import ast
from pathlib import Path

import pytest

from tests import slow

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_slow" name="test_one[a]" time="2.0" />
<testcase classname="tests.test_slow" name="test_one[b.c]" time="2.5" />
<testcase classname="tests.test_slow.TestClass" name="test_two" time="1.0" />
<testcase classname="tests.qchunk.data.test_data" name="test_three" time="3.0" />
</testsuite></testsuites>"""


def test_times_are_of_functions_and_their_files(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert slow.read_times(tmp_path / "report.xml") == {
        "tests/test_slow.py::test_one": 4.5,
        "tests/test_slow.py::TestClass::test_two": 1.0,
        "tests/qchunk/data/test_data.py::test_three": 3.0,
    }


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(8.5, "w"), (8.4, "aw"), (4.0, "aw"), (3.9, "abw"), (0, "abcw")],
)
def test_the_costliest_are_left_out_until_the_rest_fits(seconds: float, expected: str) -> None:
    """Of those already listed, `c` was measured and fits now; `w` was not measured, and stays."""
    assert slow.choose({"b": 3.0, "a": 4.5, "c": 1.0}, frozenset("cw"), seconds) == set(expected)


def test_every_test_that_is_listed_exists() -> None:
    names: dict[str, set[str]] = {}
    for test in slow.read_list():
        file, _, name = test.partition("::")
        names.setdefault(file, set()).add(name.rpartition("::")[2])
    for file, listed in names.items():
        assert (slow.ROOT / file).is_file(), f"{file} of tests/slow.txt is gone: remove its lines"
        tree = ast.parse((slow.ROOT / file).read_text())
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert listed <= there, f"tests/slow.txt lists what {file} does not hold: {sorted(listed - there)}"
