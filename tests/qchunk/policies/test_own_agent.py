"""Agents of the user's own that choose chunks in another way than the class that they replace."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.data.norm_stats import identity
from chunkwise.errors import ConfigError
from chunkwise.policies.execution import Committed
from qchunk.agents.qc import QCAgent
from qchunk.policies.policy import QChunkPolicy, Way
from tests.qchunk.agents.test_qc import A, H, S, agent_of, weights

KNOWN = Committed(actions=np.full((1, A), 0.25, np.float32), weights=np.ones(1, np.float32))


class Still(QCAgent):
    def policy(self, params: Any, observations: Any, key: Any) -> Any:
        return jnp.zeros((len(observations["qpos"]), self.chunk_size))


class StillCompleting(Still):
    def complete(self, params: Any, observations: Any, key: Any, known: Any, weights: Any, **_: Any) -> Any:
        return known


def policy_of(kind: type[QCAgent], way: Way = "policy") -> QChunkPolicy:
    agent = agent_of(policy="best_of_n", num_samples=4)
    own = kind(**{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)})
    return QChunkPolicy(own, weights(own)[0], observation_norm=identity(S), action_norm=identity(A), way=way)


def test_it_completes_chunks_in_its_own_way_or_not_at_all():
    seen = {"state": np.ones(S, np.float32)}
    assert not policy_of(Still).infer(seen)["actions"].any()
    with pytest.raises(ConfigError, match=r"^--how realtime: Still chooses chunks by a `policy` or `act` of its own"):
        policy_of(Still).infer(seen, committed=KNOWN)
    completed = policy_of(StillCompleting).infer(seen, committed=KNOWN)["actions"]
    np.testing.assert_array_equal(completed, [[0.25] * A] + [[0] * A] * (H - 1))
    assert policy_of(QCAgent).infer(seen, committed=KNOWN)["actions"].any(axis=1).all()
    cloning = policy_of(Still, "behaviour_cloning").infer(seen, committed=KNOWN)["actions"]
    assert cloning.any(axis=1).all(), "the flow alone, which it does not choose from"
