import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.config import RunConfig
from chunkwise.errors import ConfigError
from qchunk import train
from qchunk.config import AgentConfig, DecoupledConfig, EncoderConfig
from qchunk.data import open_dataset
from qchunk.data.dataset import load_episode
from qchunk.data.holdout import held_out, open_measured
from qchunk.data.image_store import image_form, plan
from qchunk.data.verdict import of_training
from qchunk.policies.offline_metrics import OfflineMetrics, _Errors, calibration, returns_to_go, summary
from qchunk.policies.policy import QChunkPolicy
from tests.qchunk.image_recordings import CAMERAS, write_episode
from tests.qchunk.recordings import ACTION, arrays, config, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_returns_stop_at_terminations_and_are_unknown_where_time_ends():
    found = returns_to_go(np.array([1.0, 2, 4, 8, 16]), np.array([0, 0, 1, 0, 0], bool), 0.5)
    np.testing.assert_array_equal(found, [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4, np.nan, np.nan])


def test_calibration_by_hand():
    found = calibration(np.array([1.0, 2, 4, 100]), np.array([0.0, 2, 1, np.nan]))
    assert found["holdout/critic_starts"] == 0.75
    assert found["holdout/critic_bias"] == pytest.approx((1 + 0 + 3) / 3)
    assert found["holdout/critic_rmse"] == pytest.approx(np.sqrt((1 + 0 + 9) / 3))
    assert found["holdout/critic_correlation"] == pytest.approx(1 / np.sqrt(42 / 9 * 2))
    assert "holdout/critic_correlation" not in calibration(np.ones(2), np.array([0.0, 1]))
    assert calibration(np.ones(2), np.full(2, np.nan)) == {"holdout/critic_starts": 0.0}


def test_starts_without_a_step_have_no_error_and_that_is_said():
    errors = _Errors()
    errors.add(np.ones((2, 3, 1), np.float32), np.zeros((2, 3), bool))
    assert errors.metrics("holdout/policy") == {}
    errors.add(np.full((1, 3, 1), 2.0, np.float32), np.array([[True, False, False]]))
    assert errors.metrics("holdout/policy") == {
        "holdout/policy/error": 2.0,
        "holdout/policy/error_step_0": 2.0,
        "holdout/policy/error_dim_0": 2.0,
    }
    assert summary({}, 2) == "held out, 2 episodes: error of an action: not known, no frame of theirs has one after it"


class Recorded(QChunkPolicy):
    """Answers with the recorded chunk of the frame that it is shown, and more; a value is the first action."""

    def __init__(self, root: Path, more: np.ndarray, horizon: int) -> None:
        source = open_dataset(config(root)).source
        self.more, self.chunks_of, self.asked = more, {}, []
        for episode in (load_episode(source, i) for i in range(len(source))):
            padded = np.concatenate([episode.action, np.repeat(episode.action[-1:], horizon, axis=0)])
            for s, qpos in enumerate(episode.states["qpos"]):
                self.chunks_of[qpos.tobytes()] = padded[s : s + horizon]

    def chunks(self, seen: Any, seeds: np.ndarray, committed: Any = None) -> np.ndarray:
        self.asked += seeds.tolist()
        return np.stack([self.chunks_of[qpos.tobytes()] for qpos in seen["qpos"]]) + self.more

    def values(self, seen: Any, chunks: np.ndarray) -> np.ndarray:
        return chunks[:, 0, 0]


@pytest.mark.parametrize("cut", [False, True])
def test_errors_by_step_and_dimension_are_those_of_recorded_units(tmp_path: Path, cut: bool):
    """Of an episode that time cut off the state after the last action is not there: nothing learns from that action."""
    horizon, lengths = 3, (9, 9, 9, 9)
    for number, length in enumerate(lengths):
        content = arrays(length, number, terminated=False) | {"/terminated": np.arange(length) == length - 1 + cut}
        write(tmp_path / f"episode_{number}.hdf5", content, success=number % 2 == 0)
    cfg = config(tmp_path, horizon=horizon, holdout=0.5, batch=6, action_norm="mean_std", observation_norm="mean_std")
    more = np.arange(horizon)[:, None] * 10.0 + np.arange(ACTION)
    policy = Recorded(tmp_path, more.astype(np.float32), horizon)
    metrics = OfflineMetrics(cfg, open_dataset(cfg)).measure({"policy": policy})
    assert policy.asked == list(range(18))  # two episodes of nine frames, in batches of six
    real = np.array([16, 14, 12] if cut else [18, 16, 14])  # steps that exist of the chunks of both
    by_step = more.mean(axis=1)
    for k in range(horizon):
        assert metrics[f"holdout/policy/error_step_{k}"] == pytest.approx(by_step[k], rel=1e-5)
    for d in range(ACTION):
        expected = (real * more[:, d]).sum() / real.sum()
        assert metrics[f"holdout/policy/error_dim_{d}"] == pytest.approx(expected, rel=1e-5)
    assert metrics["holdout/policy/error"] == pytest.approx((real * by_step).sum() / real.sum(), rel=1e-5)
    source = open_dataset(cfg).source
    held = [load_episode(source, int(i)) for i in np.flatnonzero(held_out(cfg.data, source))]
    q = np.concatenate([episode.action[: 9 - cut, 0] for episode in held]).astype(float)
    assert metrics["holdout/recorded/q"] == pytest.approx(q.mean(), rel=1e-5)
    assert metrics["holdout/policy/q"] == pytest.approx(q.mean(), rel=1e-5, abs=1e-6)
    if cut:
        assert not any("critic_bias" in name for name in metrics), "what followed is not known"
        return
    returns = np.concatenate([returns_to_go(episode.reward, episode.terminated, 0.9) for episode in held])
    assert metrics["holdout/critic_starts"] == 1
    assert metrics["holdout/critic_bias"] == pytest.approx((q - returns).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("agent", "steps", "last"),
    [
        ({}, 3, 9),
        ({"partial_chunks": "drop"}, 3, 7),
        ({"partial_chunks": "drop", "policy": "best_of_n", "decoupled": DecoupledConfig(policy_horizon=2)}, 2, 8),
        ({"partial_chunks": "drop", "action_chunking": False}, 1, 7),
    ],
)
def test_the_critic_is_measured_where_it_learns(tmp_path: Path, agent: dict[str, Any], steps: int, last: int):
    """Of nine frames those before `last` start a chunk that the critic of chunks of three learns from."""
    for number in range(4):
        content = arrays(9, number) | {"/terminated": np.arange(9) == 8}
        write(tmp_path / f"episode_{number}.hdf5", content, success=number % 2 == 0)
    cfg = config(tmp_path, horizon=3, holdout=0.5, batch=6)
    cfg = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, **agent))
    policy = Recorded(tmp_path, np.zeros((steps, ACTION), np.float32), steps)
    metrics = OfflineMetrics(cfg, open_dataset(cfg)).measure({"policy": policy})
    source = open_dataset(cfg).source
    held = [load_episode(source, int(i)) for i in np.flatnonzero(held_out(cfg.data, source))]
    q = np.concatenate([episode.action[:last, 0] for episode in held]).astype(float)
    returns = np.concatenate([returns_to_go(episode.reward, episode.terminated, 0.9)[:last] for episode in held])
    error = q - returns
    assert metrics["holdout/critic_starts"] == pytest.approx(last / 9)
    assert metrics["holdout/critic_bias"] == pytest.approx(error.mean(), rel=1e-5)
    assert metrics["holdout/critic_rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
    assert metrics["holdout/critic_correlation"] == pytest.approx(np.corrcoef(q, returns)[0, 1], rel=1e-4)
    for name in ("recorded", "policy"):
        assert metrics[f"holdout/{name}/q"] == pytest.approx(q.mean(), rel=1e-5)


def test_without_a_start_that_the_critic_learns_from_nothing_is_said_of_it(tmp_path: Path):
    for number, length in enumerate((9, 9, 2, 2)):
        write(tmp_path / f"episode_{number}.hdf5", arrays(length, number), success=number % 2 == 0)
    cfg = config(tmp_path, horizon=10, holdout=0.5, batch=6)
    cfg = dataclasses.replace(cfg, agent=dataclasses.replace(cfg.agent, partial_chunks="drop"))
    policy = Recorded(tmp_path, np.zeros((10, ACTION), np.float32), 10)
    metrics = OfflineMetrics(cfg, open_dataset(cfg)).measure({"policy": policy})
    assert metrics["holdout/policy/error"] == 0
    assert [name for name in metrics if "critic" in name or name.endswith("/q")] == ["holdout/critic_starts"]
    assert metrics["holdout/critic_starts"] == 0


@pytest.mark.parametrize(
    "policy",
    [
        "distill",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("best_of_n", "gaussian", "adjoint_matching")),
    ],
)
def test_a_run_without_a_simulator_writes_them(tmp_path: Path, policy: Any):
    for number in range(6):
        content = arrays(12, number) | {"/action": np.tanh(arrays(12, number)["/action"])}
        write(tmp_path / f"data/episode_{number}.hdf5", content, success=number % 2 == 0)
    cfg = config(tmp_path / "data", holdout=0.2)
    cfg = dataclasses.replace(
        cfg,
        run=RunConfig(dir=str(tmp_path / "run")),
        train=dataclasses.replace(cfg.train, steps=4, eval_every=2, log_every=2),
        agent=dataclasses.replace(cfg.agent, policy=policy, hidden_sizes=(8,), flow_steps=2, num_samples=2),
    )
    train.main(cfg, "holdout")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["split"] == "eval"]
    assert [line["step"] for line in found] == [2, 4]
    assert (tmp_path / "run/summary.png").stat().st_size > 10_000
    assert "step 4 of 4, done" in (tmp_path / "run/report.html").read_text()
    cloned = "holdout/behaviour_cloning/error" in found[0]
    assert cloned == (policy != "gaussian")
    assert 0 < found[0]["holdout/policy/error"] < 2
    assert found[0]["holdout/recorded/q"] != found[1]["holdout/recorded/q"]


def test_the_line_that_a_run_prints():
    metrics = {
        "holdout/policy/error": 0.12345,
        "holdout/behaviour_cloning/error": 0.5,
        "holdout/critic_bias": -0.25,
        "holdout/critic_correlation": 0.875,
        "holdout/recorded/q": 3.0,
    }
    line = "held out, 7 episodes: error of an action: policy 0.1235, behaviour cloning 0.5"
    assert summary(dict(list(metrics.items())[:2]), 7) == line
    assert summary(metrics, 7) == f"{line}; critic less return -0.25, correlation 0.88"


def test_of_a_mixture_some_of_every_folder_are_measured(tmp_path: Path):
    """Of the twelve held out, eight of a and four of b, four are taken, evenly spaced: the frames tell which."""
    for folder, count, length in (("a", 16, 9), ("b", 8, 5)):
        for number in range(count):
            write(tmp_path / f"{folder}/episode_{number}.hdf5", arrays(length, number), success=number % 2 == 0)
    cfg = config(tmp_path, batch=1, holdout=0.5, mixture={"a": 0.5, "b": 0.5}, episodes_per_epoch=4)
    measured = OfflineMetrics(cfg, open_dataset(cfg))
    assert measured.episodes == 4
    assert len(measured._starts) == 3 * 9 + 5  # every frame of 0, 4, 7 and 11 of the twelve: three of a and one of b


def test_raw_images_larger_than_in_a_batch_are_measured_where_training_has_room(tmp_path: Path):
    """Kept as recorded they would take four times what is allowed; the run would have ended at its first evaluation."""
    for number in range(8):
        write_episode(tmp_path / f"episode_{number}.hdf5", 9, number, jpeg=False, success=number % 2 == 0)
    with_images = {"cameras": CAMERAS, "image_size": (6, 8), "holdout": 0.5, "action_norm": "min_max"}
    small = 9 * len(CAMERAS) * 6 * 8 * 3  # an episode at its size in a batch; 24 x 32 recorded
    cfg = config(tmp_path, batch=2, memory_gib=16 * small / 2**30, **with_images)
    needed = {
        way: plan(cfg, *_of(cfg), pools=1, rows=2, episodes=4).bytes_needed[way] / small
        for way in ("decoded", "recorded")
    }
    assert needed["recorded"] - needed["decoded"] == pytest.approx(4 * 16 - 4)
    policy: Any = Recorded(tmp_path, np.zeros((5, ACTION), np.float32), 5)
    assert OfflineMetrics(cfg, open_dataset(cfg)).measure({"policy": policy})["holdout/policy/error"] == 0
    assert of_training(cfg).refusal is None
    none = config(tmp_path, batch=2, memory_gib=small / 2**30, **with_images)
    with pytest.raises(ConfigError, match=r"^data.holdout is 0.5: data.memory_gib is .* of 4 episodes need"):
        open_measured(none, open_dataset(none).source)


def _of(cfg: Any) -> tuple[Any, Any]:
    source: Any = open_dataset(cfg).source
    return source, image_form(cfg.data, source.images_of[0])


def test_a_run_without_room_for_its_measurement_ends_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(4):
        write_episode(tmp_path / f"set/episode_{number}.hdf5", 5, number, success=number % 2 == 0)
    cfg = config(tmp_path / "set", cameras=CAMERAS, image_size=(6, 8), holdout=0.5, action_norm="min_max")
    cfg = dataclasses.replace(cfg, agent=AgentConfig(horizon=2, encoder=EncoderConfig()))
    asked: list[int] = []

    def no_room(*_: Any, episodes: int, **__: Any) -> Any:
        asked.append(episodes)
        raise ConfigError("there is none")

    monkeypatch.setattr("qchunk.data.holdout.open_store", no_room)
    with pytest.raises(ConfigError, match=r"^data.holdout is 0.5: there is none"):
        train.QChunkTask(cfg, tmp_path / "run", open_dataset(cfg))
    assert of_training(cfg).refusal == "data.holdout is 0.5: there is none"
    assert asked == [2, 2]


@pytest.mark.parametrize(("jpeg", "size", "storage"), [(True, (24, 32), "recorded"), (False, (6, 8), "decoded")])
def test_held_out_images_are_kept_in_the_way_that_takes_less_beside_those_of_training(
    tmp_path: Path, jpeg: bool, size: tuple[int, int], storage: str
):
    """There is room for both ways; JPEGs take less as recorded, raw images larger than in a batch do not."""
    for number in range(4):
        write_episode(tmp_path / f"episode_{number}.hdf5", 5, number, jpeg=jpeg, success=number % 2 == 0)
    for frames in ("auto", "decoded", "recorded"):
        cfg = config(tmp_path, cameras=CAMERAS, image_size=size, holdout=0.5, frames=frames)
        store = open_measured(cfg, open_dataset(cfg).source)
        assert store is not None
        assert store.storage == storage
