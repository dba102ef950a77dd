import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.data.convert import Jobs
from chunkwise.errors import ConfigError
from qchunk.config import DataConfig
from qchunk.convert import convert
from qchunk.data.index import open_source
from tests import lerobot_files
from tests.qchunk.converters.sources import (
    arrays_of,
    attributes_of,
    refused,
    settings,
)


@pytest.mark.parametrize("version", ["v21", "v30"])
def test_arrays_images_and_labels(tmp_path: Path, version: str):
    episodes = lerobot_files.record()
    write = {"v21": lerobot_files.write_v21, "v30": lerobot_files.write_v30}[version]
    convert(write(tmp_path / "set", episodes, storage="image"), tmp_path / "out", settings=settings(images="raw"))
    for index, episode in enumerate(episodes):
        path = tmp_path / f"out/episode_{index:05d}.hdf5"
        found, attributes = arrays_of(path), attributes_of(path)
        np.testing.assert_array_equal(found["observations/qpos"], episode.state, strict=True)
        np.testing.assert_array_equal(found["action"], episode.action, strict=True)
        np.testing.assert_array_equal(found["reward"], episode.reward.astype(np.float64), strict=True)
        assert found["terminated"].tolist() == episode.success.tolist()
        assert bool(attributes["success"]) is bool(episode.success.any())
        assert attributes["instruction"] == lerobot_files.TASKS[index % 2]
        for key in lerobot_files.CAMERAS:
            name = key.rpartition(".")[2]
            np.testing.assert_array_equal(found[f"observations/images/{name}"], episode.images[key], strict=True)
    assert open_source(DataConfig(path=str(tmp_path / "out")))[0].positives.tolist() == [True, False, True]


def test_bad_sets_are_refused_with_all_problems(tmp_path: Path):
    episodes = lerobot_files.record()
    episodes[0].state[2, 1] = np.nan
    episodes[2].timestamp[4] += 0.5
    text = refused(lerobot_files.write_v30(tmp_path / "set", episodes, storage="image"), tmp_path / "out")
    assert "episode 0, data/chunk-000/file-000.parquet: observation.state, row 2: expected finite numbers" in text
    assert "episode 2, data/chunk-000/file-001.parquet: timestamp, row 4: expected" in text


def test_a_bad_episode_of_a_hundred_is_left_out_where_that_is_asked_for(tmp_path: Path):
    episodes = lerobot_files.record([1] * 100, size=(2, 2))
    episodes[7].action[0, 0] = np.nan
    root = lerobot_files.write_v21(tmp_path / "set", episodes, storage="image")
    convert(root, tmp_path / "out", settings=settings(images="none"), jobs=Jobs(on_bad="skip"))
    whole = [f"episode_{index:05d}.hdf5" for index in range(100) if index != 7]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.hdf5")) == whole
    np.testing.assert_array_equal(arrays_of(tmp_path / "out/episode_00008.hdf5")["action"], episodes[8].action)
    skipped = json.loads((tmp_path / "out/dataset.json").read_text())["skipped"]
    assert (skipped["bad"], skipped["of"]) == (1, 100)
    assert "episode 7" in skipped["problems"][0]


def test_keys_that_are_not_there(tmp_path: Path):
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record(), storage="image")
    with pytest.raises(ConfigError, match=r"no features \['observation.joints'\]; the dataset has"):
        convert(root, tmp_path / "out", settings=settings(observation_keys=("observation.joints",)))
    with pytest.raises(ConfigError, match=r"no cameras \['top'\]; it has"):
        convert(root, tmp_path / "out", settings=settings(cameras={"top": "cam_high"}))
