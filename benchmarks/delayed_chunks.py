"""Success by the way of executing chunks and the delay of the inference, on a task where both matter.

    python benchmarks/delayed_chunks.py [--episodes 200] [--out runs/delayed-chunks]

The task, `Slalom`: a runner with inertia, at constant speed, has to pass five pillars, each of which appears right
ahead at a moment that nobody knows. What was seen is old when it is executed, so a delay costs; both sides are right
until one is chosen, so that a chunk that goes left after one that went right leads into the pillar. 400 episodes of a
scripted player are recorded, who takes either side at random and is pushed about (10 s on one core); qchunk trains on
them, with one sample of the flow as the policy (8 minutes on one core); and each way plays the same scenes. Printed is
the table of docs/serving.md: success with Wilson's 95 % interval; and, of each way, the mean step between the commands
before and after a new chunk takes over, beside that of all others, in units of a full action. A run that exists is not
trained again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.config import CheckpointConfig, OptimConfig, RunConfig, TrainConfig
from chunkwise.envs.collect import Job
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.rollout import Rollout
from chunkwise.files.aloha_hdf5 import write_array
from chunkwise.policies.execution import Execution
from chunkwise.policies.load import load_policy
from chunkwise.reports.intervals import wilson
from qchunk import train
from qchunk.config import AgentConfig, DataConfig, EvalConfig, QChunkConfig
from qchunk.evaluate import evaluate
from qchunk.policies.policy import QChunkPolicy

HORIZON, REPLAN = 12, 4
DELAYS = (0, 1, 2, 4)
FORWARD, PUSH, DRAG = 0.04, 0.012, 0.8
"""Way forward a step; largest change of the sideways velocity a step, and share of it that is left after one."""
RADIUS, AHEAD, PILLARS = 0.25, 0.8, 5
"""Of a pillar; how far ahead one appears; how many have to be passed."""
GAP = (5, 20)
"""Steps from passing a pillar until the next appears, at least and below."""


class Slalom:
    """A runner at x, with velocity v sideways, and at most one pillar in sight."""

    fps = 20
    action_dim = 1

    def __init__(self, spec: EnvSpec) -> None:
        self._x = self._v = 0.0

    def reset(self, seed: int) -> Observation:
        self._rng, self._x, self._v, self._passed = np.random.default_rng(seed), 0.0, 0.0, 0
        self._pillar: np.ndarray | None = None
        self._wait = int(self._rng.integers(*GAP))
        return self._observation()

    def state(self) -> np.ndarray:
        pillar = np.zeros(2) if self._pillar is None else self._pillar - (self._x, 0)
        return np.array([self._x, self._v, self._pillar is not None, *pillar])

    def clip(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, -1, 1).astype(np.float32)

    def step(self, action: np.ndarray) -> Step:
        self._v = DRAG * self._v + PUSH * float(action[0])
        self._x += self._v
        self._wait -= 1
        if self._pillar is not None:
            self._pillar = self._pillar - (0, FORWARD)
            if self._pillar[1] < -RADIUS:
                self._pillar, self._passed = None, self._passed + 1
                self._wait = int(self._rng.integers(*GAP))
        elif self._wait <= 0:
            self._pillar = np.array([self._x + self._rng.normal(0, 0.03), AHEAD])
        crashed = self._pillar is not None and bool(np.hypot(*(self._pillar - (self._x, 0))) < RADIUS)
        success = self._passed == PILLARS
        return Step(self._observation(), float(success), success, terminated=success or crashed)

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None: ...

    def _observation(self) -> Observation:
        state = (self.state() / (1.0, 0.05, 1.0, RADIUS, AHEAD)).astype(np.float32)
        return {"qpos": state, "state": state}


class Player:
    """Passes each pillar on a side that it draws when the pillar appears, and goes back to the middle behind it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._side = rng, 0.0

    def __call__(self, state: np.ndarray) -> np.ndarray:
        x, v, seen, beside, _ = state
        if not seen:
            self._side = 0.0
        elif not self._side:
            self._side = self._rng.choice([-1.0, 1.0])
        goal = x + beside + self._side * 1.5 * RADIUS if seen else 0.0
        wanted = np.clip(0.2 * (goal - x), -0.055, 0.055)
        return np.clip([(wanted - DRAG * v) / PUSH], -1, 1)


def record(path: Path, episodes: int = 400) -> None:
    """Plays the scripted player, who is pushed about, so that the data shows how to come back."""
    path.mkdir(parents=True)
    for number in range(episodes):
        rng, env = np.random.default_rng([1, number]), Slalom(EnvSpec(suite="slalom"))
        observation, player, frames, push = env.reset(10_000_000 + number), Player(rng), [], 0.0
        while True:
            push = 0.8 * push + 0.2 * rng.normal()
            action = env.clip(player(env.state()) + push)
            step = env.step(action)
            frames.append((observation["state"], action, step.reward, step.terminated))
            observation = step.observation
            if step.terminated or step.truncated:
                break
        states, actions, rewards, terminated = (np.array(x) for x in zip(*frames, strict=True))
        with h5py.File(path / f"episode_{number:05d}.hdf5", "w") as h5:
            write_array(h5, "/observations/qpos", states)
            h5["/observations/state"] = h5["/observations/qpos"]
            write_array(h5, "/action", actions)
            write_array(h5, "/reward", rewards)
            write_array(h5, "/terminated", terminated)
            h5.attrs["success"] = bool(rewards[-1] > 0)


def config_of(folder: Path, steps: int) -> QChunkConfig:
    """The policy is one sample of the flow: best of 1."""
    return QChunkConfig(
        run=RunConfig(dir=str(folder / "run")),
        train=TrainConfig(steps=steps, batch_size=256, updates_per_call=50, log_every=1000),
        data=DataConfig(
            path=str(folder / "data"),
            observation="state",
            observation_norm="mean_std",
            action_norm="min_max",
            episodes_per_epoch=300,
            steps_per_epoch=steps,
            positive_ratio=1.0,
        ),
        agent=AgentConfig(
            policy="best_of_n", num_samples=1, horizon=HORIZON, hidden_sizes=(256, 256, 256), flow_steps=10
        ),
        optim=OptimConfig(learning_rate=1e-3, schedule="cosine"),
        eval=EvalConfig(env="benchmarks.delayed_chunks:Slalom", final_episodes=100, num_envs=20, videos=0),
        checkpoint=CheckpointConfig(every=steps),
    )


def played(policy: QChunkPolicy, execution: Execution, episodes: int) -> tuple[int, float, float]:
    """Successes, and the mean change of the command where a new chunk takes over and elsewhere."""
    joints: list[float] = []
    others: list[float] = []
    every, delay = execution.interval(HORIZON), execution.delay

    def look(job: Job, rollout: Rollout) -> None:
        changes = np.linalg.norm(np.diff(rollout.actions, axis=0), axis=1)
        steps = np.arange(1, len(rollout.actions))
        taken_over = (steps - delay) % every == 0
        taken_over &= steps >= every + delay
        joints.extend(changes[taken_over])
        others.extend(changes[~taken_over])

    result = evaluate(
        policy.chunks,
        "benchmarks.delayed_chunks:Slalom",
        seed=1,
        step=policy.step,
        episodes=episodes,
        num_envs=20,
        horizon=HORIZON,
        execution=execution,
        done=look,
    )
    return result.successes, float(np.mean(joints)), float(np.mean(others or [np.nan]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--out", type=Path, default=Path("runs/delayed-chunks"))
    arguments = parser.parse_args()
    folder: Path = arguments.out
    if not (folder / "data").exists():
        record(folder / "data")
    if not (folder / "run/done.json").exists():
        train.main(config_of(folder, arguments.updates), "delayed_chunks")
    policy: Any = load_policy(folder / "run")
    ways: dict[str, dict[str, Any]] = {
        "open loop": {},
        f"every {REPLAN} steps": {"how": "every", "execute": REPLAN},
        "temporal ensembling": {"how": "ensemble"},
        f"real-time chunking, every {REPLAN}": {"how": "realtime", "execute": REPLAN},
    }
    print(f"| way | {' | '.join(f'delay {delay}' for delay in DELAYS)} |")
    print("|---|" + "---|" * len(DELAYS), flush=True)
    for way, settings in ways.items():
        cells = []
        for delay in DELAYS:
            successes, joint, other = played(policy, Execution(**settings, delay=delay), arguments.episodes)
            low, high = wilson(successes, arguments.episodes)
            rate = successes / arguments.episodes
            cells.append(f"{rate:.0%} ({low:.0%} to {high:.0%}), {joint:.2f} / {other:.2f}")
        print(f"| {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
