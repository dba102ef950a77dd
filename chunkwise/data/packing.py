"""What every command that makes a pack does: its options, and the shards as parts of a job (chunkwise/data/convert.py).

A shard is whole episodes and is made by one process, so that a pack has the same bytes for any number of them. What a
killed start has finished is not done again. With --on-bad skip an episode with an image that cannot be read is left out
of its shard; else all such episodes are listed, and the same command goes on once they are repaired.
"""

import abc
import argparse
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from chunkwise.cli.command import Parser, add_links_option
from chunkwise.data.convert import Jobs, Joined, add_job_options, build
from chunkwise.data.images import require_pixels
from chunkwise.data.parts import Part
from chunkwise.data.problems import Problem
from chunkwise.data.shards import MANIFEST, Encoding, PackSettings, describe_file, is_pack, write_records
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.new_folder import require_outside
from chunkwise.files.place import is_utf8

FRAMES_PER_SHARD = 4096
"""About 250 MB of JPEG for two cameras at 224."""


def whole_episodes(lengths: Sequence[int]) -> list[list[int]]:
    """Returns the positions of the episodes of each shard: consecutive, about FRAMES_PER_SHARD frames."""
    shards: list[list[int]] = []
    frames = 0
    for position, length in enumerate(lengths):
        if not shards or frames + length > FRAMES_PER_SHARD:
            shards.append([])
            frames = 0
        shards[-1].append(position)
        frames += length
    return shards


class Packing(abc.ABC):
    """A dataset whose shards are written, one a part; each process opens it for itself."""

    tables: ClassVar[str]
    """Name of the file that says what the records are; without it, and its hash in the manifest, they are no pack."""

    def __init__(self, shards: Sequence[Sequence[int]], bad: Sequence[Problem] = (), left_out: int = 0) -> None:
        """Writes nothing yet.

        Args:
          shards: Positions of the episodes of each.
          bad: What is wrong with episodes that were left out before, with --on-bad skip.
          left_out: How many these are.
        """
        self._shards, self._problems, self._left_out = shards, bad, left_out

    @property
    def units(self) -> Sequence[str]:
        """The shards, by their episodes."""
        return ["episodes " + " ".join(self.name(position) for position in shard) for shard in self._shards]

    def files(self, unit: int) -> Sequence[Path]:
        """What a shard is read from."""
        return [file for position in self._shards[unit] for file in self.sources(position)]

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        """Writes a shard without its bad episodes; it is begun anew for each, since a record cannot be taken back."""
        del known
        episodes = self._shards[unit]
        bad: dict[int, Problem] = {}
        path = folder / f"pictures-{unit:05d}.arrayrecord"
        while True:
            reading = -1

            def records() -> Iterable[Sequence[bytes]]:
                nonlocal reading
                for reading in (position for position in episodes if position not in bad):
                    yield from self.images(reading)

            try:
                rows = write_records(path, records())
                break
            except DataError as error:
                bad[reading] = self.problem(reading, error)
        if not rows:
            path.unlink()
        described = describe_file(path) if rows else {}
        return Part(
            said={"file": path.name, "rows": rows, **described, "left_out": sorted(bad)},
            problems=tuple(bad.values()),
            read=len(episodes),
            bad=len(bad),
        )

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        """Lists the shards, and has the tables written of the episodes that they hold."""
        shards = [
            {key: value for key, value in part.said.items() if key != "left_out"}
            for part in parts.values()
            if part.said["rows"]
        ]
        about = self.write_tables(folder, {one for part in parts.values() for one in part.said["left_out"]})
        tables = [describe_file(file) for file in [folder / self.tables] if file.exists()]
        frames = sum(shard["rows"] for shard in shards)
        return Joined(
            problems=self._problems,
            bad=self._left_out,
            about={"shards": shards, "tables": tables, **about},
            summary=f"packed {frames} frames into {{out}}",
        )

    def close(self) -> None:  # noqa: B027
        """Nothing stays open."""

    @abc.abstractmethod
    def name(self, position: int) -> str:
        """Tells an episode from all others of the dataset."""

    @abc.abstractmethod
    def sources(self, position: int) -> Iterable[Path]:
        """Files that an episode's images are read from."""

    @abc.abstractmethod
    def images(self, position: int) -> Iterable[Sequence[bytes]]:
        """Yields frame after frame what is stored of all cameras; raises DataError for one that cannot be read."""

    @abc.abstractmethod
    def problem(self, position: int, error: DataError) -> Problem:
        """Says of an episode what `images` raised."""

    @abc.abstractmethod
    def write_tables(self, folder: Path, left_out: Collection[int]) -> Mapping[str, Any]:
        """Writes what a pack has beside its shards.

        Args:
          folder: To write into.
          left_out: Positions of episodes that are in no shard.

        Returns:
          What the manifest says that depends on these.
        """


def require_place(source: Path, out: Path) -> None:
    """Refuses what cannot be packed, or not there, before anything is read or written.

    Raises:
      ConfigError: `out` lies in the dataset, of which its manifest would count as a file, or is no UTF-8.
      DataError: The source is a pack.
    """
    if not is_utf8(out.absolute()):
        raise ConfigError(f"{out}: expected a path in UTF-8, found other bytes, which ArrayRecord cannot open")
    require_outside(out, source.parent if source.is_file() else source)
    if is_pack(source):
        raise DataError(
            f"{source}: expected a dataset, found {MANIFEST}: this is a pack already, data.path may name it; to pack "
            "anew, name the dataset that it was made of"
        )


def make_pack(
    opener: Callable[[], Packing],
    out: Path,
    *,
    about: Mapping[str, Any],
    settings: PackSettings,
    source: Path,
    jobs: Jobs,
    report: Callable[[str], None],
) -> None:
    """Makes a pack; the folder appears under its name only when it is complete.

    Args:
      opener: Opens the dataset; pickled to other processes.
      out: Folder to make.
      about: What the manifest says of the dataset; its format too.
      settings: Size and encoding.
      source: The dataset.
      jobs: By how many processes, where, and what becomes of bad episodes.
      report: Takes lines of text for a person.

    Raises:
      ConfigError: As `require_place`.
      DataError: `out` exists, or episodes are bad, the size is above a limit, or as `require_place`.
      BusyError, StorageError: As `new_folder`.
    """
    require_place(source, out)
    require_pixels(*settings.image_size, f"{out}: image_size")  # whoever opens it does
    if os.path.lexists(out):
        raise DataError(f"{out}: expected a folder that does not exist yet, found one; remove it or choose another")
    build(
        opener,
        out,
        about={**about, **dataclasses.asdict(settings)},
        identity={"source": str(source.resolve())},
        description=MANIFEST,
        done="packed {count} of {total} shards",
        jobs=jobs,
        report=report,
    )


def pack_parser(program: str, about: str, *, source: str, image_size: tuple[int, int]) -> argparse.ArgumentParser:
    """The command line of every pack: from where, to where, size and encoding, and an option for each field of Jobs.

    Args:
      program: Module of the command.
      about: What it does, in a line.
      source: What SOURCE may be.
      image_size: Height and width by default.
    """
    parser = Parser(prog=f"python -m {program}", description=about)
    parser.add_argument("source", type=Path, metavar="SOURCE", help=source)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; it must not exist")
    size = f"of the images in OUT, as data.image_size in training; default: {image_size[0]} {image_size[1]}"
    metavar = ("HEIGHT", "WIDTH")
    parser.add_argument("--image-size", nargs=2, type=int, default=image_size, metavar=metavar, help=size)
    encoding = "raw is exact, 6 times larger, and read faster; default: jpeg"
    parser.add_argument("--encoding", choices=get_args(Encoding), default="jpeg", help=encoding)
    parser.add_argument("--quality", type=int, default=95, help="of JPEG, 1 to 100; default: 95")
    add_links_option(parser)
    add_job_options(parser, parts="shards", records="episodes")
    return parser


def settings_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[PackSettings, Jobs]:
    """What a command line of `pack_parser` asks for; a wrong setting ends the command with 64."""
    height, width = args.image_size
    try:
        settings = PackSettings(image_size=(height, width), encoding=args.encoding, quality=args.quality)
        return settings, Jobs(workers=args.workers, fleet=args.fleet, on_bad=args.on_bad)
    except (ValueError, ConfigError) as error:
        parser.error(str(error))


def size_of(out: Path) -> str:
    """Says how large a finished pack is."""
    return f"{sum(file.stat().st_size for file in out.iterdir()) / 1e6:.1f} MB"
