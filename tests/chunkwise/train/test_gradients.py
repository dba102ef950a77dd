"""Gradients summed over micro-batches are those of the whole batch, by numpy, and on eight devices."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.train.gradients import gradient, weighted
from chunkwise.train.metrics import Mean, mean_of

KEY = jax.random.key(3)
WEIGHTS = {"fit": 1.0, "size": -0.5}
B, W = 8, 3


def loss(params: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Mean]]:
    """Two masked means of different masks, and one that is only logged."""
    del key
    error = batch["x"] @ params["w"] - batch["y"]
    other = jnp.broadcast_to(batch["other"][:, None], (len(error), W))
    metrics = {
        "fit": mean_of(error**2, batch["kept"]),
        "size": mean_of((params["w"][None] * batch["x"]) ** 2, other),
        "error": mean_of(error, batch["kept"]),
    }
    return weighted(metrics, WEIGHTS), metrics


def problem() -> tuple[Any, Any]:
    """Of each two parts, the odd rows, one keeps 1 row and the other 4; what is masked out is large."""
    rng = np.random.default_rng(0)
    kept = np.array([True, False, True, True, True, False, True, False])
    y = np.where(kept, rng.normal(size=B), 1e3)
    batch = {"x": rng.normal(size=(B, W)), "y": y, "kept": kept, "other": np.arange(B) == 5, "none": None}
    params = {"w": rng.normal(size=W)}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == float else x.dtype), (params, batch))


def numpy_gradient(params: Any, batch: Any) -> np.ndarray:
    x, y, w = (np.asarray(one, np.float64) for one in (batch["x"], batch["y"], params["w"]))
    kept, other = np.asarray(batch["kept"]), np.asarray(batch["other"])
    fit = (2 * (x @ w - y)[:, None] * x)[kept].sum(0) / kept.sum()
    return fit - 0.5 * (2 * w * x**2)[other].sum(0) / (other.sum() * W)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_a_masked_mean_divides_by_what_counts_in_the_whole_batch(parts: int):
    params, batch = problem()
    found, metrics = jax.jit(lambda p, b: gradient(loss, WEIGHTS, p, b, KEY, parts))(params, batch)
    np.testing.assert_allclose(found["w"], numpy_gradient(params, batch), rtol=1e-5)
    _, whole = loss(params, batch, KEY)
    for name, one in whole.items():
        np.testing.assert_allclose(metrics[name].sum, one.sum, rtol=1e-5, err_msg=name)
        assert float(metrics[name].count) == float(one.count)


def test_each_part_draws_with_a_key_of_its_own():
    """fold_in(key, part), on the rows part, part + parts, ..."""

    def noisy(params: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Mean]]:
        error = mean_of((batch @ params + jax.random.normal(key, batch.shape[:1])) ** 2)
        return error.value(), {"error": error}

    x, w = jnp.asarray(np.random.default_rng(1).normal(size=(6, 2)), jnp.float32), jnp.array([0.5, -2.0])
    found, _ = gradient(noisy, {"error": 1.0}, w, x, KEY, 2)
    noise = np.empty(6)
    for part in range(2):
        noise[part::2] = jax.random.normal(jax.random.fold_in(KEY, part), (3,))
    expected = (2 * (np.asarray(x) @ np.asarray(w) + noise)[:, None] * np.asarray(x)).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rows_that_cannot_be_parted_are_refused():
    params, batch = problem()
    with pytest.raises(ValueError, match=r"8 rows; expected a multiple of train.grad_accum_steps, 3"):
        gradient(loss, WEIGHTS, params, batch, KEY, 3)


def test_sums_over_parts_of_gradients_in_16_bits_are_in_32():
    """Two parts of 1 and 2^-9: in bfloat16 their sum would be 1."""

    def shared(params: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Mean]]:
        del key
        error = Mean((batch * params["w"].astype(jnp.float32)).sum(), jnp.float32(1))
        return error.value(), {"error": error}

    params = {"w": jnp.ones((), jnp.bfloat16)}
    for parts, expected in ((1, 1.0), (2, 1 + 2.0**-9)):
        found, _ = gradient(shared, {"error": 2.0}, params, jnp.asarray([1, 2.0**-9]), KEY, parts)
        assert found["w"].dtype == (jnp.bfloat16 if parts == 1 else jnp.float32)
        assert float(found["w"]) == expected


EIGHT = """
import re, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from chunkwise.config.experiment import MeshConfig
from chunkwise.train.gradients import gradient
from chunkwise.train.sharding import make_mesh
from tests.chunkwise.train.test_gradients import KEY, WEIGHTS, loss, numpy_gradient, problem

params, small = problem()
batch = jax.tree.map(lambda x: np.concatenate([np.asarray(x)[::step] for step in (1, -1, 1, -1)]), small)
for fsdp in (1, 8):
    rows = NamedSharding(make_mesh(MeshConfig(fsdp=fsdp)), PartitionSpec(("data", "fsdp")))
    update = jax.jit(lambda p, b: gradient(loss, WEIGHTS, p, b, KEY, 4))
    compiled = update.lower(params, jax.device_put(batch, rows)).compile()
    moved = set(re.findall(r"(all-gather|all-to-all|collective-permute)[(-]", compiled.as_text()))
    assert not moved, f"rows leave their device: {moved}"
    found, _ = compiled(params, jax.device_put(batch, rows))
    np.testing.assert_allclose(found["w"], numpy_gradient(params, batch), rtol=1e-5)
print("equal, and no row moved")
"""


def test_on_eight_devices_every_row_stays_where_it_is():
    root = Path(__file__).parents[3]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", EIGHT], cwd=root, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "equal, and no row moved", done.stderr[-2000:]
