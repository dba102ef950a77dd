"""One online environment: which arrays it has to show, what is executed of a chunk, and what is said when it fails."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from chunkwise.envs.environment import Observation
from chunkwise.errors import ConfigError
from qchunk.config import OnlineConfig, QChunkConfig
from qchunk.data import open_dataset
from qchunk.envs import simulators
from qchunk.online.phase import Online
from qchunk.online.replay import read
from qchunk.train import require_fit
from tests.qchunk import recordings
from tests.qchunk.data.test_npz import write_npz
from tests.qchunk.online.test_phase import STATE, Line, never
from tests.qchunk.recordings import ACTION


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


class Plain(Line):
    """It shows nine numbers as `state`, as a Gymnasium environment would, and nothing beside them."""

    action_dim = ACTION

    def observation(self) -> Observation:
        return {"state": np.arange(9, dtype=np.float32) + self.t}


def online_config(path: Path, **data: Any) -> QChunkConfig:
    config = recordings.config(path, observation="state", **data)
    online = OnlineConfig(env="mine:Env", steps=20, start=4, interval=5)
    return dataclasses.replace(config, train=TrainConfig(steps=24, batch_size=8), online=online)


def test_the_observation_stands_for_its_second_name_which_only_the_recordings_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Plain())
    write_npz(tmp_path / "a.npz", lengths=(9, 7, 9))
    config = online_config(tmp_path / "a.npz", format="ogbench_npz")
    dataset = open_dataset(config)
    require_fit(config, dataset)
    online = Online(config, dataset, tmp_path, lambda _: lambda seen, seeds: np.zeros((1, 5, ACTION), np.float32))
    online.rewind(None)
    online.interact(STATE, 4, never)
    online.position()  # writes what waits
    records = read(tmp_path / "replay")
    np.testing.assert_array_equal(records["state"][:, 0], np.arange(6))
    np.testing.assert_array_equal(records["qpos"], records["state"])


def test_an_array_that_only_the_recordings_have_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulators, "make", lambda name, view=None, rules=None: Plain())
    config = online_config(recordings.dataset(tmp_path))
    with pytest.raises(ConfigError, match=r"which shows \{'state': 9\} beside state; expected the widths \{'qpos': 6"):
        require_fit(config, open_dataset(config))
