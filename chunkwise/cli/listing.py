"""`chunkwise list`: what there is to name on a command line."""

import argparse
import importlib
import json
from collections.abc import Callable
from typing import get_args

from chunkwise.cli import command, verbs
from chunkwise.cli.command import Parser
from chunkwise.config import names
from chunkwise.config.packages import PACKAGES


def configs() -> dict[str, str]:
    """Returns the shipped configs, each with the first line of its docstring."""
    return {name: names.first_line(name) for name in names.names()}


def studies() -> dict[str, str]:
    """Returns the shipped studies, each with the first line of its docstring."""
    return {name: names.first_line(f"studies/{name}") for name in names.studies()}


def environments() -> dict[str, str]:
    """Returns the names of environments and of sets of tasks, each with what it is."""
    return importlib.import_module("chunkwise.envs.names").known()


def readers() -> dict[str, str]:
    """Returns the formats that each package reads and converts."""
    formats = importlib.import_module("qchunk.config").FORMATS
    found = {"qchunk data.format": ", ".join((*formats, "module:function of your own"))}
    for package in ("qchunk", "driving"):
        formats = importlib.import_module(f"{package}.convert").Format
        found[f"{package} convert"] = ", ".join(get_args(formats))
    return found | {"openpi_ript": "LeRobot v2.1 and v3.0, or a pack of one", "packages": ", ".join(PACKAGES)}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "configs": configs,
    "studies": studies,
    "verbs": lambda: {name: verb.summary for name, verb in verbs.VERBS.items()},
    "envs": environments,
    "readers": readers,
}


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = Parser(
        prog="chunkwise list",
        description="Lists configs, studies, verbs, environments (envs) and readers.",
        epilog="example: chunkwise list configs --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=tuple(KINDS), help="one of them; default: all")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments = parser.parse_args(argv)
    chosen = [arguments.what] if arguments.what else list(KINDS)
    found = {name: KINDS[name]() for name in chosen}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, entries in found.items():
        width = max(map(len, entries)) + 2
        print(f"{name}:")
        print("\n".join(f"  {entry:<{width}}{text}" for entry, text in entries.items()))
    print("next: chunkwise train NAME, chunkwise study NAME, chunkwise VERB --help")
    return 0


if __name__ == "__main__":
    command.run(main)
