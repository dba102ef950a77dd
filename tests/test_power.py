"""A power cut: the short form of `python -m tests.power`."""

import re
from pathlib import Path

import pytest

from tests import conftest, kill, power

CONFIG = "tests/train.py"
WHY_NOT = power.possible()


@pytest.mark.long
# `.ci/full` cuts the power 190 times, and fails where it cannot. tests/chunkwise/checkpoint asks anywhere what lies on
# the device. Without root, loop devices and e2fsck nothing can take away what a disk has not written yet.
@pytest.mark.skipif(bool(WHY_NOT), reason=f"no disk that can lose its power: {WHY_NOT}")  # a test may not ask for root
def test_what_was_announced_outlives_a_power_cut(tmp_path: Path):
    options = [*kill.SHORT, *kill.OWN[CONFIG], "--train.steps", "120"]
    assert power.run(CONFIG, 3, tmp_path, options, kinds=("stop", "save", "done")) == 0


def test_every_reason_to_cut_no_power_may_be_one_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def known() -> bool:
        return any(re.search(pattern, f"Skipped: {power.possible()}") for pattern in conftest.SKIPS)

    monkeypatch.setattr(power.os, "geteuid", lambda: 1000)
    assert known()
    monkeypatch.setattr(power.os, "geteuid", lambda: 0)
    monkeypatch.setattr(power.shutil, "which", lambda tool: None)
    assert known()
    for missing in power.TOOLS:
        monkeypatch.setattr(power.shutil, "which", lambda tool, missing=missing: None if tool == missing else tool)
        assert power.possible() == f"{missing} not found"
        assert known()
    monkeypatch.setattr(power, "TOOLS", ("jax",))  # of what is the project's own nothing may be missing
    monkeypatch.setattr(power.shutil, "which", lambda tool: None)
    assert not known()
