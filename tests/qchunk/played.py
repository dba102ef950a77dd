from typing import Any

from chunkwise.envs.rollout import Rollout
from qchunk.evaluate import Policy, evaluate


def rollouts(policy: Policy, env_id: str, *, episodes: int, **settings: Any) -> list[Rollout]:
    """Plays the episodes of `evaluate`, and returns them in order."""
    finished: dict[int, Rollout] = {}

    def keep(job: Any, rollout: Rollout) -> None:
        finished[job.number] = rollout

    evaluate(policy, env_id, episodes=episodes, done=keep, **settings)
    return [finished[episode] for episode in range(episodes)]
