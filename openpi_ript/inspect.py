"""What is in a LeRobot dataset or a pack, what is wrong with it, and its statistics.

    python -m openpi_ript.inspect DIR [--json] [--no-images] [--relative-dims 0 1 2] [--write-stats FILE]
                                      [--adapter aloha] [--default-prompt "fold the towel"]
                                      [--allow-links-to DIR] [--workers N] [--fleet ADDRESS]
    python -m openpi_ript.inspect DIR --config FILE_OR_NAME [--field value ...] [--write-stats FILE]

Exit code 65 if training would refuse it; a fault of a column that training does not read is a note. Every episode is
walked and every image decoded, unless told otherwise. With --config it looks at what training with that config and
these fields would read of DIR, says what that training would say, and exits with 65 exactly where it would not begin,
or would meet an image that does not decode.
"""

import dataclasses
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.config.load import load_for_data
from chunkwise.data import norm_stats
from chunkwise.data.convert import add_worker_options
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import EpisodeTable, iter_tables
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.data.pack import TABLES, ImageReader, PackedImages, read_manifest, read_pack_table
from chunkwise.data.problems import Problem
from chunkwise.data.shards import add_pack, is_pack, require_whole
from chunkwise.data.verdict import TAKEN
from chunkwise.data.walking import crash, walk
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from chunkwise.files.place import prepare_place, told_place
from chunkwise.printable import say
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data import norm
from openpi_ript.data.dataset import TrainingData, columns_of, open_data
from openpi_ript.data.doubts import doubts
from openpi_ript.data.pack import numeric_columns

Report = dict[str, Any]
_FIELDS = {
    "state_key": "data.state_key",
    "state_parts": "data.state_parts",
    "action_key": "data.action_key",
    "relative_dims": "data.robot.relative_dims",
    "adapter": "data.robot.adapter",
    "default_prompt": "data.default_prompt",
    "horizon": "data.horizon",
    "tolerance_s": "data.tolerance_s",
    "wrong_totals": "data.wrong_totals",
}
"""Options, and the field of a config that each stands for."""
_Seen = tuple[Report, list[Problem], list[str]]
"""Of an episode: its entry in the report, what is wrong with it, and notes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What to look at, and as what."""

    path: Path
    state_key: str = "observation.state"
    state_parts: tuple[str, ...] = ()
    """As data.state_parts."""
    action_key: str = "action"
    relative_dims: tuple[int, ...] = ()
    horizon: int = 50
    adapter: str = "none"
    """As data.robot.adapter, of whose numbers the statistics are; `module:factory` is imported: the user named it."""
    default_prompt: str | None = None
    """As data.default_prompt."""
    images: bool = True
    """Decode every image, and hash all of a pack; otherwise only files, times and headers are checked."""
    allow_links_to: tuple[str, ...] = ()
    """Folders outside of the dataset that links in it may lead to."""
    tolerance_s: float = TIME_TOLERANCE_S
    """As data.tolerance_s."""
    wrong_totals: Literal["refuse", "note"] = "refuse"
    """As data.wrong_totals."""
    training: OpenpiRiptConfig | None = None
    """A training that would read these data, whose `data` says all of the above; None: any."""

    @classmethod
    def of_training(cls, config: OpenpiRiptConfig, *, images: bool) -> Self:
        """Returns the request to look at what a training would read."""
        data = config.data
        return cls(
            path=Path(data.path),
            images=images,
            allow_links_to=data.allow_links_to,
            tolerance_s=data.tolerance_s,
            wrong_totals=data.wrong_totals,
            training=config,
        )


def inspect(request: Inspection, hands: Hands | None = None) -> Report:
    """Walks a dataset or a pack and reports; raises nothing for bad data.

    Args:
      request: What to look at.
      hands: By how many processes, and where; but for "stats_seconds" the report does not depend on it.

    Returns:
      A dict for JSON: "path", "kind", "fps", "cameras", "tasks", "features", "frames", "episodes" (a list, one entry
      each: path, bytes, length, dims, hash, verdict, problems), "problems", "notes", "stats", "stats_seconds" (and
      "stats_seconds_per_million_frames"), "source", "refused", and of a training "refusal", its message or None,
      and "exit_code".
    """
    report: Report = {"path": str(request.path), "episodes": [], "problems": [], "notes": [], "stats": {}}
    try:
        hands = hands or Hands()
        cameras = (_walk_pack if is_pack(request.path) else _walk_lerobot)(request, report, hands)
        if not report["problems"] and request.training is None:
            _add_statistics(request, cameras, report, hands)
    except (DataError, ConfigError, ValueError) as error:  # ValueError: a config that its own checks refuse
        report["problems"].append(str(error))
    report["refused"] = bool(report["problems"])
    if request.training is not None:
        _add_verdict(request.training, report)
    return report


def _add_verdict(config: OpenpiRiptConfig, report: Report) -> None:
    """Asks the training itself, which may skip what is bad, and adds the statistics that it would compute."""
    from openpi_ript.train import of_training  # imports jax

    verdict = of_training(config)
    report["notes"] = list(dict.fromkeys([*report["notes"], *verdict.notes]))
    refusal, dark = verdict.refusal, sum(entry.get("decodes") is False for entry in report["episodes"])
    if refusal is None and dark:
        refusal = (
            f"{config.data.path}: training would end at the first image that does not decode, of {dark} episode(s) "
            "among the problems; record them again, or take them out of the dataset"
        )
    report["problems"] = [problem for problem in report["problems"] if problem != refusal]  # said once
    report |= {"refusal": refusal, "refused": refusal is not None, "exit_code": verdict.exit_code}
    if refusal is None:
        own = {"norm_stats": None, "state_norm": "mean_std", "action_norm": "mean_std"}  # else none may be computed
        data = open_data(dataclasses.replace(config.data, **own), allow_code=True)
        report["stats"] = {name: norm_stats.as_lists(s) for name, s in data.stats.items()}
        report["source"] = dict(data.stats_source)


def _walk_lerobot(request: Inspection, report: Report, hands: Hands) -> dict[str, str]:
    meta = read_meta(
        request.path,
        bounds=Bounds(request.path, request.allow_links_to),
        tolerance_s=request.tolerance_s,
        wrong_totals=request.wrong_totals,
    )
    report["notes"] += meta.notes
    features = {key: {"dtype": f.dtype, "shape": list(f.shape)} for key, f in meta.features.items()}
    report |= {"kind": f"LeRobot {meta.version}", "robot": meta.robot_type, "fps": meta.fps, "features": features}
    report |= {"cameras": list(meta.cameras), "tasks": {str(index): task for index, task in meta.tasks.items()}}
    report["frames"] = sum(episode.length for episode in meta.episodes)
    if request.training is None:
        outcomes, cameras = (DataConfig.reward_key, DataConfig.success_key), meta.cameras
        wanted = (*(request.state_parts or (request.state_key,)), request.action_key, *outcomes)
    else:
        wanted, cameras = columns_of(request.training.data, meta), tuple(request.training.data.cameras.values())
    read = tuple(key for key in wanted if key in meta.features)
    shown = tuple(key for key in cameras if key in meta.cameras)
    _add(walk(_LeRobotEpisodes(meta=meta, read=read, shown=shown, images=request.images), hands), report)
    if meta.depth_maps:
        report["notes"].append(f"depth maps, which are no cameras of training by default: {list(meta.depth_maps)}")
    return {f"camera_{n}": key for n, key in enumerate(key for key in meta.cameras if key not in meta.depth_maps)}


def _walk_pack(request: Inspection, report: Report, hands: Hands) -> dict[str, str]:
    table = read_pack_table(request.path)
    manifest = read_manifest(request.path)
    if request.images:
        require_whole(request.path, manifest, request.allow_links_to)
    features = {key: {"dtype": str(c.dtype), "shape": list(c.shape[1:])} for key, c in table.columns.items()}
    report |= {"kind": "pack", "fps": table.fps, "features": features, "frames": table.frames}
    report |= {"cameras": manifest["cameras"], "tasks": {str(index): task for index, task in table.tasks.items()}}
    shown = manifest["cameras"]
    if request.training is not None:  # one that is missing is its own to refuse
        shown = [key for key in request.training.data.cameras.values() if key in shown]
    packed = _Packed(request=request, shown=shown, episodes=table.episodes.tolist(), lengths=table.lengths.tolist())
    _add(walk(packed, hands), report)
    return {f"camera_{n}": key for n, key in enumerate(manifest["cameras"])}


def _add(walked: Iterable[_Seen], report: Report) -> None:
    """Takes in what was seen of each episode, in their order."""
    for entry, problems, notes in walked:
        report["notes"] += notes
        report["episodes"].append(entry)
        report["problems"] += [str(problem) for problem in problems]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LeRobotEpisodes:
    """The episodes of a LeRobot dataset."""

    meta: LeRobotMeta
    read: Sequence[str]
    """Columns that training reads."""
    shown: Sequence[str]
    """Cameras that are looked at."""
    images: bool

    def __len__(self) -> int:
        return len(self.meta.episodes)

    def open(self) -> Callable[[int], _Seen]:
        meta, every, read = self.meta, numeric_columns(self.meta), tuple(self.read)
        reader = LeRobotImages(meta, tuple(self.shown), upright=False)

        @functools.lru_cache(2)
        def tables(file: str, keys: tuple[str, ...]) -> dict[int, EpisodeTable]:
            own = dataclasses.replace(meta, episodes=tuple(one for one in meta.episodes if one.file == file))
            return {table.meta.index: table for table in iter_tables(own, keys)}

        def look_at(number: int) -> _Seen:
            of = meta.episodes[number]
            episode, notes = tables(of.file, every)[of.index], list[str]()
            if found := episode.problems:
                episode = tables(of.file, read)[of.index]
                unread = [problem for problem in found if problem not in episode.problems]
                notes += [f"{problem}; training does not read it" for problem in unread]
            problems = [*episode.problems, *(reader.check(of.index, last=True) if episode.columns else ())]
            dark = _decode_all(reader, of.file, of.index, of.length, notes) if self.images and not problems else []
            return _episode_entry(meta, episode, problems, dark), [*problems, *dark], notes

        return look_at

    def crashed(self, number: int, found: str) -> _Seen:
        of = self.meta.episodes[number]
        problems = [crash(of.file, found, episode=of.index)]
        return _episode_entry(self.meta, EpisodeTable(meta=of, columns={}, problems=()), (), problems), problems, []


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Packed:
    """The episodes of a pack."""

    request: Inspection
    shown: Sequence[str]
    """Cameras that are looked at."""
    episodes: Sequence[int]
    lengths: Sequence[int]

    def __len__(self) -> int:
        return len(self.episodes)

    def open(self) -> Callable[[int], _Seen]:
        path = self.request.path
        files = Files(Bounds(path, self.request.allow_links_to))
        add_pack(files, TABLES)
        reader = PackedImages(path, read_pack_table(path), self.shown, files=files)

        def look_at(number: int) -> _Seen:
            notes = list[str]()
            index, length = self.episodes[number], self.lengths[number]
            problems = _decode_all(reader, "images", index, length, notes) if self.request.images else []
            return self._entry(number, problems), problems, notes

        return look_at

    def crashed(self, number: int, found: str) -> _Seen:
        problems = [crash("images", found, episode=self.episodes[number])]
        return self._entry(number, problems), problems, []

    def _entry(self, number: int, problems: Sequence[Problem]) -> Report:
        entry = {"index": self.episodes[number], "length": self.lengths[number]}
        return entry | {"verdict": "bad" if problems else "good", "decodes": not problems}


def _decode_all(reader: ImageReader, file: str, episode: int, length: int, notes: list[str]) -> list[Problem]:
    """Decodes every image of an episode up to the first that fails; notes cameras that never show anything."""
    brightest: dict[str, int] = {}
    for frame in range(length):
        try:
            images = reader.read(episode, frame)
        except DataError as error:
            found = str(error)
            return [Problem(file=file, episode=episode, row=frame, expected="whole images", found=found)]
        for camera, image in images.items():
            brightest[camera] = max(brightest.get(camera, 0), int(image.max()))
    notes += [
        f"episode {episode}, {camera}: no value above {value} in {length} images; floats in 0..1 cast to uint8?"
        for camera, value in brightest.items()
        if value <= 1
    ]
    return []


def _episode_entry(
    meta: LeRobotMeta, episode: EpisodeTable, problems: Sequence[Problem], dark: Sequence[Problem]
) -> dict[str, Any]:
    """What the report says of an episode, of which `dark` are images that do not decode."""
    path = meta.root / episode.meta.file
    digest = hashlib.sha256()
    for key in sorted(episode.columns):
        digest.update(np.ascontiguousarray(episode.columns[key]).data)
    return {
        "index": episode.meta.index,
        "path": episode.meta.file,
        "bytes": path.stat().st_size if path.is_file() else None,
        "length": episode.meta.length,
        "dims": {key: column.shape[1] for key, column in episode.columns.items() if column.ndim == 2},
        "hash": digest.hexdigest()[:16],
        "verdict": "bad" if problems or dark else "good",
        "decodes": not dark,
        "problems": [str(problem) for problem in (*problems, *dark)],
    }


def _add_statistics(request: Inspection, cameras: dict[str, str], report: Report, hands: Hands) -> None:
    """Opens the dataset as training would, with widths taken from it."""
    data = open_data(_config(request, cameras, report["features"]), allow_code=True)
    begin = time.perf_counter()
    stats = norm.dataset_stats(data.table, data.config, adapter=data.to_openpi.adapter, hands=hands)
    seconds = time.perf_counter() - begin
    for mode in ("mean_std", "quantile"):  # it does not know which one training is going to use
        config = dataclasses.replace(data.config, state_norm=mode, action_norm=mode)
        report["notes"] += doubts(data.table, config, stats, data.to_openpi.adapter).notes
    report["stats"] = {name: norm_stats.as_lists(s) for name, s in stats.items()}
    report |= {"stats_seconds": seconds, "stats_seconds_per_million_frames": seconds * 1e6 / data.table.frames}
    report |= {"source": dict(data.stats_source), "notes": [*report["notes"], *data.notes, *_rollout_notes(data)]}
    report["notes"] = list(dict.fromkeys(report["notes"]))  # those of meta/ were told when it was walked, too


def _rollout_notes(data: TrainingData) -> Iterator[str]:
    rollouts = data.to_ript.rollouts
    if data.config.success_key in data.table.columns:
        yield f"{int(rollouts.success.sum())} of {len(rollouts.success)} episodes succeeded"
    yield f"{len(set(rollouts.init_hash))} different initial states in {len(rollouts.init_hash)} episodes"


def _config(request: Inspection, cameras: dict[str, str], features: Report) -> DataConfig:
    """Settings that take the dataset as it is."""
    widths, parts = {}, request.state_parts or (request.state_key,)
    for key in (*parts, request.action_key):
        if key not in features:
            raise DataError(
                f"{request.path}: expected column {key!r}, found {sorted(features)}; name its own with --state-key, or "
                "--state-parts where the state is in several columns, and --action-key (in a config data.state_key, "
                "data.state_parts, data.action_key)"
            )
        widths[key] = features[key]["shape"][0] if features[key]["shape"] else 1
    state_dim = sum(widths[key] for key in parts)
    robot = RobotConfig(
        state_dim=state_dim,
        target_state_dim=state_dim,
        action_dim=widths[request.action_key],
        relative_dims=request.relative_dims,
        adapter=request.adapter,
    )
    return DataConfig(
        path=str(request.path),
        robot=robot,
        cameras=cameras,
        state_key=request.state_key,
        state_parts=request.state_parts,
        action_key=request.action_key,
        horizon=request.horizon,
        image_size=tuple(read_manifest(request.path)["image_size"]) if is_pack(request.path) else (224, 224),
        state_norm="none",
        default_prompt=request.default_prompt,
        allow_links_to=request.allow_links_to,
        tolerance_s=request.tolerance_s,
        wrong_totals=request.wrong_totals,
    )


def _print(report: Report) -> None:
    for key in ("path", "kind", "robot", "fps", "frames", "cameras", "tasks"):
        if key in report:
            say(f"{key:9} {report[key]}")
    bad = [episode for episode in report["episodes"] if episode["verdict"] == "bad"]
    lengths = [episode["length"] for episode in report["episodes"]]
    if lengths:
        say(f"episodes  {len(lengths)}, of {min(lengths)} to {max(lengths)} frames; {len(bad)} bad")
    for name, stats in report["stats"].items():
        for field in ("mean", "std", "q01", "q99"):
            say(f"{name:9} {field:5}" + "".join(f"{value:10.4f}" for value in stats[field]))
    if "stats_seconds" in report:
        per_million = report["stats_seconds_per_million_frames"]
        say(f"statistics took {report['stats_seconds']:.3f} s, {per_million:.1f} s a million frames")
    for note in report["notes"]:
        say(f"note: {note}")
    for problem in report["problems"]:
        first, *more = problem.split("\n")  # an error's own lines, in which no name has a line break left
        say(f"problem: {first}")
        for line in more:
            say(line)
    if "refusal" in report:
        for line in (report["refusal"] or TAKEN).splitlines():
            say(line)
        return
    say("training would refuse this dataset" if report["refused"] else "training would take this dataset")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, or 65 if training would refuse the dataset."""
    parser = Parser(prog="python -m openpi_ript.inspect", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, metavar="DIR", help="LeRobot dataset (v2.1, v3.0), or a pack")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--no-images", "--no-pictures", action="store_true", help="decode no image")
    parser.add_argument("--state-key", default="observation.state")
    parser.add_argument("--state-parts", nargs="+", default=[], metavar="COLUMN", help="as data.state_parts")
    parser.add_argument("--action-key", default="action")
    parser.add_argument("--relative-dims", nargs="*", type=int, default=[], help="as data.robot.relative_dims")
    parser.add_argument("--adapter", default="none", help="as data.robot.adapter; the statistics depend on it")
    parser.add_argument("--default-prompt", metavar="TEXT", help="as data.default_prompt, for tasks without words")
    parser.add_argument("--horizon", type=int, default=50, help="as data.horizon; the action statistics depend on it")
    parser.add_argument("--write-stats", type=Path, help="write openpi's norm_stats.json here")
    parser.add_argument("--tolerance-s", type=float, default=TIME_TOLERANCE_S, help="as data.tolerance_s")
    parser.add_argument("--wrong-totals", choices=("refuse", "note"), default="refuse", help="as data.wrong_totals")
    parser.add_argument("--config", metavar="X", help="of training: a file, or a name such as openpi_ript/cfg_ript")
    add_links_option(parser)
    add_worker_options(parser, "episodes, and batches of the statistics,")
    args, fields = parser.parse_known_args(argv)
    if fields and args.config is None:
        parser.error(f"unrecognized arguments: {' '.join(fields)}; fields of a config need --config")
    if args.config is not None:
        for name, field in _FIELDS.items():
            if getattr(args, name) != parser.get_default(name):
                flag = f"--{name.replace('_', '-')}"
                parser.error(f"{flag} has no effect beside --config; set --{field.replace('_', '-')} in its place")
    request = Inspection(
        path=args.path,
        state_key=args.state_key,
        state_parts=tuple(args.state_parts),
        action_key=args.action_key,
        relative_dims=tuple(args.relative_dims),
        horizon=args.horizon,
        adapter=args.adapter,
        default_prompt=args.default_prompt,
        images=not args.no_images,
        allow_links_to=tuple(args.allow_links_to),
        tolerance_s=args.tolerance_s,
        wrong_totals=args.wrong_totals,
    )
    if args.default_prompt is not None and not args.default_prompt.strip():
        parser.error(f"--default-prompt is {args.default_prompt!r}; expected words")
    robot = RobotConfig(state_dim=1)
    try:
        DataConfig(path=str(args.path), robot=robot, horizon=args.horizon, tolerance_s=args.tolerance_s)
    except ValueError as error:  # before the walk: these say nothing of the dataset
        parser.error(str(error))
    try:
        if args.write_stats:
            prepare_place(args.write_stats, "--write-stats")
        if args.config is not None:
            config = load_for_data(
                OpenpiRiptConfig,
                args.config,
                args.path,
                fields,
                allow_links_to=args.allow_links_to,
                program="python -m openpi_ript.inspect DIR --config FILE",
            )
            request = Inspection.of_training(config, images=not args.no_images)
        report = inspect(request, Hands(workers=args.workers, fleet=args.fleet))
        print(json.dumps(report, indent=2)) if args.json else _print(report)
        if report["refused"]:
            return report.get("exit_code") or DataError.exit_code
        if args.write_stats:
            stats = {
                name: norm.NormStats(**{k: np.array(v) for k, v in s.items()}) for name, s in report["stats"].items()
            }
            with told_place(args.write_stats, "--write-stats"):
                norm.save_stats(args.write_stats, stats, report["source"])
            print(f"statistics: {args.write_stats}", file=sys.stderr)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    command.run(main)
