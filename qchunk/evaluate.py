"""Success of a policy in the real environment: chunks executed open loop, several environments in lockstep."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from chunkwise.cli.progress import Lines
from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs.environment import Environment, Observation
from chunkwise.reports.intervals import wilson
from qchunk.envs import simulators

FILM_SECONDS = 300  # a film of two rollouts takes about 10 s in software; a driver that hangs must not stop a run


Policy = Callable[[Observation, int], np.ndarray]
"""Chooses the next chunk of each environment: (observations, key_seed) -> actions (b, t, a).

Observations are float32 (b, s) under their names in the recordings, `qpos` and `state`, and with a View uint8
(b, k, h, w, 3) as `images`. `key_seed`, 0 to 2^32 - 1, seeds whatever the policy draws, and differs from call to call.
Actions outside the environment's bounds are clipped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """What a policy reached over a number of episodes."""

    episodes: int
    successes: int
    mean_return: float
    """Sum of unscaled rewards of an episode, mean over episodes."""
    mean_length: float
    """Environment steps of an episode, mean over episodes."""

    @property
    def success_rate(self) -> float:
        """Share of episodes that succeeded."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the success rate."""
        return wilson(self.successes, self.episodes)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Values for metrics.jsonl, each name led by `prefix` and a slash."""
        low, high = self.interval
        return {
            f"{prefix}/success": self.success_rate,
            f"{prefix}/success_low": low,
            f"{prefix}/success_high": high,
            f"{prefix}/episodes": float(self.episodes),
            f"{prefix}/return": self.mean_return,
            f"{prefix}/length": self.mean_length,
        }

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.success_rate:.0%} of {self.episodes} episodes succeeded (95 % interval {low:.0%} to {high:.0%}), "
            f"return {self.mean_return:.1f}, length {self.mean_length:.0f}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One finished episode."""

    seed: int
    """Of the environment's reset."""
    success: bool
    reward: float
    """Sum over the episode."""
    actions: Float32[np.ndarray, "T a"]
    """As executed; replayed after a reset with `seed` they repeat the episode to the bit."""


def evaluate(
    policy: Policy,
    env_id: str,
    *,
    seed: int,
    step: int,
    episodes: int,
    num_envs: int,
    horizon: int,
    view: simulators.View | None = None,
) -> EvalResult:
    """Runs episodes 0 to `episodes - 1`; the result is a function of the arguments, not of the clock.

    Episode e starts in a state that depends on (seed, e) alone, so that evaluations at different steps meet the same
    scenes. An episode ends with the environment's first info["success"], at a termination, or at its time limit.

    Args:
      policy: Maps observations to chunks of `horizon` actions.
      env_id: Of the environment (simulators.make).
      seed: Of the initial states and, with `step`, of the policy's draws.
      step: Updates behind the policy.
      episodes: Episodes in all.
      num_envs: Environments that share one call of the policy. Each costs 0.9 s once to make; stepping is what takes
        the time, about 1 ms a step on one core.
      horizon: Actions of one chunk, all executed before the policy is asked again.
      view: Pictures that the policy sees, rendered when it is asked; None: none.

    Raises:
      ConfigError: If the environment is unknown, the simulator is not installed, or it cannot render what is asked for.
      ValueError: If the policy's chunks have the wrong shape or are not finite.
    """
    done = rollouts(
        policy, env_id, seed=seed, step=step, episodes=episodes, num_envs=num_envs, horizon=horizon, view=view
    )
    return EvalResult(
        episodes=len(done),
        successes=sum(rollout.success for rollout in done),
        mean_return=sum(rollout.reward for rollout in done) / len(done),
        mean_length=sum(len(rollout.actions) for rollout in done) / len(done),
    )


def rollouts(
    policy: Policy,
    env_id: str,
    *,
    seed: int,
    step: int,
    episodes: int,
    num_envs: int,
    horizon: int,
    view: simulators.View | None = None,
) -> list[Rollout]:
    """The episodes of `evaluate`, in order.

    The batch always has `num_envs` rows, so that a compiled policy meets one shape: an environment that is done takes
    the next episode, and where there is none left its last observation, without pictures, fills the row.
    """
    envs = _environments(env_id, num_envs, view)
    slots: list[_Slot | None] = [None] * num_envs
    rows: list[Observation | None] = [None] * num_envs
    finished: dict[int, Rollout] = {}
    lines = Lines(episodes, "played {count} of {total} episodes")
    following = 0
    for call in itertools.count():
        for i in range(num_envs):
            if slots[i] is None and following < episodes:
                slot_seed = seed_of(Purpose.QCHUNK_EVALUATION_SCENE, seed, following)
                slots[i] = _Slot(following, slot_seed)
                rows[i] = envs[i].reset(slot_seed)
                following += 1
        if len(finished) == episodes:
            break
        filled = [row or rows[0] for row in rows]  # more environments than episodes: the first one's row
        names = [name for name in ("qpos", "state") if name in (rows[0] or {})]
        observations = {name: np.stack([row[name] for row in filled if row]) for name in names}
        if view is not None:
            shown = [i for i, slot in enumerate(slots) if slot is not None]
            images = {i: simulators.stacked_images(envs[i].images(), view) for i in shown}
            dark = np.zeros_like(next(iter(images.values())))
            observations["images"] = np.stack([images.get(i, dark) for i in range(num_envs)])
        chunks = policy(observations, seed_of(Purpose.QCHUNK_EVALUATION_ACTION, seed, step, call))
        _check(chunks, num_envs, horizon)
        playing = [(i, slot) for i, slot in enumerate(slots) if slot is not None]
        run = [(slot, envs[i], simulators.clip(envs[i], chunks[i])) for i, slot in playing]
        for (i, slot), (row, over) in zip(playing, _threads().map(lambda one: one[0].run(*one[1:]), run), strict=True):
            rows[i] = row
            if over:
                finished[slot.episode] = slot.rollout()
                lines.advance()
                slots[i] = None
    return [finished[episode] for episode in range(episodes)]


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    """Step the environments, which share nothing: MuJoCo lets go of Python's lock (1.7 times faster on two cores)."""
    return concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count())


class _Slot:
    """An episode under way in one environment."""

    def __init__(self, episode: int, seed: int) -> None:
        self.episode, self.seed = episode, seed
        self.success, self.reward = False, 0.0
        self.actions: list[np.ndarray] = []

    def run(self, env: Environment, chunk: Float32[np.ndarray, "t a"]) -> tuple[Observation, bool]:
        """Executes a chunk, or as much of it as the episode takes; the observation after it, and whether it is over."""
        observed, over = {}, False
        for action in chunk:
            step = env.step(action)
            observed = step.observation
            self.actions.append(action)
            self.reward += step.reward
            self.success = step.success
            over = self.success or step.terminated or step.truncated
            if over:
                break
        return observed, over

    def rollout(self) -> Rollout:
        return Rollout(seed=self.seed, success=self.success, reward=self.reward, actions=np.stack(self.actions))


@functools.lru_cache(maxsize=1)
def _environments(env_id: str, num_envs: int, view: simulators.View | None) -> list[Environment]:
    """Environments, kept from one evaluation to the next; a reset leaves nothing of what they did before."""
    return [simulators.make(env_id, view) for _ in range(num_envs)]


def _check(chunks: np.ndarray, num_envs: int, horizon: int) -> None:
    if chunks.ndim != 3 or chunks.shape[:2] != (num_envs, horizon):
        raise ValueError(f"the policy returned shape {chunks.shape}; expected ({num_envs}, {horizon}, actions)")
    if not np.isfinite(chunks).all():
        rows = np.flatnonzero(~np.isfinite(chunks).all(axis=(1, 2)))
        raise ValueError(f"the policy returned actions that are not finite, in rows {rows.tolist()} of {num_envs}")


def film(
    policy: Policy,
    env_id: str,
    path: str | Path,
    *,
    seed: int,
    step: int,
    episodes: int,
    num_envs: int,
    horizon: int,
    view: simulators.View | None = None,
    every: int = 3,
    report: Callable[[str], None] = print,
) -> Path | None:
    """Films episodes 0 to `episodes - 1` one after the other: a green border if the episode succeeds, a red one if not.

    With the arguments of an `evaluate`, these are its episodes. A process of its own replays their actions and
    renders, because a broken GL driver can abort the process that uses it, and because MuJoCo reads MUJOCO_GL when it
    is imported.

    Args:
      path: mp4 to write.
      every: Frames of the environment per frame of the film; the film runs in real time. One frame takes about 50 ms
        without a GPU.
      report: Takes one line if there is no film.

    Returns:
      The path, or None if the machine cannot render.
    """
    path = Path(path)
    done = rollouts(
        policy, env_id, seed=seed, step=step, episodes=episodes, num_envs=num_envs, horizon=horizon, view=view
    )
    with tempfile.TemporaryDirectory() as folder:
        replay = Path(folder) / "rollouts.npz"
        np.savez(
            replay,
            seeds=[rollout.seed for rollout in done],
            successes=[rollout.success for rollout in done],
            lengths=[len(rollout.actions) for rollout in done],
            actions=np.concatenate([rollout.actions for rollout in done]),
        )
        reasons = []
        for backend in _backends():
            reason = _render([env_id, str(replay), str(path.resolve()), str(every)], backend)
            if reason is None:
                return path
            reasons.append(f"MUJOCO_GL={backend}: {reason}")
    report(f"no film: this machine cannot render ({'; '.join(reasons)})")
    return None


def _backends() -> list[str]:
    """Ways to render without a display; the user's own choice is the only one where there is one."""
    if "MUJOCO_GL" in os.environ:
        return [os.environ["MUJOCO_GL"]]
    return ["egl", "osmesa"] if sys.platform == "linux" else ["glfw"]


def _render(arguments: list[str], backend: str) -> str | None:
    """Runs qchunk.envs.film; None if it wrote the film, else the reason in a few words."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "qchunk.envs.film", *arguments],
            cwd=Path(__file__).resolve().parents[1],
            env=os.environ | {"MUJOCO_GL": backend},
            capture_output=True,
            text=True,
            timeout=FILM_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {FILM_SECONDS} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
    return lines[-1][:200]
