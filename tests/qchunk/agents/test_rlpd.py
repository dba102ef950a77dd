"""RLPD with action chunks against a numpy computation of the same numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from qchunk.agents.make import make_agent
from qchunk.agents.rlpd import RLPDAgent, _log_density
from qchunk.config import AgentConfig, DataConfig, GaussianConfig, QChunkConfig
from qchunk.data import Dims
from tests.qchunk.agents.test_qc import DISCOUNT, KEY, ROWS, A, H, S, batch_of, numbers, quick
from tests.qchunk.random_weights import weights

CRITICS = 4
PLAIN = GaussianConfig()


def agent_of(gaussian: GaussianConfig = PLAIN, **settings: Any) -> RLPDAgent:
    base = AgentConfig(
        policy="gaussian", horizon=H, discount=DISCOUNT, hidden_sizes=(8, 8), num_critics=CRITICS, gaussian=gaussian
    )
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=len(ROWS)),
        data=DataConfig(path="none"),
        agent=dataclasses.replace(base, **settings),
    )
    agent = make_agent(config, Dims(observation=S, action=A))
    assert isinstance(agent, RLPDAgent)
    return agent


def hidden(params: Any, x: np.ndarray) -> np.ndarray:
    """Linear, layer norm where there is one, ReLU."""
    for i in range(2):
        x = x @ params[f"layer_{i}"]["kernel"] + params[f"layer_{i}"]["bias"]
        if f"norm_{i}" in params:
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            x = (x - mean) / np.sqrt(var + 1e-6) * params[f"norm_{i}"]["scale"] + params[f"norm_{i}"]["bias"]
        x = np.maximum(x, 0)
    return x


def numpy_q(params: Any, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Values by each member, (e, b)."""
    values = []
    for e in range(CRITICS):
        member = jax.tree.map(lambda x, e=e: np.asarray(x[e], np.float64), params["members"])
        x = hidden(member["mlp"], np.concatenate([s, a], axis=-1))
        values.append((x @ member["output"]["kernel"] + member["output"]["bias"])[:, 0])
    return np.stack(values)


def numpy_gaussian(params: Any, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    actor = jax.tree.map(lambda x: np.asarray(x, np.float64), params["actor"])
    x = hidden(actor["mlp"], s)
    mean, log_std = (x @ actor[name]["kernel"] + actor[name]["bias"] for name in ("mean", "log_std"))
    return mean, np.clip(log_std, -20, 2)


def log_density(x: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    gaussian = -0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    return gaussian - np.log(1 - np.tanh(x) ** 2)


def test_the_density_of_a_squashed_gaussian():
    x = np.array([[-3.0, -0.2, 0.0, 1.0, 3.0]])
    mean, log_std = np.full_like(x, 0.3), np.full_like(x, -0.4)
    found = _log_density(*(jnp.asarray(v, jnp.float32) for v in (x, mean, log_std)))
    np.testing.assert_allclose(found, log_density(x, mean, log_std), rtol=1e-5, atol=1e-5)
    far: Any = _log_density(jnp.full((1, 1), 40.0), jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    assert np.isfinite(far).all()  # 1 - tanh(40)^2 is 0 in floating point
    # It is a density: it integrates to 1 over actions in (-1, 1).
    a = np.linspace(-1, 1, 200_001)[1:-1]
    grid = jnp.asarray(np.arctanh(a)[None], jnp.float32)
    density = np.exp(_log_density(grid, jnp.full_like(grid, 0.3), jnp.full_like(grid, -0.4)))
    np.testing.assert_allclose(np.trapezoid(density[0], a), 1, rtol=1e-3)


@pytest.mark.parametrize("aggregation", ["mean", "min"])
@pytest.mark.parametrize("partial", ["use", "drop"])
def test_losses_are_numpys(aggregation, partial):
    gaussian = GaussianConfig(bc_weight=0.01, entropy_per_action=-0.5)
    agent, batch = agent_of(gaussian, q_aggregation=aggregation, partial_chunks=partial), batch_of()
    params, target = weights(agent)
    data = numbers(batch)
    s, s_next = data["observations"]["qpos"], data["next_observations"]["qpos"]
    z = np.asarray(jax.random.normal(KEY, (len(s), H * A)), np.float64)

    mean, log_std = numpy_gaussian(params, s_next)
    q_next = numpy_q(target["critic"], s_next, np.tanh(mean + np.exp(log_std) * z))
    q_next = q_next.mean(axis=0) if aggregation == "mean" else q_next.min(axis=0)
    m = data["valid"].sum(axis=1)
    y = data["rewards"][:, -1] + DISCOUNT**m * data["masks"][:, -1] * q_next
    errors = (numpy_q(params["critic"], s, data["actions"].reshape(len(s), -1)) - y) ** 2
    kept = m == H if partial == "drop" else m > 0
    loss, metrics = quick(agent.critic_loss)(params, target, batch, KEY)
    np.testing.assert_allclose(loss, errors[:, kept].mean(), rtol=1e-5)

    mean, log_std = numpy_gaussian(params, s)
    x = mean + np.exp(log_std) * z
    log_pi = log_density(x, mean, log_std).sum(axis=1)
    q = numpy_q(params["critic"], s, np.tanh(x)).mean(axis=0)
    eta = np.exp(float(params["actor"]["log_temperature"]))
    recorded = np.arctanh(data["actions"].reshape(len(s), -1))
    cloning = -(log_density(recorded, mean, log_std) * np.repeat(data["valid"], A, axis=1)).sum(axis=1).mean()
    expected = (eta * log_pi - q).mean() + eta * (-log_pi.mean() + 0.5 * H * A) + 0.01 * cloning
    loss, metrics = quick(agent.actor_loss)(params, batch, KEY)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["cloning"].value(), cloning, rtol=1e-4)


@pytest.mark.parametrize("actor_layer_norm", [False, True])
def test_the_actor_has_layer_norm_where_it_is_asked_for(actor_layer_norm: bool):
    """As numpy computes it; the critic keeps its own."""
    agent = agent_of(actor_layer_norm=actor_layer_norm, critic_layer_norm=not actor_layer_norm)
    params, _ = weights(agent)
    assert ("norm_1" in params["actor"]["mlp"]) is actor_layer_norm
    assert ("norm_1" in params["critic"]["members"]["mlp"]) is not actor_layer_norm
    observations = batch_of()["observations"]
    expected = numpy_gaussian(params, np.asarray(observations["qpos"], np.float64))
    for found, wanted in zip(agent._gaussian(params, observations), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_each_loss_reaches_its_own_network_alone():
    agent, batch = agent_of(GaussianConfig(bc_weight=0.01)), batch_of()
    params, target = weights(agent)

    def reached(loss: Any, *arguments: Any) -> set[str]:
        gradient = quick(jax.grad(lambda p: loss(p, *arguments)[0]))(params)
        return {part for part, leaves in gradient.items() if any(np.any(x) for x in jax.tree.leaves(leaves))}

    assert reached(agent.critic_loss, target, batch, KEY) == {"critic"}
    assert reached(agent.actor_loss, batch, KEY) == {"actor"}


@pytest.mark.parametrize(("entropy", "sign"), [(-10.0, 1), (10.0, -1)])
def test_the_temperature_falls_where_the_entropy_is_above_its_target(entropy, sign):
    agent, batch = agent_of(GaussianConfig(entropy_per_action=entropy)), batch_of()
    params, _ = weights(agent)
    gradient: Any = quick(jax.grad(lambda p: agent.actor_loss(p, batch, KEY)[0]))(params)
    assert np.sign(gradient["actor"]["log_temperature"]) == sign


def test_a_target_of_some_critics_is_that_of_a_drawn_subset(monkeypatch: pytest.MonkeyPatch):
    agent, batch = agent_of(GaussianConfig(target_critics=2), q_aggregation="min"), batch_of()
    params, target = weights(agent)
    rows = len(batch["actions"])
    q = jnp.asarray(np.random.default_rng(0).normal(size=(CRITICS, rows)), jnp.float32)
    monkeypatch.setattr(type(agent), "_q", lambda *_: q)
    ahead = agent.config.agent.discount ** batch["valid"].sum(axis=-1) * batch["masks"][:, -1]

    def rounded(y: Any) -> tuple[float, ...]:
        return tuple(np.round(np.asarray(y, np.float64), 4).tolist())

    pairs = {
        rounded(batch["rewards"][:, -1] + ahead * np.minimum(q[i], q[j])) for i in range(CRITICS) for j in range(i)
    }
    found = {rounded(agent.critic_target(params, target, batch, jax.random.key(i))) for i in range(40)}
    assert found <= pairs
    assert len(found) > 3


def test_an_update_changes_every_network_and_actions_are_within_bounds():
    agent, batch = agent_of(GaussianConfig(bc_weight=0.01)), batch_of()
    state = agent.init(KEY)
    assert float(state.params["actor"]["log_temperature"]) == 0
    new, metrics = quick(agent.step)(state, batch)
    for old, changed in zip(*map(jax.tree.leaves, (state.params, new.params)), strict=True):
        assert np.any(old != changed)
    assert np.isfinite([m.value() for m in jax.tree.leaves(metrics, is_leaf=lambda x: isinstance(x, tuple))]).all()
    actions = agent.act(new.params, batch["observations"], KEY)
    assert actions.shape == (len(ROWS), H, A)
    assert float(jnp.abs(actions).max()) < 1


def test_a_subset_larger_than_the_ensemble_is_refused():
    with pytest.raises(ValueError, match=r"agent\.gaussian\.target_critics is 5; expected 1 to agent\.num_critics, 4"):
        agent_of(GaussianConfig(target_critics=5))
    with pytest.raises(
        ValueError, match=r"agent\.gaussian is .*bc_weight=0\.01.*, which agent\.policy distill does not read"
    ):
        AgentConfig(gaussian=GaussianConfig(bc_weight=0.01))


def test_recorded_actions_at_the_bound_are_pulled_inside_by_a_hundred_thousandth():
    """tanh has no inverse at 1: behaviour cloning sees atanh(1 - 1e-5) = 6.1030, the official code's number."""
    agent, batch = agent_of(GaussianConfig(bc_weight=0.01)), batch_of()
    params, _ = weights(agent)
    batch = {**batch, "actions": jnp.ones_like(batch["actions"])}
    mean, log_std = (np.asarray(x, np.float64) for x in agent._gaussian(params, batch["observations"]))
    recorded = np.full_like(mean, 0.5 * np.log((2 - 1e-5) / 1e-5))
    expected = -(log_density(recorded, mean, log_std) * np.repeat(batch["valid"], A, axis=1)).sum(axis=1).mean()
    _, metrics = agent.actor_loss(params, batch, KEY)
    np.testing.assert_allclose(metrics["cloning"].value(), expected, rtol=1e-3)  # 1 - 1e-5 is rounded in float32
