"""What of a dataset is left out, refused or noted before the first batch."""

import dataclasses
from pathlib import Path

import pytest

from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.data.index import Index
from driving.data.scan import scan
from driving.data.validation import check_absent, without_bad
from tests.driving.drives import write_drive


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
