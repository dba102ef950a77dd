"""The command line of every package's `view`."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from chunkwise.cli.command import Parser, add_links_option
from chunkwise.config.load import Config, load_for_data
from chunkwise.errors import ConfigError, RunError
from chunkwise.files.place import prepare_place
from chunkwise.printable import say
from chunkwise.view.rerun_file import write_rerun
from chunkwise.view.server import PageServer
from chunkwise.view.source import View


def run(
    package: str,
    description: str,
    view_of: Callable[[argparse.Namespace, Sequence[str]], View],
    argv: Sequence[str] | None = None,
) -> int:
    """Runs a package's command line; returns the exit code.

    Args:
      package: Its name.
      description: Of what it shows.
      view_of: Opens what the arguments name; the words are the fields that follow --config. Raises RunError.
      argv: Words after the program's name; None: this process's.
    """
    parser = _parser(package, description)
    arguments, fields = parser.parse_known_args(argv)
    if fields and arguments.config is None:
        parser.error(f"unrecognized arguments: {' '.join(fields)}; fields of a config need --config")
    if arguments.allow_code is not None and arguments.policy is None:
        parser.error("--allow-code is for code that the run of --policy names; expected --policy RUN")
    if arguments.checkpoint != "newest" and arguments.policy is None:
        parser.error("--checkpoint says which policy of a run is asked; expected --policy RUN")
    if arguments.rerun is not None and (arguments.config, arguments.policy) != (None, None):
        parser.error("--rerun writes the recordings alone; expected neither --config nor --policy")
    try:
        if arguments.rerun is not None:
            prepare_place(arguments.rerun, "--rerun")
        view = view_of(arguments, fields)
        if arguments.rerun is not None:
            count = write_rerun(view.recordings, arguments.rerun)
            say(f"{arguments.rerun}: {count} of {len(view.recordings.names)} episode(s), for Rerun's viewer")
            return 0
        return serve(view, arguments.port)
    except RunError as error:
        for line in str(error).split("\n"):  # an error's own lines, in which no name has a line break left
            say(line, error=True)
        return error.exit_code


def config_of(kind: type[Config], arguments: argparse.Namespace, fields: Sequence[str]) -> Config:
    """Reads the config that --config names, for the dataset that is shown. Raises as `load_for_data`."""
    return load_for_data(
        kind,
        arguments.config,
        arguments.dir,
        fields,
        allow_links_to=arguments.allow_links_to,
        program="chunkwise view DIR --config FILE",
    )


def require_no_config(arguments: argparse.Namespace) -> None:
    """Raises ConfigError where --config is given for a run, which has its own."""
    if arguments.config is not None:
        raise ConfigError(
            f"--config is {arguments.config}, and {arguments.dir} is a run, which was made with its own config; "
            "expected a dataset, or no --config"
        )


def _parser(package: str, description: str) -> argparse.ArgumentParser:
    made = Parser(
        prog=f"python -m {package}.view",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("dir", metavar="DIR", type=Path, help="a dataset, as `chunkwise inspect` takes it, or a run")
    made.add_argument("--config", metavar="X", help=f"of training: a file, or a name such as {package}/debug")
    made.add_argument("--policy", metavar="RUN", type=Path, help="a run whose policy is asked at the cursor")
    made.add_argument(
        "--checkpoint", default="newest", metavar="WHICH", help="of --policy: newest, best, or the number of a step"
    )
    made.add_argument("--allow-code", metavar="MODULE:FUNCTION", help="code that the run of --policy names")
    made.add_argument("--rerun", metavar="FILE.rrd", type=Path, help="write a file of Rerun's viewer instead")
    made.add_argument("--port", type=int, default=0, help="of this machine; default: one that is free")
    add_links_option(made)
    return made


def serve(view: View, port: int) -> int:
    """Serves a page until Ctrl-C; returns the exit code.

    Raises:
      ConfigError: Nothing can listen at this port.
    """
    try:
        server = PageServer(view, port)
    except (OSError, OverflowError) as error:  # the second for a port beyond 65535
        raise ConfigError(f"--port {port}: expected a port that is free, found: {error}") from error
    with server:
        try:  # around what is said, too: it may be Ctrl-C's first moment
            say(f"{view.recordings.title} ({view.recordings.kind}): {len(view.recordings.names)} episode(s)")
            say(f"open {server.url} in a browser of this machine; Ctrl-C stops")
            there = f"ssh -L {server.port}:localhost:{server.port} THIS_MACHINE"
            say(f"from another machine: {there}, and the same address there")
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
