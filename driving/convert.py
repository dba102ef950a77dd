"""Converts public driving datasets into episode JSON and pictures; docs/driving_converters.md.

    python -m driving.convert SOURCE OUT [--format waymo_v2|waymo_v1|waymo_e2e|nuscenes|lerobot] [--camera A=B] ...

OUT appears when all of it is there; a bad source is refused with one list of everything that is wrong with it.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.progress import follow
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.new_folder import new_folder
from driving.converters.episode_writer import ConvertSettings, EpisodeWriter
from driving.converters.lerobot import LerobotConverter
from driving.converters.nuscenes import NuscenesConverter
from driving.converters.waymo_tfrecord import WaymoTfrecordConverter
from driving.converters.waymo_v2 import WaymoV2Converter
from driving.data.episodes import refuse

Format = Literal["waymo_v2", "waymo_v1", "waymo_e2e", "nuscenes", "lerobot"]


@runtime_checkable
class Converter(Protocol):
    """One source; its constructor raises DataError where there is nothing to convert."""

    @property
    def units(self) -> list[str]:
        """Files, scenes or episodes that are converted one after another."""
        ...

    def convert(self, unit: str, writer: EpisodeWriter) -> None:
        """Converts one unit; what is wrong with it is noted in the writer."""
        ...

    def finish(self, writer: EpisodeWriter) -> None:
        """Writes what had to wait for the last unit."""
        ...


_CONVERTERS: Mapping[Format, Callable[[Path, ConvertSettings], Converter]] = {
    "waymo_v2": WaymoV2Converter,
    "waymo_v1": functools.partial(WaymoTfrecordConverter, end_to_end=False),
    "waymo_e2e": functools.partial(WaymoTfrecordConverter, end_to_end=True),
    "nuscenes": NuscenesConverter,
    "lerobot": LerobotConverter,
}
_CONCERNS: Mapping[str, Format] = {
    "sweeps": "nuscenes",
    "state": "lerobot",
    "quality": "lerobot",
    "allow_links_to": "lerobot",
}
"""Settings that only one format can use."""


def convert(
    source: str | Path,
    out: str | Path,
    *,
    format: Format | None = None,
    settings: ConvertSettings | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Converts one dataset.

    Args:
      source: File or folder.
      out: Folder to make; it must not exist.
      format: Of the source; None looks at it.
      settings: What may be chosen.
      report: Takes lines of text for a person.

    Raises:
      ConfigError: `out` exists, or a setting does not fit the source.
      DataError: The source is bad; every problem is counted, the first 20 are listed, and nothing is written.
      StorageError: The output could not be written.
    """
    source, out, settings = Path(source), Path(out), settings or ConvertSettings()
    if out.exists():
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    kind = format or detect(source)
    _check_settings(kind, settings)
    converter = _CONVERTERS[kind](source, settings)
    units, done = converter.units, "converted {count} of {total}"
    with new_folder(out) as scratch:
        writer = EpisodeWriter(scratch, images=settings.images)
        for unit in follow(units, len(units), "converting", done, rate=None, say=report):
            converter.convert(unit, writer)
        converter.finish(writer)
        if writer.problems:
            raise refuse(writer.problems, "Repair the source: nothing was written.")
        counts = {"episodes": writer.episodes, "frames": writer.frames, "pictures": writer.pictures}
        about = {"made_by": "driving.convert", "format": kind, "source": source.resolve().name, **counts}
        about["settings"] = {
            name: value for name, value in dataclasses.asdict(settings).items() if name != "allow_links_to"
        }
        (scratch / "_dataset.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    words = f"{writer.episodes} episode(s), {writer.frames} frame(s), {writer.pictures} picture(s)"
    report(f"wrote {words} into {out}; python -m driving.validate {out} looks at every picture")


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
    if source.is_file() or any(source.rglob("*.tfrecord*")):
        raise DataError(f"{source}: TFRecord files do not say which they are: say --format waymo_v1 or waymo_e2e")
    raise DataError(
        f"{source}: expected camera_image/*.parquet (Waymo v2), *.tfrecord (Waymo v1, E2E), v1.0-*/sample_data.json "
        "(nuScenes) or meta/info.json (LeRobot), found none of them"
    )


def _check_settings(kind: Format, settings: ConvertSettings) -> None:
    default = ConvertSettings()
    for name, owner in _CONCERNS.items():
        if kind != owner and getattr(settings, name) != getattr(default, name):
            raise ConfigError(f"--{name.replace('_', '-')} means nothing for {kind}; it is for {owner}")
    if not 1 <= settings.quality <= 100:
        raise ConfigError(f"--quality is {settings.quality}; expected 1 to 100")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 64 for a wrong setting, 65 for bad data, 74 for a full disk."""
    parser = Parser(prog="python -m driving.convert", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", metavar="SOURCE", type=Path, help="folder of the dataset, or one TFRecord file")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--format", choices=("auto", *get_args(Format)), default="auto", help="default: auto")
    parser.add_argument(
        "--camera",
        metavar="CAMERA=NAME",
        action="append",
        default=[],
        help="name a camera of the source otherwise, or leave it out by an empty name; may be repeated",
    )
    parser.add_argument("--no-images", action="store_true", help="keep all frames, name no picture")
    parser.add_argument("--sweeps", action="store_true", help="nuscenes: all pictures (12 Hz), not key frames alone")
    parser.add_argument(
        "--state",
        metavar="QUANTITY=KEY:INDEX[:FACTOR]",
        action="append",
        default=[],
        help="lerobot: where the vehicle's state is, such as speed_mps=observation.state:0:0.277778; may be repeated",
    )
    parser.add_argument("--quality", type=int, default=95, help="lerobot: JPEG quality, 1 to 100; default: 95")
    add_links_option(parser)
    arguments = parser.parse_args(argv)
    for option in ("camera", "state"):
        wrong = [text for text in getattr(arguments, option) if "=" not in text]
        if wrong:
            parser.error(f"--{option} {wrong[0]}: expected NAME=VALUE")
    settings = ConvertSettings(
        cameras=dict(text.split("=", 1) for text in arguments.camera),
        images=not arguments.no_images,
        sweeps=arguments.sweeps,
        state=dict(text.split("=", 1) for text in arguments.state),
        quality=arguments.quality,
        allow_links_to=tuple(arguments.allow_links_to),
    )
    kind = None if arguments.format == "auto" else arguments.format
    try:
        convert(arguments.source, arguments.out, format=kind, settings=settings)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    command.run(main)
