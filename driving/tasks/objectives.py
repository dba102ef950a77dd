"""Pretraining objectives on multi-camera features, each a masked mean, and their weighted sum.

cross camera   InfoNCE between the cameras of one moment (arXiv:1807.03748)
temporal       InfoNCE between two moments of one drive
masked         hidden tokens, predicted from the rest, against a slowly moving copy of the encoder
               (BYOL arXiv:2006.07733, data2vec arXiv:2202.03555, I-JEPA arXiv:2301.08243)
ego motion     relative pose between two moments
distilled      what a slowly moving copy of the encoder makes of a whole image, from a crop of it
               (DINO arXiv:2104.14294, with the assignment of SwAV arXiv:2006.09882)
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from chunkwise.models.augmentation import windowed
from chunkwise.train.gradients import weighted
from chunkwise.train.metrics import Mean, mean_of
from driving.config import ObjectiveConfig
from driving.model.heads import Pretrained, unit

MOTION_SCALE = (8.0, 1.0, 0.3)
"""Metres ahead, metres to the left and radians that count as 1: about what a car in a town does in a second."""
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.05
"""Of the softmax over prototypes, and of the assignment."""
SINKHORN_STEPS = 3
FAR = -1e9
"""Logit of what is no negative."""
ROUNDING_S = 1e-3
"""By which two times that are as far apart as asked may seem nearer: float32 tells those of an hour to 0.2 ms."""


def may_contrast(
    episode: Int[Array, " m"], query_t: Float[Array, " m"], key_t: Float[Array, " m"], near_s: float
) -> Bool[Array, "m m"]:
    """Which keys are negatives of which queries: all of other drives, and those of the same drive at least near_s away.

    Args:
      episode: Drive of each row, of its query and its key.
      query_t: When each query was, in seconds.
      key_t: When each key was.
      near_s: See ObjectiveConfig.
    """
    same = episode[:, None] == episode[None, :]
    return ~same | (jnp.abs(query_t[:, None] - key_t[None, :]) >= near_s - ROUNDING_S)


def info_nce(
    query: Float[Array, "m p"],
    key: Float[Array, "m p"],
    query_valid: Bool[Array, " m"],
    key_valid: Bool[Array, " m"],
    negative: Bool[Array, "m m"],
    temperature: float,
) -> Mean:
    """-log softmax_j(cos(query_i, key_j) / temperature)[i], over the rows i whose query and key are valid.

    Under jit with a sharded batch the rows are those of all devices, so negatives come from the whole batch.

    Args:
      query: One row a sample; of any length, normalised here.
      key: Its positive in the same row.
      query_valid: Rows that count.
      key_valid: Rows that may be a positive or a negative.
      negative: negative[i, j]: key j may be a negative of query i; the diagonal is the positive whatever it says.
      temperature: Above 0.
    """
    logits = unit(query) @ unit(key).T / temperature
    own = jnp.eye(len(query), dtype=bool)
    logits = jnp.where(own | (negative & key_valid[None]), logits, FAR)
    loss = jax.nn.logsumexp(logits, axis=-1) - jnp.diagonal(logits)
    return mean_of(loss, query_valid & key_valid)


def cross_camera(
    z: Float[Array, "m k p"], valid: Bool[Array, "m k"], negative: Bool[Array, "m m"], temperature: float
) -> Mean:
    """InfoNCE of every camera against every other of the same moment, from one pass of the encoder a view."""
    k = z.shape[1]

    def pair(i: Array, j: Array) -> Mean:
        loss = info_nce(
            jnp.take(z, i, 1), jnp.take(z, j, 1), jnp.take(valid, i, 1), jnp.take(valid, j, 1), negative, temperature
        )
        other = (i != j).astype(jnp.float32)
        return Mean(loss.sum * other, loss.count * other)

    i, j = jnp.meshgrid(jnp.arange(k), jnp.arange(k))
    losses = jax.vmap(pair)(i.ravel(), j.ravel())
    return Mean(losses.sum.sum(), losses.count.sum())


def temporal(
    z: Float[Array, "b n p"], valid: Bool[Array, "b n"], negative: Bool[Array, "b b"], temperature: float
) -> Mean:
    """InfoNCE between the first and the last moment of each sample, both ways.

    negative[i, j]: the first moment of i and the last of j may be negatives of each other.
    """
    there = info_nce(z[:, 0], z[:, -1], valid[:, 0], valid[:, -1], negative, temperature)
    back = info_nce(z[:, -1], z[:, 0], valid[:, -1], valid[:, 0], negative.T, temperature)
    return Mean(there.sum + back.sum, there.count + back.count)


def masked_latent(
    predicted: Float[Array, "m k gh gw d"],
    target: Float[Array, "m k gh gw d"],
    hidden: Bool[Array, "m k gh gw"],
    valid: Bool[Array, "m k"],
) -> Mean:
    """Smooth L1 between predictions and standardised target tokens, over hidden tokens of cameras that are there.

    The target carries no gradient. It is standardised token by token, as in data2vec: shrinking it gains nothing.
    """
    target = standardised(jax.lax.stop_gradient(target))
    error = _smooth(predicted - target).mean(-1)
    return mean_of(error, hidden & valid[:, :, None, None])


def distilled(student: Float[Array, "m k q"], teacher: Float[Array, "m k q"], valid: Bool[Array, "m k"]) -> Mean:
    """Cross entropy of the student's softmax over prototypes against the teacher's assignment, over cameras there are.

    The teacher carries no gradient. DINO keeps it from collapsing by centring with a running mean; here the images of
    a batch are assigned to all prototypes alike, as in SwAV and DINOv2 (arXiv:2304.07193), which keeps no state.

    Args:
      student: Cosines of crops with prototypes.
      teacher: Those of the whole images.
      valid: Which cameras have an image.
    """
    rows = student.shape[0] * student.shape[1]
    known = valid.reshape(rows)
    target = assignment(jax.lax.stop_gradient(teacher).reshape(rows, -1), known)
    log_share = jax.nn.log_softmax(student.reshape(rows, -1) / STUDENT_TEMPERATURE)
    return mean_of(-(target * log_share).sum(-1), known)


def assignment(cosines: Float[Array, "r q"], known: Bool[Array, " r"]) -> Float[Array, "r q"]:
    """Shares of each known row in each prototype: rows sum to 1, and prototypes have equal shares of all rows.

    By SINKHORN_STEPS of Sinkhorn and Knopp, rows last, so that their sums are exact; rows that are not known are 0.
    """
    shares = jnp.where(known[:, None], jnp.exp((cosines - 1) / TEACHER_TEMPERATURE), 0.0)
    for _ in range(SINKHORN_STEPS):
        shares = shares / jnp.maximum(shares.sum(0, keepdims=True), 1e-30)
        shares = shares / jnp.maximum(shares.sum(1, keepdims=True), 1e-30)
    return shares


def ego_motion(predicted: Float[Array, "b 3"], relative_pose: Float[Array, "b n 3"], valid: Bool[Array, "b n"]) -> Mean:
    """Smooth L1 of the pose of the last moment seen from the first, in units of MOTION_SCALE.

    Args:
      predicted: In those units.
      relative_pose: Pose of each moment in the vehicle frame of one of them: x, y in metres, yaw in radians.
      valid: Whether it is known.
    """
    first, last = relative_pose[:, 0], relative_pose[:, -1]
    target = _seen_from(first, last) / jnp.array([MOTION_SCALE], jnp.float32)
    return mean_of(_smooth(predicted - target).mean(-1), valid[:, 0] & valid[:, -1])


def standardised(x: Float[Array, "*any d"]) -> Float[Array, "*any d"]:
    """Vectors of mean 0 and deviation 1."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)


def draw_hidden(key: Key[Array, ""], shape: tuple[int, int, int, int, int], share: float) -> Bool[Array, "b n k gh gw"]:
    """Tokens to hide: exactly round(share gh gw), at least one, of each camera's grid, at random."""
    *leading, gh, gw = shape
    count = max(1, round(share * gh * gw))
    order = jax.random.uniform(key, (*leading, gh * gw)).argsort(axis=-1).argsort(axis=-1)
    return (order < count).reshape(shape)


def draw_crops(key: Key[Array, ""], images: Float[Array, "m h w c"], most: float) -> Float[Array, "m h w c"]:
    """A window of each image, enlarged to the image's size; it leaves out up to `most` of height and of width."""
    share, place = jax.random.split(key)
    left_out = jax.random.uniform(share, (len(images),), maxval=most)
    return windowed(images, left_out, jax.random.uniform(place, (len(images), 2)))


def total(
    out: Pretrained,
    target: Float[Array, "m k gh gw d"] | None,
    hidden: Bool[Array, "b n k gh gw"] | None,
    batch: Any,
    config: ObjectiveConfig,
    teacher: Float[Array, "m k q"] | None = None,
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Weighted sum of the objectives, and what is logged: each of them, and whether the features collapse.

    Args:
      out: Of the model on the batch.
      target: Tokens that the slowly moving encoder makes of the same images with nothing hidden; None if unused.
      hidden: What was hidden; None if unused.
      batch: As `driving.train` hands it to the step.
      config: Weights and settings.
      teacher: Cosines with prototypes of the same images by the slowly moving encoder and head; None if unused.
    """
    valid = batch["image_valid"]
    b, n, k = valid.shape
    episode = jnp.repeat(batch["episode"], n)
    t = batch["t"].reshape(-1)
    every = may_contrast(episode, t, t, config.near_s)
    losses: dict[str, Mean] = {}
    if out.cameras is not None:
        z = out.cameras.reshape(b * n, k, -1)
        losses["cross_camera"] = cross_camera(z, valid.reshape(b * n, k), every, config.temperature)
    if out.scene is not None:
        moments = may_contrast(batch["episode"], batch["t"][:, 0], batch["t"][:, -1], config.near_s)
        losses["temporal"] = temporal(out.scene, valid.any(-1), moments, config.temperature)
    if out.predicted is not None:
        assert target is not None
        assert hidden is not None
        flat = hidden.reshape(b * n, *hidden.shape[2:])
        losses["masked"] = masked_latent(out.predicted, target, flat, valid.reshape(b * n, k))
    if out.distilled is not None:
        assert teacher is not None
        losses["distilled"] = distilled(out.distilled, teacher, valid.reshape(b * n, k))
    if out.motion is not None:
        losses["ego_motion"] = ego_motion(out.motion, batch["relative_pose"], batch["relative_pose_valid"])
    return weighted(losses, weights(config)), losses | spread(out.features.scene)


def weights(config: ObjectiveConfig) -> dict[str, float]:
    """Weights of the objectives that are on."""
    every = {
        "cross_camera": config.cross_camera,
        "temporal": config.temporal,
        "masked": config.masked,
        "ego_motion": config.ego_motion,
        "distilled": config.distilled,
    }
    return {name: weight for name, weight in every.items() if weight}


def spread(features: Float[Array, "m d"]) -> dict[str, Mean]:
    """Whether features differ from sample to sample; both fall towards their floor where an encoder collapses.

    feature_std     standard deviation of a coordinate over the batch, mean over coordinates; 0 if all are equal
    effective_rank  exp of the entropy of the normalised singular values of the centred features (arXiv:2210.02885);
                    from 1 to m - 1

    With train.grad_accum_steps each is of one part of the batch, and logged as their mean.
    """
    centred = jax.lax.stop_gradient(features - features.mean(axis=0, keepdims=True))
    singular = jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(centred @ centred.T), 0.0))
    share = singular / (singular.sum() + 1e-12) + 1e-12
    rank = jnp.exp(-(share * jnp.log(share)).sum())
    return {
        "feature_std": mean_of(jnp.sqrt(jnp.square(centred).mean(axis=0))),
        "effective_rank": mean_of(rank),
    }


def _smooth(error: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Smooth L1: e^2 / 2 below 1, |e| - 1/2 above."""
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * jnp.square(error), size - 0.5)


def _seen_from(origin: Float[Array, "b 3"], pose: Float[Array, "b 3"]) -> Float[Array, "b 3"]:
    """`pose` in the frame of `origin`, both given in one frame; yaw in (-pi, pi]."""
    dx, dy = pose[:, 0] - origin[:, 0], pose[:, 1] - origin[:, 1]
    cos, sin = jnp.cos(origin[:, 2]), jnp.sin(origin[:, 2])
    yaw = pose[:, 2] - origin[:, 2]
    return jnp.stack([cos * dx + sin * dy, cos * dy - sin * dx, jnp.arctan2(jnp.sin(yaw), jnp.cos(yaw))], axis=-1)
