import json
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.data.convert import Jobs
from qchunk.convert import convert
from qchunk.data import Pool
from tests.qchunk.converters.sources import (
    arrays_of,
    refused,
)
from tests.qchunk.recordings import assert_same, config


def test_the_pool_is_the_same_as_from_the_npz(tmp_path: Path):
    rng = np.random.default_rng(0)
    content = {
        "observations": rng.normal(size=(12, 5)).astype(np.float32),
        "actions": rng.normal(size=(12, 3)).astype(np.float32),
        "terminals": np.zeros(12, np.float32),
        "rewards": -np.ones(12, np.float32),
        "masks": np.ones(12, np.float32),
        "qpos": rng.normal(size=(12, 21)),
    }
    content["terminals"][[4, 11]] = 1
    content["rewards"][3], content["masks"][3] = 0, 0
    np.savez_compressed(tmp_path / "cube.npz", **content)
    convert(tmp_path / "cube.npz", tmp_path / "out")
    same: dict[str, Any] = {"episodes_per_epoch": 2, "positive_ratio": 1.0, "horizon": 3}
    direct = Pool(config(tmp_path / "cube.npz", format="ogbench_npz", **same), 0, 0)
    pool = Pool(config(tmp_path / "out", **same), 0, 0)
    assert direct.lengths.tolist() == pool.lengths.tolist()
    for episode in range(2):
        for start in range(int(pool.lengths[episode])):
            one, other = direct.transition(episode, start), pool.transition(episode, start)
            for key in ("actions", "rewards", "masks", "valid", "terminals"):
                assert_same(one[key], other[key])
            assert_same(one["observations"]["qpos"], other["observations"]["qpos"])
    np.testing.assert_array_equal(arrays_of(tmp_path / "out/episode_00001.hdf5")["sim/qpos"], content["qpos"][5:11])


def test_a_bad_episode_of_a_hundred_is_left_out_where_that_is_asked_for(tmp_path: Path):
    observations = np.arange(400, dtype=np.float32).reshape(200, 2)
    observations[14, 1] = np.nan
    terminals = np.tile([0, 1], 100)  # a hundred episodes of one action
    actions = np.arange(200, dtype=np.float32).reshape(200, 1)
    np.savez(tmp_path / "a.npz", observations=observations, actions=actions, terminals=terminals)
    convert(tmp_path / "a.npz", tmp_path / "out", jobs=Jobs(on_bad="skip"))
    whole = [f"episode_{index:05d}.hdf5" for index in range(100) if index != 7]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.hdf5")) == whole
    found = arrays_of(tmp_path / "out/episode_00008.hdf5")
    assert (found["observations/state"].tolist(), found["action"].tolist()) == ([[32, 33]], [[16]])
    skipped = json.loads((tmp_path / "out/dataset.json").read_text())["skipped"]
    assert (skipped["bad"], skipped["of"]) == (1, 100)
    assert skipped["problems"][0].startswith("a.npz#7: observations, row 14: expected finite numbers, found nan")


def test_bad_files_are_reported_as_by_the_source(tmp_path: Path):
    np.savez(tmp_path / "a.npz", observations=np.zeros((4, 2), np.float32))
    assert "a.npz: actions: expected an array of this name, found none" in refused(tmp_path / "a.npz", tmp_path / "out")
