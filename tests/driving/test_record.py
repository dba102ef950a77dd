"""The town's recordings: inputs as in closed loop, waypoints back to the path, and a function of seed and number."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.environment import EnvSpec
from chunkwise.errors import ConfigError
from driving.config import AHEAD, CAMERAS, DataConfig, NoiseConfig, RecordConfig
from driving.data.batches import open_data
from driving.data.episodes import load_episode
from driving.policies.policy import WaypointPolicy
from driving.record import episode_path, images_taken, record, record_episode
from driving.sim.environment import TownEnv
from driving.sim.noise import Noise
from driving.sim.roads import LANE
from driving.sim.town import Town
from driving.validate import validate

SHORT = RecordConfig(episodes=2, seconds=1.5, image_size=(32, 48), processes=1, missing=0.2)
QUIET = NoiseConfig(turn_rad=0.0, stretch=0.0)
SPEC = EnvSpec(suite="town", task="drive")


def away(config: RecordConfig, folder: Path, episode: int) -> np.ndarray:
    """Metres to the left of the lane's middle at each frame of a recorded drive."""
    drove = load_episode(episode_path(folder, episode))
    road = Town(seed_of(Purpose.DRIVE, config.seed, episode), config.seconds + 1).road
    return np.array([road.project(place)[1] + LANE / 2 for place in drove.pose[:, :2]])


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings render nothing."""
    grey = np.full((32, 48, 3), 90, np.uint8)
    monkeypatch.setattr(TownEnv, "images", lambda self: dict.fromkeys(self._spec.cameras, grey))


@pytest.mark.long
@pytest.mark.usefixtures("blind")
def test_errors_take_the_car_off_its_lane_and_what_is_recorded_leads_back(tmp_path: Path):
    quiet, noisy = (
        RecordConfig(episodes=3, seconds=8.0, image_size=(32, 48), noise=noise)
        for noise in (QUIET, NoiseConfig(turn_rad=0.15, stretch=0.2))
    )
    for config, folder in ((quiet, tmp_path / "quiet"), (noisy, tmp_path / "noisy")):
        folder.mkdir()
        for episode in range(3):
            record_episode(config, folder, episode)
    assert max(np.abs(away(quiet, tmp_path / "quiet", e)).max() for e in range(3)) < 0.5
    off = [away(noisy, tmp_path / "noisy", e) for e in range(3)]
    assert max(np.abs(one).max() for one in off) > 0.7
    speeds = [load_episode(episode_path(tmp_path / name, 0)).speed_mps[:40] for name in ("quiet", "noisy")]
    assert np.abs(speeds[0] - speeds[1]).max() > 0.5
    for episode, one in enumerate(off):
        drove = load_episode(episode_path(tmp_path / "noisy", episode))
        road = Town(seed_of(Purpose.DRIVE, 0, episode), 9.0).road
        for frame in np.flatnonzero((np.abs(one) > 0.4) & (drove.speed_mps > 5)).tolist():
            x, y, heading = drove.pose[frame]
            (ahead, left), (cos, sin) = drove.waypoints[frame, -1], (np.cos(heading), np.sin(heading))
            place = np.array([x + cos * ahead - sin * left, y + sin * ahead + cos * left])
            assert abs(road.project(place)[1] + LANE / 2) < 0.5 * abs(one[frame])
    # What was driven and what is to be learnt differ, and that is no error of the recording.
    report = validate([tmp_path / "noisy"], images=False)  # which are all of one grey
    assert report["problems"] == []


@pytest.mark.usefixtures("blind")
def test_what_is_learnt_from_is_what_is_seen_in_closed_loop(tmp_path: Path):
    """Inputs of training, made of the files, are those of a policy that is asked in the same drive."""
    config = RecordConfig(episodes=1, seconds=2.5, rate_hz=10.0, image_size=(32, 48), missing=0.0, seed=3)
    record_episode(config, tmp_path, 0)
    (tmp_path / "one.json").write_text(episode_path(tmp_path, 0).read_text())
    episode_path(tmp_path, 0).unlink()
    data = open_data(DataConfig(path=str(tmp_path), image_size=(32, 48), val_fraction=0, test_fraction=0), "all")
    batch = data.batch(data.anchors)
    env, noise = TownEnv(SPEC, seconds=2.5, expert=True), Noise(config.noise, np.random.default_rng([3, 0, 1]))
    observed = env.reset(seed_of(Purpose.DRIVE, 3, 0))
    for frame in range(25):
        np.testing.assert_allclose(batch["speed_mps"][frame, 0], observed["speed_mps"], atol=1e-5)
        np.testing.assert_allclose(batch["yaw_rate_radps"][frame, 0], observed["yaw_rate_radps"], atol=1e-5)
        assert batch["route_command"][frame] == observed["route_command"]
        np.testing.assert_allclose(batch["waypoints"][frame], observed["expert_waypoints"], atol=1e-4)
        assert batch["waypoint_valid"][frame].all()  # also behind the end of the drive
        if frame >= 10:
            change = [observed[key] - observed[f"past_{key}"] for key in ("speed_mps", "yaw_rate_radps")]
            np.testing.assert_allclose(batch["past_motion"][frame], np.concatenate(change), atol=1e-5)
            assert batch["past_motion_valid"][frame].all()
        plan = noise.disturbed(observed["expert_waypoints"].astype(np.float64))
        observed = env.step(env.clip(plan.ravel())).observation
    assert np.abs(batch["yaw_rate_radps"]).max() > 0.01


def test_images_are_those_of_the_closed_loop(tmp_path: Path):
    config = RecordConfig(seconds=0.6, image_size=(32, 48), missing=0.0, cameras=AHEAD, jpeg_quality=100, noise=QUIET)
    record_episode(config, tmp_path, 5)
    frames = json.loads(episode_path(tmp_path, 5).read_text())["frames"]
    assert [sorted(frame["observations"]["cameras"]) for frame in frames] == [sorted(AHEAD), []] * 3
    data = open_data(DataConfig(path=str(tmp_path), cameras=AHEAD, image_size=(32, 48)), "all")
    assert data.anchors.tolist() == [0, 2, 4]
    env = TownEnv(EnvSpec(suite="town", task="drive", cameras=AHEAD, image_size=(32, 48)), seconds=0.6, expert=True)
    observed = env.reset(seed_of(Purpose.DRIVE, 0, 5))
    for frame in range(3):
        shown = env.images()
        stored = data.batch(data.anchors[[frame]])["images"][0, 0].astype(float)
        for k, camera in enumerate(AHEAD):
            assert np.abs(stored[k] - shown[camera]).mean() < 4  # JPEG
        for _ in range(2):
            observed = env.step(env.clip(observed["expert_waypoints"].ravel())).observation
    env.close()


@pytest.mark.usefixtures("blind")
def test_a_policy_may_drive_and_the_towns_driver_says_what_it_should_have_done(tmp_path: Path):
    asked: list[dict[str, Any]] = []

    def swerves(seen: dict[str, Any]) -> np.ndarray:
        asked.append(seen)
        return np.stack([8.0 * 0.1 * np.arange(1, 21), 0.4 * np.arange(1, 21)], axis=-1)

    config = RecordConfig(seconds=4.0, image_size=(32, 48), missing=0.0, cameras=("front",), noise=QUIET, driver="run")
    record_episode(config, tmp_path, 1, swerves)
    drove = load_episode(episode_path(tmp_path, 1))
    off = away(config, tmp_path, 1)
    assert len(asked) == len(drove.t)
    assert all(seen["front"].shape == (32, 48, 3) for seen in asked)  # at every step, also where none is written
    assert sum(path is not None for (path,) in drove.image_paths) == -(-len(drove.t) // 2)
    assert off.max() > 1.0
    assert len(drove.t) < 40  # it left the road, where the drive ends
    assert not drove.waypoints_driven
    assert drove.waypoints[10, 5, 1] < 0  # back to the right


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({}, "sees side_left; expected in record.cameras"),
        ({"steps": 31}, "its plans are 31 waypoints, 0.1 s apart; expected at most 30, 0.1 s apart"),
        ({"kind": SimpleNamespace}, "expected a run of driving that learnt waypoints"),
    ],
)
def test_a_driver_that_does_not_fit_is_refused(
    policy: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Fake(WaypointPolicy):
        spec: Any = SimpleNamespace(observation={"image/side_left": None})  # pyright: ignore[reportIncompatibleMethodOverride]

        def __init__(self) -> None:
            steps = policy.get("steps", 20)
            data = SimpleNamespace(waypoint_steps=steps, waypoint_dt_s=0.1, cameras=("side_left",))
            self.config: Any = SimpleNamespace(data=data)

    made = policy.get("kind", Fake)
    monkeypatch.setattr("chunkwise.policies.load.load_policy", lambda run, **_: made())
    with pytest.raises(ConfigError, match=said):
        record(RecordConfig(driver="run", cameras=AHEAD), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate_hz": 3.0}, "record.rate_hz is 3.0; expected 10 divided by a whole number"),
        ({"rate_hz": 20.0}, "expected 10 divided by a whole number"),
        ({"cameras": ("front", "rear")}, "record.cameras is"),
        ({"cameras": ()}, "record.cameras is"),
        ({"cameras": ("front", "front")}, "record.cameras is"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        RecordConfig(**fields)


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
    assert not any(cameras[1::2])  # five images a second
    cameras = cameras[::2]
    taken = images_taken(SHORT, 0, 8)
    assert [[c.get(name, -1) for name in CAMERAS].count(None) for c in cameras] == (taken == 0).sum(1).tolist()
    assert [len(CAMERAS) - len(c) for c in cameras] == (taken == -1).sum(1).tolist()

    data = open_data(DataConfig(path=str(tmp_path / "a"), image_size=(32, 48)), "all")
    batch = data.batch(data.anchors[:4])
    assert batch["image_valid"][:, 0].tolist() == (taken[:4] == 1).tolist()
    seen = batch["images"][batch["image_valid"]].astype(float)
    assert seen.std(axis=(1, 2, 3)).min() > 10  # neither black nor flat
    assert (seen[:, :6].mean((1, 2))[:, 2] > seen[:, :6].mean((1, 2))[:, 0]).mean() > 0.8  # a blue sky is above
    assert batch["waypoint_valid"].all()  # the driver's, behind the end of the drive as well


def test_a_whole_recording_needs_no_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine that only trains has no MuJoCo;"""
    record(SHORT, tmp_path / "whole")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "mujoco" else found(name, *more)
    )
    said: list[str] = []
    record(SHORT, tmp_path / "whole", report=said.append)
    assert not said
    (tmp_path / "whole/_dataset.json").rename(tmp_path / "whole/_recording.json")
    for folder in ("whole", "none"):
        with pytest.raises(ConfigError, match="recording needs MuJoCo"):
            record(SHORT, tmp_path / folder)
