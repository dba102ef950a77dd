"""Updates of all agents from parts of a batch, with draws that do not depend on the row."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from chunkwise.errors import ConfigError
from chunkwise.state import TrainState
from qchunk.agents.base import Agent
from qchunk.agents.make import make_agent
from qchunk.agents.qc import QCAgent
from tests.evened import assert_same_update, even_draws
from tests.qchunk.agents import test_dqc, test_qc, test_rlpd
from tests.qchunk.random_weights import weights


class Misspelt(QCAgent):
    @property
    def loss_weights(self) -> dict[str, float]:
        return {"critic_loss": 1.0, "flow_los": 1.0}


@pytest.mark.parametrize("parts", [1, 3])
def test_a_weight_of_no_loss_is_refused(parts: int):
    agent = test_qc.agent_of()
    train = dataclasses.replace(agent.config.train, grad_accum_steps=parts)
    fields: dict[str, Any] = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    fields["config"] = dataclasses.replace(agent.config, train=train)
    misspelt = Misspelt(**fields)
    params, target = weights(agent)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=agent.optimiser.init(params), target=target)
    with pytest.raises(ConfigError, match=r"Misspelt\.loss_weights has flow_los, and `losses` no metric of that name"):
        jax.eval_shape(misspelt.step, state, test_qc.batch_of())


class Cloning(QCAgent):
    """Leaves the critic's loss out, and inherits its weight."""

    def losses(self, params: Any, target: Any, batch: Any, key: Any) -> Any:
        return self.flow_loss(params, batch, key)[1]


def test_a_loss_that_is_left_out_may_have_a_weight_of_before():
    agent = test_qc.agent_of(policy="best_of_n")
    fields: dict[str, Any] = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    params, target = weights(agent)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=agent.optimiser.init(params), target=target)
    _, metrics = jax.eval_shape(Cloning(**fields).step, state, test_qc.batch_of())
    assert set(metrics) == {"flow_loss", "gradient_norm"}


AGENTS: dict[str, Agent] = {
    "qc-fql": test_qc.agent_of(),
    "qc-fql, whole chunks": test_qc.agent_of(partial_chunks="drop"),
    "qc": test_qc.agent_of(policy="best_of_n", num_samples=4),
    "rlpd": test_rlpd.agent_of(),
    "dqc": test_dqc.agent_of(),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("qc", "dqc") else pytest.mark.long) for name in AGENTS]
)
def test_parts_make_the_update_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch):
    """The rows have 4, 4, 2, 3, 1 and 4 real steps: a mean of the parts' means would differ."""
    agent = AGENTS[name]
    train = dataclasses.replace(agent.config.train, grad_accum_steps=3)
    parted = make_agent(dataclasses.replace(agent.config, train=train), agent.dims)
    even_draws(monkeypatch)
    params, target = weights(agent)
    opt_state: Any = agent.optimiser.init(params)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=opt_state, target=target)
    assert_same_update(agent, parted, state, test_qc.batch_of(), test_qc.quick)
