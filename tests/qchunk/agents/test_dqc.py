"""Decoupled Q-chunking against a numpy computation of the same numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import TrainConfig
from qchunk.agents.dqc import DQCAgent, asymmetric_loss
from qchunk.agents.make import make_agent
from qchunk.config import AgentConfig, DataConfig, DecoupledConfig, QChunkConfig
from qchunk.data import Dims
from tests.qchunk import numpy_networks
from tests.qchunk.agents.test_qc import DISCOUNT, KEY, ROWS, A, H, S, batch_of, numbers, quick
from tests.qchunk.random_weights import weights

K = 2  # actions of the policy's chunk, of H = 4
DEFAULT = DecoupledConfig(policy_horizon=K)


def agent_of(decoupled: DecoupledConfig = DEFAULT, **settings: Any) -> DQCAgent:
    base = AgentConfig(
        policy="best_of_n", horizon=H, discount=DISCOUNT, hidden_sizes=(8,), num_samples=3, flow_steps=2,
        q_aggregation="min", decoupled=decoupled,
    )  # fmt: skip
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=len(ROWS)),
        data=DataConfig(path="none"),
        agent=dataclasses.replace(base, **settings),
    )
    agent = make_agent(config, Dims(observation=S, action=A))
    assert isinstance(agent, DQCAgent)
    return agent


def numpy_leaning(error: np.ndarray, level: float, kind: str) -> np.ndarray:
    return np.where(error >= 0, level, 1 - level) * (error**2 if kind == "expectile" else np.abs(error))


@pytest.mark.parametrize("partial", ["use", "drop"])
@pytest.mark.parametrize(("distillation", "backup"), [("expectile", "quantile"), ("quantile", "expectile")])
def test_losses_are_numpys(distillation, backup, partial):
    settings = DecoupledConfig(policy_horizon=K, distillation=distillation, kappa_d=0.8, backup=backup, kappa_b=0.93)
    agent, batch = agent_of(settings, partial_chunks=partial), batch_of()
    params, target = weights(agent)
    data = numbers(batch)
    s, s_next = data["observations"]["qpos"], data["next_observations"]["qpos"]
    long, short = data["actions"].reshape(len(s), -1), data["actions"][:, :K].reshape(len(s), -1)
    m = data["valid"].sum(axis=1)

    def numpy_v(x: np.ndarray) -> np.ndarray:
        return numpy_networks.mlp(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["value"]["mlp"]), x)[
            :, 0
        ]

    y = data["rewards"][:, -1] + DISCOUNT**m * data["masks"][:, -1] * numpy_v(s_next)
    q_long = numpy_networks.critic(params["chunk_critic"], s, long)
    policy_whole = m >= K if partial == "drop" else m > 0
    q = numpy_networks.critic(params["critic"], s, short)
    q_target = numpy_networks.critic(target["critic"], s, short).min(axis=0)
    expected = [
        ((q_long - y) ** 2).mean(),
        numpy_leaning(q_long - q, 0.8, distillation)[:, policy_whole].mean(),
        numpy_leaning(q_target - numpy_v(s), 0.93, backup)[policy_whole].mean(),
    ]

    @quick
    def losses(params: Any) -> list[Any]:
        found = [agent.chunk_loss(params, batch), agent.distilled_loss(params, batch)[0]]
        return [one.value() for one in [*found, agent.value_loss(params, target, batch)[0]]]

    np.testing.assert_allclose(losses(params), expected, rtol=1e-5)


def test_what_is_distilled_near_an_episodes_end_is_trained_there():
    """With "drop" Q and V learn from rows of 2 and 3 real steps, of 4: Q_h must have seen their rewards."""
    agent, batch = agent_of(partial_chunks="drop"), batch_of([(4, None), (3, 2), (2, 1), (1, 0)])
    params, target = weights(agent)

    @quick
    def taught(rewards: Any) -> Any:
        def chunk(r: Any) -> Any:
            found = agent.chunk_loss(params, {**batch, "rewards": r})
            return found.value(), found.count

        (value, count), gradient = jax.value_and_grad(chunk, has_aux=True)(rewards)
        others = agent.distilled_loss(params, batch)[0], agent.value_loss(params, target, batch)[0]
        return value, gradient, [count, *(one.count for one in others)]

    loss, gradient, rows = taught(batch["rewards"])
    assert np.any(np.asarray(gradient) != 0, axis=1).tolist() == [True, True, True, True]
    data = numbers(batch)
    q_long = numpy_networks.critic(params["chunk_critic"], data["observations"]["qpos"], data["actions"].reshape(4, -1))
    value: Any = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["value"]["mlp"])
    v = numpy_networks.mlp(value, data["next_observations"]["qpos"])[:, 0]
    # One chunk goes on, three end by a termination.
    y = data["rewards"][:, -1] + np.array([DISCOUNT**4, 0, 0, 0]) * v
    np.testing.assert_allclose(loss, ((q_long - y) ** 2).mean(), rtol=1e-5)
    assert [float(count) for count in rows] == [2 * 4, 2 * 3, 3]  # two critics


def test_each_loss_reaches_its_own_network_alone():
    agent, batch = agent_of(), batch_of()
    params, target = weights(agent)

    def reached(loss: Any) -> set[str]:
        gradient = quick(jax.grad(loss))(params)
        return {part for part, leaves in gradient.items() if any(np.any(x) for x in jax.tree.leaves(leaves))}

    assert reached(lambda p: agent.chunk_loss(p, batch).value()) == {"chunk_critic"}
    assert reached(lambda p: agent.distilled_loss(p, batch)[0].value()) == {"critic"}
    assert reached(lambda p: agent.value_loss(p, target, batch)[0].value()) == {"value"}
    assert reached(lambda p: agent.loss(p, target, batch, KEY)[0]) == set(params)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.93])
def test_the_leaning_losses_have_their_minimum_at_quantile_and_expectile(level):
    x = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    guesses = np.linspace(-3, 3, 6001, dtype=np.float32)
    errors = jnp.asarray(x[None, :] - guesses[:, None])
    quantile = guesses[np.argmin(np.asarray(asymmetric_loss(errors, level, "quantile")).mean(axis=1))]
    np.testing.assert_allclose(quantile, np.quantile(x, level), atol=0.01)
    expectile = guesses[np.argmin(np.asarray(asymmetric_loss(errors, level, "expectile")).mean(axis=1))]
    above, below = x[x > expectile] - expectile, expectile - x[x <= expectile]
    np.testing.assert_allclose(level * above.sum(), (1 - level) * below.sum(), rtol=0.02)


def test_the_policy_takes_the_best_of_the_flows_short_chunks():
    agent, batch = agent_of(), batch_of()
    params, _ = weights(agent)
    s = np.asarray(batch["observations"]["qpos"], np.float64)
    noise = np.asarray(jax.random.normal(KEY, (3, len(s), K * A)))
    samples = np.stack([numpy_networks.flow_chunks(params["flow"], s, z, 2) for z in noise])
    values = np.stack([numpy_networks.critic(params["critic"], s, a).min(axis=0) for a in samples])
    expected = samples[values.argmax(axis=0), np.arange(len(s))].reshape(len(s), K, A)
    found = quick(lambda p: agent.act(p, batch["observations"], KEY))(params)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_update_changes_every_network():
    agent, batch = agent_of(), batch_of()
    state = agent.init(KEY)
    new, metrics = quick(agent.step)(state, batch)
    assert set(new.params) == {"critic", "flow", "chunk_critic", "value"}
    for old, changed in zip(*map(jax.tree.leaves, (state.params, new.params)), strict=True):
        assert np.any(old != changed)
    assert {"chunk_loss", "critic_loss", "value_loss", "flow_loss", "q", "v"} <= set(metrics)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"agent\.decoupled\.policy_horizon is 5; expected at most agent\.horizon, 4"):
        agent_of(DecoupledConfig(policy_horizon=5))
    with pytest.raises(ValueError, match=r"agent\.decoupled needs agent\.policy best_of_n"):
        agent_of(policy="distill")
