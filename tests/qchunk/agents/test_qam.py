"""Losses, gradients, actions and one update of QAM against numbers recorded from the authors' implementation.

tests/fixtures/qam_official.npz: commit f93efd2 of github.com/ColinQiyangLi/qam, by tests/fixtures/record_qam.py; layout
as in test_official.py. In `cut` two of six rows pass their episode's end, `clipped` has gradients of norm 1 at most.

Deliberate differences: of the critics' loss the official one divides by all rows, ours by those that stay; in the
flow's loss it leaves out every action of a row that is cut, ours takes the real ones, so that `cut` is not compared;
the moving averages follow the weights after the update, theirs those before.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import OptimConfig, TrainConfig
from chunkwise.state import TrainState
from qchunk.agents.make import make_agent
from qchunk.agents.qam import QAMAgent
from qchunk.config import AdjointConfig, AgentConfig, DataConfig, QChunkConfig
from qchunk.data import Dims
from tests.qchunk.agents.test_official import TAU, A, B, S, assert_close
from tests.qchunk.agents.test_official import inject as inject
from tests.qchunk.agents.test_qc import KEY, quick

FIXTURE = Path(__file__).parents[2] / "fixtures/qam_official.npz"
NETWORKS = {"critic": "critic/value_net", "flow": "actor_slow/mlp", "tuned": "actor_fast/mlp"}
RTOL = 1e-4
"""Of f_theta's loss and gradient, sums of squares of hundreds in float32; all else holds 1e-5."""


class Case:
    """One recorded case in our names."""

    def __init__(self, name: str) -> None:
        with np.load(FIXTURE) as file:
            self.arrays = {key.removeprefix(f"{name}/"): file[key] for key in file.files if key.startswith(f"{name}/")}
        found = {key.removeprefix("batch/"): jnp.asarray(x) for key, x in self.arrays.items() if "batch/" in key}
        before, after = found["observations"], found["next_observations"][:, -1]
        self.batch: dict[str, Any] = found | {"observations": _seen(before), "next_observations": _seen(after)}
        draws = [self.arrays[f"draw/{i}"] for i in range(8)]
        # The critic's noise has an axis for the best of one; ours draws the noise of all steps but the last at once.
        self.draws = [draws[0][:, 0], *draws[1:4], np.stack(draws[4:7])]

    def tree(self, prefix: str, networks: tuple[str, ...] = tuple(NETWORKS), target: str = "") -> dict[str, Any]:
        """Weights, or their gradients, of networks or of their moving averages."""
        places = {network: f"{prefix}/modules_{target}{NETWORKS[network]}/" for network in networks}
        return {network: {"mlp": self._layers(place)} for network, place in places.items()}

    def targets(self, prefix: str) -> dict[str, Any]:
        return self.tree(prefix, ("critic", "flow"), "target_")

    def _layers(self, place: str) -> dict[str, Any]:
        layers: dict[str, Any] = {}
        for key, x in self.arrays.items():
            if key.startswith(place):
                layer, leaf = (
                    key.removeprefix(place).replace("Dense_", "layer_").replace("LayerNorm_", "norm_").split("/")
                )
                layers.setdefault(layer, {})[leaf] = jnp.asarray(x)
        return layers


def _seen(qpos: Any) -> dict[str, Any]:
    return {"qpos": qpos, "state": None, "images": None, "depth_images": None}


def agent_of(*, clip_norm: float | None = None, **changes: Any) -> QAMAgent:
    settings: dict[str, Any] = {
        "policy": "adjoint_matching",
        "horizon": 3,
        "discount": 0.9,
        "hidden_sizes": (8, 8),
        "num_critics": 3,
        "flow_steps": 4,
        "partial_chunks": "drop",
        "tau": TAU,
        "adjoint": AdjointConfig(inverse_temperature=2.0, rho=0.5),
    }
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=B),
        data=DataConfig(path="none"),
        agent=AgentConfig(**settings | changes),
        optim=OptimConfig(learning_rate=1e-2, clip_norm=clip_norm),
    )
    agent = make_agent(config, Dims(observation=S, action=A))
    assert isinstance(agent, QAMAgent)
    return agent


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_losses_and_gradients(name: str, inject: Any):
    case, agent = Case(name), agent_of()
    inject(case.draws)
    loss = jax.grad(lambda p: agent.loss(p, case.targets("params"), case.batch, KEY), has_aux=True)
    gradient, metrics = quick(loss)(case.tree("params"))
    values = {key: float(metric.value()) for key, metric in metrics.items()}
    whole_rows = float(case.arrays["batch/valid"][:, -1].mean())
    assert (whole_rows < 1) == (name == "cut")
    expected = case.tree("gradient")
    np.testing.assert_allclose(values["adjoint_loss"], case.arrays["info/actor.adj_loss"], rtol=RTOL)
    np.testing.assert_allclose(
        values["critic_loss"] * whole_rows, case.arrays["info/critic.critic_loss"], rtol=1e-5, atol=1e-5
    )
    scaled = jax.tree.map(lambda x: x * whole_rows, gradient["critic"])
    assert_close(scaled, expected["critic"])
    close(gradient["tuned"], expected["tuned"])
    if name == "whole":
        np.testing.assert_allclose(values["flow_loss"], case.arrays["info/actor.flow_loss"], rtol=1e-5)
        assert_close(gradient["flow"], expected["flow"])


def close(found: Any, expected: Any) -> None:
    """Trees to RTOL, and 1e-5 of the greatest number, which is 400: small ones are differences of such."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=RTOL, atol=1e-5 * size), found, expected)


def test_actions(inject: Any):
    case, agent = Case("whole"), agent_of()
    inject([case.arrays["acting_draw"][:, 0]])
    actions = quick(lambda params: agent.act(params, case.batch["observations"], KEY))(case.tree("params"))
    assert actions.shape == (B, 3, A)
    np.testing.assert_allclose(actions.reshape(B, -1), case.arrays["actions"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "clip_norm"), [("whole", None), ("clipped", 1.0)])
def test_one_update(name: str, clip_norm: float | None, inject: Any):
    case, agent = Case(name), agent_of(clip_norm=clip_norm)
    params = case.tree("params")
    state = TrainState(
        step=jnp.int32(0), params=params, opt_state=agent.optimiser.init(params), target=case.targets("params")
    )
    inject(case.draws)
    new, _ = quick(agent.step)(state, case.batch)
    assert_close(new.params, case.tree("updated"))
    followed = {name: params[name] for name in agent.targets}, {name: new.params[name] for name in agent.targets}
    ahead = jax.tree.map(lambda t, p, q: t - TAU * (q - p), new.target, *followed)
    assert_close(ahead, case.targets("updated"))
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), new.target, case.targets("params"))
    assert min(jax.tree.leaves(moved)) > 1e-5


@pytest.mark.long
def test_a_flow_that_the_critic_does_not_bend_has_no_loss():
    """Where f_theta is f_beta's average and the critics are flat, the path's adjoint and the loss are 0."""
    case, agent = Case("whole"), agent_of()
    params, target = case.tree("params"), case.targets("params")
    flat = jax.tree.map(lambda x: 0 * x, target["critic"])
    metrics = agent.adjoint_loss(params | {"tuned": target["flow"]}, target | {"critic": flat}, case.batch, KEY)
    assert {name: float(metric.value()) for name, metric in metrics.items()} == {"adjoint_loss": 0, "adjoint_size": 0}
    bent = agent.adjoint_loss(params | {"tuned": target["flow"]}, target, case.batch, KEY)
    assert float(bent["adjoint_loss"].value()) > 1


@pytest.mark.long
def test_its_losses_reach_their_own_networks_alone():
    case, agent = Case("whole"), agent_of()
    params, target = case.tree("params"), case.targets("params")
    for loss, network in (("critic_loss", "critic"), ("flow_loss", "flow"), ("adjoint_loss", "tuned")):
        gradient = jax.grad(lambda p, loss=loss: agent.losses(p, target, case.batch, KEY)[loss].value())(params)
        moved = {name for name, tree in gradient.items() if any(bool(x.any()) for x in jax.tree.leaves(tree))}
        assert moved == {network}


def test_what_has_no_effect_is_refused():
    with pytest.raises(
        ValueError, match=r"agent\.q_aggregation is 'min', which agent\.policy adjoint_matching does not"
    ):
        AgentConfig(policy="adjoint_matching", q_aggregation="min")
    with pytest.raises(ValueError, match=r"agent\.adjoint is .*rho=1\.0.*, which agent\.policy distill does not read"):
        AgentConfig(adjoint=AdjointConfig(rho=1.0))
    for changes in ({"inverse_temperature": 0.0}, {"rho": -0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))} is "):
            AdjointConfig(**changes)
