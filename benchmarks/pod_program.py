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
import math
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

CONFIG = "configs/openpi_ript/pi0_full.py"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def compile_update(config: Any, *, compiler_chooses: bool) -> Any:
    """The loop's updates, compiled for the devices there are."""
    import jax

    from chunkwise.train import ahead
    from chunkwise.train import update as updates
    from openpi_ript.train import without_data

    untold = patch.object(updates, "on_mesh", lambda step, mesh: step)
    with untold if compiler_chooses else contextlib.nullcontext():
        return ahead.compiled(config, without_data(config, {}), jax.devices()).compiled


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


def sent_by(program: str, weights: set[int]) -> dict[tuple[str, str], float]:
    """Bytes that a device sends in one update, by kind and by what the arrays are.

    Args:
      program: HLO text.
      weights: Numbers of elements that arrays of weights and their gradients have; others are activations.
    """
    from chunkwise.train.exchanges import exchanges

    sent: dict[tuple[str, str], float] = collections.defaultdict(float)
    for kind, elements, size in exchanges(program):
        sent[kind, "weights and their gradients" if elements in weights else "activations"] += size
    return sent


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
    data = dataclasses.replace(config.data, cameras={name: name for name in CAMERAS})
    config = dataclasses.replace(config, train=train, mesh=mesh, data=data)
    program = compile_update(config, compiler_chooses=args.compiler_chooses)
    memory = program.memory_analysis()
    print(f"{args.devices} devices, fsdp {args.fsdp}, {args.rows} rows in {args.accumulate} parts; GB of 10^9 bytes")
    print(f"arguments {memory.argument_size_in_bytes / 1e9:.2f} GB a device", end=", ")
    print(f"temporary arrays {memory.temp_size_in_bytes / 1e9:.2f} GB")
    sent = sent_by(program.as_text(), sizes_of_weights(config))
    for (kind, what), size in sorted(sent.items(), key=lambda item: -item[1]):
        print(f"  {kind:<18} {what:<28} {size / 1e9:8.2f} GB sent by a device in an update")
    print(f"  {'in all':<47} {sum(sent.values()) / 1e9:8.2f}")


if __name__ == "__main__":
    main()
