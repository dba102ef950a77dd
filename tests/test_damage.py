"""The whole program, damaged and gone on with: the short form of `python -m tests.damage`."""

from pathlib import Path

from tests import damage


def test_a_damaged_run_goes_on_to_the_same_end(tmp_path: Path):
    # Seed 1 draws the largest file, whatever sizes Orbax's threads gave them; of small ones some are never read.
    assert damage.run(2, tmp_path, seed=1, kinds=(damage.cut_a_file, damage.add_a_false_step)) == 2
