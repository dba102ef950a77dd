"""The agent against a numpy computation of the same numbers, and against the defects of the official code."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qchunk.agents.qc
from chunkwise.config.experiment import OptimConfig, TrainConfig
from chunkwise.state import TrainState
from chunkwise.train import rngs
from chunkwise.train.update import run_updates
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data import Dims
from tests import xla
from tests.qchunk import numpy_networks

H, A, S = 4, 2, 3
DISCOUNT = 0.9
KEY = jax.random.key(7)

# Unoptimised machine code: most of a test's time is compilation, 3 s for a step instead of 10.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

# Real steps and terminated step (None: none) of each row: inside an episode; terminated at the chunk's end; the
# episode ends by a time limit inside the chunk; by termination inside the chunk; at the chunk's first step.
ROWS = [(4, None), (4, 3), (2, None), (3, 2), (1, 0), (4, None)]

SETTINGS: dict[str, dict[str, Any]] = {
    "qc-fql": {},
    "qc": {"policy": "best_of_n", "num_samples": 6},
    "qc with min of 3": {"policy": "best_of_n", "num_samples": 4, "num_critics": 3, "q_aggregation": "min"},
    "n-step fql": {"action_chunking": False, "actor_layer_norm": True},
    "one critic, no norm": {"num_critics": 1, "critic_layer_norm": False, "q_aggregation": "min"},
    "dropped": {"partial_chunks": "drop", "alpha": 3.0, "flow_steps": 1},
    "chunk predicted": {"flow_predicts": "chunk"},
}


def agent_of(horizon: int = H, seed: int = 0, learning_rate: float = 1e-3, **settings: Any) -> QCAgent:
    """Small networks."""
    base = AgentConfig(horizon=horizon, discount=DISCOUNT, hidden_sizes=(16, 12), flow_steps=3)
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=len(ROWS)),
        data=DataConfig(path="none"),
        agent=dataclasses.replace(base, **settings),
        optim=OptimConfig(learning_rate=learning_rate),
    )
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))
    agent = make_agent(config, Dims(observation=S, action=A))
    assert isinstance(agent, QCAgent)
    return agent


def weights(agent: QCAgent) -> tuple[Any, Any]:
    """Random parameters, biases included, and a target that differs from the critic."""
    shapes = jax.eval_shape(agent.init, jax.random.key(1))
    rng = np.random.default_rng(3)

    def drawn(path: Any, leaf: Any) -> Any:
        values = 0.3 * rng.normal(size=leaf.shape) + ("scale" in jax.tree_util.keystr(path))
        return jnp.asarray(values, jnp.float32)

    return jax.tree_util.tree_map_with_path(drawn, shapes.params), jax.tree_util.tree_map_with_path(
        drawn, shapes.target
    )


def state_of(agent: QCAgent, step: int = 0) -> TrainState:
    """A state of those weights."""
    params, target = weights(agent)
    return TrainState(step=jnp.int32(step), params=params, opt_state=agent.optimiser.init(params), target=target)


def batch_of(rows: list[tuple[int, int | None]] = ROWS, horizon: int = H, seed: int = 0) -> dict[str, Any]:
    """Rows of the specification's layout from random rewards and actions."""
    rng = np.random.default_rng(seed)
    b = len(rows)
    steps = np.arange(horizon)
    real = np.array([steps < n for n, _ in rows])
    over = np.array([steps >= (horizon if end is None else end) for _, end in rows])
    returns = np.cumsum(np.where(real, DISCOUNT**steps * rng.normal(size=(b, horizon)), 0), axis=1)
    actions = np.tanh(rng.normal(size=(b, horizon, A)))
    for row, (n, _) in enumerate(rows):
        actions[row, n:] = actions[row, n - 1]

    def observations() -> dict[str, Any]:
        qpos = jnp.asarray(rng.normal(size=(b, S)), jnp.float32)
        return {"qpos": qpos, "state": None, "images": None, "depth_images": None}

    return {
        "observations": observations(),
        "next_observations": observations(),
        "actions": jnp.asarray(actions, jnp.float32),
        "rewards": jnp.asarray(returns, jnp.float32),
        "masks": jnp.asarray(~over, jnp.float32),
        "valid": jnp.asarray(real, jnp.float32),
        "terminals": jnp.asarray(over | (steps >= np.array([n for n, _ in rows])[:, None] - 1)),
        "is_positive": jnp.ones(b, bool),
        "final_reward": jnp.asarray(returns[:, -1], jnp.float32),
    }


def numbers(batch: Any) -> Any:
    """The batch in float64 numpy."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), batch)


def numpy_aggregate(agent: QCAgent, q: np.ndarray) -> np.ndarray:
    return q.mean(axis=0) if agent.config.agent.q_aggregation == "mean" else q.min(axis=0)


def flow_chunks(agent: QCAgent, params: Any, s: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The flow's chunks from noise."""
    settings = agent.config.agent
    return numpy_networks.flow_chunks(params["flow"], s, z, settings.flow_steps, settings.flow_predicts)


def numpy_policy(agent: QCAgent, params: Any, s: np.ndarray, key: Any) -> np.ndarray:
    """The policy's chunks, one sample after the other."""
    settings = agent.config.agent
    if settings.policy == "distill":
        z = np.asarray(jax.random.normal(key, (len(s), agent.chunk_size)))
        return np.clip(numpy_networks.policy(params["onestep"], s, z), -1, 1)
    noise = np.asarray(jax.random.normal(key, (settings.num_samples, len(s), agent.chunk_size)))
    samples = [flow_chunks(agent, params, s, z) for z in noise]
    values = [numpy_aggregate(agent, numpy_networks.critic(params["critic"], s, a)) for a in samples]
    best = np.argmax(values, axis=0)
    return np.stack([samples[best[row]][row] for row in range(len(s))])


def numpy_critic_loss(agent: QCAgent, params: Any, target: Any, batch: Any) -> float:
    """Row by row, as the definition reads."""
    settings, data = agent.config.agent, numbers(batch)
    s, s_next = data["observations"]["qpos"], data["next_observations"]["qpos"]
    a = data["actions"][:, : agent.action_horizon].reshape(len(s), -1)
    a_next = numpy_policy(agent, params, s_next, KEY)
    q_next = numpy_aggregate(agent, numpy_networks.critic(target["critic"], s_next, a_next))
    q = numpy_networks.critic(params["critic"], s, a)
    errors = []
    for row in range(len(s)):
        m = int(data["valid"][row].sum())
        if settings.partial_chunks == "drop" and m < settings.horizon:
            continue
        y = data["rewards"][row, -1] + DISCOUNT**m * data["masks"][row, -1] * q_next[row]
        errors += [(q[e, row] - y) ** 2 for e in range(len(q))]
    return float(np.mean(errors))


def numpy_flow_loss(agent: QCAgent, params: Any, batch: Any) -> float:
    """Over the actions that exist."""
    data = numbers(batch)
    noise_key, time_key = jax.random.split(KEY)
    b = len(data["actions"])
    a = data["actions"][:, : agent.action_horizon].reshape(b, -1)
    z = np.asarray(jax.random.normal(noise_key, a.shape), np.float64)
    t = np.asarray(jax.random.uniform(time_key, (b, 1)), np.float64)
    observations, predicts = data["observations"]["qpos"], agent.config.agent.flow_predicts
    x = (1 - t) * z + t * a
    v = numpy_networks.velocity(params["flow"], observations, x, t, predicts)
    u = a - z if predicts == "velocity" else (a - x) / np.maximum(1 - t, 0.05)
    squared = ((v - u) ** 2).reshape(b, agent.action_horizon, A)
    real = data["valid"][:, : agent.action_horizon] == 1
    return float(np.concatenate([squared[row][real[row]].ravel() for row in range(b)]).mean())


def numpy_distill_loss(agent: QCAgent, params: Any, batch: Any) -> float:
    """Distance to the flow's chunk of the same noise, minus the value."""
    settings, s = agent.config.agent, numbers(batch)["observations"]["qpos"]
    z = np.asarray(jax.random.normal(KEY, (len(s), agent.chunk_size)))
    mu = numpy_networks.policy(params["onestep"], s, z)
    distance = ((mu - flow_chunks(agent, params, s, z)) ** 2).mean()
    return float(settings.alpha * distance - numpy_networks.critic(params["critic"], s, np.clip(mu, -1, 1)).mean())


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_are_numpys(name):
    agent, batch = agent_of(**SETTINGS[name]), batch_of()
    params, target = weights(agent)
    distill = agent.config.agent.policy == "distill"

    @quick
    def losses(params: Any) -> list[Any]:
        found = [agent.critic_loss(params, target, batch, KEY), agent.flow_loss(params, batch, KEY)]
        return [*found, agent.distill_loss(params, batch, KEY)] if distill else found

    found = losses(params)
    expected = [numpy_critic_loss(agent, params, target, batch), numpy_flow_loss(agent, params, batch)]
    if distill:
        expected.append(numpy_distill_loss(agent, params, batch))
    np.testing.assert_allclose([loss for loss, _ in found], expected, rtol=1e-5)
    kept = 3 if name == "dropped" else len(ROWS)
    assert float(found[0][1]["critic_loss"].count) == kept * agent.config.agent.num_critics


@pytest.mark.parametrize("name", ["qc-fql", "qc"])
def test_each_loss_reaches_its_own_network_alone(name):
    agent, batch = agent_of(**SETTINGS[name]), batch_of()
    params, target = weights(agent)

    def reached(loss: Any, *arguments: Any) -> set[str]:
        gradient = quick(jax.grad(lambda p: loss(p, *arguments)[0]))(params)
        return {part for part, leaves in gradient.items() if any(np.any(x) for x in jax.tree.leaves(leaves))}

    assert reached(agent.critic_loss, target, batch, KEY) == {"critic"}
    assert reached(agent.flow_loss, batch, KEY) == {"flow"}
    if name == "qc-fql":
        assert reached(agent.distill_loss, batch, KEY) == {"onestep"}
    assert reached(agent.loss, target, batch, KEY) == set(params)


def test_the_gradient_of_the_value_reaches_the_one_step_policy():
    """With next to no distillation the policy still learns, from Q."""
    agent, batch = agent_of(alpha=1e-12), batch_of()
    params, _ = weights(agent)
    gradient: Any = quick(jax.grad(lambda p: agent.distill_loss(p, batch, KEY)[0]))(params)
    assert float(jnp.abs(gradient["onestep"]["mlp"]["layer_2"]["kernel"]).max()) > 1e-4


def test_no_gradient_passes_the_target():
    """The gradient is that of a regression on the fixed numbers y."""
    agent, batch = agent_of(), batch_of()
    params, target = weights(agent)
    shifted = jax.tree.map(lambda x: x + jnp.float32(0.01), target)
    critic_loss = quick(agent.critic_loss)
    losses = [critic_loss(params, moved, batch, KEY)[0] for moved in (target, shifted)]
    assert float(losses[0]) != float(losses[1])
    data = numbers(batch)
    s_next = data["next_observations"]["qpos"]
    a_next = numpy_policy(agent, params, s_next, KEY)
    q_next = numpy_aggregate(agent, numpy_networks.critic(target["critic"], s_next, a_next))
    m = data["valid"].sum(axis=1)
    y = jnp.asarray(data["rewards"][:, -1] + DISCOUNT**m * data["masks"][:, -1] * q_next, jnp.float32)

    def regression(critic: Any) -> Any:
        q = agent._q(critic, batch["observations"]["qpos"], agent._chunks(batch))
        return ((q - y[None]) ** 2).mean()

    found: Any = quick(jax.grad(lambda p: agent.critic_loss(p, target, batch, KEY)[0]))(params)
    for one, other in zip(
        *map(jax.tree.leaves, (found["critic"], jax.grad(regression)(params["critic"]))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_dropping_every_row_leaves_a_loss_of_zero():
    agent, batch = agent_of(partial_chunks="drop"), batch_of([(2, None), (3, 2)])
    params, target = weights(agent)
    loss, metrics = quick(agent.critic_loss)(params, target, batch, KEY)
    assert float(loss) == 0
    assert float(metrics["critic_loss"].count) == 0


def test_rows_left_out_do_not_dilute_the_loss():
    """The official code divides by all rows: its loss halves if as many cut chunks are added."""
    agent = agent_of(policy="best_of_n", num_samples=1, partial_chunks="drop")
    params, target = weights(agent)
    batch = batch_of([(4, None), (4, None), (2, None), (1, None)])
    ended = batch | {"masks": jnp.zeros_like(batch["masks"])}  # no bootstrap: the number of rows changes no draw
    whole = jax.tree.map(lambda x: x[:2], ended)
    with_cut, _ = quick(agent.critic_loss)(params, target, ended, KEY)
    without, _ = quick(agent.critic_loss)(params, target, whole, KEY)
    np.testing.assert_allclose(with_cut, without, rtol=1e-6)


def test_padded_actions_do_not_enter_behaviour_cloning():
    agent, batch = agent_of(), batch_of([(2, None), (4, None)])
    params, _ = weights(agent)
    _, metrics = agent.flow_loss(params, batch, KEY)
    assert float(metrics["flow_loss"].count) == (2 + 4) * A


def test_a_predicted_chunk_needs_no_noise_to_pass_through_the_network():
    agent, observations = agent_of(flow_predicts="chunk", flow_steps=7), batch_of()["observations"]
    said = np.linspace(-0.9, 0.9, agent.chunk_size)
    found = agent.act_flow(saying(agent, said), observations, KEY)
    np.testing.assert_allclose(found.reshape(len(found), -1), np.tile(said, (len(found), 1)), atol=1e-5)


def saying(agent: QCAgent, chunk: np.ndarray) -> Any:
    """Weights with which the flow's network gives out one flat chunk, whatever it sees."""
    params, _ = weights(agent)
    last = {"kernel": jnp.zeros((12, agent.chunk_size)), "bias": jnp.asarray(chunk, jnp.float32)}
    assert params["flow"]["mlp"]["layer_2"]["kernel"].shape == last["kernel"].shape
    return params | {"flow": {"mlp": params["flow"]["mlp"] | {"layer_2": last}}}


@pytest.mark.parametrize("off", [0.0, 0.5])
def test_the_recorded_chunk_is_the_best_prediction_at_all_times(off: float):
    """A network that gives it out has no loss; one that is off by e has the mean of e^2 / max(1 - t, 0.05)^2."""
    agent, batch = agent_of(flow_predicts="chunk"), batch_of([(H, None)] * 100)
    recorded = np.linspace(-0.75, 0.75, agent.chunk_size).astype(np.float32)
    batch["actions"] = jnp.tile(jnp.asarray(recorded).reshape(H, A), (100, 1, 1))
    t = np.asarray(jax.random.uniform(jax.random.split(KEY)[1], (100, 1)), np.float64)
    assert (t > 0.95).sum() > 1
    loss, _ = quick(agent.flow_loss)(saying(agent, recorded + off), batch, KEY)
    np.testing.assert_allclose(loss, (off**2 / np.maximum(1 - t, 0.05) ** 2).mean(), rtol=1e-4)


def test_without_chunking_the_first_action_alone_is_seen():
    agent, batch = agent_of(action_chunking=False), batch_of()
    params, target = weights(agent)
    other = batch | {"actions": batch["actions"].at[:, 1:].set(0.0)}
    loss = quick(agent.loss)
    assert float(loss(params, target, batch, KEY)[0]) == float(loss(params, target, other, KEY)[0])
    assert agent.act(params, batch["observations"], KEY).shape == (len(ROWS), 1, A)


def test_step_is_one_adam_update_then_the_target_from_the_new_critic():
    """Adam's first update is the rate times the sign of the gradient; the official target takes the old critic."""
    agent, batch = agent_of(tau=0.25, learning_rate=0.01, seed=3), batch_of()
    params, target = weights(agent)
    state = state_of(agent, step=5)
    new, metrics = quick(agent.step)(state, batch)
    assert int(new.step) == 6
    key = rngs.key(3, "agent", 5)
    gradient = quick(jax.grad(lambda p: agent.loss(p, target, batch, key)[0]))(params)
    for old, g, now in zip(*map(jax.tree.leaves, (params, gradient, new.params)), strict=True):
        certain = np.abs(g) > 1e-4
        np.testing.assert_allclose((now - old)[certain], -0.01 * np.sign(g)[certain], rtol=1e-2)
    trees = (target["critic"], new.params["critic"], new.target["critic"])
    for old, critic, now in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(now, 0.75 * old + 0.25 * critic, rtol=1e-5, atol=1e-7)
    squares = sum(float((g**2).sum()) for g in jax.tree.leaves(gradient))
    np.testing.assert_allclose(metrics["gradient_norm"].value(), np.sqrt(squares), rtol=1e-4)


def test_target_is_a_copy_and_the_state_can_be_donated():
    """In the official code critic and target share one buffer at the start."""
    state = quick(agent_of().init)(jax.random.key(0))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)
    for critic, target in zip(*map(jax.tree.leaves, (state.params["critic"], state.target["critic"])), strict=True):
        np.testing.assert_array_equal(critic, target)
    quick(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("name", "hidden_sizes"),
    [
        pytest.param("qc-fql", (16, 16), marks=pytest.mark.long),
        pytest.param("qc", (33,), marks=pytest.mark.long),
        ("dropped", (64,)),
    ],
)
def test_updates_per_call_change_no_bit(name, hidden_sizes):
    """One call with 5 batches and 5 calls with one; "dropped" has a single flow step, whose loop XLA inlines."""
    agent = agent_of(hidden_sizes=hidden_sizes, **SETTINGS[name])
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[batch_of(seed=i) for i in range(5)])
    # Only with XLA's own settings, which the tests' environment changes, are bits the same however updates are called.
    update = jax.jit(functools.partial(run_updates, agent.step), donate_argnums=0, compiler_options=xla.AS_IN_TRAINING)
    together, metrics = update(state_of(agent), stacked, jnp.int32(5))
    apart = state_of(agent)
    for i in range(5):
        apart, one_metrics = update(apart, jax.tree.map(lambda x, i=i: x[i : i + 1], stacked), jnp.int32(1))
        for every, one in zip(*map(jax.tree.leaves, (metrics, one_metrics)), strict=True):
            np.testing.assert_array_equal(every[i], one[0])
    for one, other in zip(*map(jax.tree.leaves, (together, apart)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", SETTINGS)
def test_actions_are_numpys_and_within_bounds(name):
    agent, observations = agent_of(**SETTINGS[name]), batch_of()["observations"]
    params, _ = weights(agent)
    s = np.asarray(observations["qpos"], np.float64)
    actions, flow = quick(lambda p, o: (agent.act(p, o, KEY), agent.act_flow(p, o, KEY)))(params, observations)
    expected = numpy_policy(agent, params, s, KEY).reshape(len(s), agent.action_horizon, A)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    z = np.asarray(jax.random.normal(KEY, (len(s), agent.chunk_size)))
    expected = flow_chunks(agent, params, s, z)
    np.testing.assert_allclose(flow, expected.reshape(flow.shape), atol=1e-5)
    assert float(jnp.abs(flow).max()) == 1


@pytest.mark.parametrize("rows", [1, 12])
def test_tiles_do_not_change_the_best_of_n(rows, monkeypatch):
    agent, observations = agent_of(**SETTINGS["qc"]), batch_of()["observations"]
    params, _ = weights(agent)
    monkeypatch.setattr(qchunk.agents.qc, "TILE_ROWS", rows)
    s = np.asarray(observations["qpos"], np.float64)
    found = quick(agent.policy)(params, observations, KEY)
    np.testing.assert_allclose(found, numpy_policy(agent, params, s, KEY), atol=1e-5)


@pytest.mark.parametrize(
    ("samples", "batch", "at_once"), [(32, 256, 4), (32, 32, 32), (32, 33, 16), (6, 400, 2), (7, 256, 1), (4, 2000, 1)]
)
def test_the_best_of_n_goes_through_the_networks_in_as_few_parts_as_1024_rows_allow(
    samples: int, batch: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    """The size that was measured on a CPU; a part has whole samples, and at least one, all of the same number. On
    accelerators all go at once."""
    agent, seen = agent_of(policy="best_of_n", num_samples=samples), []
    flow_chunks = agent._flow_chunks

    def watched(params: Any, s: Any, z: Any, goal: Any) -> Any:
        seen.append(z.shape)
        return flow_chunks(params, s, z, goal)

    monkeypatch.setattr(type(agent), "_flow_chunks", lambda self, *arguments: watched(*arguments))
    params, _ = weights(agent)
    shape = jax.eval_shape(agent.policy, params, {"qpos": jnp.zeros((batch, S))}, KEY)
    assert shape.shape == (batch, agent.chunk_size)
    assert set(seen) == {(at_once, batch, agent.chunk_size), (samples, batch, agent.chunk_size)}
    programs = [
        quick(agent.policy).trace(params, {"qpos": jnp.zeros((batch, S))}, KEY).lower(lowering_platforms=(name,))
        for name in ("cpu", "cuda", "tpu")
    ]
    parts = f"tensor<{samples // at_once}x{at_once}x{batch}x"
    assert [parts in program.as_text() for program in programs] == [True, False, False]


@pytest.mark.parametrize("predicts", ["velocity", "chunk"])
def test_a_chunk_is_completed_from_what_is_known(predicts):
    """numpy's flow with guidance, its Jacobian by differences; of the completed samples the critic's best."""
    agent = agent_of(policy="best_of_n", num_samples=3, flow_predicts=predicts)
    params, _ = weights(agent)
    rng = np.random.default_rng(5)
    s, known = rng.normal(size=(2, S)), rng.uniform(-0.5, 0.5, (2, H, A))
    steps = np.array([[1.0, 1.0, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0]])
    per_number = np.repeat(steps, A, axis=1)

    def completed(z: np.ndarray) -> np.ndarray:
        rows = []
        for row in range(2):
            x = z[row].astype(np.float64)
            for i in range(3):
                t = i / 3

                def arrival(x: np.ndarray, t: float = t, row: int = row) -> tuple[np.ndarray, np.ndarray]:
                    v = numpy_networks.velocity(params["flow"], s[row], x, np.array([t]), predicts)
                    return x + (1 - t) * v, v

                end, v = arrival(x)
                h = 1e-6 * np.eye(len(x))
                jacobian = np.stack([(arrival(x + d)[0] - arrival(x - d)[0]) / 2e-6 for d in h], axis=1)
                scale = 5.0 if t == 0 else min(5.0, (t**2 + (1 - t) ** 2) / (t * (1 - t)))
                x = x + (v + scale * jacobian.T @ (per_number[row] * (known[row].ravel() - end))) / 3
            rows.append(np.clip(x, -1, 1))
        return np.stack(rows)

    noise = np.asarray(jax.random.normal(KEY, (3, 2, H * A)))
    samples = np.stack([completed(z) for z in noise])
    q = np.stack([numpy_networks.critic(params["critic"], s, a).mean(axis=0) for a in samples])
    expected = samples[q.argmax(axis=0), [0, 1]]
    inputs = {"qpos": s.astype(np.float32)}, KEY, known.astype(np.float32), steps.astype(np.float32)
    found = quick(agent.complete)(params, *inputs)
    np.testing.assert_allclose(found, expected.reshape(2, H, A), atol=2e-4)
    alone = quick(functools.partial(agent.complete, behaviour_cloning=True))(params, *inputs)
    z = np.asarray(jax.random.normal(KEY, (2, H * A)))
    np.testing.assert_allclose(alone, completed(z).reshape(2, H, A), atol=2e-4)
    free = quick(agent.act)(params, inputs[0], KEY)
    np.testing.assert_allclose(found[1], free[1], atol=1e-5)  # nothing is known of it
    assert np.abs(found[0] - free[0]).max() > 0.05


def test_observation_names_the_array_that_is_seen():
    agent, batch = agent_of(), batch_of()
    config = dataclasses.replace(agent.config, data=DataConfig(path="none", observation="state"))
    params, _ = weights(agent)
    seen = {"qpos": None, "state": batch["observations"]["qpos"]}
    by_state = make_agent(config, agent.dims)
    np.testing.assert_array_equal(by_state.act(params, seen, KEY), agent.act(params, batch["observations"], KEY))
    with pytest.raises(ValueError, match=r"data\.observation is 'state', which the batch lacks"):
        by_state.act(params, batch["observations"], KEY)


def test_a_batch_of_another_horizon_is_refused():
    agent = agent_of()
    with pytest.raises(ValueError, match=r"batch actions has shape \(6, 5, 2\); expected \(b, 4, 2\)"):
        jax.eval_shape(agent.step, jax.eval_shape(agent.init, KEY), batch_of(horizon=5))
