"""The page of a replay: what the log holds, by episode; what a hostile folder claims."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from chunkwise.config.saved import flatten
from chunkwise.errors import DataError
from qchunk import view
from qchunk.config import OnlineConfig
from qchunk.online.recordings import ReplayRecordings
from qchunk.online.replay import Log, folders, record_dtype
from tests.qchunk.online.test_replay import config_of, episode_of, records_of

CAMERAS, SIZE = ("top", "wrist"), (6, 8)


def write_run(run: Path, *logged: np.ndarray, cameras: tuple[str, ...] = ()) -> None:
    for records, folder in zip(logged, folders(run, len(logged)), strict=True):
        log = Log(folder, records.dtype)
        log.open(0, 0)
        log.append(records)
        log.sync()
    config = config_of()
    data = dataclasses.replace(config.data, cameras=cameras)
    online = OnlineConfig(env="somewhere-v0", steps=9, start=1, num_envs=len(logged), interval=len(logged))
    config = dataclasses.replace(config, data=data, online=online)
    (run / "config.json").write_text(json.dumps(flatten(config)))


def logged(*endings: tuple[int, str], images: bool = False) -> np.ndarray:
    """Records of episodes of these lengths and endings, with images that tell their record and camera."""
    dtype = record_dtype({"qpos": 2, "state": 3}, 2, (2, *SIZE, 3) if images else None)
    parts = [records_of(episode_of(length, ending, i), dtype) for i, (length, ending) in enumerate(endings)]
    records = np.concatenate(parts)
    if images:
        for record in range(len(records)):
            for camera in range(2):
                records["images"][record, camera] = (record, 100 * camera, 7)
    return records


def test_episodes_are_those_of_the_log(tmp_path: Path):
    records = logged((4, "terminated"), (6, "cut"), (9, "cut"))
    write_run(tmp_path, records[:-3])  # the last one is under way
    found = ReplayRecordings(tmp_path)
    assert found.names == ["episode 0", "episode 1", "episode 2"]
    for number, (begin, end) in enumerate(((0, 5), (5, 12), (12, 19))):
        columns = found.open(number).columns
        assert list(columns) == ["action", "reward", "qpos", "state", "success"]
        np.testing.assert_array_equal(columns["action"], records["action"][begin + 1 : end])
        np.testing.assert_array_equal(columns["reward"], records["reward"][begin + 1 : end])
        np.testing.assert_array_equal(columns["state"], records["state"][begin:end])
    told = dict(found.examine())
    assert [told[k].success for k in range(3)] == [True, False, None]
    assert [told[k].label for k in range(3)] == ["terminated", "cut by time", "under way"]
    assert [told[k].length for k in range(3)] == [4, 6, 6]
    assert told[1].total_reward == pytest.approx(records["reward"][6:12].sum())
    assert {told[k].task for k in range(3)} == {"somewhere-v0"}
    assert [found.open(k).notes[0] for k in range(2)] == [
        "Environment steps 0 to 4 of the online phase.",
        "Environment steps 4 to 10 of the online phase.",
    ]


def test_an_image_is_read_where_it_lies(tmp_path: Path):
    records = logged((4, "terminated"), (6, "cut"), images=True)
    write_run(tmp_path, records, cameras=CAMERAS)
    found = ReplayRecordings(tmp_path)
    assert found.open(1).cameras == CAMERAS
    np.testing.assert_array_equal(found.open(1).columns["qpos"], records["qpos"][5:])
    for episode, camera, frame in ((0, "top", 0), (1, "wrist", 6), (1, "top", 2)):
        image = cv2.imdecode(np.frombuffer(found.image(episode, camera, frame), np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        color = (5 * episode + frame, 100 * CAMERAS.index(camera), 7)
        np.testing.assert_array_equal(image[..., ::-1], np.full((*SIZE, 3), color, np.uint8))
    with pytest.raises(DataError, match="expected a frame with images, found none at 5"):
        found.image(0, "top", 5)
    with pytest.raises(DataError, match="expected one of top, wrist, found front"):
        found.image(0, "front", 0)
    file = tmp_path / "replay/frames.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="a resumed run cut it back"):
        found.image(1, "wrist", 6)
    assert len(ReplayRecordings(tmp_path).records(1)) == 6, "a record that is not whole is not there yet"


def test_all_environments_are_shown_one_after_the_other(tmp_path: Path):
    logs = [
        logged((4, "terminated"), (6, "cut"), images=True),
        logged((3, "cut"), images=True),
        logged((2, "cut"), (5, "terminated"), images=True),
    ]
    for number, log in enumerate(logs):
        log["images"][..., 2] = 50 + number
    write_run(tmp_path, *logs, cameras=CAMERAS)
    found = ReplayRecordings(tmp_path)
    whose = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert found.names == [f"environment {env}, episode {episode}" for env, episode in whose]
    for number, ((env, episode), begin, length) in enumerate(zip(whose, (0, 5, 0, 0, 3), (4, 6, 3, 2, 5), strict=True)):
        expected = logs[env][begin : begin + length + 1]
        columns = found.open(number).columns
        np.testing.assert_array_equal(columns["state"], expected["state"])
        np.testing.assert_array_equal(columns["action"], expected["action"][1:])
        np.testing.assert_array_equal(found.images(number, length), expected["images"][-1])
        steps = f"Environment steps {begin - episode} to {begin - episode + length} of the online phase"
        assert found.open(number).notes == (f"{steps}, in environment {env}.",)
    assert [one.length for _, one in found.examine()] == [4, 6, 3, 2, 5]

    (tmp_path / "replay/env_0001/frames.bin").write_bytes(b"")  # its first stretch is not over yet
    assert ReplayRecordings(tmp_path).names == [found.names[i] for i in (0, 1, 3, 4)]
    assert ReplayRecordings(tmp_path).images(2, 0).tolist() == logs[2]["images"][0].tolist()
    (tmp_path / "replay/env_0001/frames.bin").write_bytes(logs[1][1:].tobytes())
    with pytest.raises(DataError, match=r"env_0001/frames\.bin: expected the first record to begin an episode"):
        ReplayRecordings(tmp_path)
    (tmp_path / "replay/env_0001/layout.json").write_text(json.dumps(changed(lambda one: None)))
    with pytest.raises(DataError, match=r"env_0001: expected the layout of .*env_0000, found another"):
        ReplayRecordings(tmp_path)


def changed(change: Any) -> list[Any]:
    described = [[name, one.base.str, list(one.shape)] for name, one in _fields(logged((2, "cut")).dtype)]
    change(described)
    return described


def _fields(dtype: np.dtype) -> list[tuple[str, np.dtype]]:
    return [(name, dtype[name]) for name in dtype.names or ()]


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        {"first": 1},
        [["first"]],
        changed(lambda one: one.__setitem__(1, ["action", "|O", [2]])),
        changed(lambda one: one.__setitem__(1, ["action", "<f4", [-2]])),
        changed(lambda one: one.__setitem__(1, ["action", "<f4", [1 << 40]])),
        changed(lambda one: one.__setitem__(1, ["action", "<f8", [2]])),
        changed(lambda one: one.__setitem__(1, ["action", "<f4", ["2"]])),
        changed(lambda one: one.append(["images", "|u1", [1, 6, 8]])),
        changed(lambda one: one.append(["images", "|u1", [1, 6, 8, 4]])),
        changed(lambda one: one.append(["other", "<f4", [2]])),
    ],
)
def test_a_layout_that_is_none_is_refused(tmp_path: Path, described: Any):
    write_run(tmp_path, logged((2, "cut")))
    (tmp_path / "replay/layout.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"layout\.json: expected the layout of a replay's records"):
        ReplayRecordings(tmp_path)


def test_what_the_log_does_not_begin_with_is_refused(tmp_path: Path):
    write_run(tmp_path, logged((4, "cut"))[1:])
    with pytest.raises(DataError, match="expected the first record to begin an episode"):
        ReplayRecordings(tmp_path)
    write_run(tmp_path, logged((4, "cut"), images=True), cameras=("top",))
    with pytest.raises(DataError, match=r"expected images of 1 cameras as data\.cameras says, found 2"):
        ReplayRecordings(tmp_path)
    write_run(tmp_path, logged((4, "cut")))
    with open(tmp_path / "replay/frames.bin", "r+b") as file:
        file.truncate(1 << 43)
    with pytest.raises(DataError, match="hole-mib"):
        ReplayRecordings(tmp_path)


def test_a_run_that_acted_nowhere_is_told_what_it_learns_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.json").write_text(json.dumps(flatten(config_of())))
    assert view.main([str(tmp_path)]) == 65
    assert "the run has acted in no environment. What it learns from is none" in capsys.readouterr().err
