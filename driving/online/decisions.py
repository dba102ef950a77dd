"""What a round's drives teach: each decision, what was seen at it, and the advantage of its drive in its group."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from chunkwise.data.groups import rloo
from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from driving.eval.closed_loop import Result
from driving.online.acting import LOG_PROB, MODE
from driving.policies.policy import WaypointPolicy
from driving.policies.town import named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decisions:
    """Of drives that differ from their group; n rows."""

    inputs: Mapping[str, np.ndarray]
    """What the model is given (driving.tasks.waypoints.inputs)."""
    mode: Int32[np.ndarray, " n"]
    log_prob: Float32[np.ndarray, " n"]
    """Under the policy that drew the mode."""
    advantage: Float32[np.ndarray, " n"]
    seed: int
    """Of the run."""

    def batch(self, step: int, rows: slice, size: int) -> dict[str, Any]:
        """Returns some rows of an update's decisions, each drawn as often as any other."""
        count = len(self.mode)
        taken = generator(Purpose.DECISIONS, self.seed, step).integers(0, count, size)[rows]
        chosen = {name: value[taken] for name, value in self.inputs.items()}
        return {
            **chosen,
            "mode": self.mode[taken],
            "log_prob": self.log_prob[taken],
            "advantage": self.advantage[taken],
        }


def result_of(rollout: Rollout) -> Result:
    """Returns what a drive in a town with measured=True was worth."""
    names = [field.name for field in dataclasses.fields(Result)]
    return Result(**dict(zip(names, rollout.observations["result"][-1].astype(np.float64).tolist(), strict=True)))


def decisions_of(
    policy: WaypointPolicy,
    drives: Sequence[Rollout],
    scores: Float64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    *,
    seed: int,
) -> Decisions | None:
    """Prepares the decisions of a round; None where every group's drives were worth the same.

    The advantage of a decision is that of its drive: by how much its score is above the mean of its group's others.

    Args:
      policy: Says how observations are read; its weights do not matter.
      drives: With notes of each decision.
      scores: Of each.
      groups: Number of each one's group.
      seed: Of the run.

    Raises:
      DataError: A drive lacks the notes of a decision.
    """
    every = rloo(scores, groups)
    kept = [i for i, advantage in enumerate(every.tolist()) if advantage]
    for i in kept:
        for name in (MODE, LOG_PROB):
            found = drives[i].notes[name].shape if name in drives[i].notes else None
            if found != (drives[i].length,):
                raise DataError(
                    f"drive of seed {drives[i].seed} at step {drives[i].step}: expected {name} of each of its "
                    f"{drives[i].length} decisions, found {found}; delete the folder of that round"
                )
    if not kept:
        return None
    seen = {
        name: np.concatenate([drives[i].observations[name][:-1] for i in kept]) for name in drives[kept[0]].observations
    }
    lengths = [drives[i].length for i in kept]
    return Decisions(
        inputs=policy.prepare(named(policy, seen)).inputs,
        mode=np.concatenate([drives[i].notes[MODE] for i in kept]).astype(np.int32),
        log_prob=np.concatenate([drives[i].notes[LOG_PROB] for i in kept]).astype(np.float32),
        advantage=np.repeat(every[kept], lengths).astype(np.float32),
        seed=seed,
    )
