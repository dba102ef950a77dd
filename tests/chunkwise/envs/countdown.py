"""An environment without a simulator, and a policy without a network, for the tests of this room."""

import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.envs.collect import Collector, Draw, Job
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.thread_workers import ThreadWorkers
from chunkwise.envs.workers import Reset, Run, Start, Stretch, Workers, answer


class Countdown:
    """Its state is (seed, t). It succeeds at step `seed % 7 + 1` if seed is even, and is cut at 9; at 5 of seed 11 it
    terminates without success. An image shows t. The task "slow" takes 50 ms a step if its seed is odd, "broken" fails
    at seed 4, "deadly" ends its process there, "exits" calls sys.exit(0); "nan" shows NaN from step 3 on; "busy" keeps
    a core for 30 ms a step; "stuck" cannot be closed.
    """

    fps = 10
    action_dim = 3

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.seed = self.t = self.looks = 0
        self.closed = False

    def reset(self, seed: int) -> Observation:
        self.seed, self.t = seed, 0
        if seed == 4 and self.spec.task == "broken":
            raise ZeroDivisionError("seed 4")
        if seed == 4 and self.spec.task == "deadly":
            os._exit(1)
        if seed == 4 and self.spec.task == "exits":
            sys.exit(0)
        return self._observe()

    def state(self) -> Any:
        return np.array([self.seed, self.t], np.float64)

    def clip(self, action: Any) -> Any:
        return np.clip(action, -1, 1).astype(np.float32)

    def step(self, action: Any) -> Step:
        assert self.t < 9, "stepped after the end"
        if self.spec.task == "slow" and self.seed % 2:
            time.sleep(0.05)
        began = time.thread_time()
        while self.spec.task == "busy" and time.thread_time() < began + 0.03:
            pass
        self.t += 1
        success = self.seed % 2 == 0 and self.t == self.seed % 7 + 1
        terminated = success or (self.seed == 11 and self.t == 5)
        return Step(self._observe(), float(action[0]) - 1, success, terminated=terminated, truncated=self.t == 9)

    def images(self) -> Observation:
        self.looks += 1
        return {name: np.full((2, 3, 3), self.t, np.uint8) for name in self.spec.cameras}

    def render(self, height: int, width: int) -> Any:
        return np.full((height, width, 3), 20 * self.t, np.uint8)

    def close(self) -> None:
        self.closed = True
        if self.spec.task == "stuck":
            raise OSError("the display is gone")

    def _observe(self) -> Observation:
        seen = self.state().astype(np.float32)
        if self.spec.task == "nan" and self.t >= 3:
            seen[0] = np.nan
        return {"state": seen}


class Waits(Countdown):
    """Seed 3 waits for a file at its second step."""

    def step(self, action: Any) -> Any:
        while self.seed == 3 and self.t == 1 and not Path(self.spec.task).exists():
            time.sleep(0.01)
        return super().step(action)


LENGTHS = [1, 9, 3, 9, 5, 9, 7, 9, 2, 9, 4, 5]
"""Steps of the episodes of seeds 0 to 11."""


class Drawn:
    """A policy whose chunks of three actions are what it draws; keeps what it was asked."""

    step = 7
    weights = "f" * 64

    def __init__(self) -> None:
        self.calls: list[tuple[Observation, list[Draw | None]]] = []

    def __call__(self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]) -> Any:
        self.calls.append((observations, list(draws)))
        rows = [np.random.default_rng(draw or ()).normal(0, 2, (3, 3)) for draw in draws]
        return np.stack(rows).astype(np.float32)


def jobs(seeds: Sequence[int]) -> list[Job]:
    """A rollout for each seed, numbered in their order."""
    return [Job(number=n, seed=seed, draw=(5, n), path=Path(f"episode_{n}")) for n, seed in enumerate(seeds)]


def actions_of(seed_number: int, length: int) -> Any:
    """What Drawn does in a rollout: chunks of three, by the rollout's numbers and the chunk's."""
    chunks = [np.random.default_rng((5, seed_number, c)).normal(0, 2, (3, 3)) for c in range(-(-length // 3))]
    return np.clip(np.concatenate(chunks)[:length], -1, 1).astype(np.float32)


def threads(count: int, task: str = "", cameras: tuple[str, ...] = ()) -> ThreadWorkers:
    """Such environments in threads."""
    spec = EnvSpec(suite="own", task=task, cameras=cameras)
    return ThreadWorkers(functools.partial(Countdown, spec), count, name="countdown")


def play(workers: Workers, todo: list[Job], actor: Any = None, **settings: Any) -> dict[int, Rollout]:
    collector = Collector(workers, **settings)
    finished: dict[int, Rollout] = {}
    assert collector.play(todo, actor or Drawn(), lambda job, rollout: finished.update({job.number: rollout}))
    collector.close()
    return finished


class Cores:
    """Workers on a clock of their own: `parallel` cores take turns at what was asked, `seconds` for each Run.

    Where they are not `busy`, each only waits for so long, and takes no turn.
    """

    every_frame = True

    def __init__(self, count: int, parallel: int, seconds: Callable[[int], float], busy: bool = True) -> None:
        self.count, self.parallel, self.now = count, parallel, 0.0
        self._seconds, self._busy = seconds, busy
        self._free = [0.0] * (parallel if busy else count)
        self._environments = [Countdown(EnvSpec(suite="own")) for _ in range(count)]
        self._answers: dict[int, tuple[float, Start | Stretch]] = {}

    def submit(self, slot: int, request: Reset | Run) -> None:
        begins = max(self.now, self._free[0])
        took = self._seconds(slot) if isinstance(request, Run) else 0.0
        ends = begins + took
        self._free = sorted([ends, *self._free[1:]])
        found = answer(self._environments[slot], request, every_frame=True)
        found = dataclasses.replace(found, took_s=ends - self.now)
        if isinstance(found, Stretch) and self._busy:
            found = dataclasses.replace(found, busy_s=took)
        self._answers[slot] = ends, found

    def receive(
        self, slots: Collection[int], stopping: Any = None, *, within: float = math.inf
    ) -> tuple[int, Start | Stretch]:
        slot = min(slots, key=lambda slot: self._answers[slot][0])
        ends, found = self._answers[slot]
        if ends > self.now + within:
            self.now += within
            raise TimeoutError
        self.now = max(self.now, ends)
        return slot, found

    def close(self) -> None:
        pass


class Takes(Drawn):
    """A policy whose inference takes 0.01 s on that clock."""

    def __init__(self, workers: Cores) -> None:
        super().__init__()
        self.workers = workers

    def __call__(self, observations: Any, draws: Any, prompts: Any) -> Any:
        self.workers.now += 0.01
        return super().__call__(observations, draws, prompts)
