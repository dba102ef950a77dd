"""Says what is in driving episodes, and what is wrong with them.

    python -m driving.validate PATH... [--json] [--no-images] [--workers N] [--fleet ADDRESS]
    python -m driving.validate PATH --config FILE_OR_NAME [--field value ...]

PATH is a folder of episodes, one episode file, or a pack. Every file is read anew and every image decoded, whatever
an index beside them says. Exit code 65 if there is any problem: a file that training would refuse, or labels that
contradict one another. Remarks do not count. With --config it says too what training with that config and these fields
would say of PATH, and exits with 65 exactly where it would not begin, or would meet an image that does not decode.
"""

import argparse
import dataclasses
import functools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import UInt8

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.progress import follow
from chunkwise.config.load import load_for_data
from chunkwise.data.convert import add_worker_options
from chunkwise.data.images import decode
from chunkwise.data.problems import Problem, list_problems, problem_of
from chunkwise.data.shards import is_pack, require_whole
from chunkwise.data.verdict import TAKEN
from chunkwise.data.walking import crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError, RunError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.printable import say
from driving.config import CAMERAS, DataConfig, DrivingConfig
from driving.data.checks import BLACK, Findings, Look, check_images, check_numbers
from driving.data.episodes import episode_names
from driving.data.images import read_bytes
from driving.data.index import ABSENT, PRESENT, Index, concatenate
from driving.data.scan import scan_file
from driving.data.shards import PackedImages, load_index, read_manifest
from driving.data.split import SPLIT_FILE, check_manifest, load_manifest

Report = dict[str, Any]
DECODES = "an image that decodes"
"""Expected of an image that does not."""
Item = TypeVar("Item")
MAX_PRINTED = 40


def validate(
    paths: Sequence[Path],
    *,
    images: bool = True,
    hands: Hands | None = None,
    say: Callable[[str], None] | None = None,
    allow_links_to: Sequence[str] = (),
) -> Report:
    """Looks at everything; raises nothing for bad data.

    Args:
      paths: Folders of episodes, episode files, packs.
      images: Decode every image, and hash all of a pack; otherwise only headers are read.
      hands: By how many processes, and where; the report does not depend on it.
      say: Takes lines on how far it is; None: nothing is said, and no bar shown.
      allow_links_to: Folders outside of the datasets that links in them may lead to.

    Returns:
      A dict for JSON: "paths", "episodes" (file, id, frames, rated: frames with rated trajectories, seconds, rate_hz,
      metres, verdict), "cameras" (by name: named, present, absent, calibrated, black, repeated, sizes), "problems" and
      "remarks" (lists of file, key, expected, found), "refused".
    """
    report: Report = {"paths": [str(path) for path in paths], "episodes": [], "cameras": {}}
    found = Findings()
    under_way = _Walk(
        images=images, report=report, found=found, say=say, allow_links_to=allow_links_to, hands=hands or Hands()
    )
    for path in paths:
        try:
            _walk_path(path, under_way)
        except DataError as error:
            found.problems.append(problem_of(error, str(path)))
    _check_ids(report["episodes"], found)
    report["problems"] = [dataclasses.asdict(problem) for problem in found.problems]
    report["remarks"] = [dataclasses.asdict(remark) for remark in found.remarks]
    report["refused"] = bool(found.problems)
    return report


def _add_verdict(config: DrivingConfig, report: Report) -> int:
    """Asks the training itself, which may leave out what is bad; returns the exit code of a refusal."""
    from driving.train import of_training  # imports jax

    verdict, read = of_training(config), tuple(f".{camera}.image_path" for camera in config.data.cameras)
    dark = sum(entry["expected"] == DECODES and entry["key"].endswith(read) for entry in report["problems"])
    refusal = verdict.refusal
    if refusal is None and dark:
        refusal = (
            f"{config.data.path}: training would end at the first image that does not decode, of {dark} among the "
            "problems; record them again, or write null for images that were never taken"
        )
    report |= {"notes": list(verdict.notes), "refusal": refusal, "refused": refusal is not None}
    return verdict.exit_code or DataError.exit_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Walk:
    images: bool
    report: Report
    found: Findings
    say: Callable[[str], None] | None
    allow_links_to: Sequence[str]
    hands: Hands

    def follow(self, items: Iterable[Item], total: int) -> Iterable[Item]:
        """The items, with what shows how far it is."""
        if self.say is None:
            return items
        return follow(items, total, "validating", "validated {count} of {total} episodes", rate=None, say=self.say)

    def add(self, file: str, index: Index | None, look: Look | None, found: Findings) -> None:
        """Takes in what was found in one episode."""
        self.found.problems.extend(found.problems)
        self.found.remarks.extend(found.remarks)
        entry: Report = {"file": file, "verdict": "bad" if found.problems else "good"}
        if index is not None:
            entry |= _describe(index)
            _count_cameras(self.report["cameras"], index, look)
        self.report["episodes"].append(entry)


def _walk_path(path: Path, under_way: _Walk) -> None:
    if is_pack(path):
        _walk_pack(path, under_way)
        return
    bounds = Bounds(path, under_way.allow_links_to)
    base = bounds.root
    parts: list[Index] = []
    files = [Path(bounds.path(name)) for name in episode_names(path, bounds)]
    looked_at = walk(_Episodes(files=files, bounds=bounds, images=under_way.images), under_way.hands)
    for file, (index, look, found) in under_way.follow(zip(files, looked_at, strict=True), len(files)):
        under_way.add(str(file), index, look, found)
        parts += [] if index is None else [index]
    if (base / SPLIT_FILE).is_file() and not path.is_file() and parts:
        _check_split(base / SPLIT_FILE, parts, under_way.found)


_Seen = tuple[Index | None, Look | None, Findings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Episodes:
    """The episode files of a folder."""

    files: Sequence[Path]
    bounds: Bounds
    images: bool

    def __len__(self) -> int:
        return len(self.files)

    def open(self) -> Callable[[int], _Seen]:
        return lambda number: _one(self.files[number], self.bounds, self.images)

    def crashed(self, number: int, found: str) -> _Seen:
        return None, None, Findings(problems=[crash(str(self.files[number]), found)])


def _one(file: Path, bounds: Bounds, images: bool) -> tuple[Index | None, Look | None, Findings]:
    found = Findings()
    index, problems = scan_file(file, bounds.root, files=Files(bounds, remember=False))
    found.problems.extend(problems)
    if index is None:
        return None, None, found
    look = None
    if images:

        def read_image(row: int, column: int) -> np.ndarray:
            name = bounds.path(index.path(row, column) or "")
            return decode(read_bytes(name), source=name)

        look = _look(index, read_image, str(file), found)
    _judge(index, look, found, str(file))
    return index, look, found


def _judge(index: Index, look: Look | None, found: Findings, file: str) -> None:
    config = DataConfig(path=file)
    shape = index.image_status.shape
    empty = Look(brightest=np.full(shape, 255, np.uint8), repeats=np.zeros(shape, bool))
    for judged in (lambda: check_numbers(index, config), lambda: check_images(index, look or empty)):
        try:
            more = judged()
        except DataError as error:  # numbers that overflow once they are subtracted or divided
            more = Findings(problems=[problem_of(error, index.files[0])])
        found.problems.extend(dataclasses.replace(problem, file=file) for problem in more.problems)
        found.remarks.extend(dataclasses.replace(remark, file=file) for remark in more.remarks)


def _look(index: Index, read_image: Any, file: str, found: Findings) -> Look:
    """Decodes an episode's images, frame by frame; those that cannot be are problems."""
    brightest = np.full(index.image_status.shape, 255, np.uint8)
    repeats = np.zeros(index.image_status.shape, bool)
    before: dict[int, int] = {}
    for row, column in np.argwhere(index.image_status == PRESENT).tolist():
        try:
            shown: UInt8[np.ndarray, "h w 3"] = read_image(row, column)
        except DataError as error:
            key = f"frames[{row}].observations.cameras.{index.cameras[column]}.image_path"
            found.problems.append(Problem(file=file, key=key, expected=DECODES, found=str(error)))
            continue
        brightest[row, column] = shown.max()
        sum_ = zlib.crc32(np.ascontiguousarray(shown).data)
        repeats[row, column] = before.get(column) == sum_  # of its last image, that may be some frames ago
        before[column] = sum_
    return Look(brightest=brightest, repeats=repeats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Packed:
    """The episodes of a pack."""

    path: Path
    whole: Index
    images: bool

    def __len__(self) -> int:
        return len(self.whole.ids)

    def open(self) -> Callable[[int], _Seen]:
        store = PackedImages(self.path, self.whole, self.whole.cameras)
        shape = (len(self.whole.cameras), *read_manifest(self.path)["image_size"], 3)

        def look_at(episode: int) -> _Seen:
            index, found, first = self.whole.one(episode), Findings(), self.whole.rows(episode).start
            look = None
            if self.images:

                def read_image(row: int, column: int) -> np.ndarray:
                    out, wanted = np.zeros(shape, np.uint8), np.zeros(shape[0], bool)
                    wanted[column] = True
                    store.read(first + row, wanted, out)
                    return out[column]

                look = _look(index, read_image, self.name(episode), found)
            _judge(index, look, found, self.name(episode))
            return index, look, found

        return look_at

    def crashed(self, number: int, found: str) -> _Seen:
        return None, None, Findings(problems=[crash(self.name(number), found)])

    def name(self, episode: int) -> str:
        return f"{self.path}: {self.whole.one(episode).files[0]}"


def _walk_pack(path: Path, under_way: _Walk) -> None:
    manifest = read_manifest(path)
    whole = load_index(path, manifest)
    if under_way.images:
        require_whole(path, manifest, under_way.allow_links_to)
    packed = _Packed(path=path, whole=whole, images=under_way.images)
    for episode, seen in enumerate(under_way.follow(walk(packed, under_way.hands), len(packed))):
        under_way.add(packed.name(episode), *seen)
    if (path / SPLIT_FILE).is_file():
        _check_split(path / SPLIT_FILE, [whole], under_way.found)


def _check_split(file: Path, parts: Sequence[Index], found: Findings) -> None:
    try:
        check_manifest(load_manifest(file), concatenate(parts), source=str(file), may_lack=False)
    except DataError as error:
        found.problems.append(problem_of(error, str(file)))


def _check_ids(episodes: Sequence[Report], found: Findings) -> None:
    """Ids that occur twice, and drives that were recorded once and are there twice."""
    for key, to, expected in (
        ("id", found.problems, "an id of its own"),
        ("drive", found.remarks, "a drive that no other episode shows"),
    ):
        first: dict[str, str] = {}
        for entry in episodes:
            if key in entry and first.setdefault(entry[key], entry["file"]) != entry["file"]:
                text = f"{entry[key][:60]!r}, as in {first[entry[key]]}"
                to.append(
                    Problem(file=entry["file"], key="episode_id" if key == "id" else "", expected=expected, found=text)
                )
                entry["verdict"] = "bad" if key == "id" else entry["verdict"]


def _describe(index: Index) -> Report:
    steps = np.diff(index.t)
    moved = np.hypot(*np.diff(index.pose[:, :2], axis=0).T)
    return {
        "id": index.ids[0],
        "recording": index.recordings[0],
        "drive": index.drive_hashes[0],
        "frames": index.frames,
        "rated": int((index.rated_counts > 0).sum()),
        "seconds": float(index.t[-1] - index.t[0]),
        "rate_hz": float(1 / np.median(steps)) if len(steps) else None,
        "metres": float(moved.sum()) if np.isfinite(moved).all() else None,
    }


def _count_cameras(cameras: dict[str, Report], index: Index, look: Look | None) -> None:
    for c, camera in enumerate(index.cameras):
        empty = dict.fromkeys(("named", "present", "absent", "calibrated", "black", "repeated"), 0)
        entry = cameras.setdefault(camera, {**empty, "sizes": []})
        there = index.image_status[:, c] == PRESENT
        entry["named"] += int((index.image_status[:, c] > 0).sum())
        entry["present"] += int(there.sum())
        entry["absent"] += int((index.image_status[:, c] == ABSENT).sum())
        entry["calibrated"] += int((there & (index.calibration[:, c] >= 0)).sum())
        if look is not None:
            entry["black"] += int((there & (look.brightest[:, c] <= BLACK)).sum())
            entry["repeated"] += int(look.repeats[:, c].sum())
        for size in np.unique(index.image_size[there, c], axis=0).tolist():
            if size not in entry["sizes"]:
                entry["sizes"].append(size)


def _print(report: Report) -> None:
    episodes = report["episodes"]
    known = [entry for entry in episodes if "frames" in entry]
    frames = sum(entry["frames"] for entry in known)
    bad = sum(entry["verdict"] == "bad" for entry in episodes)
    seconds = sum(entry["seconds"] for entry in known)
    say(f"{len(episodes)} episode(s), {bad} bad; {frames} frames, {seconds:.1f} s")
    if known:
        rates = [entry["rate_hz"] for entry in known if entry["rate_hz"]]
        rate = f"{_spread(rates)} Hz" if rates else "unknown"
        say(f"{_spread([entry['frames'] for entry in known])} frames an episode; rate {rate}")
        rated = sum(entry["rated"] for entry in known)
        if rated:
            say(f"{rated} frame(s) with rated trajectories")
    if report["cameras"]:
        say("")
        say(
            f"{'camera':14}{'size':>12}{'coverage':>10}{'present':>9}{'absent':>8}{'calibrated':>12}{'black':>7}{'repeated':>10}"
        )
    rank = {name: i for i, name in enumerate(CAMERAS)}
    for name, row in sorted(report["cameras"].items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])):
        sizes = " ".join(f"{height}x{width}" for height, width in row["sizes"]) or "-"
        share = f"{row['present'] / frames:.1%}"
        say(
            f"{name:14}{sizes:>12}{share:>10}{row['present']:>9}{row['absent']:>8}{row['calibrated']:>12}"
            f"{row['black']:>7}{row['repeated']:>10}"
        )
    if report["cameras"]:
        say("")
        say("coverage: share of the frames with an image; absent: named, but there is no such file; calibrated: with")
        say("intrinsics and extrinsics; repeated: the same image as the camera's last, as where the car stands")
    for title in ("remarks", "problems"):
        entries = [Problem(**entry) for entry in report[title]]
        say("")
        say(f"{len(entries)} {title if len(entries) != 1 else title[:-1]}{':' if entries else ''}")
        for line in list_problems(entries, shown=MAX_PRINTED, all_by="--json"):
            say(f"  {line}")
    if "refusal" in report:
        say("")
        for line in (*report["notes"], *(report["refusal"] or TAKEN).splitlines()):
            say(line)


def _spread(values: Sequence[float | int]) -> str:
    low, high = f"{min(values):.6g}", f"{max(values):.6g}"
    return low if low == high else f"{low} to {high}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, or 65 if there is a problem."""
    parser = Parser(prog="python -m driving.validate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folder of episodes, episode file, or pack")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--no-images", "--no-pictures", action="store_true", help="decode no image; look at headers")
    add_worker_options(parser, "episodes")
    # As it was called before.
    parser.add_argument("--threads", type=int, dest="workers", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="X", help="of training: a file, or a name such as driving/waypoints")
    add_links_option(parser)
    args, fields = parser.parse_known_args(argv)
    if fields and args.config is None:
        parser.error(f"unrecognized arguments: {' '.join(fields)}; fields of a config need --config")
    if args.config is not None and len(args.paths) > 1:
        parser.error(f"--config is of one training, whose data.path is one of {len(args.paths)} PATHs; name one")
    progress = None if args.json else functools.partial(say, error=True)
    try:
        config = None
        if args.config is not None:
            config = load_for_data(
                DrivingConfig,
                args.config,
                args.paths[0],
                fields,
                allow_links_to=args.allow_links_to,
                program="python -m driving.validate PATH --config FILE",
            )
        report = validate(
            args.paths,
            images=not args.no_images,
            hands=Hands(workers=args.workers, fleet=args.fleet),
            say=progress,
            allow_links_to=args.allow_links_to,
        )
        code = DataError.exit_code if config is None else _add_verdict(config, report)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=1)) if args.json else _print(report)
    return code if report["refused"] else 0


if __name__ == "__main__":
    command.run(main)
