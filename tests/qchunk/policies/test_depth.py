"""Depth maps, which an agent of the user's own sees: trained on, measured on what is held out, loaded, asked."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np
import pytest

import qchunk.train
from chunkwise import load_policy
from chunkwise.errors import ConfigError, DataError
from chunkwise.policies.recorded import RobotEpisode
from chunkwise.train.metrics import mean_of
from qchunk.agents.make import flow_parts
from qchunk.agents.qc import QCAgent
from qchunk.config import EvalConfig
from qchunk.policies import policy as saved
from qchunk.policies.policy import QChunkPolicy
from tests.qchunk import image_recordings as recorded
from tests.qchunk.recordings import config

FAR = 65535
SIZE = (12, 16)


class DepthAgent(QCAgent):
    """Sees the mean depth of each camera beside the state; its one-step policy answers with it."""

    acts_by_depth = True

    def _examples(self) -> Any:
        state, chunk, time = super()._examples()
        return jnp.concatenate([state, jnp.zeros((1, len(self.dims.depth_cameras)))], -1), chunk, time

    def encode(self, params: Any, network: str, observations: Any) -> Any:
        depth = observations["depth_images"].astype(jnp.float32).mean((2, 3)) / FAR
        return jnp.concatenate([super().encode(params, network, observations), depth], -1)

    def policy(self, params: Any, observations: Any, key: Any) -> Any:
        depth = observations["depth_images"].astype(jnp.float32).mean((1, 2, 3)) / FAR
        return jnp.broadcast_to(depth[:, None], (len(depth), self.chunk_size))


class Forgetful(DepthAgent):
    acts_by_depth = False


class Privileged(QCAgent):
    """Trains by depth, and does not act by it."""

    def losses(self, params: Any, target: Any, batch: Any, key: Any) -> Any:
        depth = batch["observations"]["depth_images"].astype(jnp.float32).mean() / FAR
        return super().losses(params, target, batch, key) | {"depth": mean_of(depth)}


def make_agent(config: Any, dims: Any) -> DepthAgent:
    return DepthAgent(**flow_parts(config, dims))


def forgetful(config: Any, dims: Any) -> DepthAgent:
    return Forgetful(**flow_parts(config, dims))


def privileged(config: Any, dims: Any) -> QCAgent:
    return Privileged(**flow_parts(config, dims))


def config_of(root: Path, run: Path, **data: Any) -> Any:
    settings = {"depth_cameras": ("cam_high",), "image_size": SIZE, "holdout": 0.4, "action_norm": "none"}
    made = config(root, horizon=3, batch=4, **settings | data)
    agent = dataclasses.replace(made.agent, factory=f"{__name__}:make_agent", hidden_sizes=(8,), policy="distill")
    train = dataclasses.replace(made.train, steps=2, eval_every=2, log_every=1)
    running = dataclasses.replace(made.run, dir=str(run))
    return dataclasses.replace(made, agent=agent, train=train, run=running, eval=EvalConfig(env=None))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("depth")
    for number in range(5):
        recorded.write_episode(folder / f"episode_{number}.hdf5", 8, number, success=number % 2 == 0, depth=True)
    return folder


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    qchunk.train.main(config_of(root, folder), "test")
    return folder


def test_a_policy_is_asked_with_depth_as_it_was_trained_with(root: Path, run: Path):
    """Resized by the nearest pixel, in the recorded unit; the held-out episodes were measured with it."""
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("holdout/policy/error" in row for row in measured)
    policy = load_policy(run, allow_code=f"{__name__}:make_agent")
    assert isinstance(policy, QChunkPolicy)
    entry = policy.spec.observation["depth/cam_high"]
    assert (entry.shape, entry.dtype, entry.any_size) == (SIZE, "uint16", True)
    with h5py.File(root / "episode_0.hdf5") as h5:
        depth = np.asarray(h5["/observations/images_depth/cam_high"])[:3]
    nearest = depth[:, 1::2, 1::2]  # of two rows or columns the second holds the middle
    states = np.stack([policy.example()["state"]] * 3)
    for sent in ({"depth": {"cam_high": depth}}, {"depth/cam_high": depth}, {"depth": {"cam_high": nearest}}):
        chunks = policy.infer({"state": states, **sent})["actions"]
        np.testing.assert_allclose(chunks[:, 0, 0], nearest.mean((1, 2)) / FAR, rtol=1e-5)
    one = policy.infer({"state": states[1], "depth": {"cam_high": depth[1]}})["actions"]
    np.testing.assert_allclose(one[0, 0], nearest[1].mean() / FAR, rtol=1e-5)
    assert policy.exportable().inputs["depth_images"] == ((1, *SIZE), "uint16")
    assert policy.exportable().order == {"depth_images": ("cam_high",)}


def test_what_a_policy_was_sent_is_recorded_and_trained_on(tmp_path: Path):
    """Depth maps go into a robot's recording as they were, in their dtype, and training reads them there."""
    rng = np.random.default_rng(0)
    depth = rng.integers(0, FAR, (4, 8, *SIZE), np.uint16)
    for number, maps in enumerate(depth):
        recorded_steps = RobotEpisode(rate_hz=20.0)
        for step, seen in enumerate(maps):
            sent = {"cam_high": seen.astype(">u2"), "far": seen.astype(np.float32) / 7, "tilted": seen[: 8 - step % 2]}
            sent["either"] = seen.astype(np.uint16 if step else np.float32)
            observation = {"state": rng.normal(size=14), "depth": sent | {"double": seen / 7.0}}
            recorded_steps.add(step, observation, rng.normal(size=14).astype(np.float32), person=False)
        twice = {"state": np.zeros(14), "depth": {"cam_high": maps[0]}, "depth/cam_high": maps[0]}
        with pytest.raises(DataError, match="depth/cam_high: expected a depth map's name once in an observation"):
            recorded_steps.add(8, twice, np.zeros(14, np.float32), person=False)
        assert recorded_steps.left_out == [
            "depth/either: in float32 and uint16",
            "depth/tilted: of shape [8, 16] at the first step and [7, 16] at step 1",
            "depth/double: float64 of shape [12, 16], neither a vector of numbers, nor a uint8 image, nor a depth map",
        ]
        file = recorded_steps.save(tmp_path / "data" / f"episode_{number}.hdf5", success=number % 2 == 0)
        with h5py.File(file) as h5:
            kept = h5["/observations/images_depth"]
            assert isinstance(kept, h5py.Group)
            assert {name: maps.dtype.name for name, maps in kept.items()} == {"cam_high": "uint16", "far": "float32"}
            np.testing.assert_array_equal(np.asarray(kept["cam_high"]), maps)
            np.testing.assert_array_equal(np.asarray(kept["far"]), maps.astype(np.float32) / 7)
    qchunk.train.main(config_of(tmp_path / "data", tmp_path / "run"), "test")
    policy = load_policy(tmp_path / "run", allow_code=f"{__name__}:make_agent")
    asked = {"state": np.zeros(14, np.float32), "depth": {"cam_high": depth[0, 0]}}
    answer = policy.infer(asked)["actions"]
    np.testing.assert_allclose(answer[0, 0], depth[0, 0].mean() / FAR, rtol=1e-5)


@pytest.mark.parametrize(
    ("depth", "message"),
    [
        (None, "depth: expected it in the observation"),
        ({"cam_low": np.zeros(SIZE, np.uint16)}, r"depth: expected a dict with \['cam_high'\]; found \['cam_low'\]"),
        (
            {"cam_high": np.zeros(SIZE, np.float32)},
            r"cam_high: expected one depth map \[h, w\] of uint16, found float32",
        ),
        ({"cam_high": np.zeros((*SIZE, 1), np.uint16)}, r"of uint16, found uint16 \[12, 16, 1\]"),
    ],
)
def test_depth_of_another_kind_is_refused(run: Path, depth: Any, message: str):
    policy = load_policy(run, allow_code=f"{__name__}:make_agent")
    observation = {"state": policy.example()["state"]} | ({} if depth is None else {"depth": depth})
    with pytest.raises(DataError, match=message):
        policy.infer(observation)


def test_an_environment_that_shows_none_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(qchunk.train, "require_fit", lambda *_: None)
    acting = dataclasses.replace(config_of(root, tmp_path / "run"), eval=EvalConfig(env="gymnasium:Pendulum-v1"))
    with pytest.raises(
        ConfigError, match=r"DepthAgent acts by depth, of \['cam_high'\], and no environment here shows"
    ):
        qchunk.train.main(acting, "test")


def own(config: Any, name: str) -> Any:
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, factory=f"{__name__}:{name}"))


def test_an_agent_that_does_not_say_that_it_acts_by_depth_is_told(root: Path, tmp_path: Path):
    with pytest.raises(
        ConfigError, match="Forgetful acts by depth_images; expected `acts_by_depth = True` in its class"
    ):
        qchunk.train.main(own(config_of(root, tmp_path / "run"), "forgetful"), "test")


@pytest.mark.long
def test_an_agent_that_trains_by_depth_alone_is_asked_without_it(root: Path, tmp_path: Path):
    qchunk.train.main(own(config_of(root, tmp_path / "run"), "privileged"), "test")
    policy = load_policy(tmp_path / "run", allow_code=f"{__name__}:privileged")
    assert list(policy.spec.observation) == ["state"]
    assert policy.infer(policy.example())["actions"].shape[0] == 3


def test_a_run_of_before_takes_depth_as_it_is_sent(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its dims.json says nothing of depth."""
    agent_of = f"{__name__}:make_agent"
    dims = json.loads((run / "dims.json").read_text())
    assert (dims.pop("depth_size"), dims.pop("depth_dtype")) == (list(SIZE), "uint16")
    (tmp_path / "dims.json").write_text(json.dumps(dims))
    read = saved.read_dims
    monkeypatch.setattr(saved, "read_dims", lambda folder, *others: read(tmp_path, *others))
    policy = load_policy(run, allow_code=agent_of)
    state = policy.example()["state"]
    assert isinstance(policy, QChunkPolicy)
    assert (policy.agent.dims.depth_size, policy.agent.dims.depth_dtype) == (SIZE, None)
    for dtype in (np.uint16, np.float32):
        chunk = policy.infer({"state": state, "depth": {"cam_high": np.full((24, 32), 1000, dtype)}})["actions"]
        np.testing.assert_allclose(chunk[0, 0], 1000 / FAR, rtol=1e-5)
