"""Measures every ratio of docs/performance.md again, and says which fell.

    python -m benchmarks [--torch PYTHON] [--lerobot PYTHON] [--qc PYTHON DIR] [--openpi PYTHON DIR] [--only WORD ...]

ratios.toml lists the programs, and which numbers of their output are ratios. A peer lives in an environment of its own,
whose Python is named here; the docstring of each program says what it must have installed. Ratios whose peer is not
named are listed as not measured. A ratio fell if it is more than 15 % worse than the recorded one: two quiet runs of
one program differ by up to that on two cores. About 15 minutes for what needs no peer. Exit code 1 if one fell, or was
not found in the output of its program.
"""

import argparse
import dataclasses
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RATIOS = Path(__file__).with_name("ratios.toml")
TOLERANCE = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A ratio, as recorded and as found now."""

    name: str
    recorded: float
    better: str
    """"higher" or "lower"."""
    now: float | None
    """None: not measured."""
    why: str = ""
    """Why it was not measured."""

    @property
    def verdict(self) -> str:
        """fell, rose, as before, or why there is none."""
        if self.now is None:
            return self.why
        gain = self.now / self.recorded if self.better == "higher" else self.recorded / self.now
        return "fell" if gain < 1 - TOLERANCE else "rose" if gain > 1 / (1 - TOLERANCE) else "as before"

    @property
    def bad(self) -> bool:
        """Whether it fell, or was to be measured and is not there."""
        return self.verdict == "fell" or self.why == NOT_FOUND


NOT_FOUND = "not found in the output"


def read_ratios(path: Path = RATIOS) -> list[dict[str, Any]]:
    """Returns the commands of ratios.toml, each with its rows."""
    return tomllib.loads(path.read_text())["command"]


def judge(rows: Sequence[Mapping[str, Any]], output: str | None, why: str = NOT_FOUND) -> list[Measured]:
    """Returns the ratios of a program by what it printed; None: it did not run, for the reason given."""
    found = []
    for row in rows:
        match = None if output is None else re.search(row["find"], output, re.MULTILINE)
        common = {"name": row["name"], "recorded": row["ratio"], "better": row.get("better", "higher")}
        found.append(Measured(**common, now=None if match is None else float(match[1]), why="" if match else why))
    return found


def run(command: Sequence[str]) -> str:
    """Runs a program, shows what it prints, and returns that. What a failed one did not print is missing there."""
    print(f"== {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("torch", "lerobot"):
        parser.add_argument(f"--{name}", metavar="PYTHON")
    for name in ("qc", "openpi"):
        parser.add_argument(f"--{name}", nargs=2, metavar=("PYTHON", "DIR"))
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="programs whose name holds one of these"
    )
    given = parser.parse_args(argv)
    peers = {name: value for name, value in vars(given).items() if isinstance(value, str)}
    for name in ("qc", "openpi"):
        if pair := getattr(given, name):
            peers |= {name: pair[0], f"{name}_path": pair[1]}
    measured = []
    for entry in read_ratios():
        if not any(word in entry["run"][0] for word in given.only):
            continue
        if (peer := entry.get("peer")) and peer not in peers:
            measured += judge(entry["rows"], None, f"not measured: name its peer by --{peer}")
            continue
        output = run([*entry["run"], *(each.format(**peers) for each in entry.get("with_peer", []))])
        measured += judge(entry["rows"], output)
    width = max((len(one.name) for one in measured), default=0)
    print(f"\n{'':{width}}  recorded     now")
    for one in measured:
        now = "" if one.now is None else f"{one.now:.2f}"
        print(f"{one.name:{width}}  {one.recorded:8.2f}{now:>8}  {one.verdict}")
    fell = [one.name for one in measured if one.bad]
    print(f"{len(fell)} of {len(measured)} fell or are missing" + (f": {'; '.join(fell)}" if fell else ""))
    return int(bool(fell))


if __name__ == "__main__":
    sys.exit(main())
