"""The loop's programs, compiled for devices that need not be here, from shapes alone: no data, no weights."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from chunkwise.config.experiment import ExperimentConfig
from chunkwise.errors import ConfigError
from chunkwise.state import TrainState
from chunkwise.train import rngs
from chunkwise.train import sharding as mesh_lib
from chunkwise.train.flops import flops
from chunkwise.train.metrics import Mean
from chunkwise.train.update import jit_updates

What = Literal["update", "init", "serve", "evaluate"]
"""update: what the loop dispatches, with one update in a call. init: fresh weights, born where they lie. serve: chunks
of a served policy. evaluate: what an evaluation during training computes of a batch, or of its environments."""
Dtype = Literal["float32", "bfloat16", "int8"]


class Updates(Protocol):
    """The part of a task that needs no data."""

    def init(self, key: Any) -> TrainState:
        """Returns fresh weights."""
        ...

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """Makes one update."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What one device computes with all weights: for a robot, or in an evaluation."""

    function: Callable[..., Any]
    """Of the weights and of the inputs; traced."""
    inputs: tuple[Any, ...]
    """Shapes."""
    rounds: int = 1
    """Of a loop whose length is an input."""
    kept: Callable[[Any], Any] = lambda params: params
    """From the weights of a run to those that the call has; traced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithoutData:
    """What a package's `without_data` gives: its programs, as far as a config tells them."""

    updates: Updates
    batch: Any
    """Shapes of the rows of one update, of all devices."""
    served: Callable[[int, Dtype], Call]
    """Chunks for a number of rows, from weights that are kept in a dtype. Raises ConfigError where there are none."""
    evaluated: Callable[[], Call]
    """What an evaluation runs on its device. Raises ConfigError where it runs nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program, and what of its memory is what. Bytes are those of one device."""

    compiled: Any
    """As jax compiles it."""
    state: dict[str, int]
    """Bytes of the parts of the state, by name."""
    batch: int
    """Bytes of a batch, or of other inputs; 0 where the program takes none."""
    flops: dict[str, float]
    """Of products of all devices together, by the type of what is multiplied, loops counted."""
    seconds: float
    """That compiling took."""


def of_rows(rows: int, dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array of a batch."""
    return jax.ShapeDtypeStruct((rows, *shape), np.dtype(dtype))


def require_known(sizes: Mapping[str, int], wanted: Sequence[str]) -> None:
    """Raises ConfigError unless the sizes are those that a package's updates need."""
    if missing := [name for name in wanted if name not in sizes]:
        flags = " ".join(f"--size {name}=N" for name in missing)
        raise ConfigError(f"without a dataset, expected the sizes of {', '.join(missing)}: {flags}")
    if unknown := sorted(set(sizes) - set(wanted)):
        raise ConfigError(f"--size {unknown[0]}: this package needs {', '.join(wanted) or 'no sizes'}")


def require_float32(package: str, dtype: Dtype) -> None:
    """Raises ConfigError for a package whose policies keep their weights as they were trained."""
    if dtype != "float32":
        raise ConfigError(f"--dtype {dtype}: policies of {package} are small and keep float32; leave it out")


def compiled(config: ExperimentConfig, known: WithoutData, devices: Sequence[Any], what: What = "update") -> Program:
    """Compiles what a run does on all of its devices: an update, or fresh weights.

    Args:
      config: Of the run; its mesh covers `devices`.
      known: Of the package.
      devices: Of a topology, or those that are here.
      what: Which of the two.

    Raises:
      ConfigError: Mesh or batch do not fit the devices.
    """
    mesh, updates, batch = mesh_lib.make_mesh(config.mesh, devices), known.updates, known.batch
    everywhere = NamedSharding(mesh, PartitionSpec())
    key = jax.eval_shape(lambda: rngs.key(config.run.seed, "init"))
    state = jax.eval_shape(updates.init, key)
    shardings = mesh_lib.state_shardings(mesh, state, config.mesh.replicate_below)
    lie = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
    rows = mesh_lib.batch_sharding(mesh, config.train.batch_size // config.train.grad_accum_steps)
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype, sharding=rows), batch)
    began = time.perf_counter()
    if what == "init":
        key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere)
        program = jax.jit(updates.init, out_shardings=shardings).lower(key).compile()
        counted = {}
    else:
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        jitted: Any = jit_updates(updates.step, mesh, shardings, ema=config.train.ema_decay)
        program = jitted.lower(lie, stacked, count).compile()
        counted = flops(jax.make_jaxpr(mesh_lib.on_mesh(updates.step, mesh))(state, batch))
    parts = {field.name: getattr(lie, field.name) for field in dataclasses.fields(lie)}
    return Program(
        compiled=program,
        state={name: size for name, part in parts.items() if (size := _on_one(part))},
        batch=_on_one(stacked) if what == "update" else 0,
        flops=counted,
        seconds=time.perf_counter() - began,
    )


def compiled_call(config: ExperimentConfig, known: WithoutData, call: Call, device: Any) -> Program:
    """Compiles what one device computes with all weights of a run.

    Args:
      config: Of the run.
      known: Of the package.
      call: One of its calls.
      device: Of a topology, or one that is here.
    """
    key = jax.eval_shape(lambda: rngs.key(config.run.seed, "init"))
    there = SingleDeviceSharding(device)
    params = jax.eval_shape(lambda key: call.kept(known.updates.init(key).params), key)
    params, inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), (params, call.inputs)
    )
    began = time.perf_counter()
    program = jax.jit(call.function).lower(params, *inputs).compile()
    return Program(
        compiled=program,
        state={"params": _on_one(params)},
        batch=_on_one(inputs),
        flops=flops(jax.make_jaxpr(call.function)(params, *inputs), rounds=call.rounds),
        seconds=time.perf_counter() - began,
    )


def _on_one(tree: Any) -> int:
    """Bytes that lie on one device."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )
