"""What every frame of a dataset asks to predict, computed once when it is opened, so that a batch is a few gathers."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.data import history, targets
from driving.data.index import Index

PAST_S = (0.25, 0.5, 1.0)
"""Moments before a frame at which a car's motion says how it is changing: braking, turning in."""
PAST_TOLERANCE_S = 0.1
"""How far from such a moment a frame may be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """Arrays over all frames F of an index; 0 where the mask beside them is false."""

    rows: Int64[np.ndarray, "F n"]
    """Frame at each of the n times of a sample whose anchor is the frame."""
    time_valid: Bool[np.ndarray, "F n"]
    pose: Float64[np.ndarray, "F 3"]
    """x, y and yaw, continuous over +-pi. For targets alone: where no place or yaw is recorded, it knows where the car
    goes next."""
    pose_valid: Bool[np.ndarray, " F"]
    yaw_rad: Float64[np.ndarray, " F"]
    """What a model may be given of the heading: as recorded, else the direction in which the car came."""
    yaw_valid: Bool[np.ndarray, " F"]
    speed_mps: Float32[np.ndarray, " F"]
    speed_valid: Bool[np.ndarray, " F"]
    yaw_rate_radps: Float32[np.ndarray, " F"]
    yaw_rate_valid: Bool[np.ndarray, " F"]
    past_motion: Float32[np.ndarray, "F p"]
    """By how much speed, then yaw rate, differed at each of PAST_S before."""
    past_motion_valid: Bool[np.ndarray, "F p"]
    """Whether both moments are known."""
    waypoints: Float32[np.ndarray, "F t 2"]
    waypoint_valid: Bool[np.ndarray, "F t"]


def make_tables(index: Index, config: DataConfig) -> Tables:
    """Computes them, episode by episode: 1 ms for an episode of 200 frames.

    Raises:
      DataError: If a number is more than float32 can hold, such as a speed from two places and next to no time.
    """
    parts = []
    for episode, file in enumerate(index.files):
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below, and refused by its name
            part = _episode(index, episode, config)
        for name, values in part.items():
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                key = f"{file}: frames[{bad[0][0]}]: {name}"
                raise DataError(f"{key}: expected a number that float32 can hold, found {values[tuple(bad[0])]}")
        parts.append(part)
    return Tables(**{key: np.concatenate([part[key] for part in parts]) for key in parts[0]})


def plans_to_stand(index: Index, episode: int, tables: Tables, config: DataConfig) -> bool:
    """Whether waypoints of an episode that were not driven look like a list filled up with its last place."""
    rows, listed = index.rows(episode), index.expert_waypoints(episode)
    if index.waypoints_driven[episode] or config.waypoint_source == "poses" or not listed.size:
        return False
    if not moves_at_end(tables.speed_mps[rows], tables.speed_valid[rows]):
        return False
    wanted = {"steps": config.waypoint_steps, "dt_s": config.waypoint_dt_s}
    listed_dt_s, known = float(index.waypoint_dt_s[episode]), list[int]()
    for filled in (False, True):
        _, valid = targets.waypoints_from_expert(index.t[rows], listed, listed_dt_s, moving_at_end=filled, **wanted)
        known.append(int(valid.sum()))
    return known[0] > known[1]


def fills_headings(index: Index, episode: int, tables: Tables, config: DataConfig) -> tuple[bool, bool]:
    """Whether an episode's waypoints, and whether its poses, need frames that have a place and record no yaw.

    Where none records any, its heading is the direction of travel, and poses never needed more than that.
    """
    rows = index.rows(episode)
    placed, headed = np.all(np.isfinite(index.pose[rows, :2]), axis=1), np.isfinite(index.pose[rows, 2])
    if not headed.any():
        headed = tables.pose_valid[rows]
    less = placed & headed
    if np.array_equal(less, placed):
        return False, False
    moving = moves_at_end(tables.speed_mps[rows], tables.speed_valid[rows])
    waypoints, valid = _waypoints(index, episode, config, tables.pose[rows], less, less, moving)
    same = np.array_equal(waypoints, tables.waypoints[rows]) and np.array_equal(valid, tables.waypoint_valid[rows])
    return not same, not np.array_equal(less, tables.pose_valid[rows])


def lacks_places(index: Index, episode: int) -> bool:
    """Whether an episode has frames without a place beside others that have one, or a yaw."""
    pose = index.pose[index.rows(episode)]
    placed = np.all(np.isfinite(pose[:, :2]), axis=1)
    return not placed.all() and bool((placed | np.isfinite(pose[:, 2])).any())


def yaw_rates_of(
    index: Index, rows: slice, max_gap_s: float
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Returns what poses of an episode's frames say of its yaw rate, as `targets.yaw_rates`."""
    t, pose = index.t[rows], index.pose[rows]
    yaw, known = targets.headings(t, pose, index.speed_mps[rows], max_gap_s=max_gap_s)
    placed = np.all(np.isfinite(pose[:, :2]), axis=1)
    return targets.yaw_rates(t, yaw, known, np.isfinite(pose[:, 2]), placed, max_gap_s=max_gap_s)


def judged(index: Index, episode: int, tables: Tables, config: DataConfig) -> set[str]:
    """Returns what of an episode earlier versions took otherwise, in words; see driving/data/batches.py."""
    rows, found = index.rows(episode), set[str]()
    if (np.isnan(index.speed_mps[rows]) & (tables.speed_mps[rows] < 0)).any():
        found.add("speeds from places are negative in reverse")
    if (yaw_rates_of(index, rows, config.max_gap_s)[2] & ~tables.yaw_rate_valid[rows]).any():
        found.add("yaw rates of sudden turns are masked")
    own, told = np.zeros_like(tables.past_motion[rows]), np.zeros_like(tables.past_motion_valid[rows])
    _take_histories(index, rows, own, told)
    if (tables.past_motion_valid[rows] & ~told)[index.history_counts[rows] > 0].any():
        found.add("past motion is the frames' own where their history knows none")
    if masked_plans(index, episode, tables, config):
        found.add("frames without a plan are masked where none was driven")
    return found


def masked_plans(index: Index, episode: int, tables: Tables, config: DataConfig) -> int:
    """Returns how many frames list no plan, know where the car went, and are masked: their drive was not the plan."""
    listed, rows = index.expert_waypoints(episode), index.rows(episode)
    if index.waypoints_driven[episode] or config.waypoint_source == "poses" or not listed.size or _lists(listed).all():
        return 0
    placed = np.all(np.isfinite(index.pose[rows, :2]), axis=1)
    moving = moves_at_end(tables.speed_mps[rows], tables.speed_valid[rows])
    poses = dataclasses.replace(config, waypoint_source="poses")
    _, known = _waypoints(index, episode, poses, tables.pose[rows], placed, tables.pose_valid[rows], moving)
    return int((known.any(axis=1) & ~_lists(listed)).sum())


def _lists(listed: Float32[np.ndarray, "T m 2"]) -> Bool[np.ndarray, " T"]:
    """Which frames list waypoints."""
    return np.all(np.isfinite(listed[:, 0]), axis=1)


def moves_at_end(speed_mps: Float[np.ndarray, " T"], known: Bool[np.ndarray, " T"]) -> bool:
    """Whether the car moves at the last frame, or it is not known that it stands."""
    return bool(not known[-1] or abs(speed_mps[-1]) > targets.MOVING_MPS)


def _episode(index: Index, episode: int, config: DataConfig) -> dict[str, np.ndarray]:
    rows = index.rows(episode)
    t, gap = index.t[rows], config.max_gap_s
    nearest, time_valid = targets.nearest_frames(t, np.array(config.offsets_s), tolerance_s=config.tolerance_s)
    place, recorded = index.pose[rows, :2], index.speed_mps[rows]
    placed = np.all(np.isfinite(place), axis=1)
    heading, headed = targets.headings(t, index.pose[rows], recorded, max_gap_s=gap, ahead=True)
    pose = np.concatenate([np.nan_to_num(place), heading[:, None]], axis=1)
    pose, placed, headed = targets.placed_between(t, pose, placed, headed, max_gap_s=gap)
    yaw, yaw_valid = targets.headings(t, index.pose[rows], recorded, max_gap_s=gap)
    speed, speed_valid = _recorded_or(recorded, *targets.speeds(t, place, index.pose[rows, 2], max_gap_s=gap))
    yaw_rate, yaw_rate_valid = _recorded_or(index.yaw_rate_radps[rows], *yaw_rates_of(index, rows, gap)[:2])
    moving = moves_at_end(speed, speed_valid)
    past_motion, past_motion_valid = _past_motion(t, ((speed, speed_valid), (yaw_rate, yaw_rate_valid)))
    _take_histories(index, rows, past_motion, past_motion_valid)
    waypoints, waypoint_valid = _waypoints(index, episode, config, pose, placed, headed, moving)
    return {
        "rows": nearest + rows.start,
        "time_valid": time_valid,
        "pose": pose,
        "pose_valid": placed & headed,
        "yaw_rad": yaw,
        "yaw_valid": yaw_valid,
        "speed_mps": speed.astype(np.float32),
        "speed_valid": speed_valid,
        "yaw_rate_radps": yaw_rate.astype(np.float32),
        "yaw_rate_valid": yaw_rate_valid,
        "past_motion": past_motion,
        "past_motion_valid": past_motion_valid,
        "waypoints": waypoints,
        "waypoint_valid": waypoint_valid,
    }


def _past_motion(
    t: Float64[np.ndarray, " T"],
    kinds: Sequence[tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]],
) -> tuple[Float32[np.ndarray, "T p"], Bool[np.ndarray, "T p"]]:
    near, found = targets.nearest_frames(t, -np.array(PAST_S), tolerance_s=PAST_TOLERANCE_S)
    known = np.concatenate([found & valid[:, None] & valid[near] for _, valid in kinds], axis=1)
    changes = np.concatenate([values[:, None] - values[near] for values, _ in kinds], axis=1)
    return np.where(known, changes, 0.0).astype(np.float32), known


def _take_histories(
    index: Index, rows: slice, past: Float32[np.ndarray, "T p"], valid: Bool[np.ndarray, "T p"]
) -> None:
    """Puts into the changes of motion what frames say themselves of how the car came there."""
    counts, dts = index.history_counts[rows], index.history_dt_s[rows]
    first = np.cumsum(counts) - counts
    states = index.history_of(rows).astype(np.float64)
    for count, dt_s in sorted(set(zip(counts[counts > 0].tolist(), dts[counts > 0].tolist(), strict=True))):
        mine = np.flatnonzero((counts == count) & (dts == dt_s))
        speed, speed_known, rate, rate_known = history.motion(states[first[mine, None] + np.arange(count)], dt_s)
        for i, seconds in enumerate(PAST_S):
            back = round(seconds / dt_s)
            there = back < count and abs(back * dt_s - seconds) <= PAST_TOLERANCE_S
            for kind, values, known in ((0, speed, speed_known), (1, rate, rate_known)):
                column, then = kind * len(PAST_S) + i, count - 1 - back
                if there:  # where it does not know both, what the frames before say stands
                    both = known[:, -1] & known[:, then]
                    valid[mine, column] |= both
                    past[mine, column] = np.where(both, values[:, -1] - values[:, then], past[mine, column])


def _recorded_or(
    recorded: Float64[np.ndarray, " T"], derived: Float64[np.ndarray, " T"], derived_valid: Bool[np.ndarray, " T"]
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    known = np.isfinite(recorded)
    return np.where(known, recorded, derived), known | derived_valid


def _waypoints(
    index: Index,
    episode: int,
    config: DataConfig,
    pose: Float64[np.ndarray, "T 3"],
    placed: Bool[np.ndarray, " T"],
    headed: Bool[np.ndarray, " T"],
    moving_at_end: bool,
) -> tuple[Float32[np.ndarray, "T t 2"], Bool[np.ndarray, "T t"]]:
    """Listed waypoints for the frames that list some; of the others from poses, unless lists were not driven."""
    t, steps, dt_s = index.t[index.rows(episode)], config.waypoint_steps, config.waypoint_dt_s
    gap = targets.bridged_s(t, config.max_gap_s)
    driven, driven_valid = targets.waypoints_from_poses(t, pose, placed, headed, steps=steps, dt_s=dt_s, max_gap_s=gap)
    listed = index.expert_waypoints(episode)
    if config.waypoint_source == "poses" or not listed.size:
        return driven, driven_valid
    # A plan that was not driven may well end in a stand, whatever the car did: it is no list that was filled up.
    filled = moving_at_end and bool(index.waypoints_driven[episode])
    expert, expert_valid = targets.waypoints_from_expert(
        t, listed, float(index.waypoint_dt_s[episode]), steps=steps, dt_s=dt_s, moving_at_end=filled
    )
    lists = _lists(listed)[:, None]
    if not index.waypoints_driven[episode]:  # where the car went is no plan of an expert's
        return np.where(lists[..., None], expert, 0.0), lists & expert_valid
    return np.where(lists[..., None], expert, driven), np.where(lists, expert_valid, driven_valid)
