"""What every converter of datasets does besides reading its format: a package gives its formats, and converts each.

A converted dataset is a folder that appears when all of it is there, with a file that says what it was made from. A bad
source is refused with one list of everything that is wrong with it. The same source gives the same bytes.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.progress import follow
from chunkwise.errors import ConfigError, RunError
from chunkwise.files.new_folder import new_folder

NOTHING_WRITTEN = "Repair the source: nothing was written."
"""Ends the refusal of a bad source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """What may be chosen; a setting that the source's format cannot use is refused."""

    cameras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Camera of the source to its name in the output."""
    quality: int = 95
    """JPEG quality, 1 to 100, of images that are encoded anew."""
    allow_links_to: tuple[str, ...] = ()
    """Folders outside of the source that links in it may lead to."""

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"--quality is {self.quality}; expected 1 to 100")


Settings = TypeVar("Settings", bound=ConvertSettings)


@runtime_checkable
class Conversion(Protocol):
    """One source that was opened."""

    @property
    def units(self) -> Sequence[object]:
        """Files, scenes or episodes that are converted one after another."""
        ...

    def write(self, folder: Path) -> Iterator[None]:
        """Converts unit after unit into a folder, and yields after each; raises DataError for a bad source."""
        ...

    def about(self) -> Mapping[str, Any]:
        """What the dataset's description says besides program, format, source and settings, as JSON values."""
        ...

    def summary(self, out: Path) -> str:
        """What was written into `out`, for a person."""
        ...

    def close(self) -> None:
        """Closes the source."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formats(Generic[Settings]):
    """The formats that a package converts."""

    program: str
    """Module of the command, which the description names."""
    names: Sequence[str]
    detect: Callable[[Path], str]
    """Finds the format by what lies there; raises DataError if it is missing, or is none of them."""
    open: Callable[[str, Path, Settings], Conversion]
    """Opens a source of a format; raises DataError where there is nothing to convert."""
    settings: type[Settings]
    concerns: Mapping[str, Sequence[str]]
    """Formats that can use a setting; all can use one that is not in it."""
    description: str
    """Name of the file that says what a dataset was made from."""
    done: str
    """Of a line of progress: "converted {count} of {total} episodes"."""
    add_options: Callable[[argparse.ArgumentParser], None]
    """Adds the options of the package's own settings, each with the setting's name as its `dest`."""


def convert(
    formats: Formats[Settings],
    source: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    settings: Settings | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Converts one dataset.

    Args:
      formats: Of the package.
      source: File or folder.
      out: Folder to make; it must not exist.
      format: Of the source; None looks at it.
      settings: What may be chosen.
      report: Takes lines of text for a person.

    Raises:
      ConfigError: `out` exists, or a setting does not fit the source.
      DataError: The source is bad: problems are counted, the first ten kinds listed, and nothing is written.
      StorageError: The output could not be written.
    """
    source, out, settings = Path(source), Path(out), settings or formats.settings()
    if out.exists():
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    kind = format or formats.detect(source)
    _require_concerned(formats, kind, settings)
    with contextlib.closing(formats.open(kind, source, settings)) as conversion:
        units = len(conversion.units)
        with new_folder(out) as scratch:
            written = conversion.write(scratch)
            for _ in follow(written, units, "converting", formats.done, rate=None, say=report):
                pass
            made = dataclasses.asdict(settings)
            del made["allow_links_to"]  # paths of this machine
            about = {"made_by": formats.program, "format": kind, "source": source.resolve().name, "settings": made}
            text = json.dumps({**about, **conversion.about()}, indent=2, sort_keys=True)
            (scratch / formats.description).write_text(text + "\n")
        report(conversion.summary(out))


def command_line(
    formats: Formats[Settings], convert: Callable[..., None], argv: Sequence[str] | None, *, about: str, source: str
) -> int:
    """Runs a converter's command line; returns the exit code: 0, 64 for a wrong setting, 65 bad data, 74 a full disk.

    Args:
      formats: Of the package.
      convert: The package's own function, called as (source, out, format=, settings=).
      argv: Words of the command line; None takes the process's.
      about: What the command does, in a line.
      source: What SOURCE may be.
    """
    parser = Parser(prog=f"python -m {formats.program}", description=about)
    parser.add_argument("source", metavar="SOURCE", type=Path, help=source)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--format", choices=("auto", *formats.names), default="auto", help="default: auto")
    formats.add_options(parser)
    add_links_option(parser)
    chosen = vars(parser.parse_args(argv))
    places: tuple[Path, Path] = chosen.pop("source"), chosen.pop("out")
    kind = chosen.pop("format")
    try:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
        settings = formats.settings(**given)
        convert(*places, format=None if kind == "auto" else kind, settings=settings)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


class Pairs(argparse.Action):
    """An option NAME=VALUE that may be repeated and makes a dict; the last of a name counts."""

    def __init__(self, *args: Any, example: str = "", **settings: Any) -> None:
        """Takes what argparse.Action takes, and an example for the message of a wrong one."""
        super().__init__(*args, **settings, default={})
        self._example = f", for example {example}" if example else ""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Adds a pair to what is there."""
        name, equals, value = values.partition("=")
        if not equals:
            parser.error(f"{option} {values}: expected {self.metavar}{self._example}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def _require_concerned(formats: Formats[Settings], kind: str, settings: Settings) -> None:
    """Refuses a setting that the format cannot use."""
    default = formats.settings()
    for name, concerned in formats.concerns.items():
        if kind not in concerned and getattr(settings, name) != getattr(default, name):
            option = "--camera" if name == "cameras" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} means nothing for {kind}; it is for {' and '.join(concerned)}")
