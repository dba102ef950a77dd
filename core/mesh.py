"""The grid of devices, and where batches and weights lie on it.

One program for 1 CPU, 8 GPUs and a pod: the mesh ('data', 'fsdp') has both axes always, of size 1 on one device.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from core.config import MeshConfig
from core.errors import ConfigError


def make_mesh(config: MeshConfig) -> Mesh:
    """All devices as ('data', 'fsdp').

    The axes are Auto: with the default Explicit axes a plain FSDP step raises for want of sharding annotations.

    Raises:
      ConfigError: data x fsdp is not the number of devices.
    """
    count = jax.device_count()
    data = count // config.fsdp if config.data == -1 else config.data
    if data * config.fsdp != count:
        raise ConfigError(
            f"mesh.data {config.data} x mesh.fsdp {config.fsdp} does not cover {count} devices; "
            f"their product must be {count}"
        )
    return jax.make_mesh((data, config.fsdp), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def batch_sharding(mesh: Mesh, batch_size: int) -> NamedSharding:
    """Rows over all devices, for batches with a leading axis of updates: (updates, b, ...).

    Raises:
      ConfigError: The batch size is not divisible by the number of devices.
    """
    if batch_size % mesh.size:
        raise ConfigError(f"train.batch_size {batch_size} is not divisible by {mesh.size} devices")
    return NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))


def state_shardings(mesh: Mesh, abstract_state: Any, replicate_below: int) -> Any:
    """Sharding of each leaf: large matrices over fsdp on their largest divisible axis, all else replicated.

    Args:
      replicate_below: Bytes of a leaf below which it is replicated, as those with fewer than two axes are.
    """

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(mesh, _partition(leaf, mesh.shape["fsdp"], replicate_below))

    return jax.tree.map(sharding, abstract_state)


def _partition(leaf: jax.ShapeDtypeStruct, fsdp: int, replicate_below: int) -> PartitionSpec:
    """Spec of one leaf."""
    size = int(np.prod(leaf.shape)) * leaf.dtype.itemsize
    divisible = [axis for axis, length in enumerate(leaf.shape) if length % fsdp == 0]
    if fsdp == 1 or leaf.ndim < 2 or size < replicate_below or not divisible:
        return PartitionSpec()
    axis = max(divisible, key=lambda a: leaf.shape[a])
    return PartitionSpec(*[None] * axis, "fsdp")
