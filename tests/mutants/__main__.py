"""Puts small faults into the program, one at a time, and says which of them the tests notice.

    python -m tests.mutants                                # all, 70 minutes on 2 cores
    python -m tests.mutants --area loop --only by_hand
    python -m tests.mutants --list

Half of the mutants were written by hand by somebody who had not read the tests (by_hand/<area>.toml), half are drawn
by operators (operators.py) over the files of areas.toml. Each is put into a copy of the tree, where the test files
that should see it run until the first failure. Verdicts are kept in .cache/mutants as long as the changed file and the
tests are the same, so a run that was broken off goes on. Exit code 1 if fewer than `--at-least` percent are killed in
an area.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from tests.mutants.areas import DEFAULT_SEED, areas, mutants_of, sample, tests_of
from tests.mutants.mutant import ROOT, Mutant, accepted
from tests.mutants.runner import Runner
from tests.mutants.table import Line, survivors, table_of


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--area",
        action="append",
        choices=[name for name in areas() if name != "also"],
        help="only this one; may be given again",
    )
    parser.add_argument("--only", choices=["by_hand", "drawn"])
    parser.add_argument("--per-area", type=int, metavar="N", help="at most N by hand and N drawn of each area")
    parser.add_argument("--name", action="append", help="only the mutant of this name; may be given again")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the drawn ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another version of the repository, to be tested so")
    parser.add_argument("--at-least", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument("--fresh", action="store_true", help="use no verdict of an earlier run")
    parser.add_argument(
        "--trust-tests", action="store_true", help="do not run the tests on the unchanged program first"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started ends with it
    table = areas()
    chosen = [table[name] for name in options.area or table if name != "also"]
    mutants = [each for area in chosen for each in mutants_of(area, ROOT, seed=options.seed, only=options.only)]
    if options.per_area is not None:
        mutants = sample(mutants, options.per_area, options.seed)
    mutants = [mutant for mutant in mutants if options.name is None or mutant.name in options.name]
    if options.list:
        print("\n".join(mutant.lines(ROOT) for mutant in mutants))
        raise SystemExit(0)

    root = options.tree.resolve()
    fitting = [mutant for mutant in mutants if root == ROOT or _fits(mutant, root)]
    work = [(mutant, tests_of(mutant, table, root)) for mutant in fitting]
    tests = list(dict.fromkeys(test for _, listed in work for test in listed))
    with Runner(root, ROOT / ".cache", options.workers, lambda text: print(text, flush=True)) as runner:
        verdicts = runner.judge(work, runner.baseline(tests, trusted=options.trust_tests), fresh=options.fresh)

    lines = [Line(mutant, verdicts[mutant], accepted().get(mutant.name)) for mutant in fitting]
    text, enough = table_of(lines, options.at_least)
    print("\n" + "\n".join(survivors(lines, root)))
    print("\n" + text)
    if left_out := len(mutants) - len(fitting):
        print(f"{left_out} of {len(mutants)} do not fit {root}")
    if options.json:
        options.json.write_text(json.dumps([line.entry() for line in lines], indent=1))
    raise SystemExit(0 if enough else 1)


def _fits(mutant: Mutant, root: Path) -> bool:
    """Whether another version of the repository has what a mutant changes."""
    try:
        mutant.applied((root / mutant.file).read_text())
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
