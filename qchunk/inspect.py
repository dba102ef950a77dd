"""What is in a dataset, what is wrong with it, and its statistics.

    python -m qchunk.inspect DIR [--json] [--figure FILE.png] [--allow-links-to DIR]
    python -m qchunk.inspect DIR --config FILE_OR_NAME [--field value ...] [--write-stats FILE]

Reads every file again and decodes every image, whatever the index remembers. Exit code 0, or 65 if training with the
default data settings, or with any of the cameras, would refuse the dataset. With --config it says what training with
that config and these fields would say of DIR, and exits with 65 exactly where training would refuse it.
With --write-stats the statistics that training would compute are written, for data.norm_stats.
"""

import argparse
import dataclasses
import errno
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.cli.named_paths import require_reachable
from chunkwise.config.load import load_for_data
from chunkwise.data import norm_stats
from chunkwise.data.convert import add_worker_options
from chunkwise.data.episodes import manifest_hash
from chunkwise.data.problems import Problem, list_problems
from chunkwise.data.verdict import TAKEN
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError, RunError
from chunkwise.files.identity import Files
from chunkwise.files.place import prepare_place, told_place
from chunkwise.printable import say
from qchunk.config import DataConfig, QChunkConfig
from qchunk.data.dataset import norm_stats_of
from qchunk.data.index import dataset_files, format_of, make_source, read_index
from qchunk.data.readers.report import EpisodeReport
from qchunk.data.selection import Selection, select
from qchunk.data.verdict import of_training


def inspect(path: str) -> dict[str, Any]:
    """Walks a dataset and describes it, as numbers, strings and lists that go into JSON.

    Args:
      path: Folder of ALOHA-layout HDF5 episodes, an OGBench .npz file, or a LeRobot folder.

    Raises:
      DataError: There is no dataset at all.
    """
    return describe(read(path), path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walked:
    """A dataset as the walk found it."""

    data: DataConfig
    files: Files
    reports: tuple[EpisodeReport, ...]
    selection: Selection


def read(
    path: str,
    allow_links_to: Sequence[str] = (),
    config: QChunkConfig | None = None,
    hands: Hands | None = None,
) -> Walked:
    """Walks a dataset, as a config takes it or with the default data settings.

    Links in it may lead to some folders outside of it. What is found does not depend on how many processes read.

    Raises:
      DataError: There is no dataset at all.
    """
    data = DataConfig(path=path, format=format_of(Path(path)), verify="full", allow_links_to=tuple(allow_links_to))
    if config is not None:
        data = dataclasses.replace(config.data, verify="full")
    files = dataset_files(data)
    reports = read_index(data, files=files, reread=True, images=True, hands=hands)
    return Walked(
        data=data, files=files, reports=tuple(reports), selection=select(reports, data, all_images=config is None)
    )


def describe(walked: Walked, path: str) -> dict[str, Any]:
    """Numbers, strings and lists that go into JSON."""
    data, reports, selection = walked.data, walked.reports, walked.selection
    good = selection.reports
    files = {report.path: report.size for report in reports}
    return {
        "path": path,
        "format": data.format,
        "refused": bool(selection.problems) or not good,
        "files": len(files),
        "bytes": sum(files.values()),
        "episodes": len(good),
        "frames": sum(report.length for report in good),
        "bad_episodes": len(selection.bad),
        "left_out_episodes": selection.left_out,
        "labels": {"positive": int(selection.positives.sum()), "negative": int((~selection.positives).sum())},
        "environments": sorted({report.env for report in good if report.env is not None}),
        "dims": good[0].dims if good else {},
        "cameras": _cameras(good),
        **_statistics(good, selection),
        "fingerprint": manifest_hash(report.row() for report in good),
        "notes": list(selection.notes),
        "problems": [vars(problem) for problem in selection.problems],
    }


def _cameras(good: tuple[EpisodeReport, ...]) -> dict[str, Any]:
    """Every camera by the path of its dataset: encodings, sizes and dtypes found, bytes, and episodes that have it."""
    cameras = {}
    for name in sorted({name for report in good for name in report.images or {}}):
        found = [report.images[name] for report in good if report.images and name in report.images]
        cameras[name] = {
            "encodings": sorted({one.encoding for one in found}),
            "sizes": [list(size) for size in sorted({(one.height, one.width) for one in found})],
            "dtypes": sorted({one.dtype for one in found}),
            "bytes": sum(one.stored for one in found),
            "episodes": len(found),
        }
        if any(one.stored_at for one in found):
            cameras[name]["stored_at"] = sorted({one.stored_at or name for one in found})
    return cameras


def _statistics(good: tuple[EpisodeReport, ...], selection: Selection) -> dict[str, Any]:
    rewarded = [report for report in good if report.total_reward is not None]
    returns = [float(report.total_reward or 0.0) for report in rewarded]
    with_action = [report for report in good if report.action_low]
    if len({len(report.action_low) for report in with_action}) > 1:  # no problem where data.action names another array
        with_action = []
    return {
        "lengths": _spread([report.length for report in good]),
        "reward_in_file": len(rewarded),
        "return": _spread(returns),
        "return_positive": _spread(_labelled(rewarded, selection, returns, positive=True)),
        "return_negative": _spread(_labelled(rewarded, selection, returns, positive=False)),
        "action_low": np.min([report.action_low for report in with_action], 0).tolist() if with_action else [],
        "action_high": np.max([report.action_high for report in with_action], 0).tolist() if with_action else [],
    }


def _labelled(
    rewarded: list[EpisodeReport], selection: Selection, returns: list[float], *, positive: bool
) -> list[float]:
    label = {report.id: bool(p) for report, p in zip(selection.reports, selection.positives, strict=True)}
    return [value for report, value in zip(rewarded, returns, strict=True) if label[report.id] is positive]


def _spread(values: list[Any]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": float(min(values)), "mean": float(np.mean(values)), "max": float(max(values))}


def _lines(found: dict[str, Any]) -> list[str]:
    def spread(name: str, unit: str) -> str:
        value = found[name]
        return "none" if value is None else f"{value['min']:g} to {value['max']:g}, mean {value['mean']:.4g}{unit}"

    lines = [
        f"{found['path']} ({found['format']}): {found['files']} file(s), {found['bytes'] / 1e6:.1f} MB",
        f"  episodes   {found['episodes']}, {found['frames']} frames; {found['bad_episodes']} bad, "
        f"{found['left_out_episodes']} left out",
        f"  labels     {found['labels']['positive']} positive, {found['labels']['negative']} negative",
        f"  lengths    {spread('lengths', ' frames')}",
        f"  returns    {spread('return', '')} ({found['reward_in_file']} episode(s) with a reward in the file)",
        f"  arrays     {', '.join(f'{name} {width}' for name, width in found['dims'].items()) or 'none'}",
    ]
    for name, one in found["cameras"].items():
        sizes = ", ".join(f"{height} x {width}" for height, width in one["sizes"])
        kinds = f"{'/'.join(one['encodings'])} {'/'.join(one['dtypes'])}"
        where = f", stored at {' and '.join(one['stored_at'])}" if "stored_at" in one else ""
        lines.append(
            f"  camera     {name}: {kinds} {sizes}, {one['bytes'] / 1e6:.1f} MB, {one['episodes']} episode(s){where}"
        )
    if found["return"] and found["labels"]["negative"]:
        lines.append(f"             positive {spread('return_positive', '')}; negative {spread('return_negative', '')}")
    if found["environments"]:
        lines.append(f"  simulator  {', '.join(found['environments'])}")
    for i, (low, high) in enumerate(zip(found["action_low"], found["action_high"], strict=True)):
        lines.append(f"  action {i:<4}{low:>10.4g} to {high:.4g}")
    lines += [f"  note: {note}" for note in found["notes"]]
    lines.append(f"  fingerprint {found['fingerprint'][:16]}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Prints what `inspect` found; returns the exit code."""
    parser = Parser(
        prog="python -m qchunk.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", metavar="DIR", help="folder of HDF5 episodes, OGBench .npz file, or LeRobot folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--figure",
        "--picture",
        type=Path,
        metavar="FILE.png",
        help="draw images of some episodes and histograms of all into a file",
    )
    parser.add_argument("--config", metavar="X", help="of training: a file, or a name such as qchunk/own_data")
    parser.add_argument(
        "--write-stats", type=Path, metavar="FILE", help="write norm_stats.json for data.norm_stats here"
    )
    add_links_option(parser)
    add_worker_options(parser, "episodes")
    arguments, fields = parser.parse_known_args(argv)
    if fields and arguments.config is None:
        parser.error(f"unrecognized arguments: {' '.join(fields)}; fields of a config need --config")
    if arguments.figure is not None and arguments.figure.suffix != ".png":
        parser.error(f"--figure is {arguments.figure}; expected a file whose name ends in .png")
    try:
        for option, file in (("--figure", arguments.figure), ("--write-stats", arguments.write_stats)):
            if file is not None:
                prepare_place(file, option)
        hands = Hands(workers=arguments.workers, fleet=arguments.fleet)
        require_reachable({"DIR": arguments.dir}, allowed=(errno.ENOENT, errno.ENOTDIR))
        config, code = None, DataError.exit_code
        if arguments.config is not None:
            config = load_for_data(
                QChunkConfig,
                arguments.config,
                arguments.dir,
                fields,
                allow_links_to=arguments.allow_links_to,
                program="python -m qchunk.inspect DIR --config FILE",
            )
        walked = read(arguments.dir, arguments.allow_links_to, config, hands)
        found = describe(walked, arguments.dir)
        if config is not None:
            verdict = of_training(config)
            code = verdict.exit_code or DataError.exit_code
            found |= {"notes": list(verdict.notes), "refused": verdict.refusal is not None, "refusal": verdict.refusal}
        if arguments.figure is not None and not walked.selection.reports:
            print("figure: none, since no episode is good", file=sys.stderr)
        elif arguments.figure is not None:
            from qchunk.data.overview import draw  # matplotlib takes a second to import

            with told_place(arguments.figure, "--figure"):
                draw(walked.selection, walked.data, walked.files, arguments.figure)
            print(f"figure: {arguments.figure}", file=sys.stderr)
        if arguments.write_stats is not None and not found["refused"]:
            data = dataclasses.replace(walked.data, norm_stats=None)
            stats = norm_stats_of(data, make_source(walked.selection, data, walked.files), hands)
            with told_place(arguments.write_stats, "--write-stats"):
                norm_stats.save(arguments.write_stats, stats)
            print(f"statistics of {data.observation} and action: {arguments.write_stats}", file=sys.stderr)
    except RunError as error:
        if arguments.json:
            print(json.dumps({"path": arguments.dir, "refused": True, "error": str(error)}))
        else:
            print(error, file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for line in _lines(found):
            say(line)
        if config is not None:
            for line in (found["refusal"] or TAKEN).splitlines():
                say(line)
        elif found["problems"]:
            print(f"\n{len(found['problems'])} problem(s); training refuses this dataset:")
            for line in list_problems((Problem(**problem) for problem in found["problems"]), all_by="--json"):
                print(f"  {line}")
    return code if found["refused"] else 0


if __name__ == "__main__":
    command.run(main)
