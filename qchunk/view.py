"""Shows a dataset of Q-chunking, or the replay of an online run, as a page, to a browser of this machine.

    chunkwise view DIR [--policy RUN] [--port N] [--allow-links-to DIR]
    chunkwise view DIR --config FILE_OR_NAME [--field value ...]
    chunkwise view RUN [--policy RUN]

DIR is a folder of ALOHA-layout HDF5 episodes, an OGBench .npz file, or a folder of these; RUN a run with an online
phase. With --config the page shows the chunk that training with that config and these fields draws at the cursor, with
--policy the chunk that a run's policy would execute there.
"""

import argparse
from collections.abc import Sequence

from chunkwise.cli import command as cli
from chunkwise.config.saved import is_run
from chunkwise.view import command
from chunkwise.view.chunks import load_policy_of
from chunkwise.view.source import PolicyView, Recordings, View
from qchunk.config import DataConfig, QChunkConfig
from qchunk.data.index import format_of
from qchunk.data.recordings import open_recordings
from qchunk.data.window import TrainingWindows
from qchunk.online.recordings import ReplayRecordings


def view_of(arguments: argparse.Namespace, fields: Sequence[str] = ()) -> View:
    """Opens what the command line names.

    Raises:
      ConfigError: There is no such config, a field is wrong, or the policy's run is none of this package.
      DataError: There is no dataset, or the run has no replay.
    """
    if is_run(arguments.dir):
        command.require_no_config(arguments)
        replay = ReplayRecordings(arguments.dir)
        return View(recordings=replay, policy=_policy(arguments, replay))
    data = DataConfig(
        path=str(arguments.dir), format=format_of(arguments.dir), allow_links_to=tuple(arguments.allow_links_to)
    )
    recordings, training = open_recordings(data), None
    if arguments.config is not None:
        config = command.config_of(QChunkConfig, arguments, fields)
        training = TrainingWindows(config, arguments.config, recordings)
    return View(recordings=recordings, training=training, policy=_policy(arguments, recordings))


def _policy(arguments: argparse.Namespace, recordings: Recordings) -> PolicyView | None:
    if arguments.policy is None:
        return None
    from qchunk.policies.chunks import policy_chunks  # jax

    return policy_chunks(load_policy_of(arguments), str(arguments.policy), recordings)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return command.run("qchunk", __doc__ or "", view_of, argv)


if __name__ == "__main__":
    cli.run(main)  # at once: a thread that reads HDF5 holds a lock that Python's own end waits for
