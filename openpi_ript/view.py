"""Shows a LeRobot dataset as a page, to a browser of this machine.

    chunkwise view DIR [--port N] [--allow-links-to DIR]

DIR is a folder of LeRobot 2.1 or 3.0.
"""

import argparse
import sys

from chunkwise.data.shards import is_pack
from chunkwise.errors import DataError, RunError
from chunkwise.printable import say
from chunkwise.view.command import parser, serve
from chunkwise.view.source import View
from openpi_ript.data.recordings import LeRobotRecordings


def view_of(arguments: argparse.Namespace) -> View:
    """Opens what the command line names.

    Raises:
      DataError: There is no dataset.
    """
    if is_pack(arguments.dir):
        raise DataError(f"{arguments.dir}: expected a LeRobot dataset, found a pack; view the dataset it was made from")
    return View(recordings=LeRobotRecordings(arguments.dir, tuple(arguments.allow_links_to)))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = parser("python -m openpi_ript.view", __doc__ or "").parse_args(argv)
    try:
        return serve(view_of(arguments), arguments.port)
    except RunError as error:
        say(str(error), error=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
