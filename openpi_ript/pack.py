"""Decodes a LeRobot dataset once into shards that training reads at random, at the training size.

    python -m openpi_ript.pack DATASET OUT [--encoding raw] [--image-size 224 224] [--allow-links-to DIR]

Every numeric column and every camera is kept; `data.path` may then name the pack instead of the dataset.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.cli.command import Parser, add_links_option
from chunkwise.data.lerobot.meta import Feature, LeRobotMeta, read_meta
from chunkwise.data.lerobot.tables import load_table
from chunkwise.data.lerobot.video import LeRobotPictures
from chunkwise.data.pack import PackSettings, write_pack
from chunkwise.data.problems import list_problems
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
) -> int:
    """Packs a dataset; returns the number of frames.

    Args:
      dataset: LeRobot dataset, v2.1 or v3.0.
      out: Folder to make.
      cameras: Camera keys; empty takes all.
      settings: Picture size and encoding.
      on_bad: "refuse" or "skip", as data.on_bad.
      threads: Shards written at a time.
      quiet: Print no progress.
      allow_links_to: Folders outside of the dataset that links in it may lead to.

    Raises:
      DataError: If the dataset is bad, or `out` exists.
    """
    meta = read_meta(dataset, bounds=Bounds(dataset, allow_links_to))
    keys = tuple(cameras) or meta.cameras
    checker = LeRobotPictures(meta, keys)
    table, skipped = load_table(meta, numeric_columns(meta), on_bad=on_bad, check=checker.check)
    done, begin = 0, time.monotonic()

    def progress(frames: int) -> None:
        nonlocal done
        done += frames
        rate = done / max(time.monotonic() - begin, 1e-9)
        if not quiet:
            left = (table.frames - done) / rate
            print(
                f"\r{done} of {table.frames} frames, {rate:.0f} a second, {left:.0f} s left ", end="", file=sys.stderr
            )

    write_pack(out, table, lambda: LeRobotPictures(meta, keys), keys, settings, threads=threads, progress=progress)
    if not quiet:
        print(file=sys.stderr)
        for line in list_problems(skipped):
            print(f"skipped {line}")
    return table.frames


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 65 if the dataset is bad, 74 if the pack cannot be written."""
    parser = Parser(prog="python -m openpi_ript.pack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", type=Path, help="LeRobot dataset, v2.1 or v3.0")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--cameras", nargs="+", default=[], help="camera keys; all by default")
    parser.add_argument("--image-size", nargs=2, type=int, default=(224, 224), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--encoding", choices=("jpeg", "raw"), default="jpeg", help="raw is exact, and 6 times larger")
    parser.add_argument("--quality", type=int, default=95, help="of JPEG, 1 to 100")
    parser.add_argument("--on-bad", choices=("refuse", "skip"), default="refuse", help="bad episodes; at most 1%% skip")
    parser.add_argument("--threads", type=int, default=2, help="shards written at a time")
    add_links_option(parser)
    args = parser.parse_args(argv)
    height, width = args.image_size
    if args.threads < 1:
        parser.error(f"argument --threads: expected at least 1, found {args.threads}")
    try:
        settings = PackSettings(image_size=(height, width), encoding=args.encoding, quality=args.quality)
    except ValueError as error:
        parser.error(str(error))
    try:
        frames = pack(
            args.dataset,
            args.out,
            cameras=args.cameras,
            settings=settings,
            on_bad=args.on_bad,
            threads=args.threads,
            quiet=False,
            allow_links_to=args.allow_links_to,
        )
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"packed {frames} frames into {args.out}, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    command.run(main)
