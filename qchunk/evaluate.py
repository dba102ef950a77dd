"""Success of a policy in the real environment: chunks executed open loop, several environments in lockstep."""

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt32

from chunkwise.data.sampling import Purpose, seed_of, seed_of_draw, words
from chunkwise.envs import evaluate as evaluation
from chunkwise.envs.collect import Collector, Draw, Job
from chunkwise.envs.environment import Observation
from chunkwise.envs.evaluate import Evaluation
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.workers import ThreadWorkers
from qchunk.envs import simulators

FILM_SECONDS = 300  # a film of two rollouts takes about 10 s in software; a driver that hangs must not stop a run


Policy = Callable[[Observation, UInt32[np.ndarray, " b"]], np.ndarray]
"""Chooses the next chunk of each environment: (observations, seeds) -> actions (b, t, a).

Observations are float32 (b, s) under their names in the recordings, `qpos` and `state`, and with a View uint8
(b, k, h, w, 3) as `images`. A row's seed, 0 to 2^32 - 1, seeds whatever the policy draws for that row, and differs from
chunk to chunk. Actions outside the environment's bounds are clipped."""


@dataclasses.dataclass
class _Acting:
    """A policy as the collector calls it."""

    policy: Policy
    horizon: int
    view: simulators.View | None
    step: int
    weights: str = ""

    def __call__(self, observations: Observation, draws: Sequence[Draw | None]) -> Float32[np.ndarray, "b t a"]:
        seen = {name: observations[name] for name in ("qpos", "state") if name in observations}
        if self.view is not None:
            seen["images"] = simulators.stacked_images(observations, self.view)
        seeds = np.array([0 if draw is None else seed_of_draw(draw) for draw in draws], np.uint32)
        chunks = self.policy(seen, seeds)
        if chunks.ndim != 3 or chunks.shape[:2] != (len(draws), self.horizon):
            expected = f"({len(draws)}, {self.horizon}, actions)"
            raise ValueError(f"the policy returned shape {chunks.shape}; expected {expected}")
        return np.asarray(chunks, np.float32)


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
    done: Callable[[Job, Rollout], None] = lambda job, rollout: None,
) -> Evaluation:
    """Runs episodes 0 to `episodes - 1`; the result is a function of the arguments, not of the clock.

    Episode e starts in a state that depends on (seed, e) alone, so that evaluations at different steps meet the same
    scenes, and draws what depends on (seed, step, e) alone, whatever the number of environments. An episode ends with
    the environment's first success, at a termination, or at its time limit.

    The batch always has `num_envs` rows, so that a compiled policy meets one shape: an environment that is done takes
    the next episode, and where there is none left another row's observation fills its row.

    Args:
      policy: Maps observations to chunks of `horizon` actions.
      env_id: Of the environment (simulators.make).
      seed: Of the initial states and, with `step`, of the policy's draws.
      step: Updates behind the policy.
      episodes: Episodes in all.
      num_envs: Environments that share one call of the policy. Each costs 0.9 s once to make; stepping is what takes
        the time, about 1 ms a step on one core.
      horizon: Actions of one chunk, all executed before the policy is asked again.
      view: Images that the policy sees, rendered when it is asked; None: none.
      done: Called with each episode, whose actions are kept and whose observations are not, when it has ended.

    Raises:
      ConfigError: If the environment is unknown, the simulator is not installed, or it cannot render what is asked for.
      NonFiniteError: If the policy gave NaN or Inf.
      ValueError: If the policy's chunks have the wrong shape.
    """
    jobs = [
        Job(
            number=episode,
            seed=seed_of(Purpose.QCHUNK_EVALUATION_SCENE, seed, episode),
            draw=tuple(words(Purpose.QCHUNK_EVALUATION_ACTION, seed, step, episode)),
            path=Path(f"episode_{episode:04d}"),
        )
        for episode in range(episodes)
    ]
    actor = _Acting(policy, horizon, view, step)
    return evaluation.evaluate(_collector(env_id, num_envs, view), actor, jobs, done=done)


@functools.lru_cache(maxsize=1)
def _collector(env_id: str, num_envs: int, view: simulators.View | None) -> Collector:
    """Environments, kept from one evaluation to the next; a reset leaves nothing of what they did before."""
    return Collector(ThreadWorkers(lambda: simulators.make(env_id, view), num_envs, name=env_id))


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
    """Plays the episodes of `evaluate`, and returns them in order."""
    finished: dict[int, Rollout] = {}
    evaluate(
        policy,
        env_id,
        seed=seed,
        step=step,
        episodes=episodes,
        num_envs=num_envs,
        horizon=horizon,
        view=view,
        done=lambda job, rollout: finished.update({job.number: rollout}),
    )
    return [finished[episode] for episode in range(episodes)]


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
