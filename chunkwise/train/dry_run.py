"""What a run would be, without its first update: shapes of a batch, parameters, memory of device and host, seconds."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from chunkwise.arrays import NumpyTree
from chunkwise.state import TrainState

MIB = 2**20


def show(
    state: TrainState,
    batches: Iterator[NumpyTree],
    compile_update: Callable[[NumpyTree], Any],
    say: Callable[[str], None] = print,
) -> None:
    """Loads a batch, compiles the update for it, and prints what was found, a line each.

    Args:
      state: Of the run, on its devices.
      batches: Of this process.
      compile_update: Given a batch, compiles an update and returns the program.
      say: Takes lines of text.
    """
    began = time.perf_counter()
    batch = next(batches)
    loaded = time.perf_counter() - began
    say(f"batch of this process, loaded in {loaded:.1f} s:")
    for name, leaf in _leaves(batch):
        say(f"  {name}: {leaf.dtype} {tuple(leaf.shape)}")
    say("parameters:")
    for name, part in state.params.items():
        count = sum(leaf.size for leaf in jax.tree.leaves(part))
        say(f"  {name}: {count:,}")
    sizes = {"params": state.params, "opt_state": state.opt_state, "target": state.target, "ema": state.ema}
    words = ", ".join(f"{name} {_bytes(tree) / MIB:.1f}" for name, tree in sizes.items() if jax.tree.leaves(tree))
    say(f"state, MiB in all: {words}")
    began = time.perf_counter()
    program = compile_update(batch)
    say(f"the update compiled in {time.perf_counter() - began:.1f} s")
    if (memory := program.memory_analysis()) is not None:
        say(
            f"memory of a device, MiB: arguments {memory.argument_size_in_bytes / MIB:.1f}, results that are not in "
            f"their place {(memory.output_size_in_bytes - memory.alias_size_in_bytes) / MIB:.1f}, in between "
            f"{memory.temp_size_in_bytes / MIB:.1f}"
        )
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    say(f"memory of this process on the host so far, MiB: {kib / 1024:.0f}")
    say("dry run: nothing was trained, and its folder is removed")


def _leaves(batch: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of a batch by dotted name; entries that are None are left out."""
    if isinstance(batch, dict):
        for name, value in batch.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    elif batch is not None:
        yield prefix, np.asarray(batch)


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
