"""What `chunkwise compile` says of an update's memory, beside what running it takes on this machine's processor.

    python benchmarks/compiled_memory.py qchunk/aloha_sim_images --size observation=14 --size action=14 \\
        --train.batch-size 16
    python benchmarks/compiled_memory.py driving/waypoints --train.batch-size 128

The update is compiled as for `--topology cpu:1`, its state made by the compiled fresh weights, and the batch drawn at
random. Then the kernel forgets the process's peak (Linux, /proc/self/clear_refs), the update runs, and what the process
held at most, less what it held before, stands beside what the compiler says is added to arguments: temporary arrays,
and results that do not lie where an argument did.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from benchmarks.accelerator_sections import random_like
from chunkwise.cli.train import with_name
from chunkwise.config.load import load
from chunkwise.train import ahead, rngs
from chunkwise.train.compile import sizes_of
from chunkwise.train.update import stack


def resident(which: str) -> float:
    """Bytes that the process holds (VmRSS), or held at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * float(status.split(f"{which}:")[1].split()[0])


def main() -> None:
    """Prints both figures of one update; later ones reuse the memory that the C library has kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="as for chunkwise compile; any field may follow")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="what the dataset would tell")
    arguments, rest = parser.parse_known_args()
    config, path = load(with_name([arguments.config, *rest]), program="compiled_memory.py")
    known = importlib.import_module(f"{config.package}.train").without_data(config, sizes_of(arguments.size))
    fresh = ahead.compiled(config, known, jax.devices(), "init")
    program = ahead.compiled(config, known, jax.devices())
    memory = program.compiled.memory_analysis()
    added = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    state = fresh.compiled(rngs.key(0, "init"))
    batch, count = stack([random_like(known.batch)], 1), np.int32(1)
    held = sum(x.nbytes for x in jax.tree.leaves((state, batch)) if hasattr(x, "nbytes"))
    print(
        f"{config.package}/{path.stem}: the compiler says {memory.argument_size_in_bytes / 1e9:.3f} GB of arguments; "
        f"the arrays are {held / 1e9:.3f} GB"
    )
    jax.block_until_ready(state)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    jax.block_until_ready(program.compiled(state, batch, count))
    grown = resident("VmHWM") - before
    print(f"beside them: {added / 1e9:.3f} GB by the compiler, {grown / 1e9:.3f} GB measured, {grown / added:.2f}")


if __name__ == "__main__":
    main()
