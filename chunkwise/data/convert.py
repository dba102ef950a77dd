"""What every converter of datasets does besides reading its format: a package gives its formats, and converts each.

A converted dataset is a folder that appears when all of it is there, with a file that says what it was made from. It is
made part by part (chunkwise/data/parts.py), by any number of processes. A bad source is refused with one list of
everything that is wrong with it, or without what is bad. The same source gives the same bytes.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from chunkwise import __version__
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.progress import follow
from chunkwise.data.parts import PARTS, Part, PartFolder, Parts, give_name_alone, has_parts, key_of
from chunkwise.data.problems import MAX_SKIPPED, Problem, list_problems, problem_of, refuse
from chunkwise.distributed.jobs import Hands, do_here_or
from chunkwise.distributed.ray_cluster import add_flag
from chunkwise.errors import ConfigError, DataError, RunError, StorageError
from chunkwise.files import budget
from chunkwise.files.durable import sync_names, sync_tree
from chunkwise.files.new_folder import new_folder, require_outside

NOTHING_WRITTEN = (
    "Repair the source, or leave this out with --on-bad skip; the same command goes on then. "
    "So far nothing was written."
)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jobs(Hands):
    """How a conversion goes; the dataset does not depend on where and by how many."""

    on_bad: Literal["refuse", "skip"] = "refuse"
    """skip leaves bad records out, up to MAX_SKIPPED of them, and lists them in the description."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined:
    """What is known once all parts are there."""

    problems: Sequence[Problem] = ()
    """Of parts that do not go together."""
    bad: int = 0
    """Records, or episodes, that these cost."""
    left_out: Mapping[int, Collection[str]] = dataclasses.field(default_factory=dict)
    """By part: its files, and folders of files, that do not go into the dataset."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the dataset's description says besides program, format, source and settings, as JSON values."""
    summary: str = ""
    """Of what was written, for a person; {out} is where."""


@runtime_checkable
class Conversion(Protocol):
    """One source that was opened; each process opens it for itself."""

    @property
    def units(self) -> Sequence[str]:
        """Files, scenes or episodes, each of which becomes a part."""
        ...

    def files(self, unit: int) -> Sequence[Path]:
        """What a unit is read from: where one is another one than it was, the unit is converted anew."""
        ...

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        """Converts a unit into a folder; raises DataError for one that is bad as a whole.

        Args:
          unit: Its number.
          folder: To write into.
          known: What `TwoPasses.settle` said; None of other conversions.
        """
        ...

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        """Takes all parts together; what belongs to none of them alone is written into `folder`."""
        ...

    def close(self) -> None:
        """Closes the source."""
        ...


@runtime_checkable
class TwoPasses(Conversion, Protocol):
    """One of which all units are looked at before any is written."""

    def look(self, unit: int) -> Part:
        """Says what must be known of all units before any is written."""
        ...

    def settle(self, looks: Mapping[int, Part]) -> tuple[Any, Mapping[int, Sequence[Problem]]]:
        """Takes together what was seen of the units that are good.

        Returns:
          What `write` is told, as JSON values, and problems of units that do not fit the others.
        """
        ...


Settings = TypeVar("Settings", bound=ConvertSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formats(Generic[Settings]):
    """The formats that a package converts."""

    program: str
    """Module of the command, which the description names."""
    names: Sequence[str]
    detect: Callable[[Path], str]
    """Finds the format by what lies there; raises DataError if it is missing, or is none of them."""
    open: Callable[[str, Path, Settings], Conversion]
    """Opens a source of a format; raises DataError where there is nothing to convert. Pickled to other processes."""
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
    jobs: Jobs | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Converts one dataset, a part at a time: what a start that was killed has finished is not done again.

    Args:
      formats: Of the package.
      source: File or folder.
      out: Folder to make; it must not exist.
      format: Of the source; None looks at it.
      settings: What may be chosen.
      jobs: By how many, where, and what becomes of bad records.
      report: Takes lines of text for a person.

    Raises:
      ConfigError: `out` exists, or lies in the source, or a setting does not fit the source.
      DataError: The source is bad: problems are counted, the first ten kinds listed, and `out` is not made.
      StorageError: The output could not be written.
    """
    source, out, settings = Path(source), Path(out), settings or formats.settings()
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    if source.is_dir():
        require_outside(out, source)
    kind = format or formats.detect(source)
    _require_concerned(formats, kind, settings)
    made = json.loads(json.dumps(dataclasses.asdict(settings)))
    del made["allow_links_to"]  # paths of this machine
    about = {"made_by": formats.program, "format": kind, "source": source.resolve().name, "settings": made}
    build(
        functools.partial(formats.open, kind, source.absolute(), settings),
        out,
        about=about,
        identity={"source": str(source.resolve())},
        description=formats.description,
        done=formats.done,
        jobs=jobs or Jobs(),
        report=report,
    )


def build(
    opener: Callable[[], Conversion],
    out: Path,
    *,
    about: Mapping[str, Any],
    identity: Mapping[str, Any],
    description: str | None,
    done: str,
    jobs: Jobs,
    report: Callable[[str], None],
) -> None:
    """Makes a dataset of the parts of a conversion.

    Args:
      opener: Opens the source; pickled to other processes.
      out: Folder to make; it must not exist.
      about: Begins the description, JSON values; the dataset depends on these.
      identity: On what it depends besides, JSON values.
      description: Name of the file; None: none is written.
      done: Of a line of progress: "converted {count} of {total} episodes".
      jobs: By how many, where, and what becomes of bad records.
      report: Takes lines of text for a person.

    Raises:
      DataError, StorageError: As `convert`.
    """
    out = out.absolute()
    with contextlib.closing(opener()) as conversion, new_folder(out, keep=has_parts, finish=give_name_alone) as scratch:
        run = _Run(conversion, opener, Parts(scratch, {**about, **identity, "version": __version__}), jobs, report)
        parts, problems = run.parts(done)
        joining = run.folder.path / "joined"
        shutil.rmtree(joining, ignore_errors=True)
        joining.mkdir()
        joined = conversion.join({number: part for number, (part, _) in parts.items()}, joining)
        skipped = run.require_few([*problems, *joined.problems], joined.bad)
        if description is not None:
            text = json.dumps({**about, **joined.about, **skipped}, indent=2, sort_keys=True)
            (joining / description).write_text(text + "\n")
        sync_tree(joining)  # files of parts are on the device since they were made
        _merge(run.folder, run.stage, parts, joined.left_out, joining, scratch)
        sync_names(scratch)  # before the parts go: from here to the end it is a moment
    report(joined.summary.format(out=out))
    if skipped:
        for line in list_problems([*problems, *joined.problems], all_by=f"{out / description}" if description else ""):
            report(f"skipped {line}")


class _Run:
    """A conversion under way."""

    def __init__(
        self,
        conversion: Conversion,
        opener: Callable[[], Conversion],
        folder: Parts,
        jobs: Jobs,
        report: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self._conversion, self._opener, self._jobs, self._report = conversion, opener, jobs, report
        self._problems: list[Problem] = []
        self._stamped: tuple[Sequence[Path], str] | None = None
        self._read = self._bad = 0

    def parts(self, done: str) -> tuple[dict[int, tuple[Part, tuple[str, ...]]], list[Problem]]:
        """Makes what is missing; returns the parts, with the names of their files, and what is wrong with units.

        Raises:
          DataError: With what a first look found, where it is too much.
        """
        units = range(len(self._conversion.units))
        known, good = None, list(units)
        if isinstance(self._conversion, TwoPasses):
            looks: dict[int, Part] = self._do(units, self._maker(), "looked at {count} of {total}")
            known, more = self._conversion.settle({n: look for n, look in looks.items() if not look.bad})
            bad = {n for n, look in looks.items() if look.bad} | set(more)
            good = [number for number in units if number not in bad]
            self._read, self._bad = len(bad), len(bad)
            self._problems = [p for n in units for p in (*looks[n].problems, *more.get(n, ()))]
            self.require_few(self._problems, 0, of=len(units))
        parts = self._made(good, known, done)
        found = [problem for part, _ in parts.values() for problem in part.problems]
        self._read += sum(part.read for part, _ in parts.values())
        self._bad += sum(part.bad for part, _ in parts.values())
        return parts, [*self._problems, *found]

    @property
    def stage(self) -> PartFolder:
        """Where the parts are."""
        return PartFolder(path=self.folder.path / PARTS)

    def require_few(self, problems: Sequence[Problem], more: int, *, of: int = 0) -> dict[str, Any]:
        """Refuses a source with problems, or with too many; returns what the description says of what is left out.

        Args:
          problems: All.
          more: Bad records besides those of the parts.
          of: Records, where the parts are not read yet.
        """
        if not problems:
            return {}
        if self._jobs.on_bad == "refuse":
            raise refuse(problems, NOTHING_WRITTEN)
        bad, read = self._bad + more, max(of, self._read)
        if bad > MAX_SKIPPED * read:
            hint = f"{bad} of {read} are bad; --on-bad skip leaves out at most {MAX_SKIPPED:.0%}. Nothing was written."
            raise refuse(problems, hint)
        return {"skipped": {"bad": bad, "of": read, "problems": [str(problem) for problem in problems]}}

    def _made(self, numbers: Sequence[int], known: Any, done: str) -> dict[int, tuple[Part, tuple[str, ...]]]:
        """Makes parts that are not there."""
        folder = self.folder.open()
        units, shared = self._conversion.units, key_of(known)
        keys = {n: key_of(units[n], self._stamp(n), shared) for n in numbers}
        found = {number: folder.find(number, keys[number]) for number in numbers}
        # One with a problem is made again: its source may have been repaired, or a limit raised.
        missing = [n for n, one in found.items() if one is None or (one[0].problems and not self.folder.is_merging)]
        if missing and self.folder.is_merging:  # files of the others are moved already
            self.folder.remove()
            raise StorageError("the source changed while its dataset was made; give the same command again")
        if len(missing) < len(numbers):
            self._report(f"{len(numbers) - len(missing)} of {len(numbers)} are there already")
        self._do(missing, self._maker(folder, keys, known), done)
        made: Any = {number: folder.find(number, keys[number]) for number in numbers}
        if lost := [number for number, part in made.items() if part is None]:
            raise StorageError(
                f"{folder.path}: parts {lost[:5]} were made, and are not there; do all machines share it?"
            )
        return made

    def _maker(self, folder: PartFolder | None = None, keys: Mapping[int, str] | None = None, known: Any = None) -> Any:
        return _Maker(self._opener, folder, keys or {}, known, budget.current())

    def _do(self, numbers: Sequence[int], maker: "_Maker", done: str) -> dict[int, Any]:
        """Has something done with units; returns the answers, in the order of the units."""
        answers = dict[int, Any]()
        here = functools.partial(maker.do, self._conversion)
        with contextlib.closing(do_here_or(numbers, maker, here, self._jobs, name="part")) as work:
            for number, answer in follow(work, len(numbers), "converting", done, rate=None, say=self._report):
                answers[number] = answer
        return {number: answers[number] for number in numbers}

    def _stamp(self, number: int) -> str:
        """What tells the files of a unit from others under the same names."""
        files = self._conversion.files(number)
        if self._stamped is None or self._stamped[0] is not files:  # all units may be read from the same files
            stats = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files if (stat := _stat(path))]
            self._stamped = files, key_of(stats)
        return self._stamped[1]


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Looks at units, or makes parts of them, in any process."""

    opener: Callable[[], Conversion]
    folder: PartFolder | None
    """None: look."""
    keys: Mapping[int, str]
    known: Any
    limits: budget.Limits

    def __call__(self) -> Callable[[int], Part | None]:
        budget.use(self.limits)
        return functools.partial(self.do, self.opener())

    def do(self, conversion: Conversion, number: int) -> Part | None:
        """Looks at a unit, or makes its part; of one that is bad as a whole, one without files."""

        def work(files: Path | None) -> Part:
            try:
                if files is not None:
                    return conversion.write(number, files, self.known)
                assert isinstance(conversion, TwoPasses)
                return conversion.look(number)
            except DataError as error:
                if files is not None:
                    shutil.rmtree(files)
                    files.mkdir()
                return Part(problems=(problem_of(error, conversion.units[number]),), bad=1)

        if self.folder is None:
            return work(None)
        self.folder.make(number, self.keys[number], work)
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # the reader says what is wrong with it
        return None


def _merge(
    folder: Parts,
    stage: PartFolder,
    parts: Mapping[int, tuple[Part, tuple[str, ...]]],
    left_out: Mapping[int, Collection[str]],
    joining: Path,
    out: Path,
) -> None:
    """Moves all files into the dataset; each has one name in it."""
    folder.begin_merge()
    taken: set[str] = set()
    for number, (_, names) in sorted(parts.items()):
        without = left_out.get(number, ())
        own = [name for name in names if not any(name == one or name.startswith(f"{one}/") for one in without)]
        if twice := sorted(taken.intersection(own)):
            raise RunError(f"{twice[0]} is written by two parts; its converter must tell them apart")
        taken.update(own)
        stage.take(number, own, out)
    for path in sorted(joining.rglob("*")):
        if not path.is_dir():
            target = out / path.relative_to(joining)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)


def command_line(
    formats: Formats[Settings], convert: Callable[..., None], argv: Sequence[str] | None, *, about: str, source: str
) -> int:
    """Runs a converter's command line; returns the exit code: 0, 64 for a wrong setting, 65 bad data, 74 a full disk.

    Args:
      formats: Of the package.
      convert: The package's own function, called as (source, out, format=, settings=, jobs=).
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
    add_job_options(parser)
    chosen = vars(parser.parse_args(argv))
    places: tuple[Path, Path] = chosen.pop("source"), chosen.pop("out")
    kind = chosen.pop("format")
    try:
        jobs = Jobs(**{field.name: chosen.pop(field.name) for field in dataclasses.fields(Jobs)})
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
        settings = formats.settings(**given)
        convert(*places, format=None if kind == "auto" else kind, settings=settings, jobs=jobs)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def add_job_options(parser: argparse.ArgumentParser, *, parts: str = "parts", records: str = "records") -> None:
    """Adds an option for each field of Jobs, under its name; `parts` and `records` are what these are for a person.

    --on-bad has a second name, as in training, whose messages on a dataset are those of its pack as well.
    """
    add_worker_options(parser, parts)
    left_out = (
        f"bad {records}: an error that lists them, or left out up to {MAX_SKIPPED * 100:g} %% of them; default: refuse"
    )
    parser.add_argument(
        "--on-bad", "--data.on-bad", dest="on_bad", choices=("refuse", "skip"), default="refuse", help=left_out
    )


def add_worker_options(parser: argparse.ArgumentParser, parts: str) -> None:
    """Adds --workers and --fleet; `parts` is what is shared out."""
    parser.add_argument(
        "--workers", type=int, metavar="N", help=f"{parts} at a time; default: 1, or all cores of a --fleet"
    )
    add_flag(parser, parts)


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
