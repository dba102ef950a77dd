"""The rater feedback score of Waymo's end-to-end challenge (arXiv:2510.26125): 0 to 10, higher is better."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

TIMES_S = (3.0, 5.0)
LATERAL_M = (1.0, 1.8)
"""Half width of the trust region at those times at 11 m/s and above."""
LONGITUDINAL_FACTOR = 4.0
"""The region is this many times longer than wide."""
SLOW_MPS, FAST_MPS = 1.4, 11.0
"""Up to the first speed regions have half their size, from the second on all of it."""
DECAY = 0.1
"""Share of a rater's score that is left one region's size outside of it."""
FLOOR = 4.0
MAX_SCORE = 10.0
RATE_HZ = 4.0
"""At which the challenge compares trajectories."""
COMPARED = 3
"""Rated trajectories of a frame that count, the first ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rated:
    """A future that people rated."""

    waypoints: Float64[np.ndarray, "t 2"]
    """Place i is reached (i + 1) dt_s after the frame; x forward, y left, metres."""
    dt_s: float
    score: float
    """0 to MAX_SCORE."""


def reaches(steps: int, dt_s: float) -> bool:
    """Whether so many waypoints, dt_s apart, lead as far as the score looks."""
    return steps * dt_s > max(TIMES_S) - 1e-6


def rater_feedback_scores(
    predicted: Float[np.ndarray, "b t 2"],
    dt_s: float,
    rated: Sequence[Sequence[Rated]],
    speed_mps: Float[np.ndarray, " b"],
) -> Float64[np.ndarray, " b"]:
    """Score of each prediction; NaN where nothing is rated.

    Everything is compared at RATE_HZ; other rates are interpolated, from the origin on. As in the challenge, the first
    COMPARED trajectories of a frame count, and one that ends before 5 s stands still from there on.

    Args:
      predicted: Waypoints dt_s apart, metres.
      dt_s: Seconds between two predicted waypoints.
      rated: Of each prediction's frame.
      speed_mps: At that frame.

    Raises:
      ValueError: If the predictions do not reach 5 s.
    """
    if not reaches(predicted.shape[1], dt_s):
        raise ValueError(f"{predicted.shape[1]} waypoints {dt_s} s apart; expected them to reach {max(TIMES_S):g} s")
    scores = np.full(len(predicted), np.nan)
    for i, trajectories in enumerate(rated):
        known = trajectories[:COMPARED]
        if known:
            scores[i] = rater_feedback_score(
                at_rate(predicted[i].astype(np.float64), dt_s),
                np.stack([at_rate(one.waypoints, one.dt_s) for one in known]),
                np.array([one.score for one in known]),
                speed_mps=float(speed_mps[i]),
            )
    return scores


def at_rate(waypoints: Float64[np.ndarray, "t 2"], dt_s: float) -> Float64[np.ndarray, "t4 2"]:
    """Places at 1 / RATE_HZ, 2 / RATE_HZ, ... until 5 s, of waypoints dt_s apart that may end earlier."""
    times = np.arange(1, round(max(TIMES_S) * RATE_HZ) + 1) / RATE_HZ
    known = dt_s * np.arange(len(waypoints) + 1)
    return np.stack([np.interp(times, known, np.concatenate([[0.0], one])) for one in waypoints.T], axis=1)


def rater_feedback_score(
    predicted: Float64[np.ndarray, "t 2"],
    rated: Float64[np.ndarray, "r t 2"],
    scores: Float64[np.ndarray, " r"],
    *,
    speed_mps: float,
    rate_hz: float = RATE_HZ,
) -> float:
    """Score of one trajectory.

    d_j(T) is the larger of |longitudinal| / threshold and |lateral| / threshold of the prediction seen from rated
    trajectory j at time T, along j's direction there. At each T of TIMES_S the score is the largest
    scores_j DECAY^max(d_j(T) - 1, 0); the result is the mean over T, and at least FLOOR where no j has d_j <= 1 at
    both times.

    Args:
      predicted: Places in the vehicle frame at 1 / rate_hz, 2 / rate_hz, ... seconds.
      rated: The same of r rated trajectories.
      scores: Of the rated trajectories, 0 to 10.
      speed_mps: At time 0; its sign does not count.
      rate_hz: Places a second.

    Raises:
      ValueError: If the trajectories do not reach 5 s, or differ in length.
    """
    if predicted.shape != rated.shape[1:] or len(predicted) < max(TIMES_S) * rate_hz:
        raise ValueError(
            f"predicted {predicted.shape} and rated {rated.shape}: expected equal lengths of at least "
            f"{round(max(TIMES_S) * rate_hz)} places"
        )
    ahead = _directions(rated)
    error = predicted[None] - rated
    longitudinal = np.abs((ahead * error).sum(-1))
    lateral = np.abs(ahead[..., 0] * error[..., 1] - ahead[..., 1] * error[..., 0])
    share = np.clip(0.5 + 0.5 * (abs(speed_mps) - SLOW_MPS) / (FAST_MPS - SLOW_MPS), 0.5, 1.0)
    steps = [round(time * rate_hz) - 1 for time in TIMES_S]
    width = share * np.array(LATERAL_M)
    far = np.maximum(lateral[:, steps] / width, longitudinal[:, steps] / (LONGITUDINAL_FACTOR * width))
    score = float((scores[:, None] * DECAY ** np.maximum(far - 1, 0)).max(axis=0).mean())
    trusted = bool((far <= 1).all(axis=1).any())
    return score if trusted else max(score, FLOOR)


def _directions(rated: Float64[np.ndarray, "r t 2"]) -> Float64[np.ndarray, "r t 2"]:
    """Unit vectors along each step; where a trajectory stands still, those of the step before, at first (1, 0)."""
    steps = np.diff(rated, axis=1, prepend=0.0)
    out = np.empty_like(steps)
    last = np.broadcast_to(np.array([1.0, 0.0]), (len(rated), 2))
    for i in range(steps.shape[1]):
        length = np.linalg.norm(steps[:, i], axis=-1, keepdims=True)
        last = np.where(length > 0, steps[:, i] / np.where(length > 0, length, 1.0), last)
        out[:, i] = last
    return out
