"""Converts recordings of other formats into the HDF5 episodes that Q-chunking trains on; docs/converting.md.

    python -m qchunk.convert SOURCE OUT [--format robomimic|d4rl|ogbench|lerobot] [--camera KEY=NAME] ...

Writes OUT/episode_<i:05d>.hdf5 and OUT/dataset.json, which says what they were made from. OUT appears when all of it is
there; a bad source is refused with one list of everything that is wrong with it, or is converted without what is bad
(--on-bad skip). By --workers N processes, or on a --fleet; given again after a kill, the command goes on.
"""

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import h5py

from chunkwise.cli import command
from chunkwise.data import convert as driver
from chunkwise.data.convert import Formats, Joined, Pairs
from chunkwise.data.parts import Part
from chunkwise.data.problems import Problem, refuse
from chunkwise.errors import DataError, one_line
from chunkwise.files import budget
from chunkwise.files.identity import content_hash
from qchunk.converters.d4rl import D4rlReader
from qchunk.converters.episode_writer import write_episode
from qchunk.converters.lerobot import LeRobotReader
from qchunk.converters.ogbench import OgbenchReader
from qchunk.converters.recording import ConvertSettings, Reader, Recording, check_widths
from qchunk.converters.robomimic import RobomimicReader
from qchunk.data.conventions import SuccessRule
from qchunk.data.index import is_lerobot
from qchunk.data.readers.hdf5 import open_h5

Format = Literal["robomimic", "d4rl", "ogbench", "lerobot"]

_READERS: Mapping[str, Callable[[Path, ConvertSettings], Reader]] = {
    "robomimic": RobomimicReader,
    "d4rl": D4rlReader,
    "ogbench": OgbenchReader,
    "lerobot": LeRobotReader,
}


def detect(source: Path) -> Format:
    """Kind of a dataset by what lies there.

    Raises:
      DataError: It is missing, or is none of them.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file or folder")
    if is_lerobot(source):
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
            raise DataError(f"{source}: expected a whole HDF5 file, found {one_line(error)}") from error
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
        "meta/info.json, found none of them. A folder of ALOHA HDF5 episodes, or of .npz files (--data.format "
        "ogbench_npz), needs no conversion"
    )


class _Conversion:
    """Episodes of one source; all of them are read and judged before any is written."""

    def __init__(self, kind: str, source: Path, settings: ConvertSettings) -> None:
        self._source, self._settings = source, settings
        self._reader = _READERS[kind](source, settings)

    @property
    def units(self) -> Sequence[str]:
        return [f"episode {index}" for index in range(len(self._reader))]

    def files(self, unit: int) -> Sequence[Path]:
        return self._files

    @functools.cached_property
    def _files(self) -> list[Path]:
        return self._reader.files if isinstance(self._reader, LeRobotReader) else [self._source]

    def look(self, unit: int) -> Part:
        reading, rule = self._reader.read(unit), SuccessRule()
        recording = reading.recording
        if recording is None or reading.problems:
            return Part(problems=reading.problems, bad=1)
        rule.see(recording.success, recording.reward)
        return Part(said={"id": recording.id, "widths": _widths(recording), "facts": rule.facts})

    def settle(self, looks: Mapping[int, Part]) -> tuple[Any, Mapping[int, Sequence[Problem]]]:
        """Widths that are not those of most episodes, and what the rewards of the others say of success."""
        numbers = {part.said["id"]: number for number, part in looks.items()}
        problems: dict[int, list[Problem]] = {}
        for problem in check_widths({part.said["id"]: part.said["widths"] for part in looks.values()}):
            problems.setdefault(numbers[problem.file], []).append(problem)
        rule = SuccessRule()
        for number, part in looks.items():
            if number not in problems:
                rule.add(**part.said["facts"])
        return rule.facts, problems

    def write(self, unit: int, folder: Path, known: Any) -> Part:
        reading, labels = self._reader.read(unit), _rule(known)
        if reading.recording is None:
            raise refuse(reading.problems, "The source changed while it was converted.")
        write_episode(
            folder / f"episode_{unit:05d}.hdf5",
            reading.recording,
            success=labels.label(reading.recording.success, reading.recording.reward),
            images=self._settings.images,
            quality=self._settings.quality,
        )
        return Part(said={"facts": known})

    def join(self, parts: Mapping[int, Part], folder: Path) -> Joined:
        good = [part for part in parts.values() if not part.bad]
        labels = _rule(good[0].said["facts"]) if good else SuccessRule()
        described = self._reader.describe()
        without = [name for key, names in described.items() if key.endswith("_left_out") for name in names]
        about = {
            "source_sha256": content_hash(self._source) if self._source.is_file() else None,
            "labels": str(labels),
            "episodes": len(good),
            "about_the_source": described,
        }
        summary = f"wrote {len(good)} episode(s) into {{out}}; labels: {labels}"
        return Joined(about=about, summary=summary + (f"; left out: {', '.join(without)}" if without else ""))

    def close(self) -> None:
        self._reader.close()


def _rule(facts: Mapping[str, bool]) -> SuccessRule:
    rule = SuccessRule()
    rule.add(**facts)
    return rule


def _widths(recording: Recording) -> dict[str, str]:
    """What all episodes of a dataset must share, in words."""
    arrays = {"observation": recording.observation, "action": recording.action, **recording.extra}
    found = {name: f"{x.shape[1]} dimensions" for name, x in arrays.items()}
    # Not `terminated`: where rewards say how episodes end, those that were cut off may say it and successes not.
    outcome = {"reward": recording.reward, "success": recording.success}
    return found | {name: "present" for name, x in outcome.items() if x is not None}


def _add_options(parser: argparse.ArgumentParser) -> None:
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
        dest="cameras",
        metavar="KEY=NAME",
        action=Pairs,
        example="agentview_image=cam_high",
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


FORMATS = Formats(
    program="qchunk.convert",
    names=get_args(Format),
    detect=detect,
    open=_Conversion,
    settings=ConvertSettings,
    concerns={
        "observation_keys": ("robomimic", "lerobot"),
        "filter_key": ("robomimic",),
        "cameras": ("robomimic", "lerobot"),
        "images": ("robomimic", "lerobot"),
        "quality": ("robomimic", "lerobot"),
        "final_done": ("robomimic", "lerobot"),
        "max_episode_steps": ("d4rl",),
        "allow_links_to": ("lerobot",),
    },
    description="dataset.json",
    done="converted {count} of {total} episodes",
    add_options=_add_options,
)


convert = functools.partial(driver.convert, FORMATS)
"""Converts a dataset, as (source, out, *, format, settings, jobs, report) of chunkwise/data/convert.py."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 64 for a wrong setting, 65 for bad data, 74 for a full disk."""
    about, source = (__doc__ or "").split("\n")[0], "HDF5 or .npz file, or folder of a LeRobot dataset"
    return driver.command_line(FORMATS, convert, argv, about=about, source=source)


if __name__ == "__main__":
    command.run(main, "stopped; the same command goes on with what is missing")
