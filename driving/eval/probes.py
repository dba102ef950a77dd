"""What a linear map reads off frozen features, and whether a scene is found again among others of its drive."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int64

from chunkwise.arrays import PyTree
from driving.config import AugmentConfig, DrivingConfig, ModelConfig
from driving.data.augment import draw
from driving.data.batches import DrivingData
from driving.data.episodes import ROUTE_COMMANDS
from driving.eval import ahead
from driving.eval.baselines import EgoStates
from driving.model.encoders import SceneEncoder

MOST_ROWS = 1500
"""Training frames that a probe is fitted on, evenly spaced."""
RIDGE = 10.0
"""Penalty on the weights of standardised features."""
APART_S = 2.0
"""Candidates of a retrieval are at least this far apart."""
LATER_S, LATER_TOLERANCE_S = 0.5, 0.1
"""What is asked for is the candidate so long before the query, give or take the second: with images at 5 Hz there is
none after half a second. With the same frame in other colours as the query, an encoder with fresh weights found all."""
JITTER = AugmentConfig(brightness=0.4, contrast=0.4, saturation=0.4)


Labels = dict[str, Float64[np.ndarray, " _"]]
"""Of driving/eval/ahead.py, for the frames that `probe` takes of a split."""


def ahead_labels(data: DrivingData) -> Labels:
    """Returns what lies ahead of the frames that `probe` takes of a split; reads the drives' files."""
    return ahead.labels(data, _spaced(data))


def probe(
    config: DrivingConfig,
    encoder: PyTree,
    train: DrivingData,
    held_out: DrivingData,
    labels: tuple[Labels, Labels] | None = None,
) -> dict[str, float]:
    """Linear probes and retrieval of one encoder.

    speed_r2, yaw_rate_r2  share of the variance on held-out drives that ridge regression on the features of all
                           moments of a sample explains, fitted on training drives; below 0: worse than the mean
    curvature_r2, ...      what lies ahead, as `ahead_of` measures it, by the features beside the motion so far
    retrieval_top1         share of moments, in changed colours, whose frame half a second before is found among frames
                           of the same drive at least 2 s apart, by the cosine of the centred scene vectors
    retrieval_chance       one over the number of candidates, mean over queries

    `labels` are those of both splits; None: what lies ahead is not asked.

    What no frame of the drives can tell is left out: probes where speed, yaw rate or a moment is never known,
    retrieval where no frame has one half a second later, as in recordings of 1 Hz.
    """
    fitted, tested = _spaced(train), _spaced(held_out)
    if not len(fitted) or not len(tested):
        return retrieval(config, encoder, held_out)
    x, x_test = (encode(config, encoder, data, rows) for data, rows in ((train, fitted), (held_out, tested)))
    out = {}
    for name in ("speed_mps", "yaw_rate_radps"):
        y, y_test = getattr(train.tables, name)[fitted], getattr(held_out.tables, name)[tested]
        out[f"{name.rsplit('_', 1)[0]}_r2"] = r_squared(x, y, x_test, y_test)
    told = {} if labels is None else ahead_of(train, held_out, labels, (x, x_test))
    return out | told | retrieval(config, encoder, held_out)


def ahead_of(
    train: DrivingData,
    held_out: DrivingData,
    labels: tuple[Labels, Labels],
    features: tuple[Float32[np.ndarray, "b d"], Float32[np.ndarray, "c d"]] | None = None,
) -> dict[str, float]:
    """Returns how well ridge regression tells what lies ahead (driving/eval/ahead.py) on held-out drives.

    curvature_r2, vehicle_ahead_r2  share of the variance that is explained
    stop_auroc, red_light_auroc     probability that a frame where it is so ranks above one where it is not

    What the drives do not tell, or where all held-out frames are alike, is left out.

    Args:
      train: What is fitted on.
      held_out: What is measured on.
      labels: Of both, as `ahead_labels` reads them.
      features: Of an encoder, for the frames that `probe` takes of each; None: the motion so far and the route command
        alone, which these are beside in any case.
    """
    fitted, tested = _spaced(train), _spaced(held_out)
    if not len(fitted) or not len(tested):
        return {}
    x, x_test = (_motion(data, rows) for data, rows in ((train, fitted), (held_out, tested)))
    if features is not None:
        x, x_test = (np.concatenate(pair, axis=1) for pair in zip((x, x_test), features, strict=True))
    out, truth = {}, labels[1]
    for name, y in labels[0].items():
        y_test = truth[name]
        there, there_test = np.isfinite(y), np.isfinite(y_test)
        if not there.any() or not there_test.any() or not np.ptp(y[there]) or not np.ptp(y_test[there_test]):
            continue
        predicted = ridge(x[there], y[there], x_test[there_test])
        score = auroc if name in ("stop", "red_light") else explained
        out[f"{name}_{'auroc' if score is auroc else 'r2'}"] = score(predicted, y_test[there_test])
    return out


def _motion(data: DrivingData, rows: Int64[np.ndarray, " b"]) -> Float32[np.ndarray, "b q"]:
    """What a policy that sees no image is given of frames."""
    states = EgoStates(data, rows)
    command = np.eye(len(ROUTE_COMMANDS), dtype=np.float32)[states.command]
    return np.concatenate([states.motion, states.past, states.known.astype(np.float32), command], axis=1)


def encode(
    config: DrivingConfig, encoder: PyTree, data: DrivingData, rows: Int64[np.ndarray, " b"], *, jitter: bool = False
) -> Float32[np.ndarray, "b d"]:
    """Scene vectors of frames, those of all moments of a sample side by side.

    Args:
      config: Of the run.
      encoder: Weights.
      data: Holds the frames.
      rows: Of the index.
      jitter: Change brightness, contrast and saturation of every image at random, a function of the run's seed.
    """
    apply = _apply(config.model)
    size, out = config.eval.batch_size, []
    changed = dataclasses.replace(data, config=dataclasses.replace(data.config, augment=JITTER))
    moments, cameras = len(config.data.offsets_s), len(config.data.cameras)
    for start in range(0, len(rows), size):
        part = np.resize(rows[start : start + size], size)  # repeats its rows to one size: one program serves all
        places = [(0, start + i) for i in range(size)]
        draws = draw(places, seed=config.run.seed, times=moments, cameras=cameras) if jitter else None
        batch = (changed if jitter else data).batch(part, draws)
        flat = batch["images"].reshape(size * moments, *batch["images"].shape[2:])
        valid = batch["image_valid"].reshape(size * moments, cameras)
        scene = np.asarray(apply(encoder, jnp.asarray(flat), jnp.asarray(valid)))
        out.append(scene.reshape(size, -1)[: len(rows) - start])
    return np.concatenate(out)


@functools.cache
def _apply(config: ModelConfig) -> Callable[[PyTree, Array, Array], Array]:
    """The compiled encoder: one for all calls."""
    module = SceneEncoder(config)

    @jax.jit
    def apply(params: PyTree, images: Array, valid: Array) -> Array:
        features: Any = module.apply({"params": params}, images, valid)
        return features.scene

    return apply


def r_squared(
    x: Float[np.ndarray, "b d"],
    y: Float[np.ndarray, " b"],
    x_test: Float[np.ndarray, "c d"],
    y_test: Float[np.ndarray, " c"],
) -> float:
    """1 - squared error / variance on the test samples, of `ridge`; 0 where they do not vary."""
    return explained(ridge(x, y, x_test), y_test) if np.ptp(y_test) else 0.0


def ridge(
    x: Float[np.ndarray, "b d"], y: Float[np.ndarray, " b"], x_test: Float[np.ndarray, "c d"]
) -> Float64[np.ndarray, " c"]:
    """Returns what ridge regression on standardised features predicts for the test samples."""
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    a, a_test = ((one - mean) / scale for one in (x.astype(np.float64), x_test.astype(np.float64)))
    weights = np.linalg.solve(a.T @ a + RIDGE * np.eye(a.shape[1]), a.T @ (y - y.mean()))
    return a_test @ weights + y.mean()


def explained(predicted: Float64[np.ndarray, " c"], truth: Float[np.ndarray, " c"]) -> float:
    """Returns 1 - squared error / variance."""
    return float(1 - np.square(truth - predicted).mean() / np.var(truth))


def auroc(score: Float64[np.ndarray, " c"], truth: Float[np.ndarray, " c"]) -> float:
    """Returns the area under the ROC curve: how often a sample of truth 1 has the higher score than one of 0.

    Equal scores count half.
    """
    positive, negative = score[truth > 0.5, None], score[None, truth <= 0.5]
    return float((positive > negative).mean() + (positive == negative).mean() / 2)


def retrieval(config: DrivingConfig, encoder: PyTree, data: DrivingData) -> dict[str, float]:
    """As in `probe`."""
    chosen = [_apart(data, episode) for episode in data.episodes.tolist()]
    if not any(len(rows) for rows, _ in chosen):
        return {}
    clean = encode(config, encoder, data, np.concatenate([rows for rows, _ in chosen]))
    changed = encode(config, encoder, data, np.concatenate([later for _, later in chosen]), jitter=True)
    width = clean.shape[1] // len(config.data.offsets_s)
    here = slice(config.data.anchor * width, (config.data.anchor + 1) * width)
    centre = clean[:, here].mean(axis=0)
    clean, changed = clean[:, here] - centre, changed[:, here] - centre
    clean, changed = (one / (np.linalg.norm(one, axis=-1, keepdims=True) + 1e-9) for one in (clean, changed))
    counts = [len(rows) for rows, _ in chosen]
    hits, chances = [], []
    for end, count in zip(np.cumsum(counts).tolist(), counts, strict=True):
        own = slice(end - count, end)
        hits += ((changed[own] @ clean[own].T).argmax(axis=1) == np.arange(count)).tolist()
        chances += [1 / count] * count
    return {"retrieval_top1": float(np.mean(hits)), "retrieval_chance": float(np.mean(chances))}


def _spaced(data: DrivingData) -> Int64[np.ndarray, " b"]:
    """Anchors of a split at which every moment, speed and yaw rate are known, at most MOST_ROWS."""
    tables, rows = data.tables, data.anchors
    rows = rows[tables.time_valid[rows].all(axis=1) & tables.speed_valid[rows] & tables.yaw_rate_valid[rows]]
    return rows[:: max(-(-len(rows) // MOST_ROWS), 1)]


def _apart(data: DrivingData, episode: int) -> tuple[Int64[np.ndarray, " b"], Int64[np.ndarray, " b"]]:
    """Anchors of a drive, each at least APART_S after the one before, and for each the anchor LATER_S after it."""
    inside, t = data.index.rows(episode), data.index.t
    rows = data.anchors[(data.anchors >= inside.start) & (data.anchors < inside.stop)]
    kept: list[int] = []
    later: list[int] = []
    for row in rows.tolist():
        if not kept or t[row] - t[kept[-1]] >= APART_S - 1e-6:
            off = np.abs(t[rows] - t[row] - LATER_S).round(6)  # of two that are equally near the earlier
            follower = int(rows[off.argmin()])
            if off.min() <= max(data.config.tolerance_s, LATER_TOLERANCE_S):
                kept.append(row)
                later.append(follower)
    return np.array(kept, np.int64), np.array(later, np.int64)
