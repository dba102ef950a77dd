"""Command lines of the small tools: argparse with the project's exit codes."""

import argparse
import sys
from typing import NoReturn

from core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Ends with 64 where argparse would end with 2."""

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, and exits."""
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)


def add_links_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that `data.allow_links_to` is in training."""
    parser.add_argument(
        "--allow-links-to",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder outside of the dataset that links in it may lead to; may be given several times",
    )
