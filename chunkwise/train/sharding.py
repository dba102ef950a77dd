"""The grid of devices, and where batches and weights lie on it.

One program for 1 CPU, 8 GPUs and a pod: the mesh ('data', 'fsdp') has both axes always, of size 1 on one device.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from chunkwise.config.experiment import MeshConfig
from chunkwise.errors import ConfigError

TRAVELS_APART = 2**18
"""Numbers from which on a matrix is worth an exchange in another order and dtype."""


class Exchanged(NamedTuple):
    """A matrix for products of a narrower dtype, and the place of its gradient in that dtype.

    A loss that is differentiated in the place gives what the products gave and the devices summed, before it is widened
    to the matrix's own dtype: the same numbers in half the bytes, where gradients of all layers wait for one another.
    """

    weight: Any
    gradient: Any
    """Of the matrix's shape, zeros that nothing reads."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Devices as ('data', 'fsdp').

    The axes are Auto: with the default Explicit axes a plain FSDP step raises for want of sharding annotations.

    Args:
      config: How many of them share a copy of the state.
      devices: Those to use, such as of a machine that is not here; None: all there are.

    Raises:
      ConfigError: data x fsdp is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    data = count // config.fsdp if config.data == -1 else config.data
    if data * config.fsdp != count:
        raise ConfigError(
            f"mesh.data {config.data} x mesh.fsdp {config.fsdp} does not cover {count} devices; "
            f"their product must be {count}"
        )
    names, types = ("data", "fsdp"), (AxisType.Auto,) * 2
    mesh = jax.make_mesh((data, config.fsdp), names, axis_types=types, devices=devices)
    if rows_of(_owners(mesh), jax.process_index()) is None:  # a torus may be walked across its hosts
        devices = sorted(devices, key=lambda device: (device.process_index, device.id))
        mesh = Mesh(np.array(devices).reshape(data, config.fsdp), names, axis_types=types)
    return mesh


def shard_of_batch(mesh: Mesh) -> tuple[int, int]:
    """Which of how many equal stretches of a global batch's rows lies on this process's devices.

    Raises:
      ConfigError: The processes have different numbers of devices.
    """
    rows = rows_of(_owners(mesh), jax.process_index())
    if rows is None:
        raise ConfigError("the processes of this run have different numbers of devices; give each of them as many")
    return rows


def rows_of(owners: Sequence[int], process: int) -> tuple[int, int] | None:
    """Place of a process's devices among equal blocks, and the number of blocks; None where they form none.

    Args:
      owners: Process of each device, in the order of the mesh and so of the rows.
      process: Whose devices.
    """
    blocks = len(set(owners))
    size, rest = divmod(len(owners), blocks)
    starts = owners[:: max(size, 1)]
    if rest or len(set(starts)) != blocks or any(owner != starts[i // size] for i, owner in enumerate(owners)):
        return None
    return starts.index(process), blocks


def _owners(mesh: Mesh) -> list[int]:
    return [device.process_index for device in mesh.devices.flat]


def shard_batch(rows: Any, sharding: NamedSharding) -> Any:
    """Global arrays of which each process brings its own rows."""
    if jax.process_count() == 1:
        return jax.device_put(rows, sharding)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), rows)


def put_same(value: np.ndarray | np.generic, sharding: NamedSharding) -> jax.Array:
    """A global array of which every process knows the whole."""
    if jax.process_count() == 1:  # in several processes device_put compares their values, which waits for them
        return jax.device_put(value, sharding)
    whole = np.asarray(value)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def batch_sharding(mesh: Mesh, batch_size: int) -> NamedSharding:
    """Rows over all devices, for batches with a leading axis of updates: (updates, b, ...).

    Raises:
      ConfigError: The batch size is not divisible by the number of devices.
    """
    if batch_size % mesh.size:
        raise ConfigError(
            f"train.batch_size / train.grad_accum_steps is {batch_size}, not divisible by {mesh.size} devices"
        )
    return NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))


def state_shardings(mesh: Mesh, abstract_state: Any, replicate_below: int) -> Any:
    """Sharding of each leaf: large matrices over fsdp on their largest divisible axis, all else replicated.

    Args:
      replicate_below: Bytes of a leaf below which it is replicated, as those with fewer than two axes are.
    """

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(mesh, _partition(leaf, mesh.shape["fsdp"], replicate_below))

    return jax.tree.map(sharding, abstract_state)


def on_mesh(step: Callable[[Any, Any], Any], mesh: Mesh) -> Callable[[Any, Any], Any]:
    """A traced function of state and batch, in which `all_gather_params` knows the mesh."""

    def known(state: Any, batch: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return step(state, batch)

    return known


def all_gather_params(weights: Any, dtype: str | None = None, axis: int | None = None) -> Any:
    """Weights that are split over devices, whole on each, for the products that follow; traced.

    Called inside the loss. Without it the compiler is free to leave a matrix split and to move activations between the
    devices instead: of full-size pi0 249 GB from each of 8 devices in an update, with it 38 (benchmarks/pod_program.py,
    activations in 32 bits). And from whole weights all but norms of gradients is summed as on devices that hold one
    copy each. Inside a loop over stacked layers one layer at a time is whole, if it is rematerialised: else each stays
    for the backward pass. Nothing changes on one device, without FSDP, and outside a train step (evaluation, serving).

    Args:
      weights: A tree.
      dtype: Of the products: large matrices travel in it, in half the bytes of float32, and so do the sums of their
        gradients, which such products have it in anyway. None: as they are.
      axis: Along which they are split, of blocks that `in_blocks` made; None: as `state_shardings` splits.
    """
    fsdp, chosen = _parts(), axis

    def whole(leaf: Any) -> Any:
        weight, place = leaf if isinstance(leaf, Exchanged) else (leaf, None)
        axis = None
        if fsdp > 1 and travels_apart(weight.shape):
            axis = _split_axis(weight.shape, fsdp) if chosen is None else chosen
        if fsdp > 1 and axis is None:
            weight = jax.lax.with_sharding_constraint(weight, PartitionSpec())
        if place is None and axis is None:
            return weight
        as_they_are = weight.dtype if dtype is None else jnp.dtype(dtype)
        return _gathered(weight, place, axis, fsdp, as_they_are if place is None else place.dtype)

    return jax.tree.map(whole, weights, is_leaf=lambda leaf: isinstance(leaf, Exchanged))


def in_blocks(weight: Any, axis: int, size: int) -> Any:
    """A weight's blocks of so many numbers of an axis, along a new leading axis, for a loop that gathers one at a time.

    Where the weight is split along that axis block i is made of the i-th stretch of each device's part, so that all
    devices have as much of it.

    Args:
      weight: An array, or `Exchanged`.
      axis: Divided.
      size: Divides its length.

    Raises:
      ValueError: The weight is split along the axis, and the devices cannot share a block equally.
    """
    fsdp = _parts()

    def blocks(leaf: Any) -> Any:
        before, length, after = leaf.shape[:axis], leaf.shape[axis], leaf.shape[axis + 1 :]
        parts = fsdp if _split_axis(leaf.shape, fsdp) == axis else 1
        if size % parts:
            raise ValueError(f"blocks of {size} of {length}; expected a multiple of mesh.fsdp, {parts}")
        stretches = _split_along(leaf.reshape(*before, parts, length // size, size // parts, *after), axis, parts)
        together = jnp.moveaxis(stretches, axis + 1, 0).reshape(length // size, *before, size, *after)
        return _split_along(together, axis + 1, parts)

    return jax.tree.map(blocks, weight)


def _split_along(array: Any, axis: int, parts: int) -> Any:
    """An array of which it is said that devices have parts of it: left alone, a compiler may put it together first."""
    if parts == 1:
        return array
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*[None] * axis, "fsdp"))


def _parts() -> int:
    """Devices that share a copy of the state; 1 where no mesh is known."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape["fsdp"]


def travels_apart(shape: Sequence[int]) -> bool:
    """Whether a weight of a shape is a matrix that is gathered in the dtype of its products."""
    return len(shape) > 1 and math.prod(shape) >= TRAVELS_APART


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _gathered(leaf: Any, place: Any, axis: int | None, fsdp: int, dtype: Any) -> Any:
    """A matrix that is split along an axis, whole and in a dtype; its gradient is split, and in the matrix's own dtype.

    The parts are gathered along a new leading axis. Along their own the compilers for GPUs would want that axis to be
    the slowest in memory, and change weights, both moments and moving average over to that order and back in each call:
    with the same of the gradient below 1.3 of the 4.9 GB that full-size pi0 had between arguments and results on each
    of 8 H100. Without an axis the matrix is whole already. With a place for it the gradient goes there.
    """
    del place
    if axis is None:
        return leaf.astype(dtype)
    shape = leaf.shape
    parts = leaf.astype(dtype).reshape(*shape[:axis], fsdp, shape[axis] // fsdp, *shape[axis + 1 :])
    together = jax.lax.with_sharding_constraint(jnp.moveaxis(parts, axis, 0), PartitionSpec())
    return jnp.moveaxis(together, 0, axis).reshape(shape)


def _gathered_forward(leaf: Any, place: Any, axis: int | None, fsdp: int, dtype: Any) -> tuple[Any, Any]:
    return _gathered(leaf, place, axis, fsdp, dtype), jnp.zeros((), leaf.dtype) if place is None else None


def _gathered_backward(axis: int | None, fsdp: int, dtype: Any, of_leaf: Any, gradient: Any) -> tuple[Any, Any]:
    """Asked for split at once, the sum over devices is one of which each keeps a part alone: half the bytes."""
    if axis is not None:
        spec = PartitionSpec(*[None] * axis, "fsdp")
        split = jax.lax.with_sharding_constraint(gradient, spec)
        gradient = jax.shard_map(_in_order, in_specs=spec, out_specs=spec, check_vma=False)(split)
    return (None, gradient) if of_leaf is None else (gradient.astype(of_leaf.dtype), None)


def _in_order(part: Any) -> Any:
    """The same array, its last axis the fastest in memory."""
    return with_layout_constraint(part, Layout(tuple(range(part.ndim))))


_gathered.defvjp(_gathered_forward, _gathered_backward)


def _split_axis(shape: Sequence[int], fsdp: int) -> int | None:
    """The largest axis that is divisible among the devices; None where none is."""
    divisible = [axis for axis, length in enumerate(shape) if length % fsdp == 0]
    return max(divisible, key=lambda axis: shape[axis]) if divisible else None


def _partition(leaf: jax.ShapeDtypeStruct, fsdp: int, replicate_below: int) -> PartitionSpec:
    """Spec of one leaf."""
    size = int(np.prod(leaf.shape)) * leaf.dtype.itemsize
    axis = _split_axis(leaf.shape, fsdp)
    if fsdp == 1 or leaf.ndim < 2 or size < replicate_below or axis is None:
        return PartitionSpec()
    return PartitionSpec(*[None] * axis, "fsdp")
