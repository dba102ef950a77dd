"""Losses, targets, gradients and one update against numbers recorded from the official implementation.

tests/fixtures/qchunk_official.npz was made by running the agents of github.com/ColinQiyangLi/qc (commit 48283b4, with
the versions that its requirements.txt pins: jax 0.6.0, flax 0.10.5, tensorflow-probability 0.25.0) in float32 on a CPU:
batch 6, chunks of 3 (FQL: 1), observation 3, action 2, two layers of 8, weights and a target critic drawn at random.
For each case it holds `params`, `batch`, `draw/<i>` (every random number the losses took, in order), `target` (y of
each row), `loss`, `info/*`, `gradient`, and `updated`, `updated_target` after one update with Adam at rate 0.01.
Cases named `whole` hold whole chunks alone; in `cut` two of six rows pass their episode's end.

Deliberate differences, each with its factor:
- rows left out: the official losses divide by all rows, ours by those that stay. Of the critic's loss and gradient
  theirs is ours times the share of rows that stay; of the flow's, times the share of actions that exist.
- the target critic: theirs moves towards the critic before the update, ours towards the one after it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import OptimConfig, TrainConfig
from chunkwise.state import TrainState
from qchunk.agents.base import Agent
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from qchunk.agents.rlpd import RLPDAgent
from qchunk.config import AgentConfig, DataConfig, GaussianConfig, QChunkConfig
from qchunk.data import Dims
from tests.qchunk.agents.test_qc import KEY, quick

S, A, B, TAU = 3, 2, 6, 0.005
FIXTURE = Path(__file__).parents[2] / "fixtures/qchunk_official.npz"
COMMON: dict[str, Any] = {"discount": 0.9, "hidden_sizes": (8, 8), "partial_chunks": "drop", "tau": TAU}
FLOW: dict[str, Any] = COMMON | {"flow_steps": 3, "alpha": 7.0, "horizon": 3}
RLPD: dict[str, Any] = COMMON | {"policy": "gaussian", "num_critics": 3, "horizon": 3}
CASES: dict[str, dict[str, Any]] = {
    "qc_fql.whole": FLOW,
    "qc_fql.cut": FLOW,
    "qc.whole": FLOW | {"policy": "best_of_n", "num_samples": 4},
    "qc.cut": FLOW | {"policy": "best_of_n", "num_samples": 4},
    "qc_min.whole": FLOW | {"policy": "best_of_n", "num_samples": 4, "q_aggregation": "min"},
    "fql.whole": FLOW | {"horizon": 1},
    "qc_rlpd.whole": RLPD | {"gaussian": GaussianConfig(bc_weight=0.01)},
    "rlpd.cut": RLPD | {"q_aggregation": "min"},
}
# Where the official trees keep what ours hold under the names on the right.
PLACES = {
    "modules_critic/value_net": "critic/mlp",
    "modules_target_critic/value_net": "target/mlp",
    "modules_actor_bc_flow/mlp": "flow/mlp",
    "modules_actor_onestep_flow/mlp": "onestep/mlp",
    "modules_critic/VmapStateActionValue_0/MLP_0": "critic/members/mlp",
    "modules_critic/VmapStateActionValue_0/Dense_0": "critic/members/output",
    "modules_target_critic/VmapStateActionValue_0/MLP_0": "target/members/mlp",
    "modules_target_critic/VmapStateActionValue_0/Dense_0": "target/members/output",
    "modules_actor/MLP_0": "actor/mlp",
    "modules_actor/OutputDenseMean": "actor/mean",
    "modules_actor/OutputDenseLogStd": "actor/log_std",
    "modules_alpha/log_temp": "actor/log_temperature",
}


class Case:
    """One recorded case."""

    def __init__(self, name: str) -> None:
        with np.load(FIXTURE) as file:
            self.arrays = {key.removeprefix(name + "/"): file[key] for key in file.files if key.startswith(name + "/")}

    def tree(self, prefix: str) -> dict[str, Any]:
        """A tree of weights in our names; the target critic under "target"."""
        tree: dict[str, Any] = {}
        for key, array in self.arrays.items():
            if key.startswith(prefix + "/"):
                *parents, leaf = our_name(key.removeprefix(prefix + "/")).split("/")
                node = tree
                for parent in parents:
                    node = node.setdefault(parent, {})
                node[leaf] = jnp.asarray(array)
        return tree

    def draws(self) -> list[np.ndarray]:
        """The random numbers in order; the best of N has its samples first here."""
        count = sum(key.startswith("draw/") for key in self.arrays)
        found = [self.arrays[f"draw/{i}"] for i in range(count)]
        return [x.swapaxes(0, 1) if x.ndim == 3 else x for x in found]

    def batch(self) -> dict[str, Any]:
        """The batch in our layout; the official one has every next observation of the chunk."""
        found = {
            key.removeprefix("batch/"): jnp.asarray(x) for key, x in self.arrays.items() if key.startswith("batch/")
        }

        def seen(qpos: Any) -> dict[str, Any]:
            return {"qpos": qpos, "state": None, "images": None, "depth_images": None}

        next_observations = found["next_observations"][:, -1]
        return found | {"observations": seen(found["observations"]), "next_observations": seen(next_observations)}


def our_name(path: str) -> str:
    """Our path of one official leaf."""
    place = next(place for place in PLACES if path == place or path.startswith(place + "/"))
    rest = path.removeprefix(place).replace("Dense_", "layer_").replace("LayerNorm_", "norm_")
    return PLACES[place] + rest


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes jax.random give the recorded numbers, in order."""
    waiting: list[np.ndarray] = []

    def drawn(key: Any, shape: Any = (), *rest: Any) -> Any:
        x = waiting.pop(0)
        assert x.shape == tuple(shape)
        return jnp.asarray(x)

    def start(draws: list[np.ndarray]) -> None:
        assert not waiting, "the last computation drew fewer numbers than were recorded"
        waiting.extend(draws)
        monkeypatch.setattr(jax.random, "normal", drawn)
        monkeypatch.setattr(jax.random, "uniform", drawn)

    yield start
    assert not waiting


def agent_of(name: str) -> QCAgent | RLPDAgent:
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=B),
        data=DataConfig(path="none"),
        agent=AgentConfig(**CASES[name]),
        optim=OptimConfig(learning_rate=1e-2),
    )
    agent = make_agent(config, Dims(observation=S, action=A))
    assert isinstance(agent, QCAgent | RLPDAgent)
    return agent


def params_of(case: Case, agent: Agent, prefix: str) -> tuple[Any, Any]:
    """Weights by network, those that our agent has, and the target."""
    tree = case.tree(prefix)
    shapes = jax.eval_shape(agent.init, KEY)
    return {network: tree[network] for network in shapes.params}, {"critic": tree.get("target")}


def shares(case: Case) -> tuple[float, float]:
    """Rows whose chunk is whole, and actions that exist, of all."""
    valid = case.arrays["batch/valid"]
    return float(valid[:, -1].mean()), float(valid.mean())


def few(name: str, *long: str) -> Any:
    """A case, which takes more time than it tells in a short run where it is one of `long`."""
    return pytest.param(name, marks=pytest.mark.long if name in long else ())


def assert_close(found: Any, expected: Any) -> None:
    """Trees to 1e-5."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for path, x in jax.tree_util.tree_leaves_with_path(found):
        y = expected
        for key in path:
            y = y[key.key]
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", [few(name, "qc.cut", "fql.whole") for name in CASES])
def test_target_losses_and_gradients(name: str, inject: Any) -> None:
    case, agent = Case(name), agent_of(name)
    params, target = params_of(case, agent, "params")
    batch, draws = case.batch(), case.draws()
    whole_rows, real_actions = shares(case)
    assert (whole_rows < 1) == name.endswith("cut")

    after = batch["next_observations"]

    inject(draws[:1])
    a_next = quick(lambda params: agent.policy(params, after, KEY))(params)
    inject(draws[:1])
    y = quick(lambda params: agent.critic_target(params, target, batch, KEY))(params)
    np.testing.assert_allclose(a_next, case.arrays["next_actions"], rtol=1e-5, atol=1e-5)
    kept = case.arrays["batch/valid"][:, -1] > 0
    np.testing.assert_allclose(y[kept], case.arrays["target"][kept], rtol=1e-5, atol=1e-5)

    inject(draws)
    gradient, metrics = quick(jax.grad(lambda p: agent.loss(p, target, batch, KEY), has_aux=True))(params)
    values = {key: float(metric.value()) for key, metric in metrics.items()}
    factors = {"critic": whole_rows, "flow": real_actions, "onestep": 1.0, "actor": 1.0}
    official = {key.removeprefix("info/"): float(x) for key, x in case.arrays.items() if key.startswith("info/")}
    pairs = [(values["critic_loss"] * whole_rows, official["critic.critic_loss"])]
    if "flow" in params:
        pairs.append((values["flow_loss"] * real_actions, official["actor.bc_flow_loss"]))
    if "onestep" in params:
        pairs.append((values["distill_loss"], official["actor.distill_loss"]))
    if "actor" in params:
        pairs += [
            (values["policy_loss"], official["actor.actor_loss"]),
            (values["temperature"], official["actor.alpha"]),
        ]
        if name.endswith("whole"):
            pairs.append((0.01 * values["cloning"], official["actor.bc_loss"]))
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-5, atol=1e-5)
    found: Any = {network: jax.tree.map(lambda x, f=factors[network]: x * f, gradient[network]) for network in params}
    expected, _ = params_of(case, agent, "gradient")
    assert_close(found, expected)


@pytest.mark.parametrize(
    "name", [few(name, "qc.whole", "qc_min.whole", "fql.whole") for name in CASES if name.endswith("whole")]
)
def test_one_update(name: str, inject: Any) -> None:
    case, agent = Case(name), agent_of(name)
    params, target = params_of(case, agent, "params")
    state = TrainState(step=jnp.int32(0), params=params, opt_state=agent.optimiser.init(params), target=target)
    inject(case.draws())
    new, _ = quick(agent.step)(state, case.batch())
    expected, _ = params_of(case, agent, "updated")
    assert_close(new.params, expected)
    # Ours has moved by tau of what the critic has just learned beyond theirs.
    official = {"critic": {}}
    for path, array in case.arrays.items():
        if path.startswith("updated_target/"):
            *parents, leaf = our_name("modules_critic/" + path.removeprefix("updated_target/")).split("/")
            node: Any = official
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = array
    ahead = jax.tree.map(
        lambda t, p, q: t - TAU * (q - p), new.target["critic"], params["critic"], new.params["critic"]
    )
    assert_close(ahead, official["critic"])
    assert (
        max(float(jnp.abs(x).max()) for x in jax.tree.leaves(jax.tree.map(jnp.subtract, ahead, new.target["critic"])))
        > 1e-5
    )
