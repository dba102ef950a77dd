"""Runs of launch.py, damaged and gone on with: the short form of `python -m tests.damage`."""

from pathlib import Path

import pytest

from tests import damage


@pytest.mark.long
def test_a_damaged_run_goes_on_to_the_same_end(tmp_path: Path):
    kinds = (damage.flip_a_bit, damage.add_a_false_step, damage.cut_a_file)
    assert damage.run(3, tmp_path, kinds=kinds, config="tests/train.py") == 3
