"""Environment steps a second with one worker five times slower than the rest, against the sum of what each does alone.

    python benchmarks/slow_worker.py [--workers 8] [--step-ms 20] [--infer-ms 5] [--only local] [--rounds 3]

Environments only wait, and so does the policy, so that it needs no cores: what is measured is the collector, and how
requests travel: to threads (in process), to processes (local), to an actor of Ray on this machine (ray). Rollouts have
80 steps, in chunks of 8. Counted is the time from the first rollout of each worker to when none is left to begin; the
ideal is the sum over workers of the steps a second of one of its kind that plays alone, by the same transport.
"""

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import numpy as np

from chunkwise.config.experiment import FleetConfig
from chunkwise.envs.collect import Collector, Draw, Job
from chunkwise.envs.environment import Observation, Step
from chunkwise.envs.fleet import make_workers
from chunkwise.envs.workers import ThreadWorkers, Workers

LENGTH, CHUNK = 80, 8
SLOWER = 5.0
KINDS = ("in process", "local", "ray")


class Waiting:
    """Waits in each step; slower by a factor where it was the first to be made beside a mark."""

    fps, action_dim = 10.0, 4

    def __init__(self, seconds: float, mark: Path | None) -> None:
        self._seconds, self._t = seconds, 0
        if mark is not None:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                self._seconds *= SLOWER
            except FileExistsError:
                pass

    def reset(self, seed: int) -> Observation:
        self._t = 0
        return {"state": np.zeros(32, np.float32)}

    def state(self) -> Any:
        return np.zeros(1)

    def clip(self, action: Any) -> Any:
        return np.asarray(action, np.float32)

    def step(self, action: Any) -> Step:
        time.sleep(self._seconds)
        self._t += 1
        return Step({"state": np.zeros(32, np.float32)}, 0.0, success=False, truncated=self._t == LENGTH)

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> Any:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        pass


class Policy:
    """Waits for an inference."""

    step, weights = 0, ""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]) -> Any:
        time.sleep(self._seconds)
        return np.zeros((len(draws), CHUNK, Waiting.action_dim), np.float32)


def workers_of(kind: str, opener: Any, count: int) -> Workers:
    """Workers by transport."""
    if kind == "in process":
        return ThreadWorkers(opener, count, name="waiting")
    return make_workers(FleetConfig(address="local" if kind == "ray" else None), opener, count, name="waiting")


def rate(kind: str, opener: Any, count: int, rollouts: int, infer: float) -> float:
    """Steps a second of a collector."""
    collector = Collector(workers_of(kind, opener, count), rows=max(count // 2, 1))
    ended: list[float] = []
    jobs = [Job(number=n, seed=n, draw=(n,), path=Path(f"rollout_{n}.npz")) for n in range(rollouts)]
    try:
        collector.play(jobs, Policy(infer), lambda job, rollout: ended.append(time.perf_counter()))
    finally:
        collector.close()
    first, last = count - 1, rollouts - count
    return LENGTH * (last - first) / (ended[last] - ended[first])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--infer-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="repeatable; default all")
    arguments = parser.parse_args()
    step, infer, count = arguments.step_ms / 1000, arguments.infer_ms / 1000, arguments.workers
    for kind in arguments.only or KINDS:
        ratios, rates = list[float](), list[float]()
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                alone = [
                    rate(kind, functools.partial(Waiting, seconds, None), 1, 4, infer)
                    for seconds in (step, step * SLOWER)
                ]
                opener = functools.partial(Waiting, step, Path(folder) / "slow")
                rates.append(rate(kind, opener, count, 6 * count, infer))
                ratios.append(rates[-1] / ((count - 1) * alone[0] + alone[1]))
        print(
            f"{kind:10} {statistics.median(rates):7.1f} steps/s, {statistics.median(ratios):.3f} of the ideal "
            f"({min(ratios):.3f} to {max(ratios):.3f}), {count} workers, one {SLOWER:.0f} times slower",
            flush=True,
        )


if __name__ == "__main__":
    main()
