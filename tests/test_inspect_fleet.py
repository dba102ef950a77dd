"""`chunkwise inspect` on a Ray cluster: the report of one process, damaged episodes included."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.driving.drives import write_drive
from tests.lerobot_files import record, write_v30
from tests.qchunk.recordings import dataset


def play(root: Path) -> None:
    """ALOHA-style files, of which one is cut short."""
    file = dataset(root) / "episode_2.hdf5"
    file.write_bytes(file.read_bytes()[:900])


def lerobot(root: Path) -> None:
    """Three episodes, of which one has an action that is no number."""
    episodes = record((7, 5, 9))
    episodes[1].action[2, 1] = float("nan")
    write_v30(root, episodes)


def drives(root: Path) -> None:
    """Three drives, of which one is cut short."""
    for name in ("a", "b", "c"):
        file = write_drive(root, name)
    file.write_text(file.read_text()[:200])


@pytest.mark.long
@pytest.mark.parametrize("write", [play, lerobot, drives])
def test_the_report_is_that_of_one_process(tmp_path: Path, write: Callable[[Path], None]):
    root = tmp_path / "set"
    root.mkdir()
    write(root)
    told = []
    for more in ([], ["--fleet", "local", "--workers", "2"]):
        words = [sys.executable, "-m", "chunkwise", "inspect", str(root), "--json", *more]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        told.append((done.returncode, done.stdout))
    assert told[1] == told[0]
    assert told[0][0] == 65
