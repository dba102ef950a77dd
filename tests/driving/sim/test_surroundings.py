"""What the town says is ahead of the car, against the poses of the others."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.envs.environment import EnvSpec
from driving.config import RecordConfig
from driving.data.episodes import load_episode
from driving.record import episode_path, record
from driving.sim.environment import TownEnv
from driving.sim.roads import LANE
from driving.sim.town import SIGHT_M
from driving.sim.traffic import CAR_LENGTH


def nearest(env: TownEnv) -> float:
    """Metres to the nearest car that drives the own lane ahead, as far as it is in sight; inf if there is none."""
    town, car = env._town, env._car
    s, gaps = town.road.project(car.pose[:2])[0], [np.inf]
    for x, y, heading in town.moment(car).cars:
        if np.isnan(heading):
            continue
        there, offset = town.road.project(np.array([x, y]))
        along = np.cos(heading - town.road.pose(there, 0.0)[2]) > 0.9
        if along and abs(offset + LANE / 2) < 1 and there > s:
            gaps.append(there - s - CAR_LENGTH)
    return min(gaps) if min(gaps) <= SIGHT_M else np.inf


@pytest.mark.parametrize("seed", [0, 1, 5, 7, 11])
def test_the_vehicle_ahead_is_the_nearest_in_the_lane(seed: int) -> None:
    env = TownEnv(EnvSpec(suite="town", task="drive"), expert=True)
    observed = env.reset(seed)
    found = []
    for _ in range(100):
        ahead, _ = env.surroundings()
        found.append((np.inf if ahead is None else ahead, max(nearest(env), 0.0)))
        observed = env.step(env.clip(observed["expert_waypoints"].ravel())).observation
    told, seen = np.array(found).T
    np.testing.assert_allclose(told, seen, atol=0.05)
    assert np.ptp(told) > 1


def test_a_light_is_told_within_sight_and_no_other() -> None:
    """Seed 6: the driver waits behind somebody at a red light."""
    env = TownEnv(EnvSpec(suite="town", task="drive"), expert=True)
    observed = env.reset(6)
    told, standing = [], set()
    for _ in range(140):
        s = env._town.road.project(env._car.pose[:2])[0]
        within = [0 < signal.junction.enter - s <= SIGHT_M for signal in env._town.signals]
        _, light = env.surroundings()
        told.append((light is not None) == any(within))
        assert light is None or light == env._town.signals[within.index(True)].state(env._town.t)
        if observed["speed_mps"] < 0.1:
            standing.add(light)
        observed = env.step(env.clip(observed["expert_waypoints"].ravel())).observation
    assert all(told)
    assert "red" in standing
    assert None not in standing


def test_recorded_drives_say_what_is_ahead(tmp_path: Path) -> None:
    record(
        RecordConfig(episodes=1, seconds=2.0, rate_hz=5.0, cameras=("front",), image_size=(16, 24), processes=1),
        tmp_path,
    )
    file = episode_path(tmp_path, 0)
    episode = load_episode(file)
    raw = [frame["surroundings"] for frame in json.loads(file.read_text())["frames"]]
    metres = [np.inf if one["vehicle_ahead_m"] is None else one["vehicle_ahead_m"] for one in raw]
    assert episode.vehicle_ahead_m.tolist() == metres
    assert (episode.traffic_light > 0).all(), "known, if none"
