"""A power cut: the short form of `python -m tests.power`."""

from pathlib import Path

import pytest

from tests import kill, power

CONFIG = "configs/qchunk/debug.py"
WHY_NOT = power.possible()


# Only root may attach an image to a loop device, and containers often have none; `.ci/full` runs where they do.
@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "possible")
def test_what_was_announced_outlives_a_power_cut(tmp_path: Path):
    options = [*kill.SHORT, *kill.OWN[CONFIG], "--train.steps", "60"]
    assert power.run(CONFIG, 3, tmp_path, options, kinds=("stop", "save", "done")) == 0
