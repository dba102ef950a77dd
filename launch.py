"""Trains what a config file describes: `python launch.py --config configs/qchunk/debug.py [--field value ...]`."""

import importlib
import io
import sys
from collections.abc import Callable

from chunkwise.cli import command
from chunkwise.config import ExperimentConfig, load
from chunkwise.distributed import processes
from chunkwise.errors import RunError


def launch(argv: list[str]) -> None:
    """Parses, starts the processes' runtime, trains. Raises RunError with what to change."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is said must not wait in a buffer where a log is followed
        sys.stdout.reconfigure(line_buffering=True)
    config, path = load(argv)
    print(f"{path}: starting (loading jax takes a few seconds)", flush=True)
    from chunkwise.distributed import cluster  # jax is imported only once the command line is known to be right

    cluster.initialise()
    _train(config, path.stem)


def main(argv: list[str]) -> int:
    """Does what `launch` does, in a process that goes on; returns the exit code (chunkwise/errors.py lists them)."""
    return _code_of(lambda: launch(argv))


def train(config: ExperimentConfig, name: str) -> int:
    """Trains what a config describes, in a process that goes on; returns the exit code."""
    return _code_of(lambda: _train(config, name))


def _train(config: ExperimentConfig, name: str) -> None:
    importlib.import_module(f"{config.package}.train").main(config, name)


def _code_of(act: Callable[[], None]) -> int:
    try:
        act()
    except (RunError, KeyboardInterrupt) as error:
        return processes.report(error)
    return 0


if __name__ == "__main__":
    command.run(
        lambda: launch(sys.argv[1:]),
        "asked to stop before the first update of this start: nothing was trained yet, what was saved before stands",
    )
