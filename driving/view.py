"""Shows driving episodes as a page, to a browser of this machine.

    chunkwise view DIR [--port N] [--allow-links-to DIR]

DIR is a folder of episode files, or one of them.
"""

import argparse
import sys

from chunkwise.data.shards import is_pack
from chunkwise.errors import DataError, RunError
from chunkwise.printable import say
from chunkwise.view.command import parser, serve
from chunkwise.view.source import View
from driving.data.recordings import DrivingRecordings


def view_of(arguments: argparse.Namespace) -> View:
    """Opens what the command line names.

    Raises:
      DataError: There is no dataset.
    """
    if is_pack(arguments.dir):
        raise DataError(f"{arguments.dir}: expected episode files, found a pack; view those it was made from")
    return View(recordings=DrivingRecordings(arguments.dir, tuple(arguments.allow_links_to)))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = parser("python -m driving.view", __doc__ or "").parse_args(argv)
    try:
        return serve(view_of(arguments), arguments.port)
    except RunError as error:
        say(str(error), error=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
