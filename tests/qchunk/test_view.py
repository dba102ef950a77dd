"""The page of Q-chunking's datasets: the server's bytes are the files'."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from chunkwise.data.images import encode_depth_png
from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from qchunk import view
from qchunk.config import DataConfig
from qchunk.data.dataset import open_dataset
from qchunk.data.recordings import AlohaRecordings, OgbenchRecordings, open_recordings
from qchunk.data.stream import open_stream
from qchunk.data.window import TrainingWindows
from qchunk.inspect import inspect
from tests.lerobot_files import record, write_v21
from tests.qchunk.image_recordings import CAMERAS, RECORDED, dataset, scene, write_episode
from tests.qchunk.recordings import config


def recordings(path: Path, **data: str) -> AlohaRecordings | OgbenchRecordings:
    found = open_recordings(DataConfig(path=str(path), **data))  # pyright: ignore[reportArgumentType]
    assert isinstance(found, AlohaRecordings | OgbenchRecordings)
    return found


def decoded(png: bytes) -> np.ndarray:
    """RGB or grey, by a decoder other than the encoder's."""
    found = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    return found[..., ::-1] if found.ndim == 3 else found


def set_rows(file: Path, name: str, rows: tuple[int | slice, ...], value: float) -> None:
    """Overwrites part of a dataset."""
    with h5py.File(file, "r+") as h5:
        dataset = h5[name]
        assert isinstance(dataset, h5py.Dataset)
        dataset[rows] = value


def test_jpegs_are_those_of_the_file(tmp_path: Path):
    jpegs = write_episode(tmp_path / "episode_2.hdf5", 9, 2)
    write_episode(tmp_path / "episode_10.hdf5", 4, 10)
    found = recordings(tmp_path)
    assert found.names == ["episode_2.hdf5", "episode_10.hdf5"]
    content = found.open(0)
    assert content.cameras == tuple(f"/observations/images/{name}" for name in CAMERAS)
    for name in CAMERAS:
        for frame in range(9):
            assert found.image(0, f"/observations/images/{name}", frame) == jpegs[name][frame]


def test_columns_are_those_that_h5py_reads(tmp_path: Path):
    dataset(tmp_path, (7, 12))
    found = recordings(tmp_path)
    for episode, length in enumerate((7, 12)):
        columns = found.open(episode).columns
        assert list(columns) == ["action", "base_action", "qpos", "state", "reward"]
        with h5py.File(tmp_path / f"episode_{episode}.hdf5") as h5:
            for name, where in (("action", "action"), ("qpos", "observations/qpos"), ("reward", "reward")):
                stored = np.asarray(h5[where])
                assert len(stored) == length
                np.testing.assert_array_equal(columns[name], stored)


def test_raw_images_and_depth_arrive_without_loss(tmp_path: Path):
    write_episode(tmp_path / "a.hdf5", 5, 3, jpeg=False, depth=True)
    found = recordings(tmp_path)
    assert found.open(0).cameras[-1] == "/observations/images_depth/cam_high"
    for place, name in enumerate(RECORDED):
        content = found.image(0, f"/observations/images/{name}", 4)
        image = decoded(content)
        np.testing.assert_array_equal(image, scene(5, 30 + place)[4])
    with h5py.File(tmp_path / "a.hdf5") as h5:
        depth = np.asarray(h5["/observations/images_depth/cam_high"])[2]
    grey = decoded(found.image(0, "/observations/images_depth/cam_high", 2))
    near, far = int(depth.min()), int(depth.max())
    np.testing.assert_array_equal(grey, np.rint(255 - 215 * (depth.astype(float) - near) / (far - near)))


def test_depth_that_was_not_measured_is_black():
    depth = np.array([[0, np.nan], [1, 3]], np.float32)
    grey = decoded(encode_depth_png(depth))
    assert grey.tolist() == [[0, 0], [255, 40]]
    flat = decoded(encode_depth_png(np.full((1, 2), 7, np.uint16)))
    assert flat.tolist() == [[255, 255]]


def test_the_survey_finds_what_inspect_finds(tmp_path: Path):
    dataset(tmp_path, (7, 12, 5))
    set_rows(tmp_path / "episode_1.hdf5", "/action", (8, 2), np.nan)
    set_rows(tmp_path / "episode_2.hdf5", "/observations/images/cam_high", (3, slice(4, None)), 0)
    (tmp_path / "episode_3.hdf5").write_bytes(b"no HDF5")
    found = recordings(tmp_path)
    steps = list(found.examine())
    assert [episode for episode, _ in steps[:4]] == [0, 1, 2, 3]
    assert not steps[2][1].problems, "images come last"
    last = dict(steps)
    assert [last[k].success for k in range(3)] == [True, False, True]
    assert [last[k].length for k in range(4)] == [7, 12, 5, 0]
    told = [problem for k in range(4) for problem in last[k].problems]
    assert [(problem.file, problem.row) for problem in told] == [
        ("episode_1.hdf5", 8),
        ("episode_2.hdf5", 3),
        ("episode_3.hdf5", None),
    ]
    inspected = [str(Problem(**problem)) for problem in inspect(str(tmp_path))["problems"]]
    assert sorted(map(str, told)) == sorted(inspected)
    with pytest.raises(DataError, match="expected a whole HDF5 file"):
        found.open(3)


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset(tmp_path / "here", (7, 12))
    monkeypatch.chdir(tmp_path)
    assert [dict(recordings(Path("here")).examine())[k].length for k in range(2)] == [7, 12]


def test_an_episode_unlike_the_others_is_told_once_all_are_read(tmp_path: Path):
    dataset(tmp_path, (7, 12, 5))
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as h5:
        x = np.asarray(h5["/action"])[:, :3]
        del h5["/action"]
        h5["/action"] = x
    steps = list(recordings(tmp_path).examine())
    assert not steps[1][1].problems
    (problem,) = dict(steps)[1].problems
    assert (problem.expected, problem.found) == ("4 dimensions, as in most episodes", "3 dimensions")


@pytest.mark.parametrize(
    ("camera", "frame", "message"),
    [
        ("cam_high", 5, "row 5: expected at least 6 rows, found 5 rows"),
        ("cam_high", 3, "expected JPEG or PNG data, found"),
        ("cam_low", 0, "expected a dataset of this name, found none"),
        ("link", 0, "expected data stored in this file, found ExternalLink"),
    ],
)
def test_an_image_that_is_none_is_refused(tmp_path: Path, camera: str, frame: int, message: str):
    write_episode(tmp_path / "a.hdf5", 5, 3)
    set_rows(tmp_path / "a.hdf5", "/observations/images/cam_high", (3, slice(3)), 1)
    with h5py.File(tmp_path / "a.hdf5", "r+") as h5:
        h5["/observations/images/link"] = h5py.ExternalLink("/etc/passwd", "x")
    with pytest.raises(DataError, match=message):
        recordings(tmp_path).image(0, f"/observations/images/{camera}", frame)


def write_npz(path: Path) -> dict[str, np.ndarray]:
    """Two episodes, of 3 and 4 actions."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(9, 3)).astype(np.float32),
        "actions": rng.normal(size=(9, 2)).astype(np.float32),
        "terminals": np.array([0, 0, 0, 1, 0, 0, 0, 0, 1], np.float32),
    }
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return arrays


def test_ogbench_is_cut_into_episodes(tmp_path: Path):
    arrays = write_npz(tmp_path / "play.npz")
    arrays["actions"][5, 1] = np.inf
    np.savez(tmp_path / "play.npz", **arrays)  # pyright: ignore[reportArgumentType]
    found = recordings(tmp_path / "play.npz", format="ogbench_npz")
    assert found.names == ["play.npz#0", "play.npz#1"]
    np.testing.assert_array_equal(found.open(1).columns["action"], arrays["actions"][4:8])
    np.testing.assert_array_equal(found.open(1).columns["state"], arrays["observations"][4:9])
    told = dict(found.examine())
    assert [told[k].length for k in range(2)] == [3, 4]
    (problem,) = told[1].problems
    assert (problem.file, problem.row) == ("play.npz#1", 1), "row 5 of the file is the episode's second"


def test_a_folder_of_files_is_one_list(tmp_path: Path):
    first = write_npz(tmp_path / "play-000.npz")
    np.savez(tmp_path / "play-001.npz", **{name: x[4:] for name, x in first.items()})  # pyright: ignore[reportArgumentType]
    write_npz(tmp_path / "play-val.npz")
    found = recordings(tmp_path, format="ogbench_npz")
    assert found.names == ["play-000.npz#0", "play-000.npz#1", "play-001.npz#0"]
    for episode in (1, 2, 0, 2):
        rows = slice(4, 8) if episode else slice(0, 3)
        np.testing.assert_array_equal(found.open(episode).columns["action"], first["actions"][rows])
    assert [summary.length for _, summary in sorted(dict(found.examine()).items())] == [3, 4, 4]


@pytest.mark.parametrize("norm", ["none", "mean_std"])
def test_a_window_is_the_row_that_training_draws(tmp_path: Path, norm: str):
    """Chunks from the start, across the end, and from the last frame are among the rows of some batches."""
    lengths = (7, 12, 5)
    dataset(tmp_path, lengths)
    made = config(tmp_path, batch=16, cameras=("cam_high",), image_size=(12, 16), action_norm=norm)
    windows = TrainingWindows(made, "mine", recordings(tmp_path))
    found = {(e, t): windows.window(e, t) for e, length in enumerate(lengths) for t in range(length)}
    batches = open_stream(made, open_dataset(made), shard=0, num_shards=1, start_step=0, training=True)
    met = set()
    for batch in itertools.islice(batches, 20):
        for row in range(16):
            (place,) = [at for at, one in found.items() if np.array_equal(one.arrays["actions"], batch["actions"][row])]
            met.add(place)
            window = found[place]
            for name in ("valid", "masks", "terminals", "rewards", "is_positive", "final_reward"):
                np.testing.assert_array_equal(window.arrays[name], batch[name][row])
            np.testing.assert_array_equal(window.arrays["observations.qpos"], batch["observations"]["qpos"][row])
            images = batch["observations"]["images"]
            assert images is not None
            np.testing.assert_array_equal(window.images["cam_high"], images[row, 0])
    assert met == set(found)
    assert [found[1, t].arrays["valid"].tolist() for t in (0, 9)] == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    with h5py.File(tmp_path / "episode_1.hdf5") as h5:
        action = np.asarray(h5["/action"])
    np.testing.assert_allclose(found[1, 9].recorded, action[[9, 10, 11, 11, 11]], atol=1e-5)
    with pytest.raises(DataError, match="starts below 12 in this episode, found frame 12"):
        windows.window(1, 12)


def test_what_training_would_not_take_is_said(tmp_path: Path):
    for score in (5, 3, 0):
        write_episode(tmp_path / f"score_{score}/a.hdf5", 6, score)
    made = config(tmp_path)
    windows = TrainingWindows(made, "mine", recordings(tmp_path))
    names = list(recordings(tmp_path).names)
    assert len(windows.window(names.index("score_5/a.hdf5"), 0).recorded) == 5
    with pytest.raises(DataError, match="Training leaves this episode out"):
        windows.window(names.index("score_3/a.hdf5"), 0)
    set_rows(tmp_path / "score_5/a.hdf5", "/action", (2, 1), np.inf)
    with pytest.raises(DataError, match=r"Training would not begin:\n1 problem"):
        TrainingWindows(made, "mine", recordings(tmp_path)).window(names.index("score_5/a.hdf5"), 0)


def test_the_command_says_what_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert view.main([str(tmp_path)]) == 65
    assert "holds no episode" in capsys.readouterr().err
    write_v21(tmp_path / "lerobot", record())
    assert view.main([str(tmp_path / "lerobot")]) == 65
    assert f"chunkwise view openpi_ript {tmp_path / 'lerobot'} shows it" in capsys.readouterr().err
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    assert view.main([str(tmp_path / "x.npz")]) == 65
    assert "terminals: expected the ends of at least 1 episode" in capsys.readouterr().err


def test_ctrl_c_at_the_first_moment_ends_it(tmp_path: Path):
    """While a thread reads HDF5, whose lock Python's own end waits for, and before the page is served."""
    dataset(tmp_path / "episodes", lengths=(60,) * 40)
    command = [sys.executable, "-m", "chunkwise", "view", str(tmp_path / "episodes")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert "40 episode(s)" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "Traceback" not in said
