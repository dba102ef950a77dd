"""The mutants still fit the program, and the tool that runs them sees what a test sees."""

import collections
import textwrap
from pathlib import Path

import pytest

from tests.mutants import areas
from tests.mutants import mutant as mutants
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.operators import Source
from tests.mutants.runner import Runner, Timing, Verdict
from tests.mutants.table import Line, table_of

TABLE = areas.areas()


def test_every_mutant_by_hand_still_applies():
    found = mutants.by_hand()
    assert {mutant.area for mutant in found} <= set(TABLE), "an area that areas.toml does not know"
    broken = []
    for mutant in found:
        try:
            mutant.applied((ROOT / mutant.file).read_text())
            areas.tests_of(mutant, TABLE, ROOT)
        except (OSError, ValueError) as error:
            broken.append(str(error))
    assert not broken, "\n\n".join([*broken, f"{len(broken)} mutants; let them say the same of the changed code"])
    assert len({mutant.name for mutant in found}) == len(found)


def test_there_are_enough_in_every_area():
    """Counted without drawing, which takes seconds: what an area draws is in areas.toml, and is drawn below for one."""
    by_area = collections.Counter(mutant.area for mutant in mutants.by_hand())
    sizes = {name: area.drawn + by_area[name] for name, area in TABLE.items() if name != "also"}
    assert min(sizes.values()) >= 12, sizes
    assert sum(sizes.values()) >= 300
    assert sum(area.drawn for area in TABLE.values()) >= 150


def test_every_file_and_test_of_the_table_is_there():
    for area in TABLE.values():
        for file, tests in area.files.items():
            assert (ROOT / file).is_file(), f"areas.toml: {area.name}: {file}"
            for test in tests:
                assert (ROOT / test).is_file(), f"areas.toml: {area.name}: {test}"


def test_what_is_drawn_depends_on_the_seed_alone_and_lies_in_many_functions():
    area = TABLE["metrics"]
    drawn = areas.mutants_of(area, ROOT, only="drawn")
    assert drawn == areas.mutants_of(area, ROOT, only="drawn")
    assert drawn != areas.mutants_of(area, ROOT, only="drawn", seed=1)
    assert len(drawn) == area.drawn
    assert len({(mutant.file, mutant.why.split(" in ")[1]) for mutant in drawn}) == area.drawn


def changes(text: str) -> list[str]:
    """The sources that the operators make of a text, all of one line."""
    source = Source(text := textwrap.dedent(text))
    return [(source.data[: edit.start] + edit.new + source.data[edit.end :]).decode() for edit in source.edits()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a in b", {"x = a not in b"}),
        ("x = a is not None", {"x = a is None"}),
        ("x = a - b", {"x = a + b"}),
        ("x = é ** b", {"x = é * b"}),
        ("x = folder / b", set()),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 2", {"x = 3", "x = 1"}),
        ("x = 0.5", {"x = 1.0"}),
        ("x = True", {"x = False"}),
        ("x = np.min(a)", {"x = np.max(a)"}),
        ("x = sum(a)", {"x = max(a)"}),
        ("x = a.sum(axis=-1)", {"x = a.mean(axis=-1)", "x = a.sum(axis=0)", "x = a.sum(axis=-2)"}),
        ("x = np.pad(a, mode=b)", {"x = np.pad(a, )"}),
        ("x = f(a, b)", {"x = f(b, a)"}),
        ("x = f(a, (b, c))", set()),
        ("x = np.maximum(a, b)", {"x = np.minimum(a, b)"}),
        ("x = a if b else c", {"x = c if b else a", "x = a if (not (b)) else c"}),
        ("x = a[b:]", {"x = a[(b) + 1:]"}),
        ("x = a[:b]", {"x = a[1:b]", "x = a[:(b) + 1]"}),
        ("x += a", {"x = a", "x -= a", "pass"}),
        ("x = jax.lax.stop_gradient(a)", {"x = (a)"}),
        ("x.y = a", {"pass"}),
        ("raise ValueError(1 + 2)", {"pass"}),
        ("print(1 + 2)", set()),
        ('"""1 < 2."""', set()),
        ("x: Literal[1] = a", set()),
        ("x = f'{1 + 2}'", set()),
        ("def f() -> bool: return a", {"def f() -> bool: return not (a)"}),
        ("def f() -> list[int]: return a", {"def f() -> list[int]: return []"}),
        ("def main() -> int: return 1 + 2", set()),
    ],
)
def test_operators(line: str, expected: set[str]):
    assert set(changes(line)) == expected


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one function, and a test that sees some faults of it."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "chunkwise").mkdir()
    (folder / "tests" / "chunkwise").mkdir(parents=True)
    (folder / "chunkwise" / "toy.py").write_text("def larger(a, b):\n    return a if a > b else b\n")
    (folder / "tests" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--typecheck', action='store_true')\n"
    )
    (folder / "tests" / "chunkwise" / "test_toy.py").write_text(
        "from chunkwise.toy import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == 2 == larger(2, 1)\n"
    )
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = []\n")
    return folder


def of_toy(old: str, new: str) -> Mutant:
    """A mutant of the toy."""
    return Mutant(area="loop", file="chunkwise/toy.py", old=old, new=new, why="", origin="by_hand")


def test_kills_and_survives_as_it_should(toy: Path, tmp_path: Path):
    test = "tests/chunkwise/test_toy.py"
    files = [path.relative_to(toy).as_posix() for path in toy.rglob("*") if path.is_file()]
    wrong, same, endless = (
        of_toy("a > b", "a < b"),
        of_toy("a > b", "a >= b"),
        of_toy("    return", "    while a:\n        pass\n    return"),
    )
    said: list[str] = []
    with Runner(toy, tmp_path / "cache", 1, said.append, files=files, preload=False) as runner:
        assert not runner.baseline([test])[test].slow
        work = [(each, [test]) for each in (wrong, same, endless)]
        verdicts = runner.judge(work[:2], {test: Timing(0.0, False, {})}, spare=100)
        verdicts |= runner.judge(work[2:], {test: Timing(0.0, False, {})}, spare=1)
    assert verdicts[wrong].killed
    assert verdicts[wrong].by == f"{test}::test_larger"
    assert not verdicts[same].killed
    assert verdicts[endless].by == "timeout"
    with Runner(toy, tmp_path / "cache", 1, said.append, files=files, preload=False) as runner:
        before = len(said)
        assert runner.judge(work, runner.baseline([test])) == verdicts
    assert len(said) == before, "verdicts and times of the run before were not used"
    assert (toy / "chunkwise" / "toy.py").read_text().count("a > b") == 1


def test_a_test_that_needs_another_before_it_judges_nothing(toy: Path, tmp_path: Path):
    name = "tests/test_order.py"
    first, second = f"{name}::test_first", f"{name}::test_second"
    (toy / name).write_text(
        "seen = []\n\n\ndef test_first():\n    seen.append(1)\n\n\ndef test_second():\n    assert seen\n"
    )
    timings = {name: Timing(0.0, False, {first: 0.2, second: 0.1})}  # so the second comes first
    files = ["chunkwise/toy.py", name, "tests/conftest.py", "pyproject.toml"]
    with (
        Runner(toy, tmp_path / "cache", 1, files=files, preload=False) as runner,
        pytest.raises(SystemExit, match=f"{second} fails by itself on the unchanged program"),
    ):
        runner.judge([(of_toy("a > b", "a >= b"), [name])], timings)


def test_the_table_leaves_out_what_is_equivalent_alone():
    killed, survived = Verdict(True, "a test", 1.0), Verdict(False, "", 1.0)
    same, slow = {"reason": "equivalent", "why": ""}, {"reason": "speed", "why": ""}
    lines = [Line(of_toy("a", str(i)), killed, same if i == 0 else None) for i in range(18)]
    lines += [Line(of_toy("b", "c"), survived, same), Line(of_toy("b", "d"), survived, slow)]
    text, enough = table_of(lines, 94.0)
    assert "| loop | 18 of 19 | 0 of 0 | 18 | 19 | 94.7 | 1 | 0 |" in text
    assert enough
    assert not table_of(lines, 95.0)[1]


def test_what_is_accepted_says_why():
    """Each once: a name given twice is no TOML, and would end a run of half an hour before its table."""
    assert all(entry["why"] for entry in mutants.accepted().values())
