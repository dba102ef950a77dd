"""What a sample is asked to predict, from recorded poses and waypoints: by time, never by index.

Poses are (x, y, yaw) in a world frame, or in the vehicle frame of another pose: x forward, y left, yaw
counter-clockwise. Every function gives a value and a mask; where the mask is false the value is 0.

What a model is given may know nothing of what comes later, what it is compared with may: so functions that take
differences look backwards alone unless they are told to look `ahead` as well.
"""

from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

Angles = TypeVar("Angles", bound=Float[np.ndarray, "..."] | float)

STILL_M = 0.1
"""The frames before and after give no direction of travel where they are closer than this; two neighbours, half."""
MOVING_MPS = 0.5
"""Above this speed at the end of a recording, a car that is said to stand still right after it is not believed."""
SAME_PLACE_M = 1e-6
TIME_SLACK_S = 1e-6
JUMP_RAD, JUMP_RAD_S = 0.35, 1.5
"""Largest change of yaw between two frames that a car takes: this, plus this for each second."""
SLOW_STEPS = 1.5
"""Usual steps of a slow recording that are bridged: nuScenes' key frames are 0.45 to 0.65 s apart."""


def wrap(angle: Angles) -> Angles:
    """The same angles in (-pi, pi]."""
    return np.pi - (np.pi - angle) % (2 * np.pi)  # pyright: ignore[reportReturnType]


def relative_pose(
    origin: Float64[np.ndarray, "*#any 3"], pose: Float64[np.ndarray, "*#any 3"]
) -> Float64[np.ndarray, "*any 3"]:
    """`pose` seen from `origin`, both in one world frame; yaw in (-pi, pi]."""
    dx, dy = pose[..., 0] - origin[..., 0], pose[..., 1] - origin[..., 1]
    cos, sin = np.cos(origin[..., 2]), np.sin(origin[..., 2])
    yaw = wrap(pose[..., 2] - origin[..., 2])
    return np.stack([cos * dx + sin * dy, cos * dy - sin * dx, yaw], axis=-1)


def headings(
    t: Float64[np.ndarray, " T"],
    pose: Float64[np.ndarray, "T 3"],
    speed_mps: Float64[np.ndarray, " T"],
    *,
    max_gap_s: float,
    ahead: bool = False,
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Yaw of each frame, continuous over +-pi, and whether it is known.

    As recorded; before any is, the direction of travel from the last place before (turned round where the recorded
    speed is negative). A car that stands keeps the heading with which it stopped.

    Args:
      t: Seconds, strictly increasing.
      pose: As recorded, NaN where unknown.
      speed_mps: As recorded, NaN where unknown.
      max_gap_s: Twice this, from the first frame to the last of a difference, is the most that gives a direction.
      ahead: For what a model is compared with: wherever none is recorded, that between the recorded ones on either
        side, else the direction from the last place before to the next after, turned round where it goes against
        recorded ones beside it; a car that has stood from the start has the heading with which it drives off.
    """
    yaw = pose[:, 2].copy()
    recorded = np.isfinite(yaw)
    if ahead:
        yaw[recorded] = np.unwrap(yaw[recorded])
        between, found = interpolate_poses(t, np.c_[pose[:, :2], yaw], recorded, t, max_gap_s=2 * max_gap_s)
        yaw = np.where(found & ~recorded, between[:, 2], yaw)
    wanted = np.isnan(yaw) & (ahead | ~np.logical_or.accumulate(recorded))
    if wanted.any():
        beside = yaw if ahead else np.full(len(t), np.nan)
        yaw = np.where(wanted, _directions(t, pose[:, :2], beside, speed_mps, max_gap_s, ahead=ahead), yaw)
    known = np.isfinite(yaw)
    yaw[known] = np.unwrap(yaw[known])
    return np.where(known, yaw, 0.0), known


def _directions(
    t: Float64[np.ndarray, " T"],
    place: Float64[np.ndarray, "T 2"],
    heading: Float64[np.ndarray, " T"],
    speed: Float64[np.ndarray, " T"],
    max_gap_s: float,
    *,
    ahead: bool,
) -> Float64[np.ndarray, " T"]:
    """Directions of travel where `heading` is NaN, else that; NaN where the car stands and its heading is unknown."""
    step, near = differences(t, place, max_gap_s, ahead=ahead)
    yaw = np.arctan2(step[:, 1], step[:, 0]) + np.where(speed < 0, np.pi, 0.0)
    still = STILL_M if ahead else STILL_M / 2
    placed = np.isfinite(place).all(axis=1)  # between two places the heading is better taken from theirs
    yaw[~near | ~placed | (np.hypot(step[:, 0], step[:, 1]) < still)] = np.nan
    recorded = np.isfinite(heading)
    if recorded.any():
        yaw = np.where(recorded, heading, _turned_round(t, place, yaw, heading, max_gap_s))
    moving = np.flatnonzero(np.isfinite(yaw) & placed)
    for i in np.flatnonzero(np.isnan(yaw) & np.isfinite(place).all(1)):
        # Standing at the place of the last moving frame, or of the next one.
        beside = (*moving[moving < i][-1:], *(moving[moving > i][:1] if ahead else ()))
        for j in sorted(beside, key=lambda j: not recorded[j]):
            rows = np.arange(min(i, j), max(i, j) + 1)
            known = rows[np.isfinite(place[rows]).all(axis=1)]
            if len(known) < len(rows) and np.diff(t[known]).max(initial=0.0) > 2 * max_gap_s:
                continue  # where it was in between is not known
            if np.hypot(*(place[known] - place[i]).T).max() < 2 * STILL_M:
                yaw[i] = yaw[j]
                break
    return yaw


def _turned_round(
    t: Float64[np.ndarray, " T"],
    place: Float64[np.ndarray, "T 2"],
    travel: Float64[np.ndarray, " T"],
    heading: Float64[np.ndarray, " T"],
    max_gap_s: float,
) -> Float64[np.ndarray, " T"]:
    """Directions of travel, by pi the other way where that continues the recorded headings before, else after, them.

    From one frame to the next a car turns by less than pi / 2: where its direction changes by more, it changed gear.
    """
    out, settled = travel.copy(), np.isfinite(heading)
    out[settled] = heading[settled]
    frames = np.flatnonzero(settled | np.isfinite(place).all(axis=1))
    for order in (frames, frames[::-1]):
        last, before = np.nan, t[order[0]]
        for i in order:
            if abs(t[i] - before) > 2 * max_gap_s:
                last = np.nan
            if not settled[i] and np.isfinite(last) and np.isfinite(out[i]):
                out[i] += np.pi if np.cos(out[i] - last) < 0 else 0.0
                settled[i] = True
            last, before = out[i] if settled[i] else last, t[i]
    return out


def differences(
    t: Float64[np.ndarray, " T"], x: Float64[np.ndarray, "T d"], max_gap_s: float, *, ahead: bool = False
) -> tuple[Float64[np.ndarray, "T d"], Bool[np.ndarray, " T"]]:
    """x at each frame minus the last known x before, and whether both are near in time; nothing is before the first.

    With `ahead`, the next known x after minus the last before each frame, one-sided at the ends.
    """
    before, after = _neighbours(np.all(np.isfinite(x), axis=1), ahead=ahead)
    step = x[after] - x[before]
    near = (t[after] - t[before] <= 2 * max_gap_s) & (after > before)
    return step, near & np.isfinite(step).all(1)


def _neighbours(
    known: Bool[np.ndarray, " T"], *, ahead: bool
) -> tuple[Int64[np.ndarray, " T"], Int64[np.ndarray, " T"]]:
    """The last known frame before each, and with `ahead` the next one after it; the frame itself where there is none.

    Poses may come less often than images: at 10 Hz by GPS, where the cameras take 20.
    """
    frames = np.arange(len(known))
    before = np.maximum.accumulate(np.where(known, frames, -1))
    before = np.concatenate([[-1], before])[: len(frames)]
    before = np.where(before < 0, frames, before)
    if not ahead:
        return before, frames
    after = np.minimum.accumulate(np.where(known, frames, len(frames))[::-1])[::-1]
    after = np.concatenate([after, [len(frames)]])[1 : len(frames) + 1]
    return before, np.where(after == len(frames), frames, after)


def rate(
    t: Float64[np.ndarray, " T"],
    x: Float64[np.ndarray, " T"],
    known: Bool[np.ndarray, " T"],
    before: Int64[np.ndarray, " T"],
    *,
    max_gap_s: float,
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Change of x a second since the frame `before` each, and whether it could be taken: both known, near in time."""
    apart = t - t[before]
    near = known & known[before] & (apart > 0) & (apart <= 2 * max_gap_s)
    return np.where(near, (x - x[before]) / np.where(near, apart, 1.0), 0.0), near


def speeds(
    t: Float64[np.ndarray, " T"],
    place: Float64[np.ndarray, "T 2"],
    yaw: Float64[np.ndarray, " T"] | None = None,
    *,
    max_gap_s: float,
    ahead: bool = False,
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Speed in m/s from positions, as `differences` takes them, and whether it could be taken.

    Args:
      t: Seconds, strictly increasing.
      place: x and y, NaN where unknown.
      yaw: As recorded, NaN where unknown: against that of the frame, else of the frame before, a speed is negative.
        None, or both unknown: never negative.
      max_gap_s: As `differences` takes it.
      ahead: As `differences` takes it.
    """
    before, after = _neighbours(np.all(np.isfinite(place), axis=1), ahead=ahead)
    step, near = differences(t, place, max_gap_s, ahead=ahead)
    seconds = np.where(near, t[after] - t[before], 1.0)
    speed = np.hypot(step[:, 0], step[:, 1]) / seconds
    if yaw is not None:
        facing = np.where(np.isfinite(yaw), yaw, yaw[before])
        speed *= np.where(np.cos(facing) * step[:, 0] + np.sin(facing) * step[:, 1] < 0, -1.0, 1.0)  # NaN: forwards
    return np.where(near, speed, 0.0), near


def yaw_rates(
    t: Float64[np.ndarray, " T"],
    yaw: Float64[np.ndarray, " T"],
    known: Bool[np.ndarray, " T"],
    recorded: Bool[np.ndarray, " T"],
    placed: Bool[np.ndarray, " T"],
    *,
    max_gap_s: float,
) -> tuple[Float64[np.ndarray, " T"], Bool[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Yaw rate in rad/s since the frame before, whether it is known, and whether it could be taken and is not
    believed.

    A direction of travel turns round where a car changes gear, any way where it stands and its place is noisy, and lies
    off the recorded yaw that follows it: none of this is a turn.

    Args:
      t: Seconds, strictly increasing.
      yaw: Of each frame, as `headings` gives it.
      known: Where it is known.
      recorded: Where it is recorded, and no direction of travel.
      placed: Frames that have a place; those with neither a place nor a yaw are passed over.
      max_gap_s: As `differences` takes it.
    """
    before, _ = _neighbours(placed | known, ahead=False)
    rate_radps, near = rate(t, yaw, known, before, max_gap_s=max_gap_s)
    seconds = t - t[before]
    sudden = np.abs(rate_radps) * seconds > JUMP_RAD + JUMP_RAD_S * seconds
    believed = np.where(recorded, recorded[before], ~recorded[before] & ~sudden)
    return np.where(believed, rate_radps, 0.0), near & believed, near & ~believed


def interpolate_poses(
    t: Float64[np.ndarray, " T"],
    pose: Float64[np.ndarray, "T 3"],
    known: Bool[np.ndarray, " T"],
    query: Float64[np.ndarray, "*any"],
    *,
    max_gap_s: float,
) -> tuple[Float64[np.ndarray, "*any 3"], Bool[np.ndarray, "*any"]]:
    """Poses at any times, linear between the known frames on either side.

    Args:
      t: Seconds, strictly increasing.
      pose: Yaw continuous (see `headings`).
      known: Frames whose pose is used.
      query: Times in seconds.
      max_gap_s: Two known frames farther apart are not interpolated.

    Returns:
      Poses, and a mask: false before the first and after the last known frame, and inside a gap.
    """
    times, poses = t[known], pose[known]
    if len(times) == 0:
        return np.zeros((*query.shape, 3)), np.zeros(query.shape, bool)
    after = np.clip(np.searchsorted(times, query), 1, max(len(times) - 1, 1))
    before, after = np.minimum(after - 1, len(times) - 1), np.minimum(after, len(times) - 1)
    gap = times[after] - times[before]
    share = np.clip((query - times[before]) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)
    inside = (query >= times[0] - TIME_SLACK_S) & (query <= times[-1] + TIME_SLACK_S)
    on_frame = np.minimum(np.abs(query - times[before]), np.abs(query - times[after])) <= TIME_SLACK_S
    valid = inside & ((gap <= max_gap_s + TIME_SLACK_S) | on_frame)
    out = poses[before] + share[..., None] * (poses[after] - poses[before])
    return np.where(valid[..., None], out, 0.0), valid


def placed_between(
    t: Float64[np.ndarray, " T"],
    pose: Float64[np.ndarray, "T 3"],
    placed: Bool[np.ndarray, " T"],
    headed: Bool[np.ndarray, " T"],
    *,
    max_gap_s: float,
) -> tuple[Float64[np.ndarray, "T 3"], Bool[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Returns poses, placed and headed with those frames that have no place given one, linear between those that do.

    For what a model is compared with alone: it knows where the car goes next.

    Args:
      t: Seconds, strictly increasing.
      pose: x, y and yaw, continuous over +-pi.
      placed: Frames whose x and y are known.
      headed: Frames whose yaw is known; those that are placed anew and have none get one.
      max_gap_s: As `bridged_s` takes it, of the rhythm of the poses.
    """
    gap = bridged_s(t[placed], max_gap_s)
    between, found = interpolate_poses(t, pose, placed & headed, t, max_gap_s=gap)
    filled = found & ~placed
    yaw = np.where(filled & ~headed, between[:, 2], pose[:, 2])
    place = np.where(filled[:, None], between[:, :2], pose[:, :2])
    return np.concatenate([place, yaw[:, None]], axis=1), placed | filled, headed | filled


def bridged_s(t: Float64[np.ndarray, " T"], max_gap_s: float) -> float:
    """How far apart in time two poses may be to be interpolated, by a recording's own rhythm.

    max_gap_s; where the usual step is longer than that allows, SLOW_STEPS of it, and no more than twice max_gap_s. For
    what a model is compared with alone: the usual step is known when the recording has ended.
    """
    usual = float(np.median(np.diff(t))) if len(t) > 1 else 0.0
    return max(max_gap_s, min(SLOW_STEPS * usual, 2 * max_gap_s))


def waypoints_from_poses(
    t: Float64[np.ndarray, " T"],
    pose: Float64[np.ndarray, "T 3"],
    placed: Bool[np.ndarray, " T"],
    headed: Bool[np.ndarray, " T"],
    *,
    steps: int,
    dt_s: float,
    max_gap_s: float,
) -> tuple[Float32[np.ndarray, "T t 2"], Bool[np.ndarray, "T t"]]:
    """Where the car is (i + 1) dt_s after each frame, in that frame's vehicle frame; false where it is not known.

    Args:
      t: Seconds, strictly increasing.
      pose: x, y and yaw.
      placed: Frames whose x and y are known: of where the car comes to, its heading is not asked.
      headed: Frames whose yaw is known.
      steps: Places a frame.
      dt_s: Seconds between them.
      max_gap_s: As `interpolate_poses` takes it.
    """
    query = t[:, None] + _steps(steps, dt_s)[None, :]
    future, valid = interpolate_poses(t, pose, placed, query, max_gap_s=max_gap_s)
    valid &= (placed & headed)[:, None]
    place = relative_pose(pose[:, None, :], future)[..., :2]
    return np.where(valid[..., None], place, 0.0).astype(np.float32), valid


def waypoints_from_expert(
    t: Float64[np.ndarray, " T"],
    listed: Float32[np.ndarray, "T m 2"],
    listed_dt_s: float,
    *,
    steps: int,
    dt_s: float,
    moving_at_end: bool,
) -> tuple[Float32[np.ndarray, "T t 2"], Bool[np.ndarray, "T t"]]:
    """Listed waypoints at the wanted times, linear between them (the first is reached from the origin).

    Files are about that fill a list with the last pose of the drive: places that repeat after the recording's end are
    not believed if the car was moving there.

    Args:
      t: Seconds of the frames.
      listed: NaN where a list is shorter.
      listed_dt_s: Seconds between two listed places.
      steps: Wanted places a frame.
      dt_s: Seconds between them.
      moving_at_end: Whether the car moved at the last frame, or it is not known that it stood.
    """
    knots = np.concatenate([np.zeros((len(t), 1, 2)), listed.astype(np.float64)], axis=1)
    good = np.all(np.isfinite(knots), axis=-1)
    if moving_at_end:
        good &= ~_filled_up(t, knots, listed_dt_s)
    position = _steps(steps, dt_s) / listed_dt_s
    whole = np.round(position)
    position = np.where(np.abs(position - whole) < TIME_SLACK_S / listed_dt_s, whole, position)
    low = np.floor(position).astype(np.int64)
    high = np.ceil(position).astype(np.int64)
    inside = high < knots.shape[1]
    low, high = np.where(inside, low, 0), np.where(inside, high, 0)
    valid = good[:, low] & good[:, high] & inside[None, :]
    share = (position - np.floor(position))[None, :, None]
    place = knots[:, low] * (1 - share) + knots[:, high] * share
    return np.where(valid[..., None], place, 0.0).astype(np.float32), valid


def _filled_up(
    t: Float64[np.ndarray, " T"], knots: Float64[np.ndarray, "T m 2"], dt_s: float
) -> Bool[np.ndarray, "T m"]:
    """Knots after the last frame's time from which on all places of the list are the same as the one before."""
    moved = np.hypot(*np.moveaxis(np.diff(knots, axis=1), -1, 0))
    repeats = (moved <= SAME_PLACE_M) | np.isnan(moved)
    to_the_end = np.logical_and.accumulate(repeats[:, ::-1], axis=1)[:, ::-1]
    late = t[:, None] + dt_s * np.arange(knots.shape[1])[None, :] > t[-1] + TIME_SLACK_S
    return np.concatenate([np.zeros((len(t), 1), bool), to_the_end], axis=1) & late


def _steps(steps: int, dt_s: float) -> Float64[np.ndarray, " t"]:
    return dt_s * np.arange(1, steps + 1)


def nearest_frames(
    t: Float64[np.ndarray, " T"], offsets_s: Float64[np.ndarray, " n"], *, tolerance_s: float
) -> tuple[np.ndarray, Bool[np.ndarray, "T n"]]:
    """For every frame and offset, the frame nearest in time to frame time + offset, and whether it is near enough.

    Of two that are equally near the earlier: the last bits of the times do not choose.
    """
    query = t[:, None] + offsets_s[None, :]
    after = np.clip(np.searchsorted(t, query), 0, len(t) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(t[before] - query) <= np.abs(t[after] - query) + TIME_SLACK_S, before, after)
    return nearest, np.abs(t[nearest] - query) <= tolerance_s + TIME_SLACK_S
