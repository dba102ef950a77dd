"""How far a timestamp may be from its frame."""

from pathlib import Path

import pytest

from chunkwise.data.lerobot import tables
from chunkwise.errors import DataError
from tests.chunkwise.data.lerobot.test_lerobot import good_table
from tests.lerobot_files import record, write_v21


def test_a_timestamp_may_be_off_by_the_tolerance_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "TIME_TOLERANCE_S", 0.125)  # exact in the files' float32
    for off, name in ((0.125, "within"), (0.1251, "beyond")):
        episodes = record()
        episodes[1].timestamp[0] = off
        root = write_v21(tmp_path / name, episodes, "image")
        if name == "within":
            assert len(good_table(root).episodes)
            continue
        with pytest.raises(DataError, match=r"episode 1, .*timestamp, row 0"):
            good_table(root)
