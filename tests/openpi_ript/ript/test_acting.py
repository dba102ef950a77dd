import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.errors import ConfigError
from chunkwise.policies.execution import Committed
from openpi_ript.config.data import AdvantageConfig, DataConfig, RobotConfig
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.model.pi0 import Pi0
from openpi_ript.ript.acting import ActingPolicy, ExploringPolicy
from openpi_ript.robots.adapter import Adapter
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config
from tests.openpi_ript.toy_policy import random_params
from tests.rows import assert_rows_stand_alone


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenpiRiptConfig]:
    folder = tmp_path_factory.mktemp("acting")
    root = make_dataset(folder)
    robot = RobotConfig(state_dim=2, target_state_dim=4, action_dim=3)
    data = DataConfig(
        path=str(root), robot=robot, cameras={}, horizon=8, state_norm="none", advantage=AdvantageConfig()
    )
    with quick_compiling(folder / "cache"):
        yield small_config(root, folder / "run", data=data)


def batch(rng: np.random.Generator, rows: int) -> dict[str, object]:
    return {"state": rng.normal(size=(rows, 2)).astype(np.float32), "image": {}, "prompt": ["to the red disc"] * rows}


@pytest.mark.parametrize(
    ("images", "rows"),
    [
        (False, 4),
        (True, 4),
        *(pytest.param(False, rows, marks=pytest.mark.long) for rows in (1, 7)),
    ],
)
def test_a_row_does_not_depend_on_its_neighbours_nor_its_place(config: OpenpiRiptConfig, images: bool, rows: int):
    """The collector asks for whoever is ready, and fills up the rest."""
    cameras = {"base_0_rgb": "image"} if images else {}
    data = dataclasses.replace(config.data, cameras=cameras, image_size=(28, 28))
    policy = ActingPolicy(dataclasses.replace(config, data=data), {})
    policy.use(random_params(Pi0(config.model)), 3)
    rng = np.random.default_rng(0)
    state, noise = rng.normal(size=(9, 2)).astype(np.float32), rng.normal(size=(9, *policy.chunk)).astype(np.float32)
    image = rng.integers(0, 256, (9, 28, 28, 3)).astype(np.uint8)
    prompts = ["to the red disc", "move to the blue disc", "go"]

    def ask(chosen: np.ndarray) -> np.ndarray:
        seen = {"state": state[chosen], "image": dict.fromkeys(cameras, image[chosen])}
        return policy(seen | {"prompt": [prompts[n % 3] for n in chosen]}, noise[chosen])

    assert_rows_stand_alone(ask, contents=9, rows=rows)


def test_the_noise_that_is_given_is_what_a_chunk_starts_from(config: OpenpiRiptConfig):
    """The rollouts of a group see the same and have the same weights: their noise alone makes them differ."""
    policy, rng = ActingPolicy(config, {}), np.random.default_rng(4)
    policy.use(random_params(Pi0(config.model)), 3)
    assert policy.step == 3
    seen = batch(rng, 1)
    noise = [rng.normal(size=(1, *policy.chunk)).astype(np.float32) for _ in range(2)]
    first, other, again = (policy(seen, one) for one in (noise[0], noise[1], noise[0]))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_weights_are_replaced_without_compiling_again(config: OpenpiRiptConfig):
    policy, rng = ActingPolicy(config, {}), np.random.default_rng(1)
    seen, noise = batch(rng, 1), rng.normal(size=(1, *policy.chunk)).astype(np.float32)
    params = [random_params(Pi0(config.model), seed) for seed in (0, 1)]
    chunks, names = [], []
    for step, one in enumerate((params[0], params[1], params[0])):
        policy.use(one, step)
        assert policy.step == step
        chunks.append(policy(seen, noise))
        names.append(policy.weights)
    assert policy._sample._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(chunks[0], chunks[2])
    assert np.abs(chunks[0] - chunks[1]).max() > 1e-3
    assert names[0] == names[2] != names[1]


def test_guidance_can_be_set_from_outside(config: OpenpiRiptConfig):
    policy, rng = ActingPolicy(config, {}), np.random.default_rng(2)
    policy.use(random_params(Pi0(config.model)), 0)
    seen, noise = batch(rng, 1), rng.normal(size=(1, *policy.chunk)).astype(np.float32)
    plain = policy(seen, noise)
    policy.guidance_scale = 1.0
    assert np.abs(policy(seen, noise) - plain).max() > 1e-3


def test_the_digest_knows_values_names_and_types():
    tree = {"a": jnp.arange(3.0), "b": {"c": jnp.zeros((2, 2))}}
    assert tree_digest(tree) == tree_digest(jax.tree.map(jnp.copy, tree))
    others = [tree | {"a": jnp.arange(3.0) + 1e-7}, {"aa": tree["a"], "b": tree["b"]}, tree | {"a": jnp.arange(3)}]
    assert len({tree_digest(one) for one in [tree, *others]}) == 4


def test_a_simulators_rows_are_seen_as_the_adapter_says(config: OpenpiRiptConfig, monkeypatch: pytest.MonkeyPatch):
    class Mirrored(Adapter):
        def simulated_state(self, state: np.ndarray) -> np.ndarray:
            return state[..., ::-1].copy()

    rng = np.random.default_rng(4)
    rows, noise = batch(rng, 2), rng.normal(size=(2, 8, 8)).astype(np.float32)
    policy = ActingPolicy(config, {})
    policy.use(random_params(Pi0(config.model)), 1)
    turned = policy({**rows, "state": np.asarray(rows["state"])[:, ::-1].copy()}, noise)
    monkeypatch.setattr("openpi_ript.policies.policy.find_adapter", lambda *_, **__: Mirrored())
    mirrored = ActingPolicy(config, {})
    mirrored.use(random_params(Pi0(config.model)), 1)
    np.testing.assert_array_equal(mirrored(rows, noise), turned)
    assert np.abs(policy(rows, noise) - turned).max() > 1e-4


def test_a_chunk_that_is_drawn_with_noise_cannot_be_completed():
    drawn = np.ones((1, 8, 3), np.float32)
    chain = SimpleNamespace(points=np.zeros((1, 4, 8, 8)), log_prob=np.zeros((1, 3)))
    rollout = SimpleNamespace(ppo=SimpleNamespace(sample_steps=3))
    policy: Any = SimpleNamespace(
        config=SimpleNamespace(rollout=rollout), chunk=(8, 8), explore=lambda seen, noise: (drawn, chain)
    )
    exploring, noise = ExploringPolicy(policy), np.zeros((1, 4, 8, 8), np.float32)
    assert exploring.chunk == (4, 8, 8), "a noise for each point of the chain"
    np.testing.assert_array_equal(exploring({}, noise), drawn)
    committed = [Committed(actions=np.zeros((2, 3), np.float32), weights=np.ones(2, np.float32))]
    with pytest.raises(ConfigError, match="chunks cannot be completed"):
        exploring({}, noise, committed)
