"""Compares two evaluations, of any packages, initial state by initial state.

    python -m chunkwise.envs.compare A.json B.json        also: chunkwise compare A.json B.json

Prints both success rates, in how many states each of them alone succeeded, and McNemar's exact test of the difference.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.envs.evaluate import Evaluation, compare_evaluations
from chunkwise.errors import RunError
from chunkwise.printable import say


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", type=Path, metavar="A.json")
    parser.add_argument("b", type=Path, metavar="B.json")
    found = parser.parse_args(argv)
    try:
        a, b = Evaluation.load(found.a), Evaluation.load(found.b)
        for name, one, path in (("A", a, found.a), ("B", b, found.b)):
            say(f"{name}: {path}, step {one.step}" + (f", {one.settings}" if one.settings else ""))
        compared = compare_evaluations(a, b)
        for name, one in (("A", a), ("B", b)):
            if len(one.outcomes) > compared.episodes:
                print(
                    f"{name}: {one.successes} of {len(one.outcomes)} in all, {one.successes / len(one.outcomes):.1%}; "
                    f"compared are the {compared.episodes} from initial states that both have"
                )
        print(compared)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    command.run(main)
