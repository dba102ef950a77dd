"""The page of driving episodes: images are the files' own bytes, and none from outside of the dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from driving import view
from driving.config import CAMERAS
from driving.data.recordings import DrivingRecordings
from tests.driving.drives import SPEED, TURN, pose_at, write_drive


def test_columns_and_images_are_those_of_the_files(tmp_path: Path):
    write_drive(tmp_path / "town", "first", frames=12)
    write_drive(tmp_path, "second", frames=5, dt=0.25)
    found = DrivingRecordings(tmp_path)
    assert found.names == ["second.json", "town/first.json"]
    content = found.open(1)
    assert content.cameras == tuple(sorted(CAMERAS))
    assert (content.fps, found.open(0).fps) == (pytest.approx(10), pytest.approx(4))
    assert content.times is not None
    np.testing.assert_allclose(content.times, 0.1 * np.arange(12))
    np.testing.assert_allclose(content.columns["speed_mps"], np.full(12, SPEED))
    np.testing.assert_allclose(content.columns["yaw_rate_radps"], np.full(12, TURN))
    np.testing.assert_allclose(content.columns["pose"][7], pose_at(0.7), atol=1e-6)
    for camera in CAMERAS:
        for frame in (0, 7, 11):
            stored = (tmp_path / f"town/first_images/{frame:04d}_{camera}.jpg").read_bytes()
            assert found.image(1, camera, frame) == stored
    told = dict(found.examine())
    assert [(told[k].length, told[k].problems) for k in range(2)] == [(5, ()), (12, ())]


def test_poses_far_from_the_origin_are_shown_to_the_centimetre(tmp_path: Path):
    def moved(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            state = frame["observations"]["state"]
            state.update(x_m=state["x_m"] + 512_853.25, y_m=state["y_m"] + 4_654_791.75)
        tree["frames"][0]["observations"]["state"] = {}

    write_drive(tmp_path, "utm", frames=12, change=moved)
    content = DrivingRecordings(tmp_path).open(0)
    shown = content.columns["pose"].astype(np.float32)
    far = np.array([512_853.25, 4_654_791.75, 0.0])
    first = np.floor(np.array(pose_at(0.1)) + far) * [1, 1, 0]
    expected = np.array(pose_at(0.7)) + far - first
    np.testing.assert_allclose(shown[7], expected, atol=1e-5)
    assert content.notes == (
        f"pose: x and y are shown less {first[0]:.0f} and {first[1]:.0f} m, which 32-bit floats cannot hold to the "
        "centimetre",
    )


def named(frame: int, path: str | None) -> Any:
    """A change of a drive: the front image of a frame is another, or none."""

    def change(tree: dict[str, Any]) -> None:
        cameras = tree["frames"][frame]["observations"]["cameras"]
        if path is None:
            del cameras["front"]
        else:
            cameras["front"]["image_path"] = path

    return change


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "this frame has no image"),
        ("../../secret.jpg", "a path that leads out of the dataset"),
        ("/etc/passwd", "an absolute path"),
        ("link.jpg", "expected a path inside the dataset, found 'link.jpg'"),
        ("page.html", "expected JPEG or PNG data"),
    ],
)
def test_an_image_that_is_none_is_refused(tmp_path: Path, path: str | None, message: str):
    root = tmp_path / "set"
    write_drive(root, "drive", frames=6, change=named(3, path))
    (tmp_path / "secret.jpg").write_bytes((root / "drive_images/0000_front.jpg").read_bytes())
    (root / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "page.html").write_text("<script>alert(1)</script>")
    found = DrivingRecordings(root)
    with pytest.raises(DataError, match=message):
        found.image(0, "front", 3)
    assert found.image(0, "front", 2)[:2] == b"\xff\xd8"


def test_problems_are_at_their_frame(tmp_path: Path):
    write_drive(tmp_path, "drive", frames=6, change=named(4, "drive.json"))
    (tmp_path / "other.json").write_text("{")
    told = dict(DrivingRecordings(tmp_path).examine())
    assert [problem.row for problem in told[0].problems] == [4]
    assert [problem.row for problem in told[1].problems] == [None]
    with pytest.raises(DataError, match=r"other\.json"):
        DrivingRecordings(tmp_path).open(1)


def test_the_command_says_what_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert view.main([str(tmp_path)]) == 65
    assert "expected episodes" in capsys.readouterr().err
