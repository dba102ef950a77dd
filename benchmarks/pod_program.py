"""What one update of full-size pi0 keeps on a device and sends between devices, by the compiled program itself.

    python benchmarks/pod_program.py                      # 8 devices, one copy of the state, 64 rows: pi0_full.py
    python benchmarks/pod_program.py --accumulate 4
    python benchmarks/pod_program.py --devices 32 --fsdp 8 --rows 256
    python benchmarks/pod_program.py --compiler-chooses   # without `all_gather_params` of chunkwise/train/sharding.py

Compiled for as many simulated CPU devices, from abstract arrays: nothing is trained, 3 GB of memory and two minutes are
enough. XLA splits a program over devices in the same way for every backend. Printed are the bytes of the arguments on
each device; those of temporary arrays, more than on an accelerator, since the CPU computes bfloat16 in 32 bits; and for
each kind of exchange the GB that a device sends in one update, loops counted: of an array of S bytes among g devices
(g - 1) / g S for a gather and twice that for a sum (accelerators that keep only their part of a sum send half).
Arrays as large as a layer's weights, as weights outside layers, or as a device's part of them count as weights (so do
the few numbers of norms); all others are activations, or would be stacks of layers: here next to nothing.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import math
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

CONFIG = "configs/openpi_ript/pi0_full.py"
BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "u8": 1}
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
CAMERAS = 3


def abstract_batch(config: Any, sharding: Any) -> Any:
    """Shapes of one update's batch."""
    import jax
    import jax.numpy as jnp

    model, rows = config.model, config.train.batch_size
    size, tokens = model.image_size, model.prompt_tokens

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((1, rows, *shape), dtype, sharding=sharding)

    observation = {
        "images": array(jnp.uint8, CAMERAS, size, size, 3),
        "image_mask": array(jnp.bool_, CAMERAS),
        "state": array(jnp.float32, model.action_dim),
        "tokens": array(jnp.int32, tokens),
        "token_mask": array(jnp.bool_, tokens),
    }
    chunk = {
        "actions": array(jnp.float32, model.action_horizon, model.action_dim),
        "action_is_pad": array(jnp.bool_, model.action_horizon),
    }
    return {"observation": observation, **chunk, "optimality": array(jnp.int32), "advantages": array(jnp.float32)}


def compile_update(config: Any, *, compiler_chooses: bool) -> Any:
    """The loop's updates, compiled for the devices there are."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from chunkwise.train import rngs
    from chunkwise.train import sharding as mesh_lib
    from chunkwise.train import update as updates
    from openpi_ript.tasks import supervised

    no_data: Any = None
    with patch.object(supervised, "make_inputs"):
        task = supervised.SupervisedTask(config, no_data)
    mesh = mesh_lib.make_mesh(config.mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.eval_shape(task.init, rngs.key(0, "init"))
    shardings = mesh_lib.state_shardings(mesh, state, config.mesh.replicate_below)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
    rows = mesh_lib.batch_sharding(mesh, config.train.batch_size // config.train.grad_accum_steps)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    untold = patch.object(updates, "on_mesh", lambda step, mesh: step)
    with untold if compiler_chooses else contextlib.nullcontext():
        update: Any = updates.jit_updates(task.step, mesh, shardings, ema=config.train.ema_decay)
        return update.lower(state, abstract_batch(config, rows), count).compile()


def computations(program: str) -> dict[str, list[str]]:
    """Lines of each computation of an HLO text."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            name = head[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def rounds(lines: dict[str, list[str]]) -> dict[str, int]:
    """How often a computation runs in one update; the loop over updates counts once."""
    called: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    unknown = 0
    for caller, body in lines.items():
        for line in body:
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            unknown += " while(" in line and trips is None
            for name in re.findall(r"(?:body|to_apply|calls)=%([\w.\-]+)", line):
                called[name].append((caller, int(trips[1]) if trips and " while(" in line else 1))

    if unknown > 1:
        raise ValueError(f"expected to know the length of all loops but that over updates, found {unknown} unknown")

    @functools.cache
    def of(name: str) -> int:
        return sum(times * of(caller) for caller, times in called[name]) if called[name] else 1

    return {name: of(name) for name in lines}


def sizes_of_weights(config: Any) -> set[int]:
    """Numbers of elements of the model's weights, one layer at a time, of parts of them along the first axes."""
    import jax

    from openpi_ript.model.pi0 import Pi0, init_params

    params = jax.eval_shape(lambda: init_params(Pi0(config.model), jax.random.key(0)))
    whole = set()
    for path, leaf in jax.tree.leaves_with_path(params):
        stacked = any(name in jax.tree_util.keystr(path) for name in ("layers", "encoderblock"))
        whole |= {math.prod(leaf.shape[axis:]) for axis in range(1 if stacked else 0, leaf.ndim + 1)}
    return whole | {size // config.mesh.fsdp for size in whole if size % config.mesh.fsdp == 0}


def exchanges(program: str, weights: set[int]) -> dict[tuple[str, str], float]:
    """Bytes that a device sends in one update, by kind and by what the arrays are.

    Args:
      program: HLO text.
      weights: Numbers of elements that arrays of weights and their gradients have; others are activations.
    """
    lines = computations(program)
    times = rounds(lines)
    sent: dict[tuple[str, str], float] = collections.defaultdict(float)
    for name, body in lines.items():
        for line in body:
            kind = re.search(rf" = (.*?) ({'|'.join(KINDS)})\(", line)
            if not kind:
                continue
            share = share_sent(kind[2], line)
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", kind[1]):
                elements = math.prod(int(axis) for axis in shape.split(",") if axis)
                what = "weights and their gradients" if elements in weights else "activations"
                sent[kind[2], what] += times[name] * share * elements * BYTES[dtype]
    return sent


def share_sent(kind: str, line: str) -> float:
    """Times that a device sends the bytes of an exchange's result."""
    if kind == "collective-permute":
        return 1
    if over := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}", line):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", over[1]))
        g = math.prod(int(axes[axis]) for axis in re.findall(r"'(\w+)'", over[2]))
    elif groups := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        g = int(groups[1])
    elif listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        g = listed[1].count(",") + 1
    else:
        raise ValueError(f"expected replica_groups in one of XLA's notations, found {line}")
    return {"all-reduce": 2 / g, "reduce-scatter": 1}.get(kind, 1 / g) * (g - 1)


def main() -> None:
    """Parses, compiles, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--fsdp", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64, help="of the whole batch")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--compiler-chooses", action="store_true")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    from chunkwise.config.load import load

    config: Any = load(["--config", CONFIG])[0]
    train = dataclasses.replace(config.train, batch_size=args.rows, grad_accum_steps=args.accumulate)
    mesh = dataclasses.replace(config.mesh, data=args.devices // args.fsdp, fsdp=args.fsdp)
    config = dataclasses.replace(config, train=train, mesh=mesh)
    program = compile_update(config, compiler_chooses=args.compiler_chooses)
    memory = program.memory_analysis()
    print(f"{args.devices} devices, fsdp {args.fsdp}, {args.rows} rows in {args.accumulate} parts; GB of 10^9 bytes")
    print(f"arguments {memory.argument_size_in_bytes / 1e9:.2f} GB a device", end=", ")
    print(f"temporary arrays {memory.temp_size_in_bytes / 1e9:.2f} GB")
    sent = exchanges(program.as_text(), sizes_of_weights(config))
    for (kind, what), size in sorted(sent.items(), key=lambda item: -item[1]):
        print(f"  {kind:<18} {what:<28} {size / 1e9:8.2f} GB sent by a device in an update")
    print(f"  {'in all':<47} {sum(sent.values()) / 1e9:8.2f}")


if __name__ == "__main__":
    main()
