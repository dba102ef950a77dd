"""Trains what a config file describes: `python launch.py --config configs/qchunk/debug.py [--field value ...]`."""

import importlib
import io
import sys
import traceback

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
    except RunError as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return train(config, path.stem)


def train(config: config_lib.ExperimentConfig, name: str) -> int:
    """Trains; returns the exit code, unless this is one of several processes, which ends here after an error."""
    from core import processes

    code = 0
    try:
        importlib.import_module(f"{config.package}.train").main(config, name)
    except RunError as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except KeyboardInterrupt:
        print("\nstopped by the keyboard", file=sys.stderr, flush=True)
        code = 130
    except Exception as error:
        if not processes.several():
            raise
        lost = processes.lost(error)
        text = traceback.format_exc() if lost is None else f"\nerror: {lost}"
        print(text, file=sys.stderr, flush=True)
        code = 1 if lost is None else lost.exit_code
    processes.leave(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
