"""What lies ahead of a car, by geometry."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driving.config import DataConfig
from driving.data.batches import DrivingData, open_data
from driving.eval import ahead, probes
from tests.driving.drives import SIZE, SPEED, TURN, write_drive

T = np.arange(60) * 0.1


def opened(root: Path, split: Any = "all") -> DrivingData:
    return open_data(DataConfig(path=str(root), image_size=SIZE, val_fraction=0.25, test_fraction=0.25), split)


@pytest.mark.parametrize("turn", [0.4, -0.4])
def test_curvature_is_that_of_the_circle_15_m_ahead(turn: float):
    """At 8 m/s and 0.4 rad/s a circle of 20 m; 17.5 m take 2.19 s."""
    radius = 8.0 / turn
    place = np.stack([radius * np.sin(turn * T), radius * (1 - np.cos(turn * T))], axis=-1)
    found = ahead.curvatures(T, place, 0.5)
    known = T[-1] - T > 17.5 / 8.0
    np.testing.assert_allclose(found[known], 1 / radius, rtol=0.01)
    assert np.isnan(found[T[-1] - T < 17.4 / 8.0]).all()


def test_curvature_lies_where_the_way_bends_and_ends_at_a_gap():
    """20 m straight, then a circle of 10 m: 15 m before it the way is straight, 15 m from within it it is bent."""
    along = np.arange(0, 45, 0.5)
    bend = np.maximum(along - 20, 0) / 10
    place = np.stack([np.minimum(along, 20) + 10 * np.sin(bend), 10 * (1 - np.cos(bend))], axis=-1)
    t = along / 5
    found = ahead.curvatures(t, place, 0.5)
    assert np.abs(found[along <= 2]).max() < 1e-9
    np.testing.assert_allclose(found[(along >= 8) & (along < 27)], 0.1, rtol=0.01)
    place[30:38] = np.nan  # 0.9 s
    cut = ahead.curvatures(t, place, 0.5)
    assert np.isnan(cut[:38]).all()
    np.testing.assert_allclose(cut[40:50], 0.1, rtol=0.01)


def test_a_stop_is_within_three_seconds_and_not_yet():
    speed = np.where(T < 4.0, 5.0, 0.0)
    found = ahead.stops(T, speed, 0.5)
    assert found[T < 0.95].tolist() == [0.0] * 10
    assert found[(T > 0.95) & (T < 3.95)].tolist() == [1.0] * 30
    assert np.isnan(found[T > 3.95]).all(), "it stands already"
    moving = ahead.stops(T, np.full(60, 5.0), 0.5)
    assert moving[T < 2.95].tolist() == [0.0] * 30
    assert np.isnan(moving[T > 3.05]).all(), "what comes then is not known"
    assert np.isnan(ahead.stops(T, np.where(np.arange(60) == 20, np.nan, 5.0), 0.5)[:21]).all()
    gap = ahead.stops(np.where(np.arange(60) < 20, T, T + 1.0), speed, 0.5)
    assert not np.isfinite(gap[:20]).any()


def around(metres: float | None, light: str | None) -> Any:
    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            frame["surroundings"] = {"vehicle_ahead_m": metres, "traffic_light": light}
        del tree["frames"][0]["surroundings"]

    return change


def test_what_episodes_say_of_their_surroundings_is_known_where_they_say_it(tmp_path: Path):
    write_drive(tmp_path, "a", frames=40, change=around(12.5, "red"))
    write_drive(tmp_path, "b", frames=40, change=around(None, "none"), start_yaw=1.0)
    write_drive(tmp_path, "c", frames=40, start_yaw=2.0)
    write_drive(tmp_path, "d", frames=40, change=around(55.0, "yellow"), start_yaw=3.0)
    data = opened(tmp_path)
    found = ahead.labels(data, np.arange(160))
    metres, light = (found[name].reshape(4, 40) for name in ("vehicle_ahead", "red_light"))
    assert np.isnan(metres[:, 0]).all()
    assert np.isnan(light[:, 0]).all()
    assert metres[:, 5].tolist()[:2] == [12.5, 40.0], "none in sight counts as the farthest"
    assert np.isnan(metres[2]).all()
    assert metres[3, 5] == 40.0
    assert light[[0, 1, 3], 5].tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_allclose(found["curvature"].reshape(4, 40)[:, 5], TURN / SPEED, rtol=0.01)
    assert set(found["stop"][:5].tolist()) == {0.0}


def test_what_motion_tells_and_what_features_add(tmp_path: Path):
    """All drives move alike, so that motion says nothing of who is ahead, and features that hold it say all."""
    for number in range(8):
        metres = float(5 * number)
        write_drive(tmp_path, f"drive_{number}", frames=40, change=around(metres, "red" if number % 2 else "green"))
    train, held_out = opened(tmp_path, "train"), opened(tmp_path, "test")
    labels = probes.ahead_labels(train), probes.ahead_labels(held_out)
    blind = probes.ahead_of(train, held_out, labels)
    assert set(blind) == {"curvature_r2", "vehicle_ahead_r2", "red_light_auroc"}, "nobody stops"
    assert blind["vehicle_ahead_r2"] < 0.1
    assert blind["red_light_auroc"] == pytest.approx(0.5, abs=0.05)
    told = [np.nan_to_num(np.stack(list(one.values())[2:], axis=1)).astype(np.float32) for one in labels]
    found = probes.ahead_of(train, held_out, labels, (told[0], told[1]))
    assert found["vehicle_ahead_r2"] > 0.8
    assert found["red_light_auroc"] == 1.0


def test_the_area_under_the_curve_counts_pairs():
    score, truth = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0.0, 1.0, 0.0, 1.0])
    assert probes.auroc(score, truth) == (1 + 1 + 1 + 0.5) / 4
    assert probes.explained(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.5)
