"""Checks of what an episode says: times, poses, speeds and waypoints against one another, and its images.

A problem makes labels or images false, so that training on it is a mistake; a remark is something to look at.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from chunkwise.data.problems import Problem
from driving.config import DataConfig
from driving.data import targets
from driving.data.index import ABSENT, PRESENT, Index
from driving.data.tables import Tables, make_tables, moves_at_end, yaw_rates_of

MAX_MPS = 70.0
JUMP_M, JUMP_FACTOR = 1.0, 3.0
"""A step longer than JUMP_M plus JUMP_FACTOR times what the neighbouring steps suggest is a jump."""
GAP_FACTOR, JITTER = 1.5, 0.1
SLOWEST_S = 2.0
"""Usual seconds between two frames, above which t may be in another unit."""
SPEED_MPS, SPEED_SHARE = 1.0, 0.2
"""Recorded speed may differ from that of the poses by 1 m/s, or a fifth of it."""
WAYPOINT_M, WAYPOINT_SHARE = 1.0, 0.15
"""A listed waypoint may differ from where the car came by 1 m, or 15 % of its distance."""
HEADING_RAD, HEADING_MPS = 0.5, 2.0
"""Above 2 m/s the car travels where it points, to this angle (or right against it, in reverse)."""
TOLERATED = 0.05
"""Share of the frames in which the three checks above may fail: a real log has its moments."""
BLACK = 8
"""An image without a value above it is black."""
FROZEN_FRAMES, FROZEN_M = 3, 1.0
"""So many equal images in a row, while the car moves so far, were not taken when they say."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """Of one episode."""

    problems: list[Problem] = dataclasses.field(default_factory=list)
    remarks: list[Problem] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What decoding an episode's images (T frames, c cameras) gave."""

    brightest: UInt8[np.ndarray, "T c"]
    """Largest value of each image; 255 where there is none."""
    repeats: Bool[np.ndarray, "T c"]
    """Whether an image equals the camera's last image, which may be some frames ago."""


def check_numbers(index: Index, config: DataConfig) -> Findings:
    """Times, poses, speeds, headings and waypoints of an index of one episode."""
    found = Findings()
    tables = make_tables(index, dataclasses.replace(config, waypoint_source="poses"))
    file, t, place = index.files[0], index.t, index.pose[:, :2]
    _check_times(t, file, found)
    if len(t) > 1:
        _check_jumps(index, tables, file, found)
    driven, known = targets.speeds(t, place, max_gap_s=config.max_gap_s, ahead=True)
    wrong = np.abs(np.abs(index.speed_mps) - driven) > np.maximum(SPEED_MPS, SPEED_SHARE * driven)
    judged = known & np.isfinite(index.speed_mps)
    _check_share(
        wrong, judged, file, found, "observations.state.speed_mps", index.speed_mps, driven, "m/s as the poses say"
    )
    step, near = targets.differences(t, place, config.max_gap_s, ahead=True)
    travel = np.arctan2(step[:, 1], step[:, 0])
    off = np.abs(targets.wrap(2 * (travel - np.nan_to_num(index.pose[:, 2])))) / 2  # either way along the axis
    judged = near & np.isfinite(index.pose[:, 2]) & (driven > HEADING_MPS)
    _check_share(
        off > HEADING_RAD,
        judged,
        file,
        found,
        "observations.state.yaw_rad",
        index.pose[:, 2],
        travel,
        "rad, as it travels",
    )
    _check_headings(index, file, found)
    _check_places(index, tables, file, found)
    _check_derived(index, tables, config, file, found)
    _check_waypoints(index, tables, config, found)
    return found


def _check_times(t: Float64[np.ndarray, " T"], file: str, found: Findings) -> None:
    steps = np.diff(t)
    if not len(steps):
        return
    usual = float(np.median(steps))
    if usual > SLOWEST_S:  # then no two frames are near enough for a speed, a turn or a waypoint to be judged
        expected = f"seconds, {SLOWEST_S:g} at most between two frames"
        found.remarks.append(Problem(file=file, key="frames[*].t", expected=expected, found=f"steps of {usual:g}"))
    gaps = np.flatnonzero(steps > GAP_FACTOR * usual)
    if len(gaps):
        longest = gaps[np.argmax(steps[gaps])]
        text = f"{len(gaps)} gap(s), the longest {steps[longest]:.3f} s after frames[{longest}]"
        found.remarks.append(Problem(file=file, key="frames[*].t", expected=f"a frame every {usual:.3f} s", found=text))
    regular = np.delete(steps, gaps)
    jitter = float(np.abs(regular - usual).max() / usual)
    if jitter > JITTER:
        text = f"steps of {regular.min():.4f} to {regular.max():.4f} s"
        expected = f"steps of {usual:.4f} s within {JITTER:.0%}"
        found.remarks.append(Problem(file=file, key="frames[*].t", expected=expected, found=text))


def _check_jumps(index: Index, tables: Tables, file: str, found: Findings) -> None:
    """Steps between frames that no car takes."""
    steps = np.diff(index.t)
    moved = np.hypot(*np.diff(index.pose[:, :2], axis=0).T)
    speed = moved / steps
    usual = np.array([_median_beside(speed, i) for i in range(len(speed))])
    far = (speed > MAX_MPS) | (moved > JUMP_M + JUMP_FACTOR * usual * steps)
    turned = np.abs(targets.wrap(np.diff(index.pose[:, 2])))
    spun = turned > targets.JUMP_RAD + targets.JUMP_RAD_S * steps
    for what, bad, size, unit in (("x_m, y_m", far, moved, "m"), ("yaw_rad", spun, turned, "rad")):
        places = np.flatnonzero(bad)
        if len(places):
            worst = places[np.argmax(size[places])]
            text = f"{len(places)} jump(s), the largest {size[worst]:.2f} {unit} in {steps[worst]:.3f} s"
            key = f"frames[{worst + 1}].observations.state.{what}"
            found.problems.append(Problem(file=file, key=key, expected="a pose that goes on from the last", found=text))


def _median_beside(values: Float64[np.ndarray, " n"], i: int) -> float:
    """Of up to three finite values on either side."""
    beside = np.concatenate([values[max(i - 3, 0) : i], values[i + 1 : i + 4]])
    beside = beside[np.isfinite(beside)]
    return float(np.median(beside)) if len(beside) else np.inf


def _check_share(
    wrong: Bool[np.ndarray, " T"],
    judged: Bool[np.ndarray, " T"],
    file: str,
    found: Findings,
    key: str,
    value: Float64[np.ndarray, " T"],
    expected: Float64[np.ndarray, " T"],
    unit: str,
) -> None:
    bad = np.flatnonzero(wrong & judged)
    if not len(bad) or len(bad) <= TOLERATED * judged.sum():
        return
    worst = bad[np.argmax(np.abs(value - expected)[bad])]
    text = f"{value[worst]:.2f}; {len(bad)} of {int(judged.sum())} frames are off"
    where = f"frames[{worst}].{key}"
    found.problems.append(Problem(file=file, key=where, expected=f"{expected[worst]:.2f} {unit}", found=text))


def _check_headings(index: Index, file: str, found: Findings) -> None:
    """Frames with a place and no yaw, in a drive that records some."""
    placed, headed = np.all(np.isfinite(index.pose[:, :2]), axis=1), np.isfinite(index.pose[:, 2])
    without = np.flatnonzero(placed & ~headed)
    if len(without) and headed.any():
        key = f"frames[{without[0]}].observations.state.yaw_rad"
        text = f"none in {len(without)} of {int(placed.sum())} frames; targets take it from those around it"
        found.remarks.append(Problem(file=file, key=key, expected="a yaw wherever there are x_m and y_m", found=text))


def _check_places(index: Index, tables: Tables, file: str, found: Findings) -> None:
    """Frames without a place between others that have one: what training knows of them."""
    placed = np.all(np.isfinite(index.pose[:, :2]), axis=1)
    without = np.flatnonzero(~placed)
    if not placed.any() or not len(without):
        return
    known = {"speed": tables.speed_valid, "yaw rate": tables.yaw_rate_valid, "pose to predict from": tables.pose_valid}
    lacks = [
        f"no {name} in {int((~valid[without]).sum())}" for name, valid in known.items() if not valid[without].all()
    ]
    key = f"frames[{without[0]}].observations.state.x_m"
    text = f"none in {len(without)} of {index.frames} frames, of which training knows {', '.join(lacks) or 'all'}"
    found.remarks.append(Problem(file=file, key=key, expected="a place, or a speed and a yaw rate", found=text))


def _check_derived(index: Index, tables: Tables, config: DataConfig, file: str, found: Findings) -> None:
    """Yaw rates that positions alone would give, and no car has."""
    _, _, unbelieved = yaw_rates_of(index, slice(0, index.frames), config.max_gap_s)
    lost = np.flatnonzero(unbelieved & ~tables.yaw_rate_valid)
    if len(lost):
        key = f"frames[{lost[0]}].observations.state.yaw_rate_radps"
        text = f"none, and sudden turns of the direction of travel in {len(lost)} frames, which training masks"
        expected = "a recorded yaw rate, or a yaw, or places that do not jitter"
        found.remarks.append(Problem(file=file, key=key, expected=expected, found=text))


def _check_waypoints(index: Index, tables: Tables, config: DataConfig, found: Findings) -> None:
    """Listed waypoints against where the car came, and how many only fill up the list."""
    listed = index.expert_waypoints(0)
    if not listed.size or not index.waypoints_driven[0]:
        return
    file, dt = index.files[0], float(index.waypoint_dt_s[0])
    steps = listed.shape[1]
    driven, known = targets.waypoints_from_poses(
        index.t,
        tables.pose,
        np.all(np.isfinite(index.pose[:, :2]), axis=1),
        tables.pose_valid,
        steps=steps,
        dt_s=dt,
        max_gap_s=config.max_gap_s,
    )
    off = np.linalg.norm(listed - driven, axis=-1)
    judged = known & np.isfinite(off)
    wrong = judged & (off > np.maximum(WAYPOINT_M, WAYPOINT_SHARE * np.linalg.norm(driven, axis=-1)))
    if wrong.sum() > TOLERATED * judged.sum():
        i, j = np.unravel_index(np.argmax(np.where(wrong, off, 0.0)), off.shape)
        key = f"frames[{i}].expert.waypoints[{j}]"
        expected = f"({driven[i, j, 0]:.2f}, {driven[i, j, 1]:.2f}), where the poses come {dt * (j + 1):.2f} s later"
        text = f"({listed[i, j, 0]:.2f}, {listed[i, j, 1]:.2f}); {int(wrong.sum())} of {int(judged.sum())} are off"
        found.problems.append(Problem(file=file, key=key, expected=expected, found=text))
    filled = (
        np.isfinite(listed).all(-1).sum()
        - targets.waypoints_from_expert(
            index.t,
            listed,
            dt,
            steps=steps,
            dt_s=dt,
            moving_at_end=moves_at_end(tables.speed_mps, tables.speed_valid),
        )[1].sum()
    )
    if filled:
        expected = "no places after the recording's end that repeat the last"
        text = f"{filled} repeated places, which training masks"
        found.remarks.append(Problem(file=file, key="frames[*].expert.waypoints", expected=expected, found=text))


def check_images(index: Index, look: Look) -> Findings:
    """Absent files, black images, and images that stand still while the car moves."""
    found = Findings()
    file, there = index.files[0], index.image_status == PRESENT
    for c, camera in enumerate(index.cameras):
        absent = np.flatnonzero(index.image_status[:, c] == ABSENT)
        if len(absent):
            key = f"frames[{absent[0]}].observations.cameras.{camera}.image_path"
            text = f"{len(absent)} absent, the first {index.path(int(absent[0]), c)}"
            found.problems.append(Problem(file=file, key=key, expected="files that exist", found=text))
        black = np.flatnonzero(there[:, c] & (look.brightest[:, c] <= BLACK))
        if len(black):
            mostly = len(black) > there[:, c].sum() / 2
            text = f"{len(black)} of {int(there[:, c].sum())} without a value above {BLACK}"
            key = f"frames[{black[0]}].observations.cameras.{camera}"
            to = found.problems if mostly else found.remarks
            to.append(Problem(file=file, key=key, expected="images that show something", found=text))
        _check_frozen(index, np.flatnonzero(there[:, c]), look.repeats[:, c], camera, found)
    return found


def _check_frozen(
    index: Index, shown: Int64[np.ndarray, " n"], repeats: Bool[np.ndarray, " T"], camera: str, found: Findings
) -> None:
    """Adds stretches of the frames that have an image, `shown`, in which all are the one before."""
    place = index.pose[:, :2]
    for first, last in _runs(repeats[shown]):
        count, way = last - first + 2, place[shown[last]] - place[shown[first - 1]]
        if count < FROZEN_FRAMES or np.hypot(*way) < FROZEN_M:
            continue
        key = f"frames[{shown[first - 1]}].observations.cameras.{camera}"
        moved = f"{np.hypot(*way):.1f} m" if np.isfinite(way).all() else "an unknown way"
        text = f"{count} equal images in a row while the car moved {moved}"
        to = found.problems if np.isfinite(way).all() else found.remarks
        to.append(Problem(file=index.files[0], key=key, expected="a new image in every frame", found=text))


def _runs(flags: Bool[np.ndarray, " T"]) -> Sequence[tuple[int, int]]:
    """First and last position of each stretch of true flags."""
    edges = np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))
    return list(zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True))
