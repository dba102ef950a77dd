"""Which initial states a round tries: of one task, or of several by a stated law. No jax here."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from chunkwise.data.sampling import Purpose, generator


def candidates(
    law: Literal["uniform", "success", "need"],
    *,
    seed: int,
    step: int,
    states: int,
    shares: Sequence[float],
    resting: Collection[int],
    most: int,
) -> list[int]:
    """Returns numbers of initial states in the order in which they are tried; none comes twice.

    Args:
      law: Which of several tasks is next (RolloutConfig.tasks).
      seed: Of the run.
      step: Updates behind the round; with the seed it decides every draw.
      states: Initial states of each task; the number of one is its task's place times this, and its own.
      shares: Of each task, of successes when it was last played, above 0 and below 1.
      resting: Numbers that are left out.
      most: How many at most.
    """
    rng = generator(Purpose.CANDIDATES, seed, step)
    queues = [
        [state for state in (place * states + rng.permutation(states)).tolist() if state not in resting]
        for place in range(len(shares))
    ]
    if len(queues) == 1:
        return queues[0][:most]
    success = np.array(shares)
    weights = {"uniform": np.ones(len(success)), "success": success * (1 - success), "need": 1 - success}[law]
    chosen: list[int] = []
    turn: list[int] = []
    while len(chosen) < most and any(queues):
        if law == "uniform":
            turn = turn or rng.permutation(len(queues)).tolist()
            place = turn.pop(0)
        else:
            left = weights * [bool(queue) for queue in queues]
            place = int(rng.choice(len(queues), p=left / left.sum()))
        if queues[place]:
            chosen.append(queues[place].pop(0))
    return chosen
