"""Times converting Waymo records with 1, 2 and 4 processes, and against a commit before that could.

    python benchmarks/converting.py [--files 10] [--frames 20] [--size 1280 1920] [--workers 1 2 4] [--rounds 3]
    git worktree add ../old 9ac8221 && python benchmarks/converting.py --old ../old

Perception v1 files are made in a temporary folder: five cameras a frame, JPEG of random texture at the given size, and
lasers of 1 MB that a reader steps over. Each conversion is a command of its own, its start included, in turns. All must
give the same bytes; those of the old commit are not compared. Ratios are of the median times. What is made stays until
the end, which takes rounds times cases times half of the source: for minutes after a removal ext4 looks for inodes
that it has not freed lately, 0.5 ms for each new file.
"""

import argparse
import hashlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import numpy as np
import simplejpeg

from driving.converters.tfrecord import masked_checksum
from tests.driving.converters import waymo_files

ROOT = Path(__file__).parents[1]


def write(folder: Path, files: int, frames: int, size: tuple[int, int]) -> int:
    """Writes the source; returns its bytes."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (size[0] // 8, size[1] // 8, 3), np.uint8)
    image = np.ascontiguousarray(np.kron(coarse, np.ones((8, 8, 1), np.uint8)))
    jpeg = simplejpeg.encode_jpeg(image, quality=90, colorspace="RGB")
    waymo_files.jpeg, waymo_files.SIZE = lambda *_: jpeg, image.shape[:2]  # pyright: ignore[reportAttributeAccessIssue]
    folder.mkdir()
    for number in range(files):
        with open(folder / f"segment-{number:03d}.tfrecord", "wb") as file:
            for frame in range(frames):
                payload = waymo_files.v1_frame(frame, segment=f"{number:03d}_000_20_000")
                payload += waymo_files.field(5, bytes(1_000_000))
                for data in (struct.pack("<Q", len(payload)), payload):
                    file.write(data + struct.pack("<I", masked_checksum(data)))
    return sum(path.stat().st_size for path in folder.iterdir())


def digest(folder: Path) -> str:
    """Of all files below a folder, names and contents."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def convert(tree: Path, source: Path, out: Path, *options: str) -> tuple[float, float, str]:
    """Seconds of one conversion by the code of a tree, its processor's seconds, and the digest of what it wrote."""
    words = [sys.executable, "-m", "driving.convert", str(source), str(out), "--format", "waymo_v1", *options]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, digest(out)


def main() -> None:
    """Prints a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 1920), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    found = parser.parse_args()
    cases: dict[str, tuple[Path, tuple[str, ...]]] = {
        f"{n} process(es)": (ROOT, ("--workers", str(n))) for n in found.workers
    }
    if found.old is not None:
        cases["old"] = found.old.resolve(), ()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    busy: dict[str, list[float]] = {name: [] for name in cases}
    digests = set[str]()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "training"
        size = write(source, found.files, found.frames, tuple(found.size))
        print(f"{found.files * found.frames} records in {found.files} files, {size / 1e6:.0f} MB")
        for number in range(found.rounds):
            for name, (tree, options) in cases.items():
                out = Path(folder) / f"{name} {number}"
                took, used, made = convert(tree, source, out, *options)
                seconds[name].append(took)
                busy[name].append(used)
                digests |= {made} if tree == ROOT else set()
    if len(digests) != 1:
        raise SystemExit("the bytes depend on the number of processes")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    first = medians["old"] if found.old is not None else next(iter(medians.values()))
    for name, median in medians.items():
        used = statistics.median(busy[name])
        print(
            f"{name:<14} {median:6.2f} s, {size / 1e6 / median:5.0f} MB/s: {first / median:.2f} times as fast", end=""
        )
        print(f"; {used:.2f} s of processors")


if __name__ == "__main__":
    main()
