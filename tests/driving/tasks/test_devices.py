"""Negatives come from the whole batch, however many devices share it."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from chunkwise.config.experiment import MeshConfig
from chunkwise.train.sharding import make_mesh
from driving.tasks.objectives import cross_camera, may_contrast

assert jax.device_count() == 8
rng = np.random.default_rng(0)
arrays = rng.normal(size=(16, 3, 8)).astype(np.float32), rng.random((16, 3)) < 0.8
place = np.repeat(np.arange(4), 4).astype(np.int32), np.tile(np.arange(4.0), 4).astype(np.float32)

@jax.jit
def loss(z, valid, episode, t):
    return cross_camera(z, valid, may_contrast(episode, t, t, 2.0), 0.1).value()

every = NamedSharding(make_mesh(MeshConfig()), PartitionSpec(("data", "fsdp")))
values = []
for sharding in (every, jax.devices()[0]):
    z, valid, episode, t = jax.device_put((*arrays, *place), sharding)
    value, gradient = jax.value_and_grad(loss)(z, valid, episode, t)
    values.append((float(value), np.asarray(gradient)))
assert abs(values[0][0] - values[1][0]) < 1e-5, values
assert np.abs(values[0][1] - values[1][1]).max() < 1e-6
print("equal on 8 devices and on 1")
"""


def test_contrast_over_eight_devices_is_that_over_one():
    root = Path(__file__).parents[3]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "equal on 8 devices and on 1", done.stderr[-2000:]
