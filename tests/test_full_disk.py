"""A disk that fills up: the short form of `python -m tests.full_disk`."""

import subprocess
import sys

import pytest

from tests import full_disk, kill


@pytest.mark.long
# Reason to skip: the disk that fills is a small file system of its own, which containers often let nobody mount.
@pytest.mark.skipif(not full_disk.possible(), reason="this user may not mount a file system")
def test_a_full_disk_ends_with_74_and_loses_nothing():
    command = [sys.executable, "-m", "tests.full_disk", "--cases", "1", "--seed", "1"]
    done = subprocess.run(command, cwd=kill.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "1 of 1 disks were full; every run ended as the untouched one" in done.stdout
