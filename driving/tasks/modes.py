"""Several trajectories with probabilities: how they are set apart at the start, and their loss.

The trajectory nearest to the truth learns it, the others are left alone, and the probabilities learn which one that
was (MTP, arXiv:1809.10732, whose nearest is by angle and distance, here by the mean distance alone):

    loss = mean over known steps of e(nearest trajectory) + mode_weight * mean over samples of -log p(nearest mode)

They begin at different places, or one of them would be nearest everywhere and the others would learn nothing: at the
means of clusters of the training split's futures, as the anchors of MultiPath (arXiv:1910.05449) and, unlike those,
trained on.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

from chunkwise.data.sampling import Purpose, generator
from chunkwise.errors import ConfigError
from chunkwise.train.metrics import Mean, mean_of
from driving.config import DrivingConfig
from driving.data.batches import DrivingData
from driving.model.heads import Modes, constant_turn

SOFTENING = 0.1
"""Metres below which the loss is a parabola rather than a distance, so that its gradient has no jump at 0."""
_DECIMALS = 3
"""Futures that differ by less than such a part of a metre are one: what is left is rounding."""
_ITERATIONS = 50
"""Of k-means, which ends sooner where nothing moves any more."""


def losses(predicted: Modes, waypoints: Float[Array, "b t 2"], valid: Bool[Array, "b t"]) -> dict[str, Mean]:
    """Returns the loss of the nearest trajectories over the steps that are known, and that of the modes' probabilities.

    A sample of which no step is known has no nearest mode, and no part in either.

    Args:
      predicted: At least two modes.
      waypoints: The truth, metres.
      valid: Which steps are known.

    Returns:
      "trajectory" and "mode" of the module's formula, and "nearest", the share of samples whose nearest mode is the
      most probable one.
    """
    error = softened(predicted.waypoints, waypoints[:, None], valid[:, None])
    # A sum over the known steps: they are the same for all modes of a sample.
    nearest = jnp.argmin(jnp.where(valid[:, None], jax.lax.stop_gradient(error), 0.0).sum(-1), axis=-1)
    known = valid.any(axis=-1)
    log_probability = jnp.take_along_axis(jax.nn.log_softmax(predicted.logits), nearest[:, None], axis=1)[:, 0]
    mine = jnp.take_along_axis(error, nearest[:, None, None], axis=1)[:, 0]
    return {
        "trajectory": mean_of(mine, valid),
        "mode": mean_of(-log_probability, known),
        "nearest": mean_of((jnp.argmax(predicted.logits, axis=-1) == nearest).astype(jnp.float32), known),
    }


def waypoint_loss(
    predicted: Float[Array, "b t 2"], waypoints: Float[Array, "b t 2"], valid: Bool[Array, "b t"]
) -> Mean:
    """Returns sqrt(d^2 + e^2) - e of the distance d, e = SOFTENING, over the steps that are known; the others weigh
    nothing."""
    return mean_of(softened(predicted, waypoints, valid), valid)


def softened(
    predicted: Float[Array, "*rows t 2"], waypoints: Float[Array, "*rows_or_1 t 2"], valid: Bool[Array, "*rows_or_1 t"]
) -> Float[Array, "*rows t"]:
    """Returns the loss of each step, metres; finite, and without a meaning, where the step is not known."""
    wanted = jnp.where(valid[..., None], waypoints, 0.0)
    square = jnp.square(predicted - wanted).sum(-1)
    return jnp.sqrt(square + SOFTENING**2) - SOFTENING


def distance(predicted: Float[Array, "b t 2"], waypoints: Float[Array, "b t 2"]) -> Float[Array, "b t"]:
    """Returns metres between prediction and truth at each step; not to be differentiated."""
    return jnp.linalg.norm(jax.lax.stop_gradient(predicted) - waypoints, axis=-1)


def anchors(data: DrivingData, config: DrivingConfig) -> Float32[np.ndarray, "m t 2"]:
    """Returns where the modes of an untrained model lie beside what it predicts of one: means of clusters of futures.

    By k-means (scipy's, seeded by k-means++) over the training split's futures that are known whole, each less what
    the model begins with, mirrored ones too where training mirrors; of frames whose motion is known, if there are any.
    A function of data and seed.

    Raises:
      ConfigError: No future is known whole, or there are not as many different ones as modes.
    """
    from scipy.cluster.vq import ClusterError, kmeans2  # not above: importing it takes 0.4 s, and few runs have modes

    assert config.waypoints is not None
    tables, rows, count = data.tables, data.anchors, config.waypoints.modes
    known = tables.waypoint_valid[rows].all(axis=1)
    if not known.any():
        raise ConfigError(
            f"waypoints.modes is {count}, and {config.data.path} has no training frame whose waypoints are known to "
            f"the end, data.waypoint_steps {config.data.waypoint_steps} of {config.data.waypoint_dt_s:g} s; lower "
            "that, or set waypoints.modes 1"
        )
    if config.waypoints.use_ego:
        moving = known & tables.speed_valid[rows] & tables.yaw_rate_valid[rows]
        known = moving if moving.any() else known  # else the few that begin a drive take modes for themselves
    futures = tables.waypoints[rows[known]].astype(np.float64)
    if config.waypoints.use_ego:  # where all of it is unknown it is 0, here and in what the model is given
        motion = np.stack([tables.speed_mps, tables.yaw_rate_radps], axis=-1)[rows[known]]
        futures -= np.asarray(constant_turn(jnp.asarray(motion), config.data.waypoint_steps, config.data.waypoint_dt_s))
    if config.data.augment.flip:
        futures = np.concatenate([futures, futures * [1.0, -1.0]])
    try:
        flat = futures.reshape(len(futures), -1)
        if len(np.unique(np.round(flat, _DECIMALS), axis=0)) < count:
            raise ClusterError
        rng = generator(Purpose.MODE_ANCHORS, config.run.seed)
        centres, _ = kmeans2(flat, count, iter=_ITERATIONS, minit="++", missing="raise", rng=rng)
    except ClusterError as error:
        raise ConfigError(
            f"waypoints.modes is {count}; expected no more than the training split has clusters of futures: its "
            f"{len(futures)} known ones do not fall into so many"
        ) from error
    return centres.reshape(count, *futures.shape[1:]).astype(np.float32)
