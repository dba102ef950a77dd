"""What of a dataset is left out, refused or noted before the first batch."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.data.batches import open_data
from driving.data.index import Index
from driving.data.scan import scan
from driving.data.schema import schema_problems
from driving.data.validation import check_absent, require_scored, scored, scored_note, without_bad
from tests.driving.drives import SIZE, frame_tree, write_drive


def index_of(root: Path) -> Index:
    index, problems = scan(root)
    assert index is not None
    assert not problems
    return index


def many(index: Index, count: int) -> Index:
    """An index that names so many drives."""
    names = tuple(f"e{i}" for i in range(count))
    return dataclasses.replace(index, ids=names, files=tuple(f"{name}.json" for name in names))


def problems(*files: str) -> list[Problem]:
    return [Problem(file=file, key=key, expected="one", found="none") for file in files for key in ("t", "frames")]


def test_at_most_one_drive_in_a_hundred_is_skipped(tmp_path: Path):
    """A drive counts once, however much is wrong with it."""
    write_drive(tmp_path, "a", frames=1, images=False)
    index = index_of(tmp_path)
    refuse, skip = (DataConfig(path=str(tmp_path), on_bad=how) for how in ("refuse", "skip"))
    notes: list[str] = []
    assert without_bad(index, [], refuse, notes) is index
    assert notes == []
    whole = many(index, 99)
    assert without_bad(whole, problems("x.json"), skip, notes) is whole
    assert notes[0] == "skipped 1 bad episode(s) of 100 (data.on_bad=skip):"
    assert len(notes) == 3
    for good, bad, said in ((98, ["x.json"], "1 of 99"), (98, ["x.json", "y.json"], "2 of 100")):
        with pytest.raises(DataError, match=rf"{said} episodes are bad; data\.on_bad=skip leaves out at most 1 %"):
            without_bad(many(index, good), problems(*bad), skip, notes)
    with pytest.raises(DataError, match=r"set --data\.on-bad skip to leave out up to 1 %"):
        without_bad(whole, problems("x.json"), refuse, notes)
    with pytest.raises(DataError, match=r"x\.json: t: expected one"):
        without_bad(None, problems("x.json"), skip, notes)


def test_an_absent_image_is_refused_by_file_frame_and_camera_or_counted(tmp_path: Path):
    for name in ("a", "b"):
        write_drive(tmp_path, name, frames=3)
    (tmp_path / "b_images/0001_side_left.jpg").unlink()
    (tmp_path / "b_images/0002_front.jpg").unlink()
    index = index_of(tmp_path)
    notes: list[str] = []
    with pytest.raises(DataError) as refused:
        check_absent(index, DataConfig(path=str(tmp_path)), notes)
    text = str(refused.value)
    assert "2 problem(s)" in text
    for frame, camera in ((1, "side_left"), (2, "front")):
        key = f"b.json: frames[{frame}].observations.cameras.{camera}.image_path"
        assert f"{key}: expected a file that exists, found no file b_images/{frame:04d}_{camera}.jpg" in text
    check_absent(index, DataConfig(path=str(tmp_path), cameras=("front_left", "front_right")), notes)
    assert notes == [], "cameras that are not asked for may be absent"
    check_absent(index, DataConfig(path=str(tmp_path), missing_files="mask"), notes)
    assert notes == ["2 images are named, and their files are absent: masked (data.missing_files=mask)"]


def test_an_image_that_viewers_turn_is_refused_when_it_is_opened(tmp_path: Path):
    write_drive(tmp_path, "a", frames=2)
    file, exif = tmp_path / "a_images/0001_front.jpg", Image.Exif()
    exif[0x0112] = 6
    Image.open(file).save(file, exif=exif)
    words = r"a\.json: frames\[1\].observations\.cameras\.front.*a_images/0001_front\.jpg: .* EXIF orientation 6"
    with pytest.raises(DataError, match=words):
        open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")


def test_an_image_of_16_bits_is_refused_when_it_is_opened(tmp_path: Path):
    """Of a colour camera its high byte was trained on; a grey one was refused in the middle of a run."""
    write_drive(tmp_path, "a", frames=2)
    file = tmp_path / "a_images/0001_front.jpg"  # read by its first bytes, whatever its name
    Image.fromarray(np.full(SIZE, 3000, np.uint16)).save(file, "PNG")
    words = r"a\.json: frames\[1\].observations\.cameras\.front.*0001_front\.jpg: .* found a PNG of 16 bits"
    with pytest.raises(DataError, match=words):
        open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")


def test_shares_of_windows_with_a_score():
    valid = np.ones((4, 20), bool)
    valid[0, 3], valid[1, 15] = False, False
    assert scored(valid, 0.1) == {1.0: 0.75, 2.0: 0.5}
    assert scored(valid, 0.25) == {1.0: 0.75, 2.0: 0.75, 3.0: 0.75, 5.0: 0.5}
    assert scored(valid[:, :8], 0.1) == {0.8: 0.75}
    assert scored_note({1.0: 0.75, 2.0: 0.004}) == "windows with a score: 75.0% up to 1 s, 0.4% up to 2 s"
    require_scored({1.0: 0.01, 2.0: 0.0}, "here")
    with pytest.raises(DataError, match=r"here: expected waypoints .* up to 1 s in at least 1% of .* 0\.9%"):
        require_scored({1.0: 0.009, 2.0: 0.0}, "here")


def test_a_dataset_says_its_share_when_it_is_opened(tmp_path: Path):
    write_drive(tmp_path, "a", frames=30)
    data = open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
    assert data.notes[-1] == "all: windows with a score: 66.7% up to 1 s, 33.3% up to 2 s"


@pytest.mark.parametrize("value", [1.1e30, -1e39])
@pytest.mark.parametrize(
    "key",
    [
        "observations.state.speed_mps",
        "observations.state.x_m",
        "observations.cameras.front.t_offset_s",
        "observations.cameras.front.extrinsics.3",
        "observations.history.position.0.0",
        "expert.waypoints.0.1",
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(key: str, value: float):
    """1e39 became Inf, and its mask said that it was known."""
    tree: dict[str, Any] = {"episode_id": "a", "domain": "driving", "frames": [frame_tree(0, 0.0)]}
    place: Any = tree["frames"][0]
    place["expert"] = {"waypoints": [[1.0, 1.0]]}
    place["observations"]["history"] = {"dt": 0.1, "position": [[0.0, 0.0]]}
    place["observations"]["cameras"]["front"]["t_offset_s"] = 0.01
    assert not schema_problems(tree, source="a")
    *path, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    for part in path:
        place = place[part]
    place[last] = value
    (problem,) = schema_problems(tree, source="a")
    assert problem.key == "frames[0]." + re.sub(r"\.(\d+)", r"[\1]", key)
    assert "1e+30" in problem.expected


def test_a_speed_that_float32_cannot_hold_is_refused_by_its_name(tmp_path: Path):
    """Of two places that it can hold, and a microsecond between them times a thousandth."""

    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            frame["t"] = 1e-10 * i
            frame["observations"]["state"] = {"x_m": 9e29 * i, "y_m": 0.0}

    write_drive(tmp_path, "a", frames=2, change=change)
    with pytest.raises(DataError, match=r"a\.json: frames\[1\]: speed_mps: expected a number that float32 can hold"):
        open_data(DataConfig(path=str(tmp_path), image_size=SIZE), "all")
