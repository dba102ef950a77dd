"""Parameters for tests that compute an agent's numbers once more."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qchunk.agents.base import Agent
from tests.qchunk.agents.test_qc import KEY


def weights(agent: Agent) -> tuple[Any, Any]:
    """Random parameters, and a target that differs from the critics'; scales are near 1."""
    shapes = jax.eval_shape(agent.init, KEY)
    rng = np.random.default_rng(3)

    def drawn(path: Any, leaf: Any) -> Any:
        values = 0.3 * rng.normal(size=leaf.shape) + ("scale" in jax.tree_util.keystr(path))
        return jnp.asarray(values, jnp.float32)

    return tuple(jax.tree_util.tree_map_with_path(drawn, tree) for tree in (shapes.params, shapes.target))  # pyright: ignore[reportReturnType]
