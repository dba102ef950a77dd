"""Environment steps a second with one worker five times slower than the rest, against the sum of what each does alone.

    python benchmarks/slow_worker.py [--workers 8] [--step-ms 20] [--infer-ms 5] [--only local] [--rounds 3]
    python benchmarks/slow_worker.py --suite metaworld --workers 2      # or robosuite (Lift), point
    git worktree add ../old 9ac8221 && python benchmarks/slow_worker.py --workers 8 --old ../old

Environments only wait, or are Meta-World's reach-v3, robosuite's Lift or the simulated point, state only, of which the
slow one waits after each step for four times what it took. The policy only waits, so that it needs no cores: what is
measured is the collector, and how requests travel: to threads (in process), to processes (local), to an actor of Ray on
this machine (ray); with --old also the collector of a commit before, which took the answers of its halves in turns
(lock-step). Rollouts have 80 steps, in chunks of 8. Summed are the steps a second of each worker, from the end of its
first rollout to that of its last before none is left to begin; the ideal is the same sum for workers of its kind that
play alone, by the same transport. Kinds take turns in each round. Of two workers it is also said how much of the
ideal any order of batches could reach, since a policy that infers for one keeps the other waiting.
"""

import argparse
import collections
import dataclasses
import functools
import importlib
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import numpy as np

from chunkwise.config.experiment import FleetConfig
from chunkwise.envs.collect import Collector, Job
from chunkwise.envs.environment import EnvSpec, Observation, Step, make
from chunkwise.envs.fleet import make_workers
from chunkwise.envs.thread_workers import ThreadWorkers
from chunkwise.envs.workers import Workers

LENGTH, CHUNK = 80, 8
TASKS = {
    "waiting": ("", 4, "state"),
    "metaworld": ("reach-v3", 4, "state"),
    "robosuite": ("Lift", 7, "object-state"),
    "point": ("red", 3, "position"),
}
"""Of each its task, how many numbers an action has, and which array of an observation the old collector hands on."""
SLOWER = 5.0
KINDS = ("in process", "local", "ray")


class Waiting:
    """An environment that only waits."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self, seed: int) -> Observation:
        return {"state": np.zeros(32, np.float32)}

    def state(self) -> Any:
        return np.zeros(1)

    def clip(self, action: Any) -> Any:
        return np.asarray(action, np.float32)

    def step(self, action: Any) -> Step:
        time.sleep(self._seconds)
        return Step({"state": np.zeros(32, np.float32)}, 0.0, success=False)

    def images(self) -> Observation:
        return {}

    def close(self) -> None:
        pass


class Numbered:
    """An environment with rollouts of LENGTH steps, its number for a reward; number 0 of a folder is slower.

    That one waits after each step until a factor of its time is over.
    """

    def __init__(self, opener: Callable[[], Any], slower: float, folder: Path) -> None:
        self._env = opener()
        self._t = self._number = 0
        while not self._is_mine(folder / str(self._number)):
            self._number += 1
        self._slower = 1.0 if self._number else slower

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def _is_mine(self, mark: Path) -> bool:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def reset(self, seed: int) -> Observation:
        self._t = 0
        return self._env.reset(seed)

    def step(self, action: Any) -> Step:
        began = time.perf_counter()
        step = self._env.step(action)
        if self._slower > 1:
            time.sleep((time.perf_counter() - began) * (self._slower - 1))
        self._t += 1
        return dataclasses.replace(step, reward=float(self._number), success=False, truncated=self._t == LENGTH)


class Policy:
    """Waits for an inference."""

    step, weights = 0, ""

    def __init__(self, seconds: float, actions: int) -> None:
        self._seconds, self.chunk = seconds, (CHUNK, actions)
        self.took: list[float] = []

    def __call__(self, observations: Observation, draws: Any, prompts: Any = ()) -> Any:
        began = time.perf_counter()
        time.sleep(self._seconds)
        self.took.append(time.perf_counter() - began)
        return np.zeros((len(draws), *self.chunk), np.float32)


class Rates:
    """Steps a second of workers together, from when their rollouts end."""

    def __init__(self, workers: int, rollouts: int) -> None:
        self._workers, self._rollouts = workers, rollouts
        self._ended = collections.defaultdict[int, list[float]](list)

    def done(self, rewards: Any) -> None:
        """Notes the end of a rollout."""
        if sum(map(len, self._ended.values())) <= self._rollouts - self._workers:  # afterwards some have nothing to do
            self._ended[int(rewards[0])].append(time.perf_counter())

    def together(self) -> float:
        """Returns the sum of each worker's."""
        if min(len(self._ended[worker]) for worker in range(self._workers)) < 2:
            sys.exit("a worker has ended fewer than two rollouts: raise --rollouts")
        return sum(LENGTH * (len(times) - 1) / (times[-1] - times[0]) for times in self._ended.values())


def workers_of(kind: str, opener: Any, count: int) -> Workers:
    """Workers by transport."""
    if kind == "in process":
        return ThreadWorkers(opener, count, name="waiting")
    return make_workers(FleetConfig(address="local" if kind == "ray" else None), opener, count, name="waiting")


def best_share(answers: Sequence[float], inference: float, rows: int = 2) -> float:
    """Returns how much of the ideal any order of batches reaches, for two workers and a policy.

    It infers for either, or with two rows for both, and all times are fixed. Found by value iteration over what is left
    of either's answer, in 300ths of the three times: exact to about 0.005.

    Args:
      answers: Seconds of an answer of each.
      inference: Seconds of a batch.
      rows: Of a batch; 1 or 2.
    """
    tick = (sum(answers) + inference) / 300
    first, second, infer = (round(seconds / tick) for seconds in (*answers, inference))
    left, other = np.meshgrid(np.arange(first + 1), np.arange(second + 1), indexing="ij")
    # Up to the next answer: in between nothing changes.
    wait = np.where((left > 0) & (other > 0), np.minimum(left, other), np.maximum(np.maximum(left, other), 1))
    waited = np.maximum(left - wait, 0), np.maximum(other - wait, 0)

    def gain(price: float) -> float:
        """Chunks, less the price of the ticks that they take, of the second half of many decisions."""
        value, half = np.zeros(left.shape), 0.0
        for number in range(1500):
            best = value[waited] - price * wait
            best[0] = np.maximum(best[0], 1 - price * infer + value[first, np.maximum(other[0] - infer, 0)])
            best[:, 0] = np.maximum(best[:, 0], 1 - price * infer + value[np.maximum(left[:, 0] - infer, 0), second])
            if rows > 1:
                best[0, 0] = max(best[0, 0], 2 - price * infer + value[first, second])
            half = best[0, 0] if number == 749 else half
            value = best
        return value[0, 0] - half

    low, ideal = 0.0, 1 / (first + infer) + 1 / (second + infer)
    high = ideal
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    return low / ideal


def rate(
    kind: str, rows: int | None, opener: Any, count: int, rollouts: int, infer: float, actions: int
) -> tuple[float, float]:
    """Steps a second of a collector's workers together, and the seconds of an inference."""
    collector = Collector(workers_of(kind, opener, count), rows=min(rows or max(count // 2, 1), count))
    rates = Rates(count, rollouts)
    jobs = [Job(number=n, seed=n, draw=(n,), path=Path(f"rollout_{n}.npz")) for n in range(rollouts)]
    policy = Policy(infer, actions)
    try:
        collector.play(jobs, policy, lambda job, rollout: rates.done(rollout.rewards))
    finally:
        collector.close()
    return rates.together(), statistics.median(policy.took)


def old_rate(
    tree: Path, state: str, opener: Any, count: int, rollouts: int, infer: float, actions: int
) -> tuple[float, float]:
    """The same of the collector at commit 9ac8221, in a process that finds that tree's packages first; of an inference,
    the seconds that it is said to wait."""
    with tempfile.TemporaryDirectory() as folder:
        (asked := Path(folder) / "asked.pickle").write_bytes(
            pickle.dumps((tree.resolve(), opener, count, rollouts, infer, actions, state))
        )
        command = [sys.executable, str(Path(__file__).with_name("lock_step.py")), str(asked)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.split()[-1]), infer


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=TASKS, default="waiting")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rows", type=int, help="of a batch of inference; default half of the workers, as lock-step")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of environments that wait")
    parser.add_argument("--infer-ms", type=float, default=5.0)
    parser.add_argument("--rollouts", type=int, default=14, help="of each worker in the mean")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="repeatable; default all")
    parser.add_argument("--old", type=Path, metavar="TREE", help="a worktree of commit 9ac8221, measured beside")
    arguments = parser.parse_args()
    # By the name by which another process finds it: this one is its own __main__.
    module = importlib.import_module("benchmarks.slow_worker")
    waiting = functools.partial(module.Waiting, arguments.step_ms / 1000)
    task, actions, state = TASKS[arguments.suite]
    simulated = functools.partial(make, EnvSpec(suite=arguments.suite, task=task))
    opener = functools.partial(module.Numbered, waiting if arguments.suite == "waiting" else simulated)
    infer, count = arguments.infer_ms / 1000, arguments.workers
    single = 4 if arguments.suite == "waiting" else max(arguments.rollouts // 2, 4)  # a simulator's steps differ
    measures = {kind: functools.partial(rate, kind, arguments.rows) for kind in arguments.only or KINDS}
    if arguments.old:
        measures["lock-step"] = functools.partial(old_rate, arguments.old, state)
    ratios, rates = collections.defaultdict[str, list[float]](list), collections.defaultdict[str, list[float]](list)
    best = collections.defaultdict[str, list[float]](list)
    for _ in range(arguments.rounds):
        for kind, measure in measures.items():
            with tempfile.TemporaryDirectory() as folder:
                alone = []
                for name, slower in (("fast", 1.0), ("slow", SLOWER)):
                    (place := Path(folder) / name).mkdir()
                    alone.append(measure(functools.partial(opener, slower, place), 1, single, infer, actions))
                if count == 2:
                    took = statistics.mean(seconds for _, seconds in alone)
                    answers = [max(CHUNK / steps - took, 0.0) for steps, _ in alone]
                    best[kind].append(best_share(answers, took, arguments.rows or 1))
                (place := Path(folder) / "all").mkdir()
                total = arguments.rollouts * count
                rates[kind].append(measure(functools.partial(opener, SLOWER, place), count, total, infer, actions)[0])
                ratios[kind].append(rates[kind][-1] / ((count - 1) * alone[0][0] + alone[1][0]))
    for kind in measures:
        most = f"; {statistics.median(best[kind]):.3f} by the best order of batches" if best[kind] else ""
        print(
            f"{kind:10} {statistics.median(rates[kind]):7.1f} steps/s, {statistics.median(ratios[kind]):.3f} of the "
            f"ideal ({min(ratios[kind]):.3f} to {max(ratios[kind]):.3f}), {count} workers, one {SLOWER:.0f} times "
            f"slower{most}",
            flush=True,
        )


if __name__ == "__main__":
    main()
