"""A failed rollout as one of the goal that it did reach. No jax here.

Hindsight experience replay (arXiv:1707.01495), for imitation: what led to another goal shows how that one is reached.
"""

import dataclasses

import numpy as np

from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from openpi_ript.config.rollouts import HindsightConfig

BEGUN_OUTSIDE = 2.0
"""Radii from the goal at which a rollout has to begin: nearer ones show how to stay, and a push by accident."""


def in_hindsight(rollout: Rollout, config: HindsightConfig) -> Rollout | None:
    """Returns the rollout as a success at a place where it came, up to the first frame that was near enough.

    Every frame shows that goal in place of the one that was meant; all else is as it happened, the actions too.

    Args:
      rollout: One that failed.
      config: What comes to the goal, and how near.

    Returns:
      None if its task has no such goal, or what should come to the goal began at that place, or never left it. A place
      that was passed is drawn by the rollout's own numbers.

    Raises:
      DataError: The observations lack an array, or it has fewer numbers than the goal.
    """
    name = config.reached.get(rollout.task)
    if name is None:
        return None
    missing = [array for array in (config.goal, name) if array not in rollout.observations]
    if missing:
        raise DataError(
            f"rollout of {rollout.task}, seed {rollout.seed}: expected the arrays {missing} as rollout.hindsight says, "
            f"found {sorted(rollout.observations)}"
        )
    goal, thing = rollout.observations[config.goal], rollout.observations[name]
    if thing.shape[-1] < goal.shape[-1]:
        raise DataError(
            f"rollout of {rollout.task}, seed {rollout.seed}: expected {name} with the {goal.shape[-1]} numbers of "
            f"{config.goal} at its beginning, as rollout.hindsight.reached says, found {thing.shape[-1]}"
        )
    place = thing[:, : goal.shape[-1]]
    radius = config.radius[rollout.task]
    there = place[-1]
    if config.places == "passed":
        away = np.flatnonzero(np.linalg.norm(place - place[0], axis=-1) > BEGUN_OUTSIDE * radius)
        if not away.size:
            return None
        there = place[generator(Purpose.HINDSIGHT, *rollout.draw[:-1]).choice(away)]
    distance = np.linalg.norm(place - there, axis=-1)
    if distance[0] <= BEGUN_OUTSIDE * radius:
        return None
    steps = int(np.flatnonzero(distance <= radius)[0])
    seen = {array: values[: steps + 1] for array, values in rollout.observations.items()}
    return dataclasses.replace(
        rollout,
        observations=seen | {config.goal: np.repeat(there[None], steps + 1, axis=0).astype(goal.dtype)},
        actions=rollout.actions[:steps],
        rewards=rollout.rewards[:steps],
        success=True,
        notes={},
    )


def knows(config: HindsightConfig | None, task: str) -> bool:
    """Whether failures of a task may have reached another goal."""
    return config is not None and task in config.reached
