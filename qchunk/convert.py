"""Converts recordings of other formats into the HDF5 episodes that Q-chunking trains on; docs/converting.md.

    python -m qchunk.convert SOURCE OUT [--format robomimic|d4rl|ogbench|lerobot] [--camera KEY=NAME] ...

Writes OUT/episode_<i:05d>.hdf5 and OUT/dataset.json, which says what they were made from. OUT appears when all of it is
there; a bad source is refused with one list of everything that is wrong with it.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import h5py
import numpy as np

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.progress import follow
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files import budget
from chunkwise.files.identity import content_hash
from chunkwise.files.new_folder import new_folder
from qchunk.converters.d4rl import D4rlReader
from qchunk.converters.episode_writer import camera_names, write_episode
from qchunk.converters.lerobot import LeRobotReader
from qchunk.converters.ogbench import OgbenchReader
from qchunk.converters.recording import ConvertSettings, Reader, Recording, check_widths
from qchunk.converters.robomimic import RobomimicReader
from qchunk.data.readers.hdf5 import one_line, open_h5
from qchunk.data.readers.report import Problem, refuse

Format = Literal["robomimic", "d4rl", "ogbench", "lerobot"]

_READERS: Mapping[Format, Callable[[Path, ConvertSettings], Reader]] = {
    "robomimic": RobomimicReader,
    "d4rl": D4rlReader,
    "ogbench": OgbenchReader,
    "lerobot": LeRobotReader,
}
_CONCERNS: Mapping[str, tuple[Format, ...]] = {
    "observation_keys": ("robomimic", "lerobot"),
    "filter_key": ("robomimic",),
    "cameras": ("robomimic", "lerobot"),
    "images": ("robomimic", "lerobot"),
    "quality": ("robomimic", "lerobot"),
    "final_done": ("robomimic", "lerobot"),
    "max_episode_steps": ("d4rl",),
    "allow_links_to": ("lerobot",),
}
"""Formats that can use each setting."""


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
      source: File, or folder of a LeRobot dataset.
      out: Folder to make; it must not exist.
      format: Of the source; None looks at it.
      settings: What may be chosen.
      report: Takes lines of text for a person.

    Raises:
      ConfigError: `out` exists, or a setting does not fit the source.
      DataError: The source is bad; every problem is listed, and nothing is written.
      StorageError: The output could not be written.
    """
    source, out, settings = Path(source), Path(out), settings or ConvertSettings()
    if out.exists():
        raise ConfigError(f"{out} exists; convert into a folder that does not exist yet")
    kind = format or detect(source)
    _check_settings(kind, settings)
    reader = _READERS[kind](source, settings)
    try:
        labels = _judge(reader)
        description = {
            "made_by": "qchunk.convert",
            "format": kind,
            "source": source.resolve().name,
            "source_sha256": content_hash(source) if source.is_file() else None,
            "settings": {
                name: value for name, value in dataclasses.asdict(settings).items() if name != "allow_links_to"
            },
            "labels": labels.rule,
            "episodes": len(reader),
            "about_the_source": reader.describe(),
        }
        _write_all(reader, out, settings, labels, description, report)
    finally:
        reader.close()
    report(f"wrote {len(reader)} episode(s) into {out}; labels: {labels.rule}")


def detect(source: Path) -> Format:
    """Kind of a dataset by what lies there.

    Raises:
      DataError: It is missing, or is none of them.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file or folder")
    if (source / "meta" / "info.json").is_file():
        return "lerobot"
    if source.is_file() and source.suffix == ".npz":
        return "ogbench"
    if not source.is_dir():
        budget.regular(source)
    if source.is_file() and h5py.is_hdf5(source):
        try:
            with open_h5(source) as h5:
                names = set(h5)
        except OSError as error:
            raise DataError(f"{source}: expected a whole HDF5 file; found {one_line(error)}") from error
        if "data" in names:
            return "robomimic"
        if {"observations", "actions"} <= names:
            return "d4rl"
        raise DataError(
            f"{source}: expected an HDF5 file with /data (robomimic) or /observations and /actions (D4RL); "
            f"found {sorted(names)}"
        )
    raise DataError(
        f"{source}: expected a robomimic or D4RL HDF5 file, an OGBench .npz file, or a LeRobot folder with "
        "meta/info.json; found none of them. A folder of ALOHA HDF5 episodes needs no conversion"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Labels:
    """How episodes get the attribute `success`."""

    rule: str
    sparse: bool

    def of(self, recording: Recording) -> bool | None:
        if recording.success is not None:
            return recording.success
        return bool((recording.reward == 1).any()) if self.sparse and recording.reward is not None else None


def _check_settings(kind: Format, settings: ConvertSettings) -> None:
    default = ConvertSettings()
    for name, formats in _CONCERNS.items():
        if kind not in formats and getattr(settings, name) != getattr(default, name):
            option = "--camera" if name == "cameras" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} means nothing for {kind}; it is for {' and '.join(formats)}")
    if bad := camera_names(settings.cameras):
        raise ConfigError(f"--camera: {bad} cannot name a camera of the output; give each its own name without '/'")
    if not 1 <= settings.quality <= 100:
        raise ConfigError(f"--quality is {settings.quality}; expected 1 to 100")
    if settings.max_episode_steps is not None and settings.max_episode_steps < 1:
        raise ConfigError(f"--max-episode-steps is {settings.max_episode_steps}; expected at least 1")


def _judge(reader: Reader) -> _Labels:
    """Reads every episode once, refuses a source with problems, and finds out what its rewards say of success."""
    problems: list[Problem] = []
    widths: dict[str, dict[str, str]] = {}
    named, sparse, solved = False, True, False
    for index in range(len(reader)):
        reading = reader.read(index)
        problems += reading.problems
        recording = reading.recording
        if recording is None:
            continue
        widths[recording.id] = _widths(recording)
        named = named or recording.success is not None
        reward = recording.reward
        sparse = sparse and reward is not None and bool(np.isin(reward, (0, 1)).all())
        solved = solved or (reward is not None and bool((reward == 1).any()))
    problems += check_widths(widths)
    if problems:
        raise refuse(problems, "Repair the source: nothing was written.")
    if named:
        return _Labels(rule="success as the source says", sparse=False)
    if sparse and solved:
        return _Labels(rule="success where a reward of 1 was earned; all rewards are 0 or 1", sparse=True)
    if not any("reward" in found for found in widths.values()):
        return _Labels(rule="none: the source has no rewards", sparse=False)
    return _Labels(rule="none: a reward that is not 0 or 1, or never 1, does not say what success is", sparse=False)


def _widths(recording: Recording) -> dict[str, str]:
    """What all episodes of a dataset must share, in words."""
    arrays = {"observation": recording.observation, "action": recording.action, **recording.extra}
    found = {name: f"{x.shape[1]} dimensions" for name, x in arrays.items()}
    outcome = {"reward": recording.reward, "terminated": recording.terminated, "success": recording.success}
    return found | {name: "present" for name, x in outcome.items() if x is not None}


def _write_all(
    reader: Reader,
    out: Path,
    settings: ConvertSettings,
    labels: _Labels,
    description: Mapping[str, Any],
    report: Callable[[str], None],
) -> None:
    """Writes into a folder beside `out`, and gives it its name at the end."""
    done = "converted {count} of {total} episodes"
    with new_folder(out) as scratch:
        for index in follow(range(len(reader)), len(reader), "converting", done, rate=None, say=report):
            reading = reader.read(index)
            if reading.recording is None:
                raise refuse(reading.problems, "The source changed while it was converted.")
            write_episode(
                scratch / f"episode_{index:05d}.hdf5",
                reading.recording,
                success=labels.of(reading.recording),
                images=settings.images,
                quality=settings.quality,
            )
        (scratch / "dataset.json").write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 64 for a wrong setting, 65 for bad data, 74 for a full disk."""
    parser = Parser(prog="python -m qchunk.convert", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", metavar="SOURCE", type=Path, help="HDF5 or .npz file, or folder of a LeRobot dataset")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--format", choices=("auto", *get_args(Format)), default="auto", help="default: auto")
    parser.add_argument(
        "--observation-keys",
        metavar="KEY",
        nargs="+",
        default=(),
        help="arrays that make up the observation, in this order. Default, robomimic: object robot0_eef_pos "
        "robot0_eef_quat robot0_gripper_qpos; lerobot: observation.state",
    )
    parser.add_argument("--filter-key", metavar="KEY", help="robomimic: only the episodes listed in /mask/KEY")
    parser.add_argument(
        "--camera",
        metavar="KEY=NAME",
        action="append",
        default=[],
        help="keep this camera under this name; may be repeated. Default: all cameras",
    )
    parser.add_argument("--images", choices=("jpeg", "raw", "none"), default="jpeg", help="default: jpeg")
    parser.add_argument("--quality", type=int, default=95, help="of JPEG, 1 to 100; default: 95")
    parser.add_argument(
        "--final-done",
        choices=("time_limit", "termination"),
        default="time_limit",
        help="robomimic, lerobot: what a done in the last frame means that earned no success; default: time_limit",
    )
    parser.add_argument("--max-episode-steps", type=int, metavar="N", help="d4rl without timeouts: the time limit")
    add_links_option(parser)
    arguments = parser.parse_args(argv)
    wrong = [text for text in arguments.camera if "=" not in text]
    if wrong:
        parser.error(f"--camera {wrong[0]}: expected KEY=NAME, for example agentview_image=cam_high")
    settings = ConvertSettings(
        observation_keys=tuple(arguments.observation_keys),
        filter_key=arguments.filter_key,
        cameras=dict(text.split("=", 1) for text in arguments.camera),
        images=arguments.images,
        quality=arguments.quality,
        final_done=arguments.final_done,
        max_episode_steps=arguments.max_episode_steps,
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
