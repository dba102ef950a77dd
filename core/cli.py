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
