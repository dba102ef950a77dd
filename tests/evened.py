"""Draws that do not depend on the row, so that the parts of a batch draw what the whole batch draws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def even_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces normal and uniform draws by numbers that vary along the last axis alone, or not at all."""

    def drawn(key: Any, shape: tuple[int, ...] = ()) -> Any:
        del key
        along = jnp.abs(jnp.sin(1.0 + jnp.arange(shape[-1], dtype=jnp.float32))) if len(shape) > 1 else jnp.full(1, 0.3)
        return jnp.broadcast_to(along.reshape((1,) * (len(shape) - 1) + (-1,)), shape)

    monkeypatch.setattr(jax.random, "normal", drawn)
    monkeypatch.setattr(jax.random, "uniform", drawn)


def assert_same_update(task: Any, parted: Any, state: Any, batch: Any, jit: Any) -> None:
    """Two tasks or agents, the second with train.grad_accum_steps above 1, have the same means and gradient.

    Adam's moments, which start at 0, are 0.1 of the gradient and 0.001 of its square: they show it as it is, where an
    update would divide it by its size.
    """
    (after, metrics), (parted_after, parted_metrics) = (jit(one.step)(state, batch) for one in (task, parted))
    means, parted_means = ({name: float(m.value()) for name, m in one.items()} for one in (metrics, parted_metrics))
    assert parted_means == pytest.approx(means, rel=1e-4, abs=1e-6)
    assert len(jax.tree.leaves(after.opt_state)) > 3
    for (path, one), other in zip(
        jax.tree.leaves_with_path(after.opt_state), jax.tree.leaves(parted_after.opt_state), strict=True
    ):
        assert np.isfinite(one).all()
        bound = 1e-4 * float(np.abs(one).max()) + 1e-12
        np.testing.assert_allclose(one, other, rtol=0, atol=bound, err_msg=jax.tree_util.keystr(path))
