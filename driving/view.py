"""Shows driving episodes as a page, to a browser of this machine.

    chunkwise view DIR [--policy RUN] [--port N] [--allow-links-to DIR]
    chunkwise view DIR --config FILE_OR_NAME [--field value ...]

DIR is a folder of episode files, or one of them. With --config the page shows the sample that training with that config
and these fields draws at the cursor, with --policy the waypoints of a run's policy.
"""

import argparse
from collections.abc import Sequence

from chunkwise.cli import command as cli
from chunkwise.config.saved import is_run
from chunkwise.data.shards import is_pack
from chunkwise.errors import DataError
from chunkwise.view import command
from chunkwise.view.chunks import load_policy_of
from chunkwise.view.source import PolicyView, TrainingView, View
from driving.config import DrivingConfig
from driving.data.recordings import DrivingRecordings
from driving.data.window import TrainingWindows


def view_of(arguments: argparse.Namespace, fields: Sequence[str] = ()) -> View:
    """Opens what the command line names.

    Raises:
      ConfigError: There is no such config, a field is wrong, or the policy's run is none of this package.
      DataError: There is no dataset.
    """
    if is_run(arguments.dir):
        raise DataError(f"{arguments.dir}: expected episode files, found a run, which keeps none; view its data.path")
    if is_pack(arguments.dir):
        raise DataError(f"{arguments.dir}: expected episode files, found a pack; view those it was made from")
    recordings = DrivingRecordings(arguments.dir, tuple(arguments.allow_links_to))
    training: TrainingView | None = None
    if arguments.config is not None:
        training = TrainingWindows(command.config_of(DrivingConfig, arguments, fields), arguments.config, recordings)
    return View(recordings=recordings, training=training, policy=_policy(arguments, recordings))


def _policy(arguments: argparse.Namespace, recordings: DrivingRecordings) -> PolicyView | None:
    if arguments.policy is None:
        return None
    from driving.policies.chunks import policy_chunks  # jax

    policy, links = load_policy_of(arguments), tuple(arguments.allow_links_to)
    return policy_chunks(policy, str(arguments.policy), recordings, path=str(arguments.dir), links=links)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return command.run("driving", __doc__ or "", view_of, argv)


if __name__ == "__main__":
    cli.run(main)
