"""Every loss of qchunk and driving computes from whole weights, traced for a mesh of eight devices (no arithmetic).

pi0's are in tests/openpi_ript/model/test_fsdp.py, the helpers themselves in tests/chunkwise/train/test_sharding.py.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from chunkwise.state import TrainState
from chunkwise.train import rngs
from driving.data.batches import open_data
from driving.tasks import pretrain, waypoints
from tests.driving.drives import write_drive
from tests.driving.test_train import config, pretraining
from tests.qchunk.agents.test_accumulate import AGENTS
from tests.qchunk.agents.test_qc import batch_of
from tests.qchunk.random_weights import weights


def require_gathered(task: Any, state: Any, batch: Any) -> None:
    with jax.sharding.use_abstract_mesh(AbstractMesh((1, 8), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)):
        traced = str(jax.make_jaxpr(task.step)(state, batch))
    # The same again for the gradients, which are whole where the weights are.
    assert traced.count("sharding_constraint[") >= len(jax.tree.leaves((state.params, state.target)))


@pytest.mark.parametrize("name", AGENTS)
def test_agents(name: str):
    agent = AGENTS[name]
    params, target = weights(agent)
    opt_state: Any = agent.optimiser.init(params)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=opt_state, target=target)
    require_gathered(agent, state, batch_of())


def test_driving(tmp_path: Path):
    for i in range(3):  # one each to train on, to validate, to test
        write_drive(tmp_path / "drives", f"drive_{i}", frames=40, start_yaw=0.0)
    for make, of in ((waypoints.WaypointTask, config), (pretrain.PretrainTask, pretraining)):
        made = of(tmp_path, tmp_path / "drives")
        task: Any = make(made, open_data(made.data))
        state = jax.eval_shape(task.init, rngs.key(0, "init"))
        require_gathered(task, state, next(task.batches(0)))
