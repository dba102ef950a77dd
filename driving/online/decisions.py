"""What a round's drives teach: each decision, what was seen at it, and its advantage in its group."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from chunkwise.data.groups import rloo
from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import DataError
from driving.eval.closed_loop import Result, result_of
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


def worth_of(
    drives: Sequence[Rollout], expert_metres: Sequence[float], *, seconds: float, horizon_s: float | None
) -> Float64[np.ndarray, "n decisions"]:
    """Returns what each decision of some drives is judged by, and within a horizon NaN where a drive had ended.

    Args:
      drives: In a town with measured=True, and with this horizon.
      expert_metres: How far the town's own driver came on the route of each.
      seconds: Of a drive that lasts.
      horizon_s: Seconds from a decision on whose score it is; None: the score of the whole drive, in all
        columns, so that a drive that ended early is compared with the others at any time.

    Within a horizon progress is by what the town's driver made in the mean of its drive, and MP is left out: at a red
    light nobody gets on, and who passes it would be worth no less than who stands.
    """
    found = np.full((len(drives), max(drive.length for drive in drives)), np.nan)
    for worth, drive, metres in zip(found, drives, expert_metres, strict=True):
        if horizon_s is None:
            worth[:] = result_of(drive).score(metres)
            continue
        mean = metres * horizon_s / seconds
        for number, row in enumerate(drive.observations["results"][-1][: drive.length]):
            worth[number] = Result.read(row).score(mean, least_progress=0.0)
    return found


def decisions_of(
    policy: WaypointPolicy,
    drives: Sequence[Rollout],
    worth: Float64[np.ndarray, "n decisions"],
    groups: Int64[np.ndarray, " n"],
    *,
    seed: int,
) -> Decisions | None:
    """Prepares the decisions of a round; None where nobody did better or worse than its group.

    The advantage of a decision is by how much it is worth more than the mean of its group's others of the same number.
    Those whose advantage is 0 teach nothing, and are left out.

    Args:
      policy: Says how observations are read; its weights do not matter.
      drives: With notes of each decision.
      worth: By what each decision is judged, as `worth_of` returns it.
      groups: Number of each one's group.
      seed: Of the run.

    Raises:
      DataError: A drive lacks the notes of a decision.
    """
    every = np.stack([rloo(column, groups) for column in worth.T], axis=1)
    advantages = [found[: drive.length] for found, drive in zip(every, drives, strict=True)]
    kept = [i for i, found in enumerate(advantages) if found.any()]
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
    taught = [np.flatnonzero(advantages[i]) for i in kept]

    def gathered(of: Callable[[Rollout], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(drives[i])[rows] for i, rows in zip(kept, taught, strict=True)])

    names = drives[kept[0]].observations
    seen = {name: gathered(lambda drive, name=name: drive.observations[name]) for name in names}
    return Decisions(
        inputs=policy.prepare(named(policy, seen)).inputs,
        mode=gathered(lambda drive: drive.notes[MODE]).astype(np.int32),
        log_prob=gathered(lambda drive: drive.notes[LOG_PROB]).astype(np.float32),
        advantage=np.concatenate([advantages[i][rows] for i, rows in zip(kept, taught, strict=True)], dtype=np.float32),
        seed=seed,
    )
