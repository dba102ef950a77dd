"""The command line of every package's `view`."""

import argparse
import sys
from pathlib import Path

from chunkwise.cli.command import Parser, add_links_option
from chunkwise.errors import ConfigError
from chunkwise.printable import say
from chunkwise.view.server import PageServer
from chunkwise.view.source import View


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Makes the parser: DIR, --port, --allow-links-to."""
    made = Parser(prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("dir", metavar="DIR", type=Path, help="what `chunkwise inspect` takes")
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
    say(f"{view.recordings.title} ({view.recordings.kind}): {len(view.recordings.names)} episode(s)")
    say(f"open {server.url} in a browser of this machine; Ctrl-C stops")
    say(f"from another machine: ssh -L {server.port}:localhost:{server.port} THIS_MACHINE, and the same address there")
    sys.stdout.flush()
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
