"""The whole program, damaged and gone on with: the short form of `python -m tests.damage`."""

import random
from pathlib import Path

from tests import damage


def quarter_the_largest_file(newest: Path, rng: random.Random) -> str:
    """A cut that always shows: how threads share out the arrays is up to chance, and some bytes are not read."""
    largest = max((file for file in newest.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 4])
    return f"{largest.relative_to(newest)} cut to a quarter"


def test_a_damaged_run_goes_on_to_the_same_end(tmp_path: Path):
    kinds = (quarter_the_largest_file, damage.add_a_false_step, damage.cut_a_file)
    assert damage.run(3, tmp_path, kinds=kinds) in (2, 3)  # the last cut is anywhere, and may change nothing
