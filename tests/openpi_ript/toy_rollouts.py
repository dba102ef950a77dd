"""The simulated point, an actor without a network, and rollouts, which the tests of rollouts share."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.collect import Job, Task
from chunkwise.envs.rollout import Rollout
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.data.point import DISCS
from openpi_ript.ript.acting import ActingPolicy
from openpi_ript.ript.collect import Collector


def point(**changes: Any) -> EnvConfig:
    """Two workers; the red disc is right."""
    settings: dict[str, Any] = {
        "suite": "point",
        "task": "red",
        "prompt": "move to the red disc",
        "max_steps": 20,
        "state": ("position",),
        "execute": 4,
        "num_envs": 2,
        "rows": 1,
    }
    return EnvConfig(**settings | changes)


class Straight:
    """Goes to the red disc where the first number of the noise is above a threshold, else to the blue one."""

    step = 7
    weights = "f" * 64
    chunk: tuple[int, int] = (8, 3)

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold
        self.batches: list[dict[str, Any]] = []
        self.noise: list[np.ndarray] = []

    def __call__(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b t n"]
    ) -> Float32[np.ndarray, "b t a"]:
        self.batches.append(observation)
        self.noise.append(noise.copy())
        goals = np.where(noise[:, :1, :1] > self.threshold, DISCS["red"], DISCS["blue"])
        there = np.linalg.norm(observation["state"] - DISCS["red"], axis=-1) < 0.2
        on_disc = np.broadcast_to(there[:, None, None], (*noise.shape[:2], 1))
        goals = np.broadcast_to(goals, (*noise.shape[:2], 2)) + 0.01 * noise[..., :2]
        return np.concatenate([goals, on_disc], axis=-1).astype(np.float32)


def jobs(count: int, folder: Path) -> list[Job]:
    """Rollouts from initial states of their own."""
    return [
        Job(number=n, seed=seed_of(Purpose.ROLLOUT_SCENE, 0, n), draw=(0, n), path=folder / f"episode_{n:04d}.npz")
        for n in range(count)
    ]


def make_rollout(length: int = 5, *, success: bool = True, init_hash: str = "a" * 16, seed: int = 3) -> Rollout:
    """Random numbers in the shape of a rollout, images included."""
    rng = np.random.default_rng([seed, length])
    rows = length + 1
    rewards = np.zeros(length, np.float32)
    rewards[-1] = success
    return Rollout(
        observations={
            "robot0_eef_pos": rng.normal(size=(rows, 3)).astype(np.float32),
            "robot0_eef_quat": rng.normal(size=(rows, 4)).astype(np.float32),
            "robot0_gripper_qpos": rng.normal(size=(rows, 2)).astype(np.float32),
            "position": rng.random((rows, 2)).astype(np.float32),
            "agentview_image": rng.integers(0, 256, (rows, 12, 12, 3), np.uint8),
            "robot0_eye_in_hand_image": rng.integers(0, 256, (rows, 12, 12, 3), np.uint8),
        },
        actions=rng.random((length, 3)).astype(np.float32),
        rewards=rewards,
        success=success,
        seed=seed,
        draw=(1, 2),
        init_hash=init_hash,
        prompt="move to the red disc",
        step=4,
        weights="0" * 64,
    )


class FakeCollector(Collector):
    """Outcomes by initial state and number of the rollout; writes down what it was asked for.

    Nothing is played, but everything is drawn from what a job gives: the first position from its seed, the actions and
    the positions after it from its draw, so that rollouts which are given the same are the same.
    """

    def __init__(self, outcome: Callable[[int, int], bool]) -> None:
        self.outcome = outcome
        self.tasks: tuple[Task, ...] = (Task(name="red", prompt="move to the red disc", max_steps=20),)
        self.played: list[str] = []
        self.jobs: list[Job] = []
        self.stop_after: int | None = None

    def collect(
        self,
        jobs: Sequence[Job],
        actor: Any,
        done: Callable[[Job, Rollout], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        assert actor.holding, "a policy that was released has no weights to act with"
        for job in jobs:
            if self.stop_after is not None and len(self.played) >= self.stop_after:
                return False
            state, k = (int(part) for part in job.path.stem.removeprefix("state_").split("-"))
            self.played.append(job.path.name)
            self.jobs.append(job)
            rollout = make_rollout(4, success=self.outcome(state, k), seed=job.seed, init_hash=f"{state:016x}")
            drawn = drawn_by(job.seed, job.draw)
            seen = {**rollout.observations, "position": drawn["position"]}
            drawn_rollout = dataclasses.replace(rollout, observations=seen, actions=drawn["actions"])
            led = {"offset": job.offset, "offset_steps": job.offset_steps}
            played = dataclasses.replace(drawn_rollout, draw=job.draw, **led)
            done(job, dataclasses.replace(played, step=actor.step, weights=actor.weights))
        return True


def drawn_by(seed: int, draw: tuple[int, ...], length: int = 4) -> dict[str, np.ndarray]:
    """Positions and actions of a fake rollout."""
    rng = np.random.default_rng([*draw, 0])
    start = np.random.default_rng(seed).random((1, 2))
    actions = rng.standard_normal((length, 3)).astype(np.float32)
    return {"position": np.concatenate([start, rng.random((length, 2))]).astype(np.float32), "actions": actions}


class FakePolicy(ActingPolicy):
    """Weights by name; writes down which it was given, and after how many updates."""

    def __init__(self) -> None:
        self.used: list[tuple[str, int]] = []
        self.release()

    def use(self, params: Any, step: int) -> None:
        self.step, self.weights, self.holding = step, params * 64, True
        self.used.append((params, step))

    def release(self) -> None:
        self._params = {}
        self.holding = False
