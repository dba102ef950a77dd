"""Trajectories that people rated: from a TFRecord to the table of an evaluation."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import CheckpointConfig, RunConfig, TrainConfig
from chunkwise.data.shards import PackSettings
from chunkwise.errors import DataError
from driving import evaluate
from driving.config import ConvConfig, DataConfig, DrivingConfig, EvalConfig, ModelConfig, RecordConfig, WaypointConfig
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.data import pack as pack_lib
from driving.data.batches import open_data
from driving.data.episodes import load_episode
from driving.data.index import concatenate
from driving.data.rater import Rated, rater_feedback_scores
from driving.data.scan import scan
from driving.train import main
from driving.validate import validate
from tests.driving.converters import waymo_files
from tests.driving.drives import write_drive

SPEED = 6.5
"""What the history of a test file's E2E frame ends with, m/s; its future goes 2 m ahead and 0.1 m left a step."""
STRAIGHT = [(SPEED * t / 4, 0.0) for t in range(1, 21)]
DRIVEN = [(2.0 * (i + 1), 0.1 * i) for i in range(20)]


def rated(speed: float, score: float, *, dt_s: float = 0.25, steps: int = 20) -> Rated:
    """Straight on."""
    places = np.stack([speed * dt_s * np.arange(1, steps + 1), np.zeros(steps)], axis=-1)
    return Rated(waypoints=places, dt_s=dt_s, score=float(score))


def test_other_rates_and_lengths_are_compared_at_4_hz():
    predicted = np.stack([12.0 * 0.1 * np.arange(1, 51), np.full(50, 1.9)], axis=-1)[None]
    speed = np.array([12.0])
    # 1.9 m beside: d = 1.9 at 3 s, 1.9 / 1.8 at 5 s.
    outside = max(float(np.mean([9 * 0.1**0.9, 9 * 0.1 ** (1.9 / 1.8 - 1)])), 4.0)
    assert rater_feedback_scores(predicted, 0.1, [[rated(12, 9)]], speed)[0] == pytest.approx(outside)
    assert rater_feedback_scores(predicted, 0.1, [[rated(12, 9, dt_s=0.5, steps=10)]], speed)[0] == pytest.approx(
        outside
    )
    # One that ends after 3 s stands from there on: 36 m, where the prediction is 24 m farther, which is 24 / 7.2 sizes.
    on_the_way = np.stack([12.0 * 0.1 * np.arange(1, 51), np.zeros(50)], axis=-1)[None]
    short = rater_feedback_scores(on_the_way, 0.1, [[rated(12, 9, steps=12)]], speed)[0]
    assert short == pytest.approx(max(float(np.mean([9, 9 * 0.1 ** (24 / 7.2 - 1)])), 4.0))
    # The fourth does not count; a frame without any has no score.
    four = [rated(6, 1), rated(6, 2), rated(6, 3), rated(12, 9)]
    scores = rater_feedback_scores(np.repeat(on_the_way, 2, axis=0), 0.1, [four, []], np.array([12.0, 12.0]))
    assert scores[0] == 4
    assert np.isnan(scores[1])
    with pytest.raises(ValueError, match="expected them to reach 5 s"):
        rater_feedback_scores(on_the_way[:, :49], 0.1, [four], speed)


def add_rated(frame: int, *scores: float) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        tree["frames"][frame]["expert"] = {
            "rated_trajectories": [
                {"score": score, "dt": 0.5, "waypoints": [[score, 0.5 * i] for i in range(i + 1)]}
                for i, score in enumerate(scores)
            ]
        }

    return change


def test_the_index_keeps_them(tmp_path: Path):
    changes = {"a": add_rated(2, 1.0, 2.0), "b": add_rated(0), "c": add_rated(4, 7.0, 8.0, 9.0)}
    for name, change in changes.items():
        write_drive(tmp_path / "raw", name, frames=5, change=change)
    index, problems = scan(tmp_path / "raw")
    assert index is not None
    assert not problems
    again, _ = scan(tmp_path / "raw")  # from the file beside the episodes
    assert again is not None
    parts = concatenate([again.one(2), again.one(0), again.one(1)])
    for whole, first in ((index, 0), (again, 0), (parts, 5)):
        frames = [whole.rated((first + row) % 15) for row in range(15)]
        assert [[one.score for one in frame] for frame in frames] == [
            [1.0, 2.0] if row == 2 else [7.0, 8.0, 9.0] if row == 14 else [] for row in range(15)
        ]
        last = frames[14][2]
        assert last.dt_s == 0.5
        np.testing.assert_array_equal(last.waypoints, [[9.0, 0.0], [9.0, 0.5], [9.0, 1.0]])
    config = DataConfig(path=str(tmp_path / "raw"), image_size=(32, 48))
    settings = PackSettings(image_size=(32, 48), encoding="jpeg")
    pack_lib.pack(config, pack_lib.open_episodes(config), tmp_path / "pack", settings)
    pack_lib.compare(config, index, tmp_path / "pack")
    assert len(open_data(dataclasses.replace(config, path=str(tmp_path / "pack")), "all").index.rated(14)) == 3


@pytest.mark.parametrize(
    ("one", "key", "words"),
    [
        ({"score": 11, "dt": 0.25, "waypoints": [[1, 0]]}, ".score", "expected maximum 10, found 11"),
        ({"score": 1, "dt": 0, "waypoints": [[1, 0]]}, ".dt", "expected exclusiveMinimum 0, found 0"),
        ({"score": 1, "dt": 0.25, "waypoints": []}, ".waypoints", "expected minItems 1, found []"),
        ({"score": 1, "dt": 0.25, "waypoints": [[1, 0, 0]]}, ".waypoints[0]", "expected maxItems 2, found [1, 0, 0]"),
        ({"score": 1, "waypoints": [[1, 0]]}, "", "expected the keys score, dt, waypoints"),
    ],
)
def test_what_is_no_rating_is_refused(tmp_path: Path, one: dict[str, Any], key: str, words: str):
    def change(tree: dict[str, Any]) -> None:
        tree["frames"][3]["expert"] = {"rated_trajectories": [one]}

    file = write_drive(tmp_path, "a", frames=5, change=change, images=False)
    with pytest.raises(DataError) as caught:
        load_episode(file)
    assert f"{file}: frames[3].expert.rated_trajectories[0]{key}: {words}" in str(caught.value)


def run(path: Path, folder: Path, steps: int, dt_s: float) -> DrivingConfig:
    return DrivingConfig(
        run=RunConfig(dir=str(folder)),
        train=TrainConfig(steps=2, batch_size=4, log_every=1),
        data=DataConfig(
            path=str(path),
            image_size=(16, 24),
            val_fraction=0.2,
            test_fraction=0.4,
            waypoint_steps=steps,
            waypoint_dt_s=dt_s,
        ),
        model=ModelConfig(conv=ConvConfig(channels=(8,), blocks=(0,)), camera_width=8, scene_width=8),
        waypoints=WaypointConfig(hidden_sizes=(8,)),
        eval=EvalConfig(batch_size=4, every=4, blind_updates=2, plotted_moments=1),
        checkpoint=CheckpointConfig(every=2),
        record=RecordConfig(),  # what was converted is there, and is nothing to record into
    )


@pytest.mark.long
def test_from_records_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [(9.5, STRAIGHT), (3.0, DRIVEN), (-1.0, STRAIGHT)]
    for segment in range(5):
        frames = [
            waymo_files.e2e_frame(2 * segment + i, segment=f"segment{segment}", rated=rows if i else ()) for i in (0, 1)
        ]
        waymo_files.write_v1(tmp_path / "set" / f"val.tfrecord-{segment:05d}-of-00005", frames=frames)
    convert(tmp_path / "set", tmp_path / "data", format="waymo_e2e", settings=ConvertSettings())
    assert validate([tmp_path / "data"])["problems"] == []

    main(run(tmp_path / "data", tmp_path / "run", 20, 0.25), "rated")
    result = json.loads((tmp_path / "run" / evaluate.REPORT).read_text())
    assert (result["drives"], result["rated"], len(result["notes"])) == (2, 2, 1)
    assert "2 drive(s) say too little of how drives differ for intervals" in result["notes"][0]
    scores = {name: row[evaluate.RATER]["mean"] for name, row in result["rows"].items()}
    # Straight on at the present speed is the first trajectory itself.
    assert scores["constant_velocity"] == 9.5
    assert scores["constant_turn"] == 9.5
    # The mean of what was driven is the second trajectory. From the first it is 24 - 19.5 m ahead and 1.1 m beside
    # after 3 s, 40 - 32.5 m and 1.9 m after 5 s; at 6.5 m/s a region has this share of its size.
    share = 0.5 + 0.5 * (6.5 - 1.4) / (11 - 1.4)
    far = np.array([max(4.5 / 4, 1.1), max(7.5 / 4 / 1.8, 1.9 / 1.8)]) / share
    assert scores["mean_trajectory"] == pytest.approx(np.maximum(3.0, 9.5 * 0.1 ** (far - 1)).mean(), abs=1e-4)
    assert 0 <= scores["model"] <= 10
    assert result["gain"][evaluate.RATER]["mean"] == pytest.approx(scores["model"] - scores["history_mlp"])
    # Straight on at 6.5 m/s, where 8 m/s is driven: 0.375 m more is missing at each step.
    short = np.hypot(0.375 * np.arange(1, 21), 0.1 * np.arange(20))
    assert result["rows"]["constant_velocity"]["ade_5s"]["mean"] == pytest.approx(short.mean(), rel=1e-5)
    assert result["rows"]["constant_velocity"]["fde_3s"]["mean"] == pytest.approx(short[11], rel=1e-5)
    assert (tmp_path / "run" / evaluate.PLOT).exists()
    assert "rater_feedback" in capsys.readouterr().out

    main(run(tmp_path / "data", tmp_path / "near", 20, 0.1), "near")
    near = json.loads((tmp_path / "near" / evaluate.REPORT).read_text())
    assert evaluate.RATER not in near["rows"]["model"]
    said = capsys.readouterr().out
    assert "2 frame(s) have rated trajectories, and the score looks 5 s ahead; the waypoints of this run end" in said
    assert "after 2 s. Train with --data.waypoint-steps 20 --data.waypoint-dt-s 0.25" in said
    # Means over other steps stand in a table of their own.
    one, other = evaluate.table([("run", result), ("near", near)]).strip().split("\n\n")
    assert evaluate.RATER in one
    assert "\n| run |" in one
    assert evaluate.RATER not in other
    assert "\n| near |" in other


def test_a_prediction_at_the_very_edge_of_a_rated_one_is_trusted():
    predicted = np.stack([12.0 * 0.25 * np.arange(1, 21), np.zeros(20)], axis=-1)[None]
    predicted[0, 11, 1], predicted[0, 19, 1] = 1.0, 1.8  # exactly one width beside, at 3 s and at 5 s
    assert rater_feedback_scores(predicted, 0.25, [[rated(12, 2)]], np.array([12.0]))[0] == 2
    predicted[0, 19, 1] = 1.81
    assert rater_feedback_scores(predicted, 0.25, [[rated(12, 2)]], np.array([12.0]))[0] == 4
