"""Environment steps a second with one worker five times slower than the rest, against the sum of what each does alone.

    python benchmarks/slow_worker.py [--workers 8] [--step-ms 20] [--infer-ms 5] [--only local] [--rounds 3]

Environments only wait, and so does the policy, so that it needs no cores: what is measured is the collector, and how
requests travel: to threads (in process), to processes (local), to an actor of Ray on this machine (ray). Rollouts have
80 steps, in chunks of 8. Summed are the steps a second of each worker, from the end of its first rollout to that of its
last before none is left to begin; the ideal is the same sum for workers of its kind that play alone, by the same
transport.
"""

import argparse
import collections
import functools
import importlib
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
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.workers import ThreadWorkers, Workers

LENGTH, CHUNK = 80, 8
ROLLOUTS = 14
"""Of each worker in the mean: the slow one plays three while the others play fifteen."""
SLOWER = 5.0
KINDS = ("in process", "local", "ray")


class Waiting:
    """Waits in each step, and gives its number for a reward; number 0 of a folder is slower by a factor."""

    fps, action_dim = 10.0, 4

    def __init__(self, seconds: float, folder: Path) -> None:
        self._t = self._number = 0
        while not self._is_mine(folder / str(self._number)):
            self._number += 1
        self._seconds = seconds if self._number else seconds * SLOWER

    def _is_mine(self, mark: Path) -> bool:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

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
        shown = {"state": np.zeros(32, np.float32)}
        return Step(shown, float(self._number), success=False, truncated=self._t == LENGTH)

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
    """Steps a second of a collector's workers together."""
    collector = Collector(workers_of(kind, opener, count), rows=max(count // 2, 1))
    ended = collections.defaultdict[int, list[float]](list)
    jobs = [Job(number=n, seed=n, draw=(n,), path=Path(f"rollout_{n}.npz")) for n in range(rollouts)]

    def done(job: Job, rollout: Rollout) -> None:
        if sum(map(len, ended.values())) <= rollouts - count:  # afterwards some have nothing to do
            ended[int(rollout.rewards[0])].append(time.perf_counter())

    try:
        collector.play(jobs, Policy(infer), done)
    finally:
        collector.close()
    assert len(ended) == count, "a worker has ended no rollout: raise ROLLOUTS"
    return sum(LENGTH * (len(times) - 1) / (times[-1] - times[0]) for times in ended.values())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--infer-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="repeatable; default all")
    arguments = parser.parse_args()
    # By the name by which another process finds it: this one is its own __main__.
    waiting = importlib.import_module("benchmarks.slow_worker").Waiting
    step, infer, count = arguments.step_ms / 1000, arguments.infer_ms / 1000, arguments.workers
    for kind in arguments.only or KINDS:
        ratios, rates = list[float](), list[float]()
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                alone = []
                for name, seconds in (("fast", step / SLOWER), ("slow", step)):
                    (place := Path(folder) / name).mkdir()
                    alone.append(rate(kind, functools.partial(waiting, seconds, place), 1, 4, infer))
                (place := Path(folder) / "all").mkdir()
                rates.append(rate(kind, functools.partial(waiting, step, place), count, ROLLOUTS * count, infer))
                ratios.append(rates[-1] / ((count - 1) * alone[0] + alone[1]))
        print(
            f"{kind:10} {statistics.median(rates):7.1f} steps/s, {statistics.median(ratios):.3f} of the ideal "
            f"({min(ratios):.3f} to {max(ratios):.3f}), {count} workers, one {SLOWER:.0f} times slower",
            flush=True,
        )


if __name__ == "__main__":
    main()
