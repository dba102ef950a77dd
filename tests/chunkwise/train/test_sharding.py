"""Where batches and weights lie, on eight simulated devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.experiment import MeshConfig
from chunkwise.errors import ConfigError
from chunkwise.train import rngs
from chunkwise.train.sharding import batch_sharding, make_mesh, rows_of, state_shardings

ROOT = Path(__file__).parents[3]


def test_one_device():
    mesh = make_mesh(MeshConfig())
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1}
    large = {"w": jax.ShapeDtypeStruct((2048, 2048), jnp.float32)}
    assert state_shardings(mesh, large, 0)["w"].spec == jax.sharding.PartitionSpec()


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"mesh\.data 3 x mesh\.fsdp 2 does not cover 1 devices"):
        make_mesh(MeshConfig(data=3, fsdp=2))


def test_eight_devices():
    code = """
import jax, jax.numpy as jnp
from chunkwise.config.experiment import MeshConfig
from chunkwise.errors import ConfigError
from chunkwise.train.sharding import batch_sharding, make_mesh, state_shardings
P = jax.sharding.PartitionSpec
mesh = make_mesh(MeshConfig(fsdp=4))
assert dict(mesh.shape) == {"data": 2, "fsdp": 4}
shapes = {"large": (1024, 2048), "tall": (4096, 1022), "odd": (2049, 1023), "small": (64, 64), "bias": (4194304,)}
leaves = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
specs = {name: sharding.spec for name, sharding in state_shardings(mesh, leaves, 2**22).items()}
assert specs == {"large": P(None, "fsdp"), "tall": P("fsdp"), "odd": P(), "small": P(), "bias": P()}, specs
rows = jax.device_put(jnp.zeros((3, 16, 5)), batch_sharding(mesh, 16))
assert rows.addressable_shards[0].data.shape == (3, 2, 5)
try:
    batch_sharding(mesh, 12)
except ConfigError as error:
    assert "12, not divisible by 8" in str(error)
else:
    raise AssertionError("accepted")
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_gathered_weights_are_whole_on_every_device():
    code = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding
from chunkwise.config.experiment import MeshConfig
from chunkwise.train.sharding import all_gather_params, make_mesh, on_mesh
mesh = make_mesh(MeshConfig(fsdp=4))
split = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp")))
assert split.addressable_shards[0].data.shape == (4, 8)
step = lambda w, _: (all_gather_params(w), 2 * w)
whole, twice = jax.jit(on_mesh(step, mesh))(split, None)
assert whole.sharding.is_fully_replicated and not twice.sharding.is_fully_replicated
assert whole.addressable_shards[0].data.shape == (16, 8)
w = {"kernel": jnp.ones((8, 8))}
assert all_gather_params(w)["kernel"] is w["kernel"]  # no mesh is known
one = make_mesh(MeshConfig(fsdp=1))
assert "sharding_constraint" not in str(jax.make_jaxpr(on_mesh(lambda w, _: all_gather_params(w), one))(w, None))
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_large_matrices_travel_in_the_dtype_of_their_products():
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from chunkwise.config.experiment import MeshConfig
from chunkwise.train.exchanges import bytes_sent
from chunkwise.train.sharding import TRAVELS_APART, all_gather_params, make_mesh, on_mesh, state_shardings
mesh = make_mesh(MeshConfig(fsdp=4))
rng = np.random.default_rng(0)
w = rng.normal(size=(2, 512, 1024)).astype(np.float32)
x = rng.normal(size=(16, 512)).astype(np.float32)
assert w.size >= TRAVELS_APART
lies = state_shardings(mesh, jax.ShapeDtypeStruct(w.shape, w.dtype), 0)
assert lies.spec == P(None, None, "fsdp")
rows = NamedSharding(mesh, P(("data", "fsdp")))
split, seen = jax.device_put(w, lies), jax.device_put(x, rows)

def gradients(dtype):
    def loss(w, x):
        whole = all_gather_params({"w": w}, dtype)["w"]
        assert whole.dtype == (dtype or "float32")
        return jnp.square(jnp.einsum("bd,kdf->bkf", x.astype(whole.dtype), whole).astype(jnp.float32)).sum()
    step = on_mesh(jax.value_and_grad(loss), mesh)
    return jax.jit(step, out_shardings=(None, lies)), str(jax.make_jaxpr(step)(split, seen))

def on_one(dtype):
    used = w.astype(dtype).astype(np.float64)
    y = np.einsum("bd,kdf->bkf", x.astype(dtype).astype(np.float64), used)
    return (y**2).sum(), 2 * np.einsum("bd,bkf->kdf", x.astype(dtype).astype(np.float64), y)

for dtype, short, bound in (("float32", "f32", 1e-5), ("bfloat16", "bf16", 3e-2)):
    step, traced = gradients(None if dtype == "float32" else dtype)
    assert f"{short}[4,2,512,256] = sharding_constraint" in traced, "cast first, parts along a new axis"
    sent = bytes_sent(step.lower(split, seen).compile().as_text())
    assert sent["all-gather"] == w.size * 4 * 3 / 4, "XLA gathers in 32 bits on a CPU"
    value, gradient = step(split, seen)
    expected, wanted = on_one(jnp.dtype(dtype))
    assert gradient.dtype == jnp.float32 and gradient.sharding.spec == lies.spec
    np.testing.assert_allclose(value, expected, rtol=bound)
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=bound * np.abs(wanted).max())
few = jax.jit(on_mesh(lambda w, _: all_gather_params(w, "bfloat16"), mesh))(jnp.ones((64, 64)), None)
assert few.dtype == jnp.float32, "a small one stays as it is"
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_gradient_waits_in_the_dtype_in_which_devices_exchange_it():
    """On one device and on four: what the products gave, and what the matrix's own gradient is after widening."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from chunkwise.config.experiment import MeshConfig
from chunkwise.train.sharding import Exchanged, all_gather_params, make_mesh, on_mesh, state_shardings
rng = np.random.default_rng(0)
w = rng.normal(size=(512, 1024)).astype(np.float32)
x = rng.normal(size=(16, 512)).astype(np.float32)
wide = lambda a: np.asarray(a.astype("float32"), np.float64)
narrow = lambda a: wide(jnp.asarray(a, "bfloat16"))
wanted = 2 * narrow(x).T @ (narrow(x) @ narrow(w))
for fsdp in (1, 4):
    mesh = make_mesh(MeshConfig(fsdp=fsdp), jax.devices()[:fsdp])
    lies = state_shardings(mesh, jax.ShapeDtypeStruct(w.shape, w.dtype), 0)
    split = jax.device_put(w, lies)
    seen = jax.device_put(x, NamedSharding(mesh, P(("data", "fsdp"))))

    def loss(weight, x):
        whole = all_gather_params({"w": weight}, "bfloat16")["w"].astype("bfloat16")
        return jnp.square((x.astype("bfloat16") @ whole).astype("float32")).sum()

    def of_place(w, x):
        return jax.grad(lambda place: loss(Exchanged(w, place), x))(jnp.zeros(w.shape, "bfloat16"))

    place, own = (jax.jit(on_mesh(f, mesh), out_shardings=lies)(split, seen) for f in (of_place, jax.grad(loss)))
    assert (place.dtype, own.dtype) == ("bfloat16", "float32")
    np.testing.assert_array_equal(wide(place), wide(own))
    np.testing.assert_allclose(wide(place), wanted, rtol=0, atol=2e-2 * np.abs(wanted).max())
"""
    flags = "--xla_force_host_platform_device_count=4 --xla_allow_excess_precision=false"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_batches_of_one_device_stay_whole():
    rows = jax.device_put(np.zeros((2, 4)), batch_sharding(make_mesh(MeshConfig()), 4))
    assert rows.addressable_shards[0].data.shape == (2, 4)


def test_keys_differ_by_seed_name_and_step():
    keys = [rngs.key(0, "a", 0), rngs.key(1, "a", 0), rngs.key(0, "b", 0), rngs.key(0, "a", 1)]
    data = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}
    assert len(data) == 4
    again = jax.jit(lambda step: rngs.key(0, "a", step))(jnp.int32(1))
    assert jnp.array_equal(jax.random.key_data(again), jax.random.key_data(keys[3]))


def test_rows_of_a_process_are_those_of_its_devices():
    assert [rows_of([0] * 8, 0)] == [(0, 1)]
    assert [rows_of([0, 0, 1, 1], p) for p in (0, 1)] == [(0, 2), (1, 2)]
    assert [rows_of([1, 1, 0, 0, 2, 2], p) for p in (0, 1, 2)] == [(1, 3), (0, 3), (2, 3)]


def test_devices_that_form_no_equal_blocks_have_no_rows():
    assert rows_of([0, 1, 0, 1], 0) is None
    assert rows_of([0, 0, 0, 1], 0) is None
    assert rows_of([0, 0, 1], 1) is None
