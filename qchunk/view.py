"""Shows a dataset of Q-chunking as a page, to a browser of this machine.

    chunkwise view DIR [--port N] [--allow-links-to DIR]
    chunkwise view DIR --config FILE_OR_NAME [--field value ...]

DIR is a folder of ALOHA-layout HDF5 episodes, an OGBench .npz file, or a folder of these. With --config the page
shows the chunk that training with that config and these fields draws at the cursor.
"""

import argparse
import sys
from collections.abc import Sequence

from chunkwise.errors import RunError
from chunkwise.printable import say
from chunkwise.view.command import parser, serve
from chunkwise.view.source import View
from qchunk.config import DataConfig
from qchunk.data.index import format_of
from qchunk.data.recordings import open_recordings
from qchunk.data.window import TrainingWindows
from qchunk.inspect import read_training


def view_of(arguments: argparse.Namespace, fields: Sequence[str] = ()) -> View:
    """Opens what the command line names.

    Raises:
      ConfigError: There is no such config, or a field is wrong.
      DataError: There is no dataset.
    """
    data = DataConfig(
        path=str(arguments.dir), format=format_of(arguments.dir), allow_links_to=tuple(arguments.allow_links_to)
    )
    recordings = open_recordings(data)
    if arguments.config is None:
        return View(recordings=recordings)
    config = read_training(arguments.config, arguments, fields)
    return View(recordings=recordings, training=TrainingWindows(config, arguments.config, recordings))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    made = parser("python -m qchunk.view", __doc__ or "")
    made.add_argument("--config", metavar="X", help="of training: a file, or a name such as qchunk/own_data")
    arguments, fields = made.parse_known_args(argv)
    if fields and arguments.config is None:
        made.error(f"unrecognized arguments: {' '.join(fields)}; fields of a config need --config")
    try:
        return serve(view_of(arguments, fields), arguments.port)
    except RunError as error:
        say(str(error), error=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
