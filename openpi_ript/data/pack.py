"""Decodes a LeRobot dataset once into shards that training reads at random, at the training size.

    chunkwise pack openpi_ript SOURCE OUT [--encoding raw] [--image-size 224 224] [--workers 4] [--allow-links-to DIR]

Every numeric column and every camera but depth maps is kept; `data.path` may then name the pack instead of the dataset.
The same dataset gives the same bytes, by any number of --workers or on a --fleet; given again after a kill, the command
goes on.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from chunkwise.cli import command
from chunkwise.data.convert import Jobs
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, Feature, LeRobotMeta, read_meta
from chunkwise.data.lerobot.packing import write_pack
from chunkwise.data.lerobot.tables import load_table
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.data.pack import read_manifest
from chunkwise.data.packing import pack_parser, require_place, settings_of, size_of
from chunkwise.data.shards import PackSettings
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.links import Bounds


def numeric_columns(meta: LeRobotMeta) -> tuple[str, ...]:
    """Features that a table holds as numbers of one dimension at most."""

    def numeric(feature: Feature) -> bool:
        return feature.dtype not in ("image", "video", "string") and len(feature.shape) <= 1

    return tuple(key for key, feature in meta.features.items() if numeric(feature))


def pack(
    dataset: Path,
    out: Path,
    *,
    cameras: Sequence[str] = (),
    settings: PackSettings,
    jobs: Jobs | None = None,
    report: Callable[[str], None] = lambda line: None,
    allow_links_to: Sequence[str] = (),
    tolerance_s: float = TIME_TOLERANCE_S,
    wrong_totals: Literal["refuse", "note"] = "refuse",
    without: Collection[str] = (),
) -> int:
    """Packs a dataset; returns the number of frames.

    Args:
      dataset: LeRobot dataset, v2.1 or v3.0.
      out: Folder to make.
      cameras: Camera keys, each once; empty takes all but depth maps.
      settings: Image size and encoding.
      jobs: By how many processes, where, and what becomes of bad episodes.
      report: Takes lines of text for a person.
      allow_links_to: Folders outside of the dataset that links in it may lead to.
      tolerance_s: As data.tolerance_s.
      wrong_totals: As data.wrong_totals.
      without: Numeric columns that are left out, as one with NaN that no training reads.

    Raises:
      ConfigError: If a camera is named twice, or as `make_pack`.
      DataError: If the dataset is bad or has no such column, or `out` exists.
    """
    if len(set(cameras)) < len(cameras):
        raise ConfigError(f"--cameras {' '.join(cameras)}: expected each camera once, found one twice; leave it out")
    dataset, jobs = dataset.absolute(), jobs or Jobs()
    bounds = Bounds(dataset, allow_links_to)
    meta = read_meta(dataset, bounds=bounds, tolerance_s=tolerance_s, wrong_totals=wrong_totals)
    keys = tuple(cameras) or tuple(key for key in meta.cameras if key not in meta.depth_maps)
    columns = numeric_columns(meta)
    if unknown := sorted(set(without) - set(columns)):
        raise DataError(
            f"{dataset}: expected columns of numbers to leave out, found no {unknown} among {list(columns)}"
        )
    columns = tuple(key for key in columns if key not in without)
    table, skipped = load_table(meta, columns, on_bad=jobs.on_bad, check=LeRobotImages(meta, keys).check)
    for note in meta.notes:
        report(note)
    if left := sorted(set(meta.depth_maps) - set(keys)):
        report(f"left out, since meta/info.json calls them depth maps: {', '.join(left)}; --cameras takes them")
    write_pack(out, meta, table, keys, settings, skipped=skipped, jobs=jobs, report=report)
    return sum(shard["rows"] for shard in read_manifest(out)["shards"])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 65 if the dataset is bad, 74 if the pack cannot be written."""
    about, source = (__doc__ or "").splitlines()[0], "LeRobot dataset, v2.1 or v3.0"
    parser = pack_parser("openpi_ript.data.pack", about, source=source, image_size=(224, 224))
    parser.add_argument("--cameras", nargs="+", default=[], help="camera keys; all but depth maps by default")
    parser.add_argument("--without", nargs="+", default=[], metavar="COLUMN", help="columns of numbers to leave out")
    parser.add_argument("--tolerance-s", type=float, default=TIME_TOLERANCE_S, help="as data.tolerance_s")
    parser.add_argument("--wrong-totals", choices=("refuse", "note"), default="refuse", help="as data.wrong_totals")
    args = parser.parse_args(argv)
    settings, jobs = settings_of(parser, args)
    try:
        require_place(args.source, args.out)
        pack(
            args.source,
            args.out,
            cameras=args.cameras,
            settings=settings,
            jobs=jobs,
            report=print,
            allow_links_to=args.allow_links_to,
            tolerance_s=args.tolerance_s,
            wrong_totals=args.wrong_totals,
            without=args.without,
        )
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(size_of(args.out))
    return 0


if __name__ == "__main__":
    command.run(main)
