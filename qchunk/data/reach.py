"""Recorded actions that the policy cannot give out, since it never leaves -1 .. 1 of the normalised actions.

And chunks that the critic never learns from, where all are partial and those are dropped; and episodes of one frame of
which nothing is learnt.
"""

import dataclasses

import numpy as np
from jaxtyping import Int64

from chunkwise.data.episodes import Episode
from chunkwise.errors import ConfigError, DataError
from qchunk.config import QChunkConfig
from qchunk.data.conventions import MOST_VALUES
from qchunk.data.dataset import Dataset, load_episode
from qchunk.data.holdout import held_out

TOLERANCE = 1e-3
"""Beyond -1 .. 1, in normalised units: no action is missed by so little."""
MAX_SHARE = 0.5
"""Share of frames out of reach above which a run is refused that could reach them all: mean_std leaves 95 % or more of
14 joints out of reach, none all of a robot's that counts in other units; quantile a tenth to a quarter."""

LOOKED_AT = 32
"""Episodes whose ends are looked at, evenly over the dataset: each is read for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reach:
    """How many frames have an action outside of what the policy can give out."""

    frames: int
    outside: int
    """Frames with an action that is out of reach in any dimension."""
    by_dimension: Int64[np.ndarray, " a"]
    """Frames by dimension."""

    @property
    def share(self) -> float:
        """Share of frames out of reach, 0 to 1."""
        return self.outside / max(self.frames, 1)


def count(config: QChunkConfig, dataset: Dataset) -> Reach:
    """Counts the frames of all good episodes whose action is out of reach; reads them once.

    With min_max of the dataset's own statistics there are none, and nothing is read.

    Raises:
      DataError: An episode could not be read.
    """
    frames = int(dataset.source.lengths.sum())
    by_dimension = np.zeros(dataset.source.dims["action"], np.int64)
    outside = 0
    if config.data.action_norm != "min_max" or config.data.norm_stats is not None:
        for index in range(len(dataset.source)):
            beyond = np.abs(dataset.action_norm.apply(load_episode(dataset.source, index).action)) > 1 + TOLERANCE
            by_dimension += beyond.sum(0)
            outside += int(beyond.any(1).sum())
    return Reach(frames=frames, outside=outside, by_dimension=by_dimension)


def judge(config: QChunkConfig, dataset: Dataset) -> tuple[str, ...]:
    """Returns what a run should say of actions out of reach, and of episodes that teach nothing.

    A run that goes on, and an agent of one's own, which may not clip, are not refused.

    Raises:
      DataError: With data.action_norm none or mean_std most frames are out of reach, or no episode teaches anything, or
        no success does. It says what to change.
      ConfigError: All chunks of the dataset are partial, and agent.partial_chunks drops them; or online.online_ratio
        leaves one side without a row.
    """
    if not config.run.resume:
        _require_both_sides(config)
    may_refuse = config.agent.factory is None and not config.run.resume
    if may_refuse:
        _require_whole_chunks(config, dataset)
    notes = _judge_labels(config, dataset) + _judge_single_frames(config, dataset, may_refuse=may_refuse)
    notes += _judge_ends(config, dataset, may_refuse=may_refuse)
    reach = count(config, dataset)
    if not reach.outside:
        return notes
    worst = int(reach.by_dimension.argmax())
    mode = config.data.action_norm
    instead = "compute the statistics anew: leave data.norm_stats out" if mode == "min_max" else ""
    said = (
        f"{100 * reach.share:.1f} % of {reach.frames} frames have an action that the policy cannot give out: outside "
        f"-1 .. 1 with data.action_norm={mode} (most in dimension {worst}: "
        f"{100 * reach.by_dimension[worst] / reach.frames:.1f} %); "
        f"{instead or '--data.action-norm min_max reaches them all'}"
    )
    if may_refuse and mode in ("none", "mean_std") and reach.share > MAX_SHARE:
        raise DataError(f"{config.data.path}: {said}. Expected at most {100 * MAX_SHARE:.0f} % of the frames")
    return (*notes, said)


def _judge_labels(config: QChunkConfig, dataset: Dataset) -> tuple[str, ...]:
    """Returns what a run should say where data.positive_ratio is rounded so that one label is never drawn."""
    ratio, places = config.data.positive_ratio, config.data.episodes_per_epoch
    positives = dataset.source.positives[~held_out(config.data, dataset.source)]
    count = round(ratio * places)
    if not 0 < ratio < 1 or 0 < count < places or not positives.any() or positives.all():
        return ()
    lacking = "positive" if count == 0 else "negative"
    return (
        f"data.positive_ratio {ratio:g} of data.episodes_per_epoch {places} is {count} places: none of the "
        f"{(positives == (count == 0)).sum()} {lacking} episodes is ever drawn. A larger data.episodes_per_epoch, or "
        f"{'0' if count == 0 else '1'} where that is meant",
    )


def _judge_single_frames(config: QChunkConfig, dataset: Dataset, *, may_refuse: bool) -> tuple[str, ...]:
    """Returns what a run should say of episodes of one frame that time cut off: without the state after it there is no
    step to learn from (`qchunk.data.Pool.training`). Raises DataError if all to train on are such.
    """
    drawn = np.flatnonzero(~held_out(config.data, dataset.source))
    single = drawn[dataset.source.lengths[drawn] == 1].tolist()
    lost = sum(_is_cut_off(config, load_episode(dataset.source, index)) for index in single)
    if not lost:
        return ()
    said = (
        f"{lost} of {len(drawn)} episodes to train on have a single frame, no /terminated that says that the episode "
        "ended there, and no state after it: nothing is learnt from them"
    )
    if may_refuse and lost == len(drawn) and (config.online is None or config.online.start > 0):
        raise DataError(
            f"{config.data.path}: {said}. Expected /terminated, 1 where an episode ended, or longer episodes"
        )
    return (said,)


def _judge_ends(config: QChunkConfig, dataset: Dataset, *, may_refuse: bool) -> tuple[str, ...]:
    """Returns what a run should say of successes that are rewarded in their last frame alone, where time cut them off:
    that frame is not trained on. Looks at up to LOOKED_AT episodes, and at sparse rewards alone.

    Raises:
      DataError: All successes that were looked at are such.
    """
    source = dataset.source
    drawn = np.flatnonzero(~held_out(config.data, source) & source.positives & (source.lengths > 1))
    places = np.unique(np.linspace(0, len(drawn) - 1, min(len(drawn), LOOKED_AT)).round().astype(np.int64))
    looked_at = [load_episode(source, index) for index in drawn[places].tolist()]
    rewards = [episode.reward for episode in looked_at]
    frames = sum(map(len, rewards))
    if not rewards or len(np.unique(np.concatenate(rewards))) > min(MOST_VALUES, frames // 2):  # hardly repeats: dense
        return ()
    high = max(reward.max() for reward in rewards)
    solved = [episode for episode in looked_at if episode.reward.max() == high]
    lost = sum(_is_cut_off(config, episode) and episode.reward[:-1].max() < high for episode in solved)
    if not lost:
        return ()
    said = (
        f"{lost} of {len(solved)} episodes that reach the highest reward, {high:g} (of {len(looked_at)} looked at), "
        "reach it in their last frame alone, and neither /terminated nor a state after it says what follows: that "
        "frame's reward is never trained on"
    )
    if may_refuse and lost == len(solved) and (config.online is None or config.online.start > 0):
        raise DataError(
            f"{config.data.path}: {said}. Expected 1 in the last frame of /terminated where a success ends an episode, "
            "or no /terminated at all, or a frame more behind the success"
        )
    return (said,)


def _is_cut_off(config: QChunkConfig, episode: Episode) -> bool:
    """Whether time cut an episode off before the state after its last action was recorded."""
    return not episode.terminated.any() and len(episode.states[config.data.observation]) <= episode.length


def _require_both_sides(config: QChunkConfig) -> None:
    """Raises ConfigError where a share of online rows is rounded to none or to all, and is not 0 or 1."""
    if config.online is None or (ratio := config.online.online_ratio) is None:
        return
    batch = config.train.batch_size
    rows = config.online.fixed_rows(batch)
    if (rows == 0 and ratio > 0) or (rows == batch and ratio < 1):
        raise ConfigError(
            f"online.online_ratio is {ratio:g}, which of train.batch_size {batch} is {rows} rows: batches would have "
            f"{'no online row' if rows == 0 else 'no row of the dataset'}. Expected a larger "
            f"train.batch_size, or {'0' if rows == 0 else '1'} where that is meant"
        )


def _require_whole_chunks(config: QChunkConfig, dataset: Dataset) -> None:
    """Refuses to train a policy against a critic that no update on the dataset trains.

    Raises:
      ConfigError: No episode has a whole chunk with the state after it, which an episode that time cut off may lack;
        or all rows are of online episodes that are cut before.
    """
    horizon, online = config.agent.critic_steps, config.online
    name = "agent.horizon" if config.agent.decoupled is None else "agent.decoupled.policy_horizon"
    if config.agent.partial_chunks == "use":
        return
    if online is not None and online.online_ratio == 1 and online.max_steps is not None and online.max_steps < horizon:
        raise ConfigError(
            f"agent.partial_chunks is 'drop' and {name} {horizon}, and online.max_steps {online.max_steps} ends each "
            "episode before: with online.online_ratio 1 the critic would learn nothing online. Expected at least "
            f"{horizon} steps, or agent.partial_chunks 'use'"
        )
    if online is not None and online.start == 0:
        return
    drawn = np.flatnonzero(~held_out(config.data, dataset.source))
    longest = int(dataset.source.lengths[drawn].max())
    if longest > horizon:
        return
    for index in drawn[dataset.source.lengths[drawn] == horizon].tolist():
        if not _is_cut_off(config, load_episode(dataset.source, index)):
            return
    cut = " and was cut off before its next state was recorded" if longest == horizon else ""
    raise ConfigError(
        f"agent.partial_chunks is 'drop' and {name} {horizon}, and the longest episode to train on in "
        f"{config.data.path} has {longest} frames{cut}: no chunk is whole, and the critic would learn nothing. "
        f"Expected a shorter {name}, or agent.partial_chunks 'use'"
    )
