"""`chunkwise train NAME`: trains what a config describes. `launch.py --config FILE` is this program too."""

import importlib
import io
import sys
from collections.abc import Callable

from chunkwise.cli import command
from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.load import load
from chunkwise.config.names import find
from chunkwise.distributed import processes
from chunkwise.errors import UNREAD, RunError, StopRequested

UNSAVED = "asked to stop before the first update of this start: nothing was trained yet, what was saved before stands"


def launch(argv: list[str], *, program: str = "python launch.py --config FILE") -> None:
    """Parses, starts the processes' runtime, trains.

    Args:
      argv: `--config FILE [--field value ...]`.
      program: How the user began the command line, for the usage.

    Raises:
      RunError: With what to change.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is said must not wait in a buffer where a log is followed
        sys.stdout.reconfigure(line_buffering=True)
    config, path = load(argv, program=program)
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
    except (RunError, StopRequested, KeyboardInterrupt) as error:
        return processes.report(error)
    except BrokenPipeError as error:
        if processes.report(error) != UNREAD:
            return 1
        print("error: nobody reads what this run prints any more; what was saved stands", file=sys.stderr, flush=True)
        return UNREAD
    return 0


def with_name(words: list[str]) -> list[str]:
    """Returns `NAME_OR_FILE [--field value ...]` as launch.py takes it. Raises ConfigError for an unknown name."""
    if words and not words[0].startswith("-"):
        return ["--config", str(find(words[0])), *words[1:]]
    return words


if __name__ == "__main__":
    command.run(lambda: launch(with_name(sys.argv[1:]), program="chunkwise train NAME_OR_FILE"), UNSAVED)
