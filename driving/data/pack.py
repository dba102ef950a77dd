"""Decodes a dataset of episodes once into shards that training reads at random, at the training size.

    chunkwise pack driving SOURCE OUT [--image-size 64 96] [--encoding raw] [--workers 4] [--check]

`data.path` may then name OUT instead of SOURCE. Every camera, state and waypoint is kept, and so is its split. The same
episodes give the same bytes, by any number of --workers or on a --fleet; given again after a kill, the command goes on.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.cli import command
from chunkwise.data.convert import Jobs
from chunkwise.data.images import decode_into
from chunkwise.data.packing import Packing, make_pack, pack_parser, require_place, settings_of, size_of, whole_episodes
from chunkwise.data.problems import Problem
from chunkwise.data.shards import MANIFEST, PackSettings, require_whole, settings_in
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.identity import open_files
from chunkwise.files.links import Bounds
from chunkwise.printable import printable, say
from driving.config import DataConfig
from driving.data.episodes import episode_names
from driving.data.images import FILTER, FileImages, by_camera, read_bytes
from driving.data.index import INDEX_FILE, PRESENT, Index, concatenate, differing
from driving.data.index import pack as pack_index
from driving.data.scan import scan
from driving.data.shards import FORMAT, hash_of_drives, open_pack, read_manifest
from driving.data.split import SPLIT_FILE, Manifest, check_manifest, load_manifest, save_manifest
from driving.data.validation import check_absent, without_bad

CHECKED_FRAMES = 2000
"""Frames that --check compares, spread evenly; both ways of reading are timed on them."""


def open_episodes(config: DataConfig, hands: Hands | None = None) -> Index:
    """The index of the episodes of `config.path`, by any number of processes; its on_bad says what is refused.

    Raises:
      DataError: If the dataset is bad, or names no image.
    """
    notes: list[str] = []
    index, problems = scan(Path(config.path), open_files(config.path, config), hands)
    index = without_bad(index, problems, config, notes)
    for note in notes:
        say(note)
    if not index.cameras:
        raise DataError(f"{config.path}: expected episodes with cameras, found none to pack")
    return index


def pack(
    config: DataConfig,
    index: Index,
    out: Path,
    settings: PackSettings,
    *,
    jobs: Jobs | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Packs a dataset; the folder appears under its name only when it is complete.

    Args:
      config: Its path, its cameras, and whether absent files are refused.
      index: Of the dataset.
      out: Folder to make.
      settings: Size and encoding of the images. A JPEG of that size already is taken over as it is.
      jobs: By how many processes, where, and what becomes of episodes with a bad image.
      report: Takes lines of text for a person.

    Raises:
      DataError: If files are absent, an image cannot be read, or `out` exists.
      BusyError, StorageError: As `new_folder`.
    """
    notes: list[str] = []
    check_absent(index, config, notes)
    split = _split(config, index, notes)
    for note in notes:
        report(note)
    path, base = Path(config.path), _folder(config)
    left_out = len(episode_names(path, Bounds(path, config.allow_links_to))) - len(index.ids)
    make_pack(
        _Opener(base, index, settings, split, whole_episodes(index.lengths.tolist()), left_out),
        out,
        about={"format": FORMAT, "cameras": list(index.cameras)},
        settings=settings,
        source=path,
        jobs=jobs or Jobs(on_bad=config.on_bad),
        report=report,
    )


def _folder(config: DataConfig) -> Path:
    """Where the names of files begin: the dataset's folder, or the one of the single episode that it is."""
    return Bounds(Path(config.path), config.allow_links_to).root


@dataclasses.dataclass(frozen=True)
class _Opener:
    """Opens the dataset in any process."""

    base: Path
    index: Index
    settings: PackSettings
    split: Manifest | None
    shards: Sequence[Sequence[int]]
    left_out: int

    def __call__(self) -> "_DrivesPacking":
        return _DrivesPacking(self)


class _DrivesPacking(Packing):
    tables = INDEX_FILE

    def __init__(self, source: _Opener) -> None:
        super().__init__(source.shards, left_out=source.left_out)
        self._source, self._index = source, source.index
        self._files = FileImages(source.base, source.index, source.index.cameras)

    def name(self, position: int) -> str:
        return self._index.ids[position]

    def sources(self, position: int) -> Iterable[Path]:
        return [self._source.base / name for name in (self._index.files[position], *self._index.paths(position))]

    def images(self, position: int) -> Iterable[Sequence[bytes]]:
        rows = self._index.rows(position)
        for row in range(rows.start, rows.stop):
            yield self.stored(row)

    def stored(self, row: int) -> list[bytes]:
        """What is stored of a frame, by camera of the index; raises DataError for an image that cannot be read."""
        there = (self._index.image_status[row] == PRESENT).tolist()
        return [self._packed(row, camera) if present else b"" for camera, present in enumerate(there)]

    def problem(self, position: int, error: DataError) -> Problem:
        return Problem(file=self._index.files[position], expected="images that can be read", found=str(error))

    def write_tables(self, folder: Path, left_out: Collection[int]) -> Mapping[str, Any]:
        index, split = self._index, self._source.split
        kept = [i for i in range(len(index.ids)) if i not in left_out]
        if not kept:
            return {}  # so many faults are refused behind this, all of them named
        if left_out:
            index = concatenate([index.one(i) for i in kept])
        (folder / INDEX_FILE).write_bytes(pack_index(index))
        if split is not None:
            split = split.of(index) if left_out else split
            check_manifest(split, index, source=str(self._source.base / SPLIT_FILE), may_lack=False)
            save_manifest(split, folder / SPLIT_FILE)
        return {"drives": hash_of_drives(index)}

    def _packed(self, row: int, camera: int) -> bytes:
        file, settings = self._files.file(row, camera), self._source.settings
        data = read_bytes(file)
        image = np.empty((*settings.image_size, 3), np.uint8)
        decode_into(data, image, source=file, filter=FILTER)  # a damaged file is found here, not while training
        same = tuple(self._index.image_size[row, camera].tolist()) == settings.image_size
        taken_over = same and settings.encoding == "jpeg" and data[:3] == b"\xff\xd8\xff"
        return data if taken_over else settings.encode(image)


def _split(config: DataConfig, index: Index, notes: list[str]) -> Manifest | None:
    """The dataset's split, without the episodes that were skipped; None if it has none.

    Raises:
      DataError: It is damaged, does not fit the dataset, or leaks, as where it is opened for training.
    """
    file = Path(config.path) / SPLIT_FILE
    if not file.is_file():
        return None
    split = load_manifest(file)
    if config.on_bad != "skip":
        check_manifest(split, index, source=str(file), may_lack=False)
        return split
    packed = split.of(index)
    # A drive that has changed since may be one whose image is bad, and which is left out: write_tables looks again.
    drives = dict(zip(index.ids, index.drive_hashes, strict=True))
    now = {side: {name: drives[name] for name in members} for side, members in packed.episodes.items()}
    check_manifest(Manifest(episodes=now), index, source=str(file), may_lack=True)
    lacking = sum(map(len, split.episodes.values())) - sum(map(len, packed.episodes.values()))
    if lacking:
        notes.append(f"{SPLIT_FILE} of the pack leaves out {lacking} episode(s) that were skipped")
    return packed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A pack beside the dataset that it was made of."""

    frames: int
    images: int
    mean: float
    """Difference of the images' values, of 255."""
    largest: int
    raw_per_s: float
    """Images a second from files, on one thread."""
    packed_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.frames} frames compared, {self.images} images: mean difference {self.mean:.3f} of 255, largest "
            f"{self.largest}; on one thread {self.raw_per_s:.0f} images a second from files, "
            f"{self.packed_per_s:.0f} packed"
        )


def compare(config: DataConfig, index: Index, out: Path) -> Comparison:
    """Reads frames from the dataset and from the pack, and compares them.

    Raises:
      DataError: If a file is not the one that was packed, the pack's index differs, or an image is not stored as the
        dataset's is with the pack's own settings, bit for bit.
    """
    manifest = read_manifest(out)
    require_whole(out, manifest)
    packed_index, packed = open_pack(out, config)
    index = _without_skipped(index, packed_index, manifest)
    if other := differing(index, packed_index):
        raise DataError(f"{out}: expected the same {other[0]} as in {config.path}, found others ({', '.join(other)})")
    sides = [load_manifest(folder / SPLIT_FILE) for folder in (_folder(config), out) if (folder / SPLIT_FILE).is_file()]
    if len(sides) == 2 and len({json.dumps(side.of(packed_index).episodes, sort_keys=True) for side in sides}) == 2:
        raise DataError(f"{out / SPLIT_FILE}: expected the parts of {_folder(config) / SPLIT_FILE}, found others")
    anew = _Opener(_folder(config), index, settings_in(out, manifest), None, [], 0)()
    files = FileImages(_folder(config), index, config.cameras)
    rows = np.unique(np.linspace(0, index.frames - 1, min(index.frames, CHECKED_FRAMES)).astype(np.int64))
    wanted = by_camera(index, index.image_status[rows] == PRESENT, config.cameras, False)
    seconds = {"raw": 0.0, "packed": 0.0}
    worst, total = 0, 0.0
    for n, row in enumerate(rows.tolist()):
        shown = {}
        for name, images in (("raw", files), ("packed", packed)):
            shown[name] = np.zeros((len(config.cameras), *config.image_size, 3), np.uint8)
            begin = time.perf_counter()
            images.read(row, wanted[n], shown[name])
            seconds[name] += time.perf_counter() - begin
        _require_stored(packed.stored(row), dict(zip(index.cameras, anew.stored(row), strict=True)), config, out, row)
        off = np.abs(shown["raw"].astype(np.int16) - shown["packed"])
        worst, total = max(worst, int(off.max())), total + float(off.mean(axis=(1, 2, 3)).sum())
    count = int(wanted.sum())
    return Comparison(
        frames=len(rows),
        images=count,
        mean=total / max(count, 1),
        largest=worst,
        raw_per_s=count / seconds["raw"],
        packed_per_s=count / seconds["packed"],
    )


def _require_stored(
    found: Mapping[str, memoryview], expected: Mapping[str, bytes], config: DataConfig, out: Path, row: int
) -> None:
    """Raises DataError where an image of a pack is not what packing the dataset's anew gives."""
    for camera, image in expected.items():
        if found.get(camera, b"") != image:
            raise DataError(
                f"{out}: record {row}, camera {camera}: expected the image of {config.path} as {MANIFEST} says, found "
                "another; pack again (also where other versions of simplejpeg or of the resizing made the pack)"
            )


def _require_asked_for(settings: PackSettings, out: Path) -> None:
    """Raises ConfigError where a pack that is there was made with other settings than those of a command line."""
    made = settings_in(out, read_manifest(out))
    fields = ["image_size", "encoding", *(["quality"] if made.encoding == "jpeg" else [])]  # raw images have none
    other = [name for name in fields if getattr(made, name) != getattr(settings, name)]
    if other:
        expected, found = (", ".join(f"{name} {getattr(one, name)}" for name in other) for one in (settings, made))
        raise ConfigError(
            f"{out}: expected a pack with {expected} as the command line, or its default, says, found {found}; give "
            "these, or remove the pack, or choose another OUT"
        )


def _without_skipped(index: Index, packed: Index, manifest: Mapping[str, Any]) -> Index:
    """The index without the drives that the pack lacks because of what its manifest says of them."""
    skipped = manifest.get("skipped")
    problems = [str(problem) for problem in skipped.get("problems", [])] if isinstance(skipped, dict) else []
    there = set(packed.ids)

    def has_problem(episode: int) -> bool:
        return any(problem.startswith(printable(f"{index.files[episode]}: ")) for problem in problems)

    kept = [i for i, name in enumerate(index.ids) if name in there or not has_problem(i)]
    return index if len(kept) in (0, len(index.ids)) else concatenate([index.one(i) for i in kept])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 64 for a wrong setting, 65 if dataset or pack are bad."""
    about = (__doc__ or "").splitlines()[0]
    parser = pack_parser("driving.data.pack", about, source="folder of episodes", image_size=(64, 96))
    missing = "images that are named and absent: an error that lists them, or left out; default: refuse"
    names = ("--missing-files", "--data.missing-files")  # messages name the field of training
    parser.add_argument(*names, dest="missing_files", choices=("refuse", "mask"), default="refuse", help=missing)
    parser.add_argument("--check", action="store_true", help="compare OUT with SOURCE, and time both")
    args = parser.parse_args(argv)
    settings, jobs = settings_of(parser, args)
    try:
        require_place(args.source, args.out)
        config = DataConfig(
            path=str(args.source),
            image_size=settings.image_size,
            on_bad=jobs.on_bad,
            missing_files=args.missing_files,
            allow_links_to=tuple(args.allow_links_to),
        )
        there = args.check and args.out.exists()
        if there:
            _require_asked_for(settings, args.out)
        index = open_episodes(config, jobs)
        config = dataclasses.replace(config, cameras=index.cameras)
        if not there:
            pack(config, index, args.out, settings, jobs=jobs, report=say)
            say(size_of(args.out))
        if args.check:
            print(compare(config, index, args.out))
    except (RunError, ValueError) as error:  # ValueError: a size that the config refuses
        print(error, file=sys.stderr)
        return error.exit_code if isinstance(error, RunError) else ConfigError.exit_code
    return 0


if __name__ == "__main__":
    command.run(main)
