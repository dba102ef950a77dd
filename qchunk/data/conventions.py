"""What the rewards in a dataset's files mean: which reward ends an episode as a success, and that all files agree."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64

from chunkwise.data.problems import Problem
from qchunk.data.readers.report import EpisodeReport

MOST_VALUES = 16
"""Distinct rewards of a dataset that are taken for a sparse reward or for stages; above, the reward is a dense one."""

SUCCESS_REWARD = 1.0
"""Reward of a solved task in robosuite, robomimic and LeRobot's simulated sets, shaped rewards included."""


def ends_by_rewards(rewards: Iterable[Float64[np.ndarray, " T"] | None]) -> bool:
    """Whether the rewards of a dataset say where episodes end, and a done in the last frame only that they do.

    They do where all are -1, say, until success, then 0: no reward tells a success by being 1 or more.

    Args:
      rewards: Of each episode; None where it has none.
    """
    known = [one for one in rewards if one is not None]
    return bool(known) and all(one.max() <= 0 for one in known) and any(one.min() < 0 for one in known)


def terminations(
    done: Bool[np.ndarray, " T"], *, solved: bool, final_done: Literal["time_limit", "termination"]
) -> Bool[np.ndarray, " T"]:
    """Where no value may be bootstrapped, from a `done` that also marks where a recording simply ends.

    robomimic (dataset_states_to_obs, done_mode 2) and LeRobot set `done` in every episode's last frame. There it is
    taken for a time limit unless the episode earned its success in that frame.

    Args:
      done: As recorded.
      solved: Whether the last frame earned success.
      final_done: time_limit as above; termination takes every done as it is.
    """
    ended = done.copy()
    if final_done == "time_limit" and not solved:
        ended[-1:] = False
    return ended


class SuccessRule:
    """How episodes get their labels in formats that have no folders for them; told of every episode first."""

    def __init__(self) -> None:
        self._named, self._sparse, self._solved, self._rewarded = False, True, False, False

    @property
    def facts(self) -> dict[str, bool]:
        """What was seen, for `add` of another one."""
        return {"named": self._named, "sparse": self._sparse, "solved": self._solved, "rewarded": self._rewarded}

    def add(self, named: bool, sparse: bool, solved: bool, rewarded: bool) -> None:
        """Takes in the facts of another one, which saw other episodes."""
        self._named, self._sparse = self._named or named, self._sparse and sparse
        self._solved, self._rewarded = self._solved or solved, self._rewarded or rewarded

    def see(self, success: bool | None, reward: Float64[np.ndarray, " T"] | None) -> None:
        """Takes in what an episode says of its success itself, and its rewards."""
        self._named = self._named or success is not None
        self._rewarded = self._rewarded or reward is not None
        self._sparse = self._sparse and reward is not None and bool(np.isin(reward, (0, 1)).all())
        self._solved = self._solved or (reward is not None and bool((reward == 1).any()))

    def __str__(self) -> str:
        if self._named:
            return "success as the source says"
        if self._sparse and self._solved:
            return "success where a reward of 1 was earned; all rewards are 0 or 1"
        if not self._rewarded:
            return "none: the source has no rewards"
        return "none: a reward that is not 0 or 1, or never 1, does not say what success is"

    def label(self, success: bool | None, reward: Float64[np.ndarray, " T"] | None) -> bool | None:
        """Returns an episode's label; None for none."""
        if self._named or reward is None or not (self._sparse and self._solved):
            return success
        return bool((reward == 1).any())


def success_reward(reports: Sequence[EpisodeReport]) -> float | None:
    """Returns the reward at which an episode without /terminated ends as a success; None where no reward says so.

    It is the greatest of the dataset, if rewards are few values that repeat, and whoever has reached it keeps it to
    the file's end. A reward that is reached and left again, one that is the same everywhere, a dense one, and one
    below 0, which no convention has for success (OGBench counts up to 0), end nothing: such files were cut off by time.

    Args:
      reports: Of the episodes that the run takes.
    """
    cut = [report for report in reports if report.rewards is not None and not report.rewards.terminated]
    values = _values(cut)
    if values is None or len(values) < 2 or values[-1] < 0:
        return None
    reached = [report.rewards for report in cut if report.rewards is not None and report.rewards.high == values[-1]]
    return values[-1] if all(rewards.high_to_end for rewards in reached) else None


def convention_problems(reports: Sequence[EpisodeReport]) -> list[Problem]:
    """Finds files whose rewards cannot be meant as those of most others: two conventions make one episode's end worth
    what another's failure is.

    Args:
      reports: Of the episodes that the run takes, with the rewards of their files.
    """
    if mixed := _width_problems(reports):
        return mixed
    kinds: dict[str, list[EpisodeReport]] = {}
    sparse = _values([report for report in reports if report.rewards is not None]) is not None
    for report in reports:
        kind = _kind(report, sparse=sparse)
        if kind is not None:
            kinds.setdefault(kind, []).append(report)
    if len(kinds) < 2:
        return []
    usual = max(kinds, key=lambda kind: len(kinds[kind]))
    named = ", ".join(report.id for report in kinds[usual][:3])
    expected = (
        f"one convention in all files: {usual}, as in {len(kinds[usual])} (such as {named}); "
        "train on each kind alone, or write all rewards alike"
    )
    return [
        Problem(file=report.id, key="/reward", expected=expected, found=kind)
        for kind, members in kinds.items()
        if kind != usual
        for report in members
    ]


def _width_problems(reports: Sequence[EpisodeReport]) -> list[Problem]:
    """Finds sparse rewards that some files have in 32 bits, and others in 64: 0.1 would be two rewards, of which one is
    that of success."""
    sparse = [report for report in reports if report.rewards and len(report.rewards.values) <= MOST_VALUES]
    known = {report.id: report.rewards.values for report in sparse if report.rewards}
    single = {number: [value for value in values if value == np.float32(value)] for number, values in known.items()}
    narrow = {value for number, values in known.items() if single[number] == [*values] for value in values if value}
    found: list[Problem] = []
    for number, values in known.items():
        for value in values:
            near = float(np.float32(value))
            if value != near and near in narrow and near not in values:
                expected = f"{near!r}, as 32 bits hold it and other files have it: write all rewards in one width"
                found.append(Problem(file=number, key="/reward", expected=expected, found=repr(value)))
                break
    return found


def _kind(report: EpisodeReport, *, sparse: bool) -> str | None:
    """Names the convention of a file; None where it may be of either, as one of zeros alone."""
    rewards = report.rewards
    if rewards is None:
        return "no /reward (rewards are made from labels, 0 and 1)"
    if not sparse:
        return "a reward in the file"
    if rewards.high <= 0 and rewards.low < 0:
        return "a reward in the file, of at most 0 (as -1 until success, then 0)"
    if rewards.low >= 0 and rewards.high > 0:
        return "a reward in the file, of at least 0 (as 0 until success, then 1)"
    return None


def _values(reports: Sequence[EpisodeReport]) -> list[float] | None:
    """Distinct rewards of some files in order; None where they are too many, or hardly repeat."""
    values: set[float] = set()
    for report in reports:
        if report.rewards is None or len(report.rewards.values) > MOST_VALUES:
            return None
        values.update(report.rewards.values)
    frames = sum(report.length for report in reports)
    return None if len(values) > MOST_VALUES or frames < 2 * len(values) else sorted(values)
