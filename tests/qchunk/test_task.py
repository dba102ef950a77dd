"""What a Q-chunking run hands on, told without an update."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qchunk import train
from qchunk.train import QChunkTask


def bare(**fields: Any) -> QChunkTask:
    """A task that was never set up, with so much as a test needs."""
    task = QChunkTask.__new__(QChunkTask)
    vars(task).update(fields)
    return task


def test_online_rows_go_on_from_the_step_of_the_resume(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    online = SimpleNamespace(mixed=lambda batches, start, **share: asked.append((batches, start, share)) or "mixed")
    monkeypatch.setattr(train.stream, "open_stream", lambda config, dataset, **where: where)
    task = bare(config=None, dataset=None, online=online)
    assert task.batches(40, shard=1, num_shards=2) == "mixed"
    offline = {"shard": 1, "num_shards": 2, "start_step": 40, "training": True}
    assert asked == [(offline, 40, {"shard": 1, "num_shards": 2})]


@pytest.mark.parametrize(("final", "episodes"), [(False, 3), (True, 50)])
def test_the_last_evaluation_has_its_own_number_of_episodes(
    final: bool, episodes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[int] = []
    saved: list[Path] = []

    def evaluate(policy: Any, env: str, **settings: Any) -> Any:
        asked.append(settings["episodes"])
        return SimpleNamespace(metrics=lambda name: {f"{name}/success": 1.0}, save=saved.append)

    monkeypatch.setattr(train, "evaluate", evaluate)
    monkeypatch.setattr(train, "view_of", lambda config, dims: None)
    monkeypatch.setattr(train.simulators, "rules_of", lambda config: None)
    monkeypatch.setattr(train, "_asked", lambda policy, state: policy)
    settings = SimpleNamespace(env="x", episodes=3, final_episodes=50, num_envs=1, rows=None, max_steps=None, videos=0)
    config = SimpleNamespace(eval=settings, online=None, run=SimpleNamespace(seed=0), fleet=None)
    agent = SimpleNamespace(action_horizon=5, dims=None)
    task = bare(config=config, agent=agent, folder=tmp_path, _policy="own", _cloning=None)
    monkeypatch.setattr(task, "_offline", lambda state: {})
    state: Any = SimpleNamespace(step=10)
    assert task.evaluate(state, final=final) == {"policy/success": 1.0}
    assert asked == [episodes]
    assert saved == [tmp_path / "evaluations/step_00000010.json"]


def test_a_resume_is_told_by_the_content_of_all_files():
    dataset = SimpleNamespace(fingerprint="episodes", files=SimpleNamespace(digest=lambda: "files"))
    assert bare(dataset=dataset).data_fingerprint() == {"manifest": "episodes", "files": "files"}
