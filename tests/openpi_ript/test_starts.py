"""What `main` hands to the loop, told without an update."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkwise.train.run_dir import RunFolder
from openpi_ript import train
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.rollouts import EvalConfig, RolloutConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.policies.saved import NORM_STATS, TOKENIZER
from openpi_ript.tasks.ript import RiptTask
from tests.openpi_ript.small_run import make_dataset, small_config
from tests.openpi_ript.toy_rollouts import point


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("starts"))


def started(config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `fit` was called with, and how the dataset was opened."""
    seen = SimpleNamespace(checks=[])

    def fit(config: Any, task: Any, folder: Any, *, load: Any = None, interaction: Any = None) -> str:
        vars(seen).update(config=config, task=task, kept=dict(folder.kept), load=load, interaction=interaction)
        return ""

    def opened(data: Any, **options: Any) -> Any:
        seen.checks.append(options["check"].__func__)
        return open_data(data, **options)

    monkeypatch.setattr(train, "fit", fit)
    monkeypatch.setattr(train, "open_data", opened)
    train.main(config, "test")
    return seen


def test_a_run_keeps_what_its_policy_needs_and_knows_its_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = small_config(root, tmp_path / "run")
    seen = started(config, monkeypatch)
    assert seen.kept[TOKENIZER] == Path(config.tokenizer).read_bytes()
    recorded = json.loads(seen.kept[NORM_STATS])["norm_stats"]["actions"]
    np.testing.assert_allclose(recorded["mean"][:3], open_data(config.data).stats["actions"].mean[:3])
    assert seen.checks == [RunFolder.require_same_files]
    assert seen.config is config
    assert seen.load is None
    assert seen.interaction is None


def test_weights_that_are_named_are_loaded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "weights").mkdir()
    seen = started(small_config(root, tmp_path / "run", weights=str(tmp_path / "weights")), monkeypatch)
    assert seen.load == seen.task.load


def test_a_run_with_rollouts_plays_them(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(path=str(root), robot=robot, cameras={}, horizon=8, state_norm="none", action_norm="none")
    rollout = RolloutConfig(start=2, updates=2, groups=2, max_groups=4, size=2, initial_states=4)
    config = small_config(root, tmp_path / "run", data=data, env=point(), rollout=rollout, eval=EvalConfig())
    seen = started(config, monkeypatch)
    closed: list[bool] = []
    try:
        assert isinstance(seen.task, RiptTask)
        assert seen.task.config == dataclasses.replace(config)
        assert seen.interaction is not None
        assert (seen.interaction.start, seen.interaction.every) == (2, 2)
    finally:
        close = seen.task.collector.close
        monkeypatch.setattr(seen.task.collector, "close", lambda: closed.append(True) or close())
        seen.task.finish()
    assert closed == [True]
