"""LeRobot datasets that are written here are read here, however many episodes they have."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.errors import ConfigError, DataError
from openpi_ript.data import lerobot_writer
from openpi_ript.data.lerobot_writer import Recorded, require_one_rate, write_lerobot


def test_more_episodes_than_a_chunk_holds_lie_where_a_reader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lerobot_writer, "EPISODES_A_CHUNK", 2)
    columns = {"observation.state": np.zeros((3, 2), np.float32), "action": np.zeros((3, 1), np.float32)}
    episodes = [Recorded(columns=columns, images={}, task="push") for _ in range(5)]
    names = {"observation.state": ["x", "y"], "action": ["x"]}
    write_lerobot(tmp_path, episodes, fps=10.0, robot="point", provenance={}, names=names)
    there = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("data/*/*"))
    assert there == [f"data/chunk-{e // 2:03d}/episode_{e:06d}.parquet" for e in range(5)]
    info = json.loads((tmp_path / "meta/info.json").read_text())
    assert (info["total_chunks"], info["chunks_size"]) == (3, 2)
    assert type(info["fps"]) is int, "as LeRobot declares it"
    read = read_meta(tmp_path)
    assert all((tmp_path / episode.file).exists() for episode in read.episodes)


def test_an_image_of_another_size_than_the_first_is_refused(tmp_path: Path):
    sizes = [(4, 4, 3), (4, 4, 3), (2, 4, 3)]
    images = {"observation.images.base": [np.zeros(size, np.uint8) for size in sizes]}
    episode = Recorded(columns={"action": np.zeros((3, 1), np.float32)}, images=images, task="push")
    with pytest.raises(
        DataError, match=r"observation.images.base, frame 2: expected \[4, 4, 3\], .* found \[2, 4, 3\]"
    ):
        write_lerobot(tmp_path, [episode], fps=10, robot="point", provenance={}, names={})


def test_tasks_of_several_rates_do_not_become_one_dataset():
    require_one_rate({"red": 12.5, "green": 12.5})
    with pytest.raises(ConfigError, match=r"the tasks make red 12\.5, green 25 steps a second; expected one rate"):
        require_one_rate({"red": 12.5, "green": 25})


def test_each_episode_has_the_statistics_that_lerobot_opens_a_dataset_with(tmp_path: Path):
    state = np.array([[0, 1], [2, 5], [4, 3]], np.float32)
    columns = {"observation.state": state, "next.success": np.array([False, False, True])}
    black = np.zeros((2, 2, 3), np.uint8)
    red = black + np.array([255, 51, 0], np.uint8)
    images = {"observation.images.base": [black, red, red]}
    episodes = [Recorded(columns=columns, images=images, task="push")] * 2
    write_lerobot(tmp_path, episodes, fps=10, robot="point", provenance={}, names={})
    lines = [json.loads(line) for line in (tmp_path / "meta/episodes_stats.jsonl").read_text().splitlines()]
    assert [line["episode_index"] for line in lines] == [0, 1]
    stats = lines[1]["stats"]
    assert set(stats) == set(json.loads((tmp_path / "meta/info.json").read_text())["features"])
    # Of 0, 2, 4: mean 2, variance (4 + 0 + 4) / 3; of 1, 5, 3 the same about 3.
    deviation = (8 / 3) ** 0.5
    found = stats["observation.state"]
    assert (found["min"], found["max"], found["count"]) == ([0, 1], [4, 5], [3])
    np.testing.assert_allclose(found["mean"], [2, 3])
    np.testing.assert_allclose(found["std"], [deviation, deviation])
    assert stats["next.success"]["min"] == [False]
    np.testing.assert_allclose(stats["next.success"]["mean"], [1 / 3])
    assert (stats["index"]["min"], stats["index"]["max"], stats["episode_index"]["mean"]) == ([3], [5], [1])
    # A third of the pixels are 0, the others 1 (red) or 0.2 (green): deviation root of 1/3 * 2/3 of that.
    pixels = stats["observation.images.base"]
    assert np.shape(pixels["mean"]) == (3, 1, 1)
    np.testing.assert_allclose(np.ravel(pixels["mean"]), [2 / 3, 0.2 * 2 / 3, 0])
    np.testing.assert_allclose(np.ravel(pixels["std"]), [2**0.5 / 3, 0.2 * 2**0.5 / 3, 0])
    np.testing.assert_allclose(np.ravel(pixels["max"]), [1, 0.2, 0])
    assert (np.ravel(pixels["min"]).tolist(), pixels["count"]) == ([0, 0, 0], [3])
