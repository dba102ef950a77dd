"""The town: who drives in it keeps to the rules, and what is recorded is a function of seed and number."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import ConfigError
from driving.config import CAMERAS, DataConfig, RecordConfig
from driving.data.batches import open_data
from driving.record import episode_path, images_taken, record
from driving.sim.driver import Drive, drive
from driving.sim.roads import LANE

SHORT = RecordConfig(episodes=2, seconds=1.5, image_size=(32, 48), processes=1, missing=0.2)


@pytest.fixture(scope="module")
def drives() -> list[Drive]:
    return [drive(3, episode, seconds=30.0, rate=10.0) for episode in range(6)]


def test_the_motion_is_the_integral_of_speed_and_yaw_rate(drives: list[Drive]):
    for one in drives:
        step = np.diff(one.pose, axis=0) * 10
        speed = np.linalg.norm(step[:, :2], axis=-1)
        np.testing.assert_allclose(speed, (one.speed[1:] + one.speed[:-1]) / 2, atol=0.15)
        np.testing.assert_allclose(step[:, 2], (one.yaw_rate[1:] + one.yaw_rate[:-1]) / 2, atol=0.1)


def test_the_car_keeps_its_lane_and_brakes_like_a_person(drives: list[Drive]):
    for one in drives:
        apart = np.linalg.norm(one.pose[:, None, :2] - one.road.points[None], axis=-1).min(axis=1)
        assert np.abs(apart - LANE / 2).max() < 0.35
        assert np.diff(one.speed).min() * 10 > -6.1
        assert np.abs(one.speed * one.yaw_rate).max() < 7.5  # lateral acceleration


def test_nobody_runs_into_anybody(drives: list[Drive]):
    for one in drives:
        cos, sin = np.cos(one.pose[:, 2])[:, None], np.sin(one.pose[:, 2])[:, None]
        away = one.cars[:, :, :2] - one.pose[:, None, :2]
        ahead, left = cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]
        assert not ((np.abs(ahead) < 4.2) & (np.abs(left) < 1.5) & np.isfinite(one.cars[..., 2])).any()


def test_red_means_stop(drives: list[Drive]):
    stops = 0
    for one in (*drives, drive(0, 20, seconds=30.0, rate=10.0)):
        for i, signal in enumerate(one.signals):
            line = one.road.pose(signal.junction.enter, -LANE / 2)
            front = (one.pose[:, :2] - line[:2]) @ np.array([np.cos(line[2]), np.sin(line[2])]) + 2.2
            near = np.linalg.norm(one.pose[:, :2] - line[:2], axis=-1) < 8
            crosses = np.flatnonzero(near[1:] & (front[:-1] < -0.3) & (front[1:] >= -0.3))
            assert all(one.lights[frame][i] != "red" for frame in crosses.tolist())
            red = np.array([lights[i] == "red" for lights in one.lights])
            stops += bool((near & red & (one.speed < 0.1)).any())
    assert stops >= 1


def test_the_future_is_not_in_the_present_motion(drives: list[Drive]):
    turning = np.concatenate([one.yaw_rate for one in drives])
    speed = np.concatenate([one.speed for one in drives])
    assert np.mean(np.abs(turning) > 0.2) > 0.2
    assert speed.min() < 0.1 < 8 < speed.max()
    assert {command for one in drives for command in one.command} == {None, "left", "straight", "right"}


def test_the_share_of_missing_images():
    taken = np.concatenate([images_taken(RecordConfig(missing=0.1), e, 300) for e in range(20)])
    assert np.mean(taken == 0) == pytest.approx(0.05, abs=0.01)
    assert np.mean(taken == -1) == pytest.approx(0.05, abs=0.02)


def test_recording_goes_on_where_it_was_stopped_and_ends_with_the_same_files(tmp_path: Path):
    said: list[str] = []
    record(SHORT, tmp_path / "a", report=said.append)
    assert "recording 2 of 2 drives" in said[0]
    files = {p.relative_to(tmp_path / "a"): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    # As after a kill: one episode is not there, and of its images only some.
    episode_path(tmp_path / "a", 1).unlink()
    (tmp_path / "a/_dataset.json").rename(tmp_path / "a/_recording.json")
    sorted((tmp_path / "a/images/episode_00001").iterdir())[0].unlink()
    record(SHORT, tmp_path / "a", report=said.append)
    assert {p.relative_to(tmp_path / "a"): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()} == files
    with pytest.raises(ConfigError, match=r"record.seconds is 2.0, there 1.5"):
        record(RecordConfig(episodes=2, seconds=2.0, image_size=(32, 48), missing=0.2), tmp_path / "a")

    frames = json.loads(episode_path(tmp_path / "a", 0).read_text())["frames"]
    cameras = [frame["observations"]["cameras"] for frame in frames]
    assert len(frames) == 15
    taken = images_taken(SHORT, 0, 15)
    assert [[c.get(name, -1) for name in CAMERAS].count(None) for c in cameras] == (taken == 0).sum(1).tolist()
    assert [len(CAMERAS) - len(c) for c in cameras] == (taken == -1).sum(1).tolist()

    data = open_data(DataConfig(path=str(tmp_path / "a"), image_size=(32, 48)), "all")
    batch = data.batch(data.anchors[:4])
    assert batch["image_valid"][:, 0].tolist() == (taken[:4] == 1).tolist()
    seen = batch["images"][batch["image_valid"]].astype(float)
    assert seen.std(axis=(1, 2, 3)).min() > 10  # neither black nor flat
    assert (seen[:, :6].mean((1, 2))[:, 2] > seen[:, :6].mean((1, 2))[:, 0]).mean() > 0.8  # a blue sky is above
    assert batch["waypoint_valid"][0].sum() == 14  # until the end of the drive, and no farther
