"""`chunkwise report RUN`: one page of a run, which opens without a network.

    chunkwise report runs/first             # writes runs/first/report.html
    chunkwise report runs/first --watch     # and again every ten seconds, until the run is done

Every run that comes to its end writes its report.html.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.distributed import processes
from chunkwise.errors import RunError, one_line
from chunkwise.files.durable import write_durably
from chunkwise.files.place import prepare_place, told_place
from chunkwise.files.trouble import SYSTEM
from chunkwise.printable import printable, say
from chunkwise.reports.page import page
from chunkwise.reports.run_record import read_run

REPORT = "report.html"


def write_report(run: Path) -> None:
    """Writes report.html into the folder of a run that ended; where that cannot be done, says so and goes on.

    Of several processes the first one writes.
    """
    if not processes.is_primary():
        return
    try:
        write_durably(run / REPORT, page({printable(run.name): read_run(run)}, beside=run.resolve()))
    except (RunError, *SYSTEM) as error:
        say(f"{run / REPORT}: not written: {one_line(error)}", error=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `report`; returns the exit code."""
    parser = command.Parser(
        prog="chunkwise report", description="Writes a page of a run, which opens without a network."
    )
    parser.epilog = "example: chunkwise report runs/first --watch"
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, under way or ended")
    parser.add_argument("--out", type=Path, help=f"file; default: {REPORT} in the run's folder")
    parser.add_argument(
        "--watch",
        type=int,
        nargs="?",
        const=10,
        metavar="SECONDS",
        help="write it again so often, until done",
    )
    found = parser.parse_args(argv)
    if found.watch is not None and found.watch < 1:
        parser.error(f"--watch is {found.watch}; expected 1 second or more")
    out = found.out or found.run / REPORT
    record = read_run(found.run)
    prepare_place(out)
    while True:
        again = 0 if record.done or found.watch is None else found.watch
        runs = {printable(Path(os.path.abspath(found.run)).name): record}
        whole = page(runs, beside=out.resolve().parent, refresh_s=again)
        with told_place(out):
            write_durably(out, whole)
        if not again:
            break
        print(f"step {record.step:,} of {record.steps:,}", flush=True)
        time.sleep(again)
        record = read_run(found.run)
    print(out)
    return 0


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
