"""An environment without a simulator, and a policy without a network, for the tests of this room."""

import functools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.envs.collect import Draw, Job
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.thread_workers import ThreadWorkers


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
