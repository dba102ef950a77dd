"""Whether a server grows, and how long an answer takes: openpi's client asks at a fixed rate.

    python benchmarks/serving.py RUN [--minutes 60] [--rate 20]

Starts `chunkwise serve RUN` with one batch size, and asks it for a chunk at every tick, with noise in every image so
that no answer can be kept. Printed are, for each tenth of the time, the server's resident memory, open files and
threads, the median and the 99th percentile of an answer in milliseconds, and the ticks that began late. Exit code 1 if
memory grew by more than 2 % after the first tenth.
"""

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.policies.load import load_policy
from examples.simulated_robot import connect


def resident_mib(pid: int) -> float:
    """Returns the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def varied(example: Any, rng: np.random.Generator) -> Any:
    """Returns an observation with random images, all else as in the example."""
    if isinstance(example, dict):
        return {name: varied(value, rng) for name, value in example.items()}
    if isinstance(example, np.ndarray) and example.dtype == np.uint8:
        return rng.integers(0, 256, example.shape, np.uint8)
    return example


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20, help="requests a second")
    given = parser.parse_args()
    example = load_policy(given.run).example()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = ["serve", str(given.run.resolve()), "--port", str(port), "--batch-sizes", "1"]
    server = subprocess.Popen([sys.executable, "-m", "chunkwise", *told], cwd=Path(__file__).parents[1])
    try:
        client = connect("127.0.0.1", port)
        rng, parts, total = np.random.default_rng(0), 10, int(given.minutes * 60 * given.rate)
        print("| minute | memory MiB | files | threads | median ms | 99 % ms | late |\n|---|---|---|---|---|---|---|")
        memory, begun, late, taken = [], time.perf_counter(), 0, []
        for tick in range(total):
            wait = begun + tick / given.rate - time.perf_counter()
            late += wait < 0
            time.sleep(max(wait, 0))
            asked = time.perf_counter()
            client.infer(varied(example, rng))
            taken.append(1e3 * (time.perf_counter() - asked))
            if (tick + 1) % (total // parts) == 0:
                memory.append(resident_mib(server.pid))
                process = Path(f"/proc/{server.pid}")
                files, threads = (len(list((process / each).iterdir())) for each in ("fd", "task"))
                middle, slow = np.percentile(taken, [50, 99])
                minute = (time.perf_counter() - begun) / 60
                print(
                    f"| {minute:.0f} | {memory[-1]:.1f} | {files} | {threads} | {middle:.1f} | {slow:.1f} | {late} |",
                    flush=True,
                )
                late, taken = 0, []
    finally:
        server.terminate()
        server.wait()
    return int(memory[-1] > 1.02 * memory[0])


if __name__ == "__main__":
    sys.exit(main())
