"""Rollouts that began alike, compared with one another: leave-one-out advantages (RLOO, arXiv:2402.14740)."""

import numpy as np
from jaxtyping import Bool, Float, Float64, Int


def rloo(rewards: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """A_i = r_i - mean of the other rewards of i's group.

    A group of one, and a group of equal rewards, gives exactly 0, and so does a reward that equals the mean of the
    others up to rounding: its sign would be a label. A reward that is not finite takes no part: its advantage is 0, and
    it is in no other one's mean.

    Args:
      rewards: Total reward of each rollout.
      groups: Group of each rollout, any integers.
    """
    rewards = rewards.astype(np.float64)
    finite = np.isfinite(rewards)
    values = np.where(finite, rewards, 0.0)
    _, group = np.unique(groups, return_inverse=True)
    count = np.bincount(group, weights=finite)[group]
    total = np.bincount(group, weights=values)[group]
    others = np.maximum(count - 1, 1)
    advantage = values - (total - values) / others
    means_something = finite & ~uniform_groups(rewards, groups) & (np.abs(advantage) > _rounding(rewards, groups))
    return np.where(means_something, advantage, 0.0)


def uniform_groups(rewards: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Whether a rollout's group has nothing to compare: one finite reward at most, or all of them equal (but for the
    rounding of the sums that they are)."""
    _, group = np.unique(groups, return_inverse=True)
    finite = np.isfinite(rewards)
    low, high = np.full(len(rewards), np.inf), np.full(len(rewards), -np.inf)
    np.minimum.at(low, group[finite], rewards[finite].astype(np.float64))
    np.maximum.at(high, group[finite], rewards[finite].astype(np.float64))
    return high[group] - low[group] <= _rounding(rewards, groups)


def _rounding(rewards: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """How far rounding may move the mean of n rewards of a group: n eps max |r|."""
    _, group = np.unique(groups, return_inverse=True)
    largest = np.zeros(len(rewards))
    np.maximum.at(largest, group, np.where(np.isfinite(rewards), np.abs(rewards), 0.0))
    return np.bincount(group)[group] * np.finfo(np.float64).eps * largest[group]
