"""Trains on a disk that fills up, makes room, and goes on: nothing but the room may be missing.

    python -m tests.full_disk --cases 20
    python -m tests.full_disk --config configs/driving/debug.py

The disk is a file system in memory, mounted for this command alone (Linux, `unshare` of util-linux; no rights needed
where the system lets users have namespaces). An untouched run that keeps all its saves tells how much it writes. Each
case gives a fresh run a random part of that: it must end with exit code 74 and name the newest save. A second start
without room must end with 74 too, or go on from there; with room the run must end as the untouched one.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import kill

SAVES = ["--checkpoint.max-to-keep", "1000"]
SPACES = ["unshare", "--user", "--map-root-user", "--mount"]


def possible() -> bool:
    """Whether this user may mount a file system in a namespace of its own."""
    probe = ["sh", "-c", "mount -t tmpfs -o size=4k none /mnt"]
    return shutil.which("unshare") is not None and not subprocess.run([*SPACES, *probe], capture_output=True).returncode


def size(folder: Path) -> int:
    """Bytes that the files of a folder take, in whole pages of 4 KiB as in memory."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*"))


def newest(folder: Path) -> int | None:
    """Step of the newest save under a run's folder."""
    return max((int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()), default=None)


def expect_full(config: str, folder: Path, options: list[str]) -> bool:
    """Whether the run filled the disk; AssertionError if it did and did not say so, False if it came to its end."""
    output, _ = (process := kill.launch(config, folder, options)).communicate()
    if process.returncode == 0:
        return False
    # The last word must be the run's, whatever Orbax and its threads print.
    said = re.search(r"error: .*No space left on device.*Last durable step: (\d+|None)[^\n]*\n*\Z", output)
    step = None if said is None or said[1] == "None" else int(said[1])
    # A save that was under way may have become whole after the error that ended the run.
    named = said is not None and (step == newest(folder) or (step or 0) < (newest(folder) or 0))
    if process.returncode != 74 or not named or "Traceback" in output:
        raise AssertionError(
            f"expected exit code 74 and the newest save ({newest(folder)}), ended with {process.returncode}:\n"
            f"{output[-3000:]}"
        )
    return True


def run(config: str, cases: int, folder: Path, options: list[str], seed: int = 0) -> int:
    """Number of disks that were full; AssertionError at the first run that ends otherwise. Needs the right to mount."""
    rng = random.Random(seed)
    options = [*options, *SAVES]
    digest = kill.finish(config, folder / "untouched", options)
    whole = size(folder / "untouched")
    full = 0
    for case in range(cases):
        disk = folder / f"disk{case}"
        disk.mkdir()
        room = int(whole * rng.uniform(0.05, 0.95))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "none", str(disk)], check=True)
        try:
            full += expect_full(config, disk / "run", options)
            expect_full(config, disk / "run", options)
            subprocess.run(["mount", "-o", f"remount,size={4 * whole + 2**26}", str(disk)], check=True)
            kill.expect_end(config, disk / "run", options, folder / "untouched", digest)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        print(f"{case + 1} disks of 5 to 95 % of {whole / 2**20:.1f} MiB, {full} full: exit code 74, 0 divergences")
    return full


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/qchunk/debug.py", choices=sorted(kill.OWN))
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        if not possible():
            raise SystemExit("this user may not mount a file system (unshare --user --map-root-user --mount failed)")
        command = [sys.executable, "-m", "tests.full_disk", "--inside", *sys.argv[1:]]
        raise SystemExit(subprocess.run([*SPACES, *command], cwd=kill.ROOT).returncode)
    with tempfile.TemporaryDirectory() as folder:
        options = kill.SHORT + kill.OWN[arguments.config]
        full = run(arguments.config, arguments.cases, Path(folder), options, arguments.seed)
    print(f"{full} of {arguments.cases} disks were full; every run ended as the untouched one")


if __name__ == "__main__":
    main()
