"""Shows a LeRobot dataset, or the rollouts of a run, as a page, to a browser of this machine.

    chunkwise view DIR [--policy RUN] [--port N] [--allow-links-to DIR]
    chunkwise view DIR --config FILE_OR_NAME [--field value ...]
    chunkwise view RUN [--policy RUN]

DIR is a folder of LeRobot 2.1 or 3.0, RUN a run that played rollouts. With --config the page shows what training with
that config and these fields gives the network at the cursor, with --policy the chunk that a run's policy would execute
there.
"""

import argparse
from collections.abc import Sequence

from chunkwise.cli import command as cli
from chunkwise.config.saved import is_run
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S
from chunkwise.data.shards import is_pack
from chunkwise.errors import DataError
from chunkwise.printable import say
from chunkwise.view import command
from chunkwise.view.chunks import load_policy_of
from chunkwise.view.source import PolicyView, TrainingView, View
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.recordings import LeRobotRecordings
from openpi_ript.ript.recordings import RolloutRecordings


def view_of(arguments: argparse.Namespace, fields: Sequence[str] = ()) -> View:
    """Opens what the command line names.

    Raises:
      ConfigError: There is no such config, a field is wrong, or the policy's run is none of this package.
      DataError: There is no dataset, or the run has no rollouts.
    """
    if is_run(arguments.dir):
        command.require_no_config(arguments)
        rollouts = RolloutRecordings(arguments.dir)
        return View(recordings=rollouts, policy=_policy(arguments, rollouts))
    if is_pack(arguments.dir):
        raise DataError(f"{arguments.dir}: expected a LeRobot dataset, found a pack; view the dataset it was made from")
    training: TrainingView | None = None
    config = None if arguments.config is None else command.config_of(OpenpiRiptConfig, arguments, fields)
    recordings = LeRobotRecordings(
        arguments.dir,
        tuple(arguments.allow_links_to),
        tolerance_s=TIME_TOLERANCE_S if config is None else config.data.tolerance_s,
    )
    for note in recordings.notes:
        say(f"note: {note}")
    if config is not None:
        from openpi_ript.tasks.window import TrainingWindows  # jax

        training = TrainingWindows(config, str(arguments.config), recordings)
    return View(recordings=recordings, training=training, policy=_policy(arguments, recordings))


def _policy(arguments: argparse.Namespace, recordings: LeRobotRecordings | RolloutRecordings) -> PolicyView | None:
    if arguments.policy is None:
        return None
    from openpi_ript.policies.chunks import policy_chunks  # jax

    policy = load_policy_of(arguments)
    return policy_chunks(policy, str(arguments.policy), recordings, allow_code=arguments.allow_code)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return command.run("openpi_ript", __doc__ or "", view_of, argv)


if __name__ == "__main__":
    cli.run(main)
