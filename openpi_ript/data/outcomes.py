"""How the episodes of a dataset ended, and what follows for each: its advantage, its label, whether it is drawn."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from chunkwise.data.groups import rloo, uniform_groups
from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.errors import DataError
from openpi_ript.config.data import AdvantageConfig, DataConfig
from openpi_ript.config.model import Optimality
from openpi_ript.data.advantage import label, process
from openpi_ript.data.transforms import Rollouts, init_hash


def starts_of(table: FrameTable, config: DataConfig) -> Sequence[tuple[str, str]]:
    """Returns hash of the initial state, and task, of each episode."""
    states, prompts = (table.columns[key][table.starts] for key in (config.init_key or config.state_key, "task_index"))
    hashes = [init_hash(np.atleast_1d(state)) for state in states]
    return list(zip(hashes, [table.tasks[index] for index in prompts.tolist()], strict=True))


def rollouts_of(
    table: FrameTable,
    config: DataConfig,
    names: Sequence[tuple[str, str]],
    held: Bool[np.ndarray, " e"],
    notes: list[str],
) -> tuple[Rollouts, np.ndarray, Mapping[str, int], bool]:
    """Outcome and advantage of each episode, whether its frames are drawn, what was replaced; appends to `notes`.

    Rollouts that are held out are compared with one another alone, and have no part in the others' advantages. Last,
    whether rewards are compared and the successes, were they compared instead, would find a better rollout.

    Args:
      table: All frames.
      config: How outcomes are found and compared.
      names: Of each episode, see `starts_of`.
      held: Episodes that are held out.
      notes: Gets what a user should know.

    Raises:
      DataError: Advantages are asked for, and there is no outcome; or a reward is infinite.
    """
    starts, columns = table.starts, table.columns
    known = [key for key in (config.reward_key, config.success_key) if key in columns]
    if config.advantage is not None and not known:
        raise DataError(
            f"{config.path}: expected {config.reward_key!r} or {config.success_key!r} to compute advantages from, "
            "found neither; name the columns in data.reward_key, data.success_key, or set data.advantage to None"
        )
    success = _success(table, config)
    reward = success.astype(np.float64)
    if config.reward_key in known:
        reward = np.add.reduceat(columns[config.reward_key].astype(np.float64), starts)
        if config.success_key not in known:
            success = reward > 0
            if not success.any():
                notes.append(
                    f"no episode counts as a success: there is no column {config.success_key!r} (data.success_key), "
                    f"and no sum of {config.reward_key!r} is above 0"
                )
    raw, advantage = np.ones(len(starts)), np.ones(len(starts))
    kept = np.ones(len(starts), bool)
    replaced: Mapping[str, int] = {}
    said: Sequence[str] = ()
    by_success = False
    if config.advantage is not None:
        for side in (held, ~held):
            if side.any():
                groups = _groups([names[index] for index in np.flatnonzero(side).tolist()], config.advantage)
                raw[side], advantage[side], kept[side], replaced, said = _advantages(
                    reward[side], groups, config.advantage
                )
        notes.extend(said)
        if len(known) == 2:
            groups, succeeded = _groups(names, config.advantage)[~held], success[~held]
            notes.extend(_contradictions(label(raw)[~held], succeeded, groups, config))
            by_success = bool((rloo(succeeded.astype(np.float64), groups) > 0).any())
    rollouts = Rollouts(
        init_hash=[name for name, _ in names],
        success=success,
        reward=reward,
        length=table.lengths,
        raw_advantage=raw,
        advantage=advantage.astype(np.float32),
        optimality=label(raw),
    )
    return rollouts, kept, replaced, by_success


def _success(table: FrameTable, config: DataConfig) -> Bool[np.ndarray, " e"]:
    """Whether each episode succeeded, as its column says; all did where there is none."""
    starts, columns = table.starts, table.columns
    if config.success_key not in columns:
        return np.ones(len(starts), bool)
    return np.logical_or.reduceat(columns[config.success_key].astype(bool), starts)


def _groups(starts: Sequence[tuple[str, str]], config: AdvantageConfig) -> Int64[np.ndarray, " n"]:
    """Number of each rollout's group."""
    by = {
        "init_hash": [" ".join(start) for start in starts],
        "task": [prompt for _, prompt in starts],
        "dataset": [""] * len(starts),
    }
    return np.unique(by[config.group_by], return_inverse=True)[1]


def _contradictions(
    labels: Int32[np.ndarray, " n"],
    success: Bool[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    config: DataConfig,
) -> Iterator[str]:
    """A note where a failure is labelled positive, and a success of its group negative."""
    better, worse = ~success & (labels == Optimality.POSITIVE), success & (labels == Optimality.NEGATIVE)
    reversed_groups = np.intersect1d(groups[better], groups[worse])
    wrong = (better | worse) & np.isin(groups, reversed_groups)
    if wrong.any():
        yield (
            f"{wrong.sum()} labels contradict {config.success_key!r}: in {len(reversed_groups)} groups a failure is "
            f"positive and a success negative, by the sums of {config.reward_key!r}; set data.reward_key none to label "
            "by success"
        )


def _advantages(
    reward: Float64[np.ndarray, " n"], groups: Int64[np.ndarray, " n"], config: AdvantageConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Mapping[str, int], Sequence[str]]:
    """Raw and shaped advantage of each rollout, whether it is drawn, what was replaced, and notes."""
    raw = rloo(reward, groups)
    uniform = uniform_groups(reward, groups)
    kept = ~uniform if config.uniform_groups == "drop" else np.ones(len(reward), bool)
    advantage = np.zeros(len(reward))
    advantage[kept], replaced = process(raw[kept], config)
    notes = (
        f"{len(np.unique(groups))} groups of rollouts by {config.group_by}; {int(uniform.sum())} of "
        f"{len(reward)} rollouts are in groups of one or of equal rewards ({config.uniform_groups})",
        f"advantages: {int((raw > 0).sum())} positive; replaced: {replaced}",
    )
    return raw, advantage, kept, replaced, notes
