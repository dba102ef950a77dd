"""Decodes a LeRobot dataset once into shards that training reads at random, at the training size.

    chunkwise pack openpi_ript SOURCE OUT [--encoding raw] [--image-size 224 224] [--allow-links-to DIR]

Every numeric column and every camera is kept; `data.path` may then name the pack instead of the dataset.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from chunkwise.cli import command
from chunkwise.data.lerobot.meta import TIME_TOLERANCE_S, Feature, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import load_table
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.data.pack import write_pack
from chunkwise.data.problems import list_problems
from chunkwise.data.shards import PackSettings, counting_frames, pack_parser, say_packed, settings_of
from chunkwise.errors import RunError
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
    on_bad: str = "refuse",
    threads: int = 2,
    quiet: bool = True,
    allow_links_to: Sequence[str] = (),
    tolerance_s: float = TIME_TOLERANCE_S,
    wrong_totals: Literal["refuse", "note"] = "refuse",
) -> int:
    """Packs a dataset; returns the number of frames.

    Args:
      dataset: LeRobot dataset, v2.1 or v3.0.
      out: Folder to make.
      cameras: Camera keys; empty takes all.
      settings: Image size and encoding.
      on_bad: "refuse" or "skip", as data.on_bad.
      threads: Shards written at a time.
      quiet: Print no progress.
      allow_links_to: Folders outside of the dataset that links in it may lead to.
      tolerance_s: As data.tolerance_s.
      wrong_totals: As data.wrong_totals.

    Raises:
      DataError: If the dataset is bad, or `out` exists.
    """
    bounds = Bounds(dataset, allow_links_to)
    meta = read_meta(dataset, bounds=bounds, tolerance_s=tolerance_s, wrong_totals=wrong_totals)
    keys = tuple(cameras) or meta.cameras
    checker = LeRobotImages(meta, keys)
    table, skipped = load_table(meta, numeric_columns(meta), on_bad=on_bad, check=checker.check)
    with counting_frames(table.frames, images=len(keys), quiet=quiet) as advance:
        write_pack(out, table, lambda: LeRobotImages(meta, keys), keys, settings, threads=threads, progress=advance)
    if not quiet:
        for line in (*meta.notes, *(f"skipped {line}" for line in list_problems(skipped))):
            print(line)
    return table.frames


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 65 if the dataset is bad, 74 if the pack cannot be written."""
    about, source = (__doc__ or "").splitlines()[0], "LeRobot dataset, v2.1 or v3.0"
    parser = pack_parser("openpi_ript.data.pack", about, source=source, image_size=(224, 224))
    parser.add_argument("--cameras", nargs="+", default=[], help="camera keys; all by default")
    parser.add_argument("--tolerance-s", type=float, default=TIME_TOLERANCE_S, help="as data.tolerance_s")
    parser.add_argument("--wrong-totals", choices=("refuse", "note"), default="refuse", help="as data.wrong_totals")
    args = parser.parse_args(argv)
    settings = settings_of(parser, args)
    try:
        frames = pack(
            args.source,
            args.out,
            cameras=args.cameras,
            settings=settings,
            on_bad=args.on_bad,
            threads=args.threads,
            quiet=False,
            allow_links_to=args.allow_links_to,
            tolerance_s=args.tolerance_s,
            wrong_totals=args.wrong_totals,
        )
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    say_packed(frames, args.out)
    return 0


if __name__ == "__main__":
    command.run(main)
