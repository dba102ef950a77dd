"""What lies ahead of the car, as labels for probes: what its motion so far does not tell."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64, Int64

from chunkwise.files.strict_json import read_json
from driving.data import targets
from driving.data.batches import DrivingData
from driving.data.episodes import TRAFFIC_LIGHTS, surroundings

CURVE_M, CURVE_HALF_M = 15.0, 2.5
"""Where curvature is measured, and how far before and behind it lie the places of the circle, m."""
STOP_S, STANDS_MPS = 3.0, 0.5
"""Within how many seconds a car comes to stand, and below which speed it stands."""
FARTHEST_M = 40.0
"""A vehicle farther ahead, or none in sight, counts as so far."""


def labels(data: DrivingData, rows: Int64[np.ndarray, " b"]) -> dict[str, Float64[np.ndarray, " b"]]:
    """Returns what lies ahead of some frames (rows of the index); NaN where it is not known.

    curvature      of the way that the car went, 15 m ahead, 1/m, positive to the left
    stop           1 where the car, which moves, stands within 3 s, else 0
    vehicle_ahead  metres to the next vehicle in the lane, at most FARTHEST_M
    red_light      1 where the next light in sight is red or yellow, else 0

    The first two are of poses and speeds, of whatever drives; the others of what episodes say of their surroundings,
    which a pack does not keep.
    """
    found = {name: np.full(len(rows), np.nan) for name in ("curvature", "stop", "vehicle_ahead", "red_light")}
    index, episodes = data.index, data.index.episode_of(rows)
    root = Path(data.config.path)
    for episode in np.unique(episodes).tolist():
        inside, mine = index.rows(episode), episodes == episode
        here = rows[mine] - inside.start
        t = index.t[inside]
        gap_s = targets.bridged_s(t, data.config.max_gap_s)
        found["curvature"][mine] = curvatures(t, index.pose[inside, :2], gap_s)[here]
        speed = np.where(data.tables.speed_valid[inside], data.tables.speed_mps[inside], np.nan)
        found["stop"][mine] = stops(t, speed, gap_s)[here]
        file = root / index.files[episode] if root.is_dir() else root
        if file.exists():
            around = surroundings(read_json(file)["frames"])
            found["vehicle_ahead"][mine] = np.minimum(around["vehicle_ahead_m"], FARTHEST_M)[here]
            light = around["traffic_light"]
            stops_it = np.isin(light, [TRAFFIC_LIGHTS.index("yellow"), TRAFFIC_LIGHTS.index("red")])
            known = light != TRAFFIC_LIGHTS.index("unknown")
            found["red_light"][mine] = np.where(known, stops_it, np.nan)[here]
    return found


def curvatures(
    t: Float64[np.ndarray, " T"], place: Float64[np.ndarray, "T 2"], max_gap_s: float
) -> Float64[np.ndarray, " T"]:
    """Returns of each frame the curvature of the way that follows, CURVE_M ahead; NaN where it does not go so far.

    That of the circle through three places of the way, which is a line between frames: 4 area / (a b c) with its sign.

    Args:
      t: Seconds, strictly increasing.
      place: x and y, NaN where unknown.
      max_gap_s: Known frames farther apart in time are not joined.
    """
    out = np.full(len(t), np.nan)
    known = np.flatnonzero(np.isfinite(place).all(axis=1))
    for part in np.split(known, np.flatnonzero(np.diff(t[known]) > max_gap_s) + 1):
        if len(part) < 2:
            continue
        path = place[part]
        along = np.concatenate([[0.0], np.hypot(*np.diff(path, axis=0).T).cumsum()])
        ahead = along[:, None] + CURVE_M + np.array([[-CURVE_HALF_M, 0.0, CURVE_HALF_M]])
        a, b, c = (np.stack([np.interp(s, along, axis) for axis in path.T], axis=-1) for s in ahead.T)
        first, second, whole = b - a, c - b, c - a
        lengths = np.linalg.norm(np.stack([first, second, whole]), axis=-1).prod(axis=0)
        twice_the_area = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
        there = (ahead[:, -1] <= along[-1]) & (lengths > 0)
        out[part[there]] = 2 * twice_the_area[there] / lengths[there]
    return out


def stops(
    t: Float64[np.ndarray, " T"], speed_mps: Float[np.ndarray, " T"], max_gap_s: float
) -> Float64[np.ndarray, " T"]:
    """Returns of each frame whether the car stands within STOP_S; NaN where it stands already, or it is not known.

    Args:
      t: Seconds, strictly increasing.
      speed_mps: NaN where unknown.
      max_gap_s: Nothing is known across a step of time that is longer.
    """
    out = np.full(len(t), np.nan)
    for row in np.flatnonzero(np.abs(speed_mps) >= STANDS_MPS).tolist():
        steps, ahead = np.diff(t[row:]), np.abs(speed_mps[row + 1 :])
        unknown = np.flatnonzero((steps > max_gap_s) | ~np.isfinite(ahead))
        until = int(unknown[0]) if len(unknown) else len(ahead)
        near = t[row + 1 : row + 1 + until] <= t[row] + STOP_S + 1e-6
        if (ahead[:until][near] < STANDS_MPS).any():
            out[row] = 1.0
        elif until and t[row + until] + steps[:until].max() > t[row] + STOP_S:  # to within a step of the frames
            out[row] = 0.0
    return out
