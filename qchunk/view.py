"""Shows a dataset of Q-chunking as a page, to a browser of this machine.

    chunkwise view DIR [--port N] [--allow-links-to DIR]

DIR is a folder of ALOHA-layout HDF5 episodes, an OGBench .npz file, or a folder of these.
"""

import argparse
import sys

from chunkwise.errors import RunError
from chunkwise.printable import say
from chunkwise.view.command import parser, serve
from chunkwise.view.source import View
from qchunk.config import DataConfig
from qchunk.data.index import format_of
from qchunk.data.recordings import open_recordings


def view_of(arguments: argparse.Namespace) -> View:
    """Opens what the command line names.

    Raises:
      DataError: There is no dataset.
    """
    data = DataConfig(
        path=str(arguments.dir), format=format_of(arguments.dir), allow_links_to=tuple(arguments.allow_links_to)
    )
    return View(recordings=open_recordings(data))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = parser("python -m qchunk.view", __doc__ or "").parse_args(argv)
    try:
        return serve(view_of(arguments), arguments.port)
    except RunError as error:
        say(str(error), error=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
