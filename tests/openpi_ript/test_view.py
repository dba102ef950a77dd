"""The page of LeRobot datasets: columns and frames are those that were recorded."""

from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.errors import DataError
from openpi_ript import view
from openpi_ript.data.recordings import LeRobotRecordings
from tests.lerobot_files import CAMERAS, FPS, TASKS, record, write_v21, write_v30

WRITERS = {"v2.1": write_v21, "v3.0": write_v30}


@pytest.mark.parametrize("version", WRITERS)
def test_columns_and_labels_are_those_recorded(tmp_path: Path, version: str):
    episodes = record()
    found = LeRobotRecordings(WRITERS[version](tmp_path / "set", episodes))
    assert (found.kind, found.names) == (f"LeRobot {version}", ["episode 0", "episode 1", "episode 2"])
    for number, episode in enumerate(episodes):
        content = found.open(number)
        assert (content.cameras, content.fps) == (CAMERAS, FPS)
        assert list(content.columns)[:3] == ["action", "observation.state", "next.reward"]
        np.testing.assert_array_equal(content.columns["action"], episode.action)
        np.testing.assert_array_equal(content.columns["observation.state"], episode.state)
        np.testing.assert_array_equal(content.columns["next.reward"], episode.reward)
    told = dict(found.examine())
    assert [told[k].length for k in range(3)] == [7, 5, 9]
    assert [told[k].success for k in range(3)] == [True, False, True]
    assert [told[k].task for k in range(3)] == [TASKS[0], TASKS[1], TASKS[0]]
    assert not any(summary.problems for summary in told.values())


@pytest.mark.parametrize("storage", ["image", "video"])
@pytest.mark.parametrize("version", WRITERS)
def test_a_frame_is_that_of_its_episode_and_number(tmp_path: Path, version: str, storage: str):
    """Neighbouring frames differ by 9 in brightness, episodes by 25, cameras by 40."""
    episodes = record()
    found = LeRobotRecordings(WRITERS[version](tmp_path / "set", episodes, storage))  # pyright: ignore[reportArgumentType]
    for number, frame in ((2, 8), (0, 0), (1, 3), (2, 4)):
        for camera in CAMERAS:
            image = cv2.imdecode(np.frombuffer(found.image(number, camera, frame), np.uint8), cv2.IMREAD_COLOR)
            assert image is not None
            shown = image[..., ::-1].astype(float)
            far = [np.abs(shown - other).mean() for other in episodes[number].images[camera]]
            assert int(np.argmin(far)) == frame
            assert far[frame] < 4
    with pytest.raises(DataError, match=r"episode 1: expected a frame below 5 of .*, found 5 of"):
        found.image(1, CAMERAS[0], 5)


def test_what_is_wrong_is_told_and_the_rest_is_shown(tmp_path: Path):
    episodes = record()
    episodes[1].action[3, 2] = np.nan
    root = write_v21(tmp_path / "set", episodes)
    videos = sorted(root.rglob("*episode_000002.mp4"))
    videos[0].write_bytes(b"no video")
    found = LeRobotRecordings(root)
    told = dict(found.examine())
    assert [(problem.key, problem.row) for problem in told[1].problems] == [("action", 3)]
    assert [problem.key for problem in told[2].problems] == [CAMERAS[0]]
    np.testing.assert_array_equal(found.open(0).columns["action"], episodes[0].action)
    assert "observation.state" in found.open(1).columns
    with pytest.raises(DataError, match="expected a video"):
        found.image(2, CAMERAS[0], 0)
    file = sorted(root.rglob("episode_000000.parquet"))[0]
    pq.write_table(pq.read_table(file).slice(0, 3), file)
    with pytest.raises(DataError, match="3 rows where meta/ says 7"):
        LeRobotRecordings(root).open(0)


def test_the_command_says_what_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert view.main([str(tmp_path)]) == 65
    assert "info.json" in capsys.readouterr().err


def test_wrong_totals_are_noted_and_a_clock_is_measured_as_the_config_says(tmp_path: Path):
    root = write_v21(tmp_path / "set", record())
    info = root / "meta" / "info.json"
    info.write_text(info.read_text().replace('"total_frames": 21', '"total_frames": 22'))
    file = sorted(root.rglob("episode_000000.parquet"))[0]
    table = pq.read_table(file)
    late = pa.array(table["timestamp"].to_numpy() + 0.004, table["timestamp"].type)
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", late), file)
    found = LeRobotRecordings(root)
    assert "22" in found.notes[0]
    assert [bool(summary.problems) for _, summary in found.examine()][:3] == [True, False, False]
    lenient = LeRobotRecordings(root, tolerance_s=0.01)
    assert not any(summary.problems for _, summary in lenient.examine())


def test_every_line_of_a_refusal_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = write_v21(tmp_path / "set", record())
    info = root / "meta" / "info.json"
    info.write_text(info.read_text().replace('"fps": 10', '"fps": -10'))
    assert view.main([str(root)]) == 65
    assert "\\n" not in capsys.readouterr().err
