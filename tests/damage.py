"""Damages the newest checkpoint of a run in every way that disks know, goes on with the run, and compares its end.

    python -m tests.damage --cases 60

A short run is made once. Each case takes a copy, flips a bit, cuts or removes a file, or puts a false newest step
beside it, then resumes: the run must set aside what is not whole, and end with the digest of the undamaged one.
"""

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from tests import kill

CONFIG = "configs/qchunk/debug.py"
OPTIONS = ["--eval.env", "None", "--train.eval-every", "0", "--train.steps", "40", "--checkpoint.every", "10"]


def flip_a_bit(newest: Path, rng: random.Random) -> str:
    """One bit of one byte, each byte of the step equally likely."""
    files = [file for file in sorted(newest.rglob("*")) if file.is_file() and file.stat().st_size]
    file = rng.choices(files, [file.stat().st_size for file in files])[0]
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return f"bit flipped in byte {place} of {file.relative_to(newest)}"


def cut_a_file(newest: Path, rng: random.Random) -> str:
    file = rng.choice([file for file in sorted(newest.rglob("*")) if file.is_file() and file.stat().st_size])
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])
    return f"{file.relative_to(newest)} cut"


def remove_a_file(newest: Path, rng: random.Random) -> str:
    file = rng.choice([file for file in sorted(newest.rglob("*")) if file.is_file()])
    file.unlink()
    return f"{file.relative_to(newest)} removed"


def add_a_false_step(newest: Path, rng: random.Random) -> str:
    """What a kill inside Orbax's removal of old steps leaves, or a copy under a later number."""
    false = newest.with_name(str(int(newest.name) + 10))
    if rng.random() < 0.5:
        false.mkdir()
        return "empty folder as the newest step"
    shutil.copytree(newest, false)
    return "the newest step copied under a later number"


KINDS: tuple[Callable[[Path, random.Random], str], ...] = (flip_a_bit, cut_a_file, remove_a_file, add_a_false_step)


def run(cases: int, folder: Path, seed: int = 0, *, kinds: tuple[Callable[[Path, random.Random], str], ...]) -> int:
    """Number of cases in which something was set aside; the others lay in bytes that nothing reads.

    Raises:
      AssertionError: A damaged run ended otherwise than the undamaged one, or did not go on.
    """
    whole = folder / "whole"
    expected = kill.finish(CONFIG, whole, OPTIONS)
    rng = random.Random(seed)
    set_aside = 0
    for case in track(range(cases), "damaging"):
        copy = folder / f"case{case}"
        shutil.copytree(whole, copy)
        newest = max((copy / "checkpoints").iterdir(), key=lambda path: int(path.name))
        what = kinds[case % len(kinds)](newest, rng)
        digest = kill.finish(CONFIG, copy, OPTIONS)
        if digest != expected:
            raise AssertionError(f"{what}: the run ended with {digest}, undamaged with {expected}")
        if kill.written(copy) != kill.written(whole):
            raise AssertionError(f"{what}: metrics.jsonl differs from the undamaged run's")
        set_aside += (copy / "quarantine").exists()
        shutil.rmtree(copy)
    return set_aside


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the damage")
    parser.add_argument("--only", choices=[kind.__name__ for kind in KINDS], help="one kind of damage")
    arguments = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if arguments.only in (None, kind.__name__))
    with tempfile.TemporaryDirectory() as folder:
        set_aside = run(arguments.cases, Path(folder), arguments.seed, kinds=kinds)
    print(f"{arguments.cases} cases, {set_aside} set aside, 0 divergences: every run ended as the undamaged one")


if __name__ == "__main__":
    main()
