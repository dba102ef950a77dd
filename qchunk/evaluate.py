"""Success of a policy in the real environment: chunks executed open loop, several environments in lockstep."""

import dataclasses
import functools
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
