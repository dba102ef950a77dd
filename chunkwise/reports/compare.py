"""`chunkwise compare RUN RUN...`: the results of runs of any packages, side by side.

    chunkwise compare runs/a runs/b --html ab.html      # the page has curves, outcomes state by state, what differs
    chunkwise compare runs/* --format latex --metric success

Two evaluations of policies, A.json and B.json, are compared by chunkwise/envs/compare.py.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.errors import ConfigError
from chunkwise.files.durable import write_durably
from chunkwise.files.place import prepare_place, told_place
from chunkwise.printable import printable
from chunkwise.reports import results
from chunkwise.reports.page import FILM_MIB, page
from chunkwise.reports.run_record import other_files, read_run


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise compare",
        description="Compares runs: their newest evaluations as a table, and all that differs as a page.",
        epilog="example: chunkwise compare runs/a runs/b --html ab.html; of two evaluations: compare A.json B.json",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page of all of them")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="a column; may be given again")
    parser.add_argument("--format", choices=("text", "markdown", "latex"), default="text", help="of the printed table")
    parser.add_argument("--film-mib", type=int, default=FILM_MIB, metavar="N", help="room for videos in the page, MiB")
    found = parser.parse_args(argv)
    names = map(printable, names_of(found.runs))
    runs = {name: read_run(path) for name, path in zip(names, found.runs, strict=True)}
    if found.html is not None:
        prepare_place(found.html, option="--html")
    rows = results.rows_of_results(runs)
    try:
        columns = results.columns_of(rows, found.metric) if rows else []
    except ValueError as error:
        raise ConfigError(f"--metric: {error}") from error
    lines = results.texts(rows, columns) if rows else []
    written = {"text": results.plain, "markdown": results.markdown, "latex": results.latex}[found.format]
    print(written(lines) if lines else "none of the runs was evaluated")
    if lines and (absent := results.unmeasured(runs, rows)):
        print(f"no evaluation of: {', '.join(absent)}", file=sys.stderr)
    for line in other_files(runs):
        print(f"note: {printable(line)}", file=sys.stderr)
    if not found.metric and (rest := results.not_shown(rows, columns)):
        print(f"not shown: {', '.join(map(printable, rest))} (--metric NAME)", file=sys.stderr)
    if found.html is not None:
        whole = page(runs, beside=found.html.resolve().parent, film_mib=found.film_mib)
        with told_place(found.html, option="--html"):
            write_durably(found.html, whole)
        print(found.html)
    return 0


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names of folders, as short as they differ. Raises ConfigError where one is given twice."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    if len({os.path.realpath(path) for path in whole}) < len(whole):  # by a link, too
        raise ConfigError("a run is given twice; expected different ones")
    parts = 1
    while len(set(names := ["/".join(path.parts[-parts:]) for path in whole])) < len(names):
        parts += 1
    return names


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
