"""A run with an environment: how many episodes its evaluations have, and what they say of the dataset."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chunkwise.envs.evaluate import Evaluation
from chunkwise.errors import ConfigError
from openpi_ript.config.data import DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.config.rollouts import EvalConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.tasks import ript
from openpi_ript.tasks.ript import RiptTask
from tests.openpi_ript.small_run import make_dataset, small_config, supervised
from tests.openpi_ript.toy_rollouts import point


@pytest.fixture
def config(tmp_path: Path) -> OpenpiRiptConfig:
    """Imitates, and acts in two tasks."""
    root = make_dataset(tmp_path)
    data = DataConfig(
        path=str(root), robot=RobotConfig(state_dim=2, target_state_dim=4, action_dim=3), cameras={}, horizon=8
    )
    env = point(task="", tasks=("red", "blue"), prompt="", prompts={"red": "to red", "blue": "to blue"})
    base = supervised(small_config(root, tmp_path / "run"), data=data, env=env, eval=EvalConfig())
    return dataclasses.replace(base, train=dataclasses.replace(base.train, steps=8, eval_every=4))


def with_eval(config: OpenpiRiptConfig, eval_every: int = 4, **settings: Any) -> OpenpiRiptConfig:
    train = dataclasses.replace(config.train, eval_every=eval_every)
    return dataclasses.replace(config, train=train, eval=EvalConfig(**settings))


def test_uneven_episodes_are_refused_by_their_field_before_the_run_begins(config: OpenpiRiptConfig, tmp_path: Path):
    data = open_data(config.data)
    with pytest.raises(ConfigError, match=r"eval\.episodes is 21 and there are 2 tasks; .* a multiple of 2"):
        RiptTask(with_eval(config, episodes=21, final_episodes=40), data, tmp_path)
    with pytest.raises(ConfigError, match=r"eval\.final_episodes is 5 and there are 2 tasks"):
        RiptTask(with_eval(config, episodes=2, final_episodes=5), data, tmp_path)
    for never in (0, 8):
        RiptTask(with_eval(config, never, episodes=21, final_episodes=40), data, tmp_path).finish()


def test_the_last_evaluation_may_have_fewer_episodes(
    config: OpenpiRiptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The manifest is as long as the longest needs, and no longer where there is but the last."""
    asked: list[tuple[int, int]] = []

    def manifest_of(collector: Any, path: Path, *, seed: int, episodes: int) -> Any:
        return SimpleNamespace(states=range(episodes))

    def evaluate(collector: Any, actor: Any, manifest: Any, *, episodes: int, **_: Any) -> Any:
        asked.append((len(manifest.states), episodes))

    monkeypatch.setattr(ript, "manifest_of", manifest_of)
    monkeypatch.setattr(ript, "evaluate", evaluate)
    task = RiptTask(with_eval(config, episodes=6, final_episodes=4), open_data(config.data), tmp_path)
    task.policy = SimpleNamespace(use=lambda *_: None, release=lambda: None)  # pyright: ignore[reportAttributeAccessIssue]
    state: Any = SimpleNamespace(step=4, params={})
    for final in (False, True):
        task._played(state, final=final)
    assert asked == [(6, 6), (4, 4)]
    task.finish()


def test_what_was_replaced_among_the_dataset_s_advantages_is_told(
    config: OpenpiRiptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = RiptTask(config, open_data(config.data), tmp_path)
    task.data = dataclasses.replace(task.data, replaced={"clipped": 3})
    outcome = {"seed": 1, "init_hash": "ab", "success": True, "length": 2, "reward": 1.0}
    monkeypatch.setattr(task, "_played", lambda *_, **__: Evaluation(step=4, weights="", outcomes=(outcome,)))
    state: Any = SimpleNamespace(step=4, params={})
    metrics = task.evaluate(state, final=False)
    assert metrics["advantages_clipped"] == 3
    assert metrics["policy/success"] == 1
    task.finish()
