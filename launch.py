"""Trains what a config file describes: `python launch.py --config configs/qchunk/debug.py [--field value ...]`."""

import importlib
import io
import sys

from core import config as config_lib
from core.errors import RunError


def main(argv: list[str]) -> int:
    """Parses, starts the processes' runtime, trains; returns the exit code (core/errors.py lists them)."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is said must not wait in a buffer where a log is followed
        sys.stdout.reconfigure(line_buffering=True)
    try:
        config, path = config_lib.load(argv)
        print(f"{path}: starting (loading jax takes a few seconds)", flush=True)
        from core import cluster  # jax is imported only once the command line is known to be right

        cluster.initialise()
        importlib.import_module(f"{config.package}.train").main(config, path.stem)
    except RunError as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped by the keyboard", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
