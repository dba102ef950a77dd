"""Command lines: argparse with the exit codes, the flags of the limits; how a command begins and ends."""

import argparse
import dataclasses
import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from chunkwise.cli.named_paths import require_reachable
from chunkwise.distributed import processes, stopping
from chunkwise.distributed.repeatable import ask_for_repeatable_kernels
from chunkwise.errors import ConfigError, DataError, PreemptedError
from chunkwise.files import budget
from chunkwise.files.links import FLAG


class Parser(argparse.ArgumentParser):
    """Ends with 64 where argparse would end with 2; has a flag for each limit of files/budget.py, and obeys it.

    A path that cannot be looked at ends it with 65.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Takes what argparse.ArgumentParser takes. A flag has to be whole: a new one might make two of its begin."""
        super().__init__(*args, allow_abbrev=False, **settings)
        # Named in a paragraph of the help, not in the usage: 18 flags before every error hid the error.
        limits = dataclasses.fields(budget.Limits)
        names = ", ".join(f"{budget.flag(field.name).rpartition('.')[2]} {field.default}" for field in limits)
        group = self.add_argument_group(
            "limits",
            "--data.limits.NAME N: what one file may cost; above it, the file is refused with the flag that raises it. "
            f"Names and defaults: {names}.",
        )
        for field in limits:
            group.add_argument(
                budget.flag(field.name),
                f"--data.limits.{field.name}",
                dest=f"limits.{field.name}",
                type=int,
                metavar="N",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As argparse's; the limits are put in force and are not in the namespace."""
        found, rest = super().parse_known_args(args, namespace)
        given = {name: value for name, value in vars(found).items() if name.startswith("limits.")}
        for name in given:
            delattr(found, name)
        words = [value if isinstance(value, list | tuple) else [value] for value in vars(found).values()]
        try:
            for path in (path for many in words for path in many if isinstance(path, Path)):
                require_reachable({f"{self.prog}:": path}, allowed=(errno.ENOENT, errno.ENOTDIR))
        except DataError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        try:
            budget.override(**{name.removeprefix("limits."): value for name, value in given.items()})
        except ValueError as error:
            self.error(str(error))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, and exits."""
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)


def add_links_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that `data.allow_links_to` is in training, under the name that messages give it as well."""
    parser.add_argument(
        "--allow-links-to",
        FLAG,
        dest="allow_links_to",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder outside of the dataset that links in it may lead to; may be given several times",
    )


def seed(text: str) -> int:
    """Reads a seed, as a `type` of argparse. Raises ArgumentTypeError for what is none."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"expected 0 to 2^63 - 1, found {text!r}")
    return int(text)


def run(main: Callable[[], int | None], unsaved: str = "stopped; what was finished before stands") -> NoReturn:
    """Runs a command and ends the process with its exit code, without waiting for threads that do not end.

    Args:
      main: The command; returns the exit code, or raises what `processes.report` has words for.
      unsaved: As in `stopping.watched`.
    """
    ask_for_repeatable_kernels()
    with stopping.watched(unsaved):
        try:
            try:
                code = main() or 0
            except SystemExit as end:  # after --help, for example
                code = processes.report(end)
            if sys.stdout is not None:
                sys.stdout.flush()  # here it may still fail
        except BaseException as error:  # left from here, where it is alive: what it holds may wait for threads
            processes.leave(processes.report(error), together=isinstance(error, PreemptedError))
        processes.leave(code, together=code in (0, PreemptedError.exit_code))
