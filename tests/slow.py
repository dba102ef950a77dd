"""Chooses the tests that `make check` leaves out: the costliest ones, until the others take a given time of a core.

    make check PYTEST_ADDOPTS=--junitxml=REPORT.xml
    python -m tests.slow REPORT.xml [--seconds 180]

writes tests/slow.txt, a line for each test function; its time is the sum over its parameters, fixtures included. A test
that the report has no time of stays as it is, so the report of a run without slow tests only adds to the list. Give one
of `make test`, with its programs compiled already, to choose anew.
"""

import argparse
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".txt")


def read_list(path: Path = LIST) -> frozenset[str]:
    """Returns the slow tests, as `file::function`, or `file::class::function`."""
    return frozenset(path.read_text().split())


def function_of(node: str) -> str:
    """Returns the name of a test without its parameters."""
    return node.partition("[")[0]


def read_times(report: Path) -> dict[str, float]:
    """Returns the seconds of each test function in a JUnit report, where dots lead to its module and class."""
    times: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = str(case.get("classname")).split(".")
        depth = next(n for n in range(len(parts), 0, -1) if (ROOT.joinpath(*parts[:n])).with_suffix(".py").exists())
        file = "/".join(parts[:depth]) + ".py"
        times["::".join([file, *parts[depth:], function_of(str(case.get("name")))])] += float(case.get("time") or 0)
    return times


def choose(times: Mapping[str, float], already: frozenset[str], seconds: float) -> frozenset[str]:
    """Returns the costliest tests, without which the others take at most `seconds`."""
    slow = {test for test in already if test not in times}
    left = sum(times.values())
    for test, cost in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        if left <= seconds:
            break
        slow.add(test)
        left -= cost
    return frozenset(slow)


def main() -> None:
    """Writes the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="what pytest wrote for --junitxml")
    parser.add_argument(
        "--seconds", type=float, default=180, help="what the other tests may take of a core (%(default)g)"
    )
    arguments = parser.parse_args()
    times, before = read_times(arguments.report), read_list()
    slow = choose(times, before, arguments.seconds)
    LIST.write_text("".join(f"{test}\n" for test in sorted(slow)))
    left = {test: cost for test, cost in times.items() if test not in slow}
    print(f"{len(slow)} slow tests, {len(before)} before; the other {len(left)} took {sum(left.values()):.0f} s")


if __name__ == "__main__":
    main()
