"""How far a timestamp may be from its frame, and totals from what is listed."""

import json
from pathlib import Path

import pytest

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.tables import load_table
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.errors import DataError
from tests.lerobot_files import CAMERAS, FPS, record, write_v21


def opened(root: Path, tolerance_s: float) -> int:
    """Frames of a dataset whose every row has its image."""
    meta = read_meta(root, tolerance_s=tolerance_s)
    images = LeRobotImages(meta, CAMERAS)
    return load_table(meta, ["action"], on_bad="refuse", check=images.check)[0].frames


def edit_info(root: Path, **values: float) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | values))


def test_a_timestamp_may_be_off_by_the_tolerance_and_no_more(tmp_path: Path):
    for off, name in ((0.125, "within"), (0.1251, "beyond")):  # exact in the files' float32
        episodes = record()
        episodes[1].timestamp[0] = off
        root = write_v21(tmp_path / name, episodes, "image")
        if name == "within":
            assert opened(root, 0.125) == 21
            continue
        with pytest.raises(DataError, match=r"episode 1, .*timestamp, row 0: .* at 10 fps within 0.125 s"):
            opened(root, 0.125)


def test_a_rate_that_was_rounded_opens_with_a_tolerance_and_shows_the_same_images(tmp_path: Path):
    root = write_v21(tmp_path / "set", record())
    before = LeRobotImages(read_meta(root), CAMERAS).read(2, 8)[CAMERAS[0]]
    edit_info(root, fps=9.99)
    with pytest.raises(DataError, match=r"at 9.99 fps within 0.0001 s"):
        opened(root, 1e-4)
    assert opened(root, 0.01) == 21
    after = LeRobotImages(read_meta(root, tolerance_s=0.01), CAMERAS).read(2, 8)[CAMERAS[0]]
    assert (before == after).all()


def test_rows_that_would_share_a_frame_are_bad_at_any_tolerance(tmp_path: Path):
    root = write_v21(tmp_path / "set", record())
    edit_info(root, fps=2 * FPS)
    with pytest.raises(DataError, match=r"expected 7 frames from 0.000 s on at 20 fps"):
        opened(root, 10.0)


def test_totals_that_are_wrong_are_refused_or_noted(tmp_path: Path):
    root = write_v21(tmp_path / "set", record(), "image")
    edit_info(root, total_frames=22)
    with pytest.raises(DataError, match="total_frames: expected 22, found 21 in meta/episodes"):
        read_meta(root)
    meta = read_meta(root, wrong_totals="note")
    assert sum(episode.length for episode in meta.episodes) == 21
    (note,) = meta.notes
    assert note.startswith("passed over: ")
    assert "total_frames: expected 22, found 21" in note
    edit_info(root, total_frames=21)
    assert read_meta(root).notes == ()
