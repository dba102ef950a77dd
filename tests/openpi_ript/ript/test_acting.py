from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from openpi_ript.config.experiment import AdvantageConfig, DataConfig, OpenpiRiptConfig, RobotConfig
from openpi_ript.model.pi0 import Pi0
from openpi_ript.ript.acting import ActingPolicy, digest
from openpi_ript.robots.adapter import Adapter
from tests.openpi_ript.small_run import make_dataset, quick_compiling, small_config
from tests.openpi_ript.toy_policy import random_params


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


@pytest.mark.slow
def test_a_row_does_not_depend_on_the_others(config: OpenpiRiptConfig):
    policy = ActingPolicy(config, {})
    policy.use(random_params(Pi0(config.model)), 3)
    rng = np.random.default_rng(0)
    one, noise = batch(rng, 4), rng.normal(size=(4, *policy.chunk)).astype(np.float32)
    expected = policy(one, noise)
    assert expected.shape == (4, 8, 3)
    for row in range(4):
        other, other_noise = batch(rng, 4), rng.normal(size=noise.shape).astype(np.float32)
        states = other["state"]
        assert isinstance(states, np.ndarray)
        states[row] = one["state"][row]  # pyright: ignore[reportIndexIssue]
        other_noise[row] = noise[row]
        np.testing.assert_array_equal(policy(other, other_noise)[row], expected[row])


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_guidance_can_be_set_from_outside(config: OpenpiRiptConfig):
    policy, rng = ActingPolicy(config, {}), np.random.default_rng(2)
    policy.use(random_params(Pi0(config.model)), 0)
    seen, noise = batch(rng, 1), rng.normal(size=(1, *policy.chunk)).astype(np.float32)
    plain = policy(seen, noise)
    policy.guidance_scale = 1.0
    assert np.abs(policy(seen, noise) - plain).max() > 1e-3


def test_the_digest_knows_values_names_and_types():
    tree = {"a": jnp.arange(3.0), "b": {"c": jnp.zeros((2, 2))}}
    assert digest(tree) == digest(jax.tree.map(jnp.copy, tree))
    others = [tree | {"a": jnp.arange(3.0) + 1e-7}, {"aa": tree["a"], "b": tree["b"]}, tree | {"a": jnp.arange(3)}]
    assert len({digest(one) for one in [tree, *others]}) == 4


@pytest.mark.slow
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
