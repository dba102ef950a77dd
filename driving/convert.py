"""Converts public driving datasets into episode JSON and images; docs/driving_converters.md.

    python -m driving.convert SOURCE OUT [--format waymo_v2|waymo_v1|waymo_e2e|nuscenes|lerobot] [--camera A=B] ...

OUT appears when all of it is there; a bad source is refused with one list of everything that is wrong with it, or is
converted without what is bad (--on-bad skip). By --workers N processes, or on a --fleet; given again after a kill, the
command goes on. The result is the same.
"""

import argparse
import functools
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from chunkwise.cli import command
from chunkwise.data import convert as driver
from chunkwise.data.convert import Formats, Joined, Pairs
from chunkwise.data.parts import Part
from chunkwise.errors import DataError
from chunkwise.files.strict_json import read_json
from driving.converters.episode_writer import ConvertSettings, Counts, EpisodeWriter, file_name, taken

Format = Literal["waymo_v2", "waymo_v1", "waymo_e2e", "nuscenes", "lerobot"]


@runtime_checkable
class Converter(Protocol):
    """One source; its constructor raises DataError where there is nothing to convert."""

    @property
    def units(self) -> list[str]:
        """Files, scenes or episodes that are converted one after another."""
        ...

    def files(self, unit: str) -> list[Path]:
        """What a unit is read from."""
        ...

    def convert(self, unit: str, writer: EpisodeWriter) -> Counts | None:
        """Converts one unit; what is wrong with it is noted in the writer.

        Returns:
          Its records, of which the bad ones are left out; None where a problem costs the unit.
        """
        ...


@runtime_checkable
class Spread(Converter, Protocol):
    """One whose drives may go on in other units."""

    def fragments(self) -> dict[str, Any]:
        """What the unit that was converted last has of such drives, as JSON values."""
        ...

    def join(
        self, fragments: Mapping[int, Mapping[str, Any]], writer: EpisodeWriter
    ) -> tuple[int, dict[int, set[str]]]:
        """Writes them, given those of each unit; returns how many records are bad, and by unit the drives left out."""
        ...


@runtime_checkable
class Partial(Converter, Protocol):
    """One that leaves out what its source has a part of."""

    left_out: Sequence[str]
    """Names, to be told."""


# Each brings a reader of its own; all of them together took 0.14 s of the 0.76 in which a worker process starts.
_CONVERTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "waymo_v2": ("driving.converters.waymo_v2:WaymoV2Converter", {}),
    "waymo_v1": ("driving.converters.waymo_tfrecord:WaymoTfrecordConverter", {"end_to_end": False}),
    "waymo_e2e": ("driving.converters.waymo_tfrecord:WaymoTfrecordConverter", {"end_to_end": True}),
    "nuscenes": ("driving.converters.nuscenes:NuscenesConverter", {}),
    "lerobot": ("driving.converters.lerobot:LerobotConverter", {}),
}


def detect(source: Path) -> Format:
    """Kind of a dataset by what lies there.

    Raises:
      DataError: It is missing, or is none of them.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file or folder")
    if (source / "meta" / "info.json").is_file():
        return "lerobot"
    if (source / "sample_data.json").is_file() or any(source.glob("*/sample_data.json")):
        return "nuscenes"
    if (source / "camera_image").is_dir() or any(source.glob("*/camera_image")):
        return "waymo_v2"
    linked = source.glob("*/*.tfrecord*")  # rglob follows no link to a folder
    if source.is_file() or any(source.rglob("*.tfrecord*")) or any(linked):
        raise DataError(f"{source}: TFRecord files do not say which they are: say --format waymo_v1 or waymo_e2e")
    raise DataError(
        f"{source}: expected camera_image/*.parquet (Waymo v2), *.tfrecord (Waymo v1, E2E), v1.0-*/sample_data.json "
        "(nuScenes) or meta/info.json (LeRobot), found none of them"
    )


class _Conversion:
    """Units of one source: each is a part, and so is what it says of drives that go on in others."""

    def __init__(self, kind: str, source: Path, settings: ConvertSettings) -> None:
        self._settings, self._source = settings, source
        name, options = _CONVERTERS[kind]
        self._converter: Converter = pkgutil.resolve_name(name)(source, settings, **options)
        self._units = self._converter.units

    @property
    def units(self) -> Sequence[str]:
        return self._units

    def files(self, unit: int) -> Sequence[Path]:
        return self._converter.files(self._units[unit])

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        name = self._units[unit]
        with EpisodeWriter(folder, images=self._settings.images) as writer:
            counts = self._converter.convert(name, writer)
            if counts is None:
                counts = Counts(read=1, bad=int(bool(writer.problems)))
                for drive, _ in writer.claims.values() if counts.bad else ():
                    writer.discard(drive)
        said = {"claims": writer.claims, "drives": writer.drives, "images": writer.images}
        if isinstance(self._converter, Spread):
            said["fragments"] = self._converter.fragments()
        return Part(said=said, problems=tuple(writer.problems), read=counts.read, bad=counts.bad)

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        writer = EpisodeWriter(folder, images=False)  # without a thread, as it is without images
        whole = not any(part.problems for part in parts.values())
        bad, left_out = 0, {number: set[str]() for number in parts}
        parts = {number: part for number, part in parts.items() if part.said}  # without what is bad as a whole
        fragments = {number: part.said.get("fragments") or {} for number, part in parts.items()}
        if isinstance(self._converter, Spread):
            bad, drives = self._converter.join(fragments, writer)
            left_out |= {number: {f"images/{file_name(drive)}" for drive in names} for number, names in drives.items()}
        drives, images = dict(writer.drives), 0
        claims: dict[str, tuple[str, str]] = {}
        for number, part in sorted(parts.items()):
            for name, (drive, source) in part.said["claims"].items():
                if drive in fragments[number]:
                    pass  # it is joined above
                elif name in claims and name in part.said["drives"]:
                    writer.problem(source, drive, *taken(drive, claims[name]))
                    bad += part.said["drives"][name] if part.read > 1 else 1
                    left_out[number] |= {f"{name}.json", f"images/{name}"}
                elif name in part.said["drives"]:
                    claims[name] = drive, source
                    drives[name] = part.said["drives"][name]
            kept = (n for name, n in part.said["images"].items() if f"images/{name}" not in left_out[number])
            images += sum(kept)
        if not drives and whole and not writer.problems:  # else these say why
            raise DataError(f"{self._source}: expected at least one episode, found none in {len(parts)} unit(s)")
        counts = {"episodes": len(drives), "frames": sum(drives.values()), "images": images}
        words = ", ".join(f"{count} {name[:-1]}(s)" for name, count in counts.items())
        summary = f"wrote {words} into {{out}}; python -m driving.validate {{out}} looks at every image"
        if isinstance(self._converter, Partial) and (without := self._converter.left_out):
            named = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
            summary += f"\nleft out, since there are no images of them: {len(without)} ({named})"
        return Joined(problems=writer.problems, bad=bad, left_out=left_out, about=counts, summary=summary)

    def close(self) -> None:
        """Nothing stays open between units."""


def read_camera_map(path: str) -> dict[str, str]:
    """The map of cameras in a JSON file: an object of the source's names to names in the episodes.

    Raises:
      ArgumentTypeError: It is none.
    """
    try:
        tree = read_json(Path(path))
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree.values()):
        raise argparse.ArgumentTypeError(f'{path}: expected {{"CAMERA": "name", ...}}, found {str(tree)[:80]}')
    return tree


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--camera-map",
        type=read_camera_map,
        metavar="FILE",
        help="JSON file of the source's cameras and their names in the episodes, in place of the format's own map; "
        "cameras that it does not name are left out (such as driving/converters/waymo_cameras.json)",
    )
    parser.add_argument(
        "--camera",
        dest="cameras",
        metavar="CAMERA=NAME",
        action=Pairs,
        example="SIDE_LEFT=left",
        help="name a camera of the source otherwise, or leave it out by an empty name; may be repeated",
    )
    no_images = "keep all frames, name no image"
    parser.add_argument("--no-images", dest="images", action="store_false", help=no_images)
    parser.add_argument("--sweeps", action="store_true", help="nuscenes: all images (12 Hz), not key frames alone")
    parser.add_argument(
        "--state",
        metavar="QUANTITY=KEY:INDEX[:FACTOR]",
        action=Pairs,
        help="lerobot: where the vehicle's state is, such as speed_mps=observation.state:0:0.277778; may be repeated",
    )
    parser.add_argument("--quality", type=int, default=95, help="lerobot: JPEG quality, 1 to 100; default: 95")


FORMATS = Formats(
    program="driving.convert",
    names=get_args(Format),
    detect=detect,
    open=_Conversion,
    settings=ConvertSettings,
    concerns={
        "sweeps": ("nuscenes",),
        "state": ("lerobot",),
        "quality": ("lerobot",),
    },
    description="_dataset.json",
    done="converted {count} of {total}",
    add_options=_add_options,
)


convert = functools.partial(driver.convert, FORMATS)
"""Converts a dataset, as (source, out, *, format, settings, jobs, report) of chunkwise/data/convert.py."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 64 for a wrong setting, 65 for bad data, 74 for a full disk."""
    about, source = (__doc__ or "").split("\n")[0], "folder of the dataset, or one TFRecord file"
    return driver.command_line(FORMATS, convert, argv, about=about, source=source)


if __name__ == "__main__":
    command.run(main, "stopped; the same command goes on with what is missing")
