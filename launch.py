"""Trains what a config file describes: `python launch.py --config configs/qchunk/debug.py [--field value ...]`."""

import importlib
import io
import sys

from core import cli, processes
from core import config as config_lib
from core.errors import StopRequested


def main(argv: list[str]) -> int:
    """Parses, starts the processes' runtime, trains; returns the exit code (core/errors.py lists them)."""
    try:
        launch(argv)
    except (Exception, KeyboardInterrupt, StopRequested) as error:
        return processes.report(error)
    return 0


def launch(argv: list[str]) -> None:
    """Parses, starts the processes' runtime, trains. Raises RunError with what to change."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is said must not wait in a buffer where a log is followed
        sys.stdout.reconfigure(line_buffering=True)
    config, path = config_lib.load(argv)
    print(f"{path}: starting (loading jax takes a few seconds)", flush=True)
    from core import cluster  # jax is imported only once the command line is known to be right

    cluster.initialise()
    train(config, path.stem)


def train(config: config_lib.ExperimentConfig, name: str) -> None:
    """Trains what a config describes. Raises RunError with what to change."""
    importlib.import_module(f"{config.package}.train").main(config, name)


if __name__ == "__main__":
    cli.run(
        lambda: launch(sys.argv[1:]),
        "asked to stop before the first update of this start: nothing was trained yet, what was saved before stands",
    )
