"""Classifier-free guidance on optimality: one loss with two settings, and guided sampling.

Actions that came out better than expected teach the branch with the condition "positive", all of them the branch with
none. Steering away from the second and beyond the first is a policy improvement of adjustable size (CFGRL,
arXiv:2505.23458; guidance itself: arXiv:2207.12598). The observation is encoded once and serves all branches: a branch
costs the action expert's few tokens alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from chunkwise.train.metrics import Mean, mean_of
from openpi_ript.config.experiment import GuidanceConfig
from openpi_ript.config.model import Optimality
from openpi_ript.model.pi0 import (
    Context,
    Known,
    Observation,
    Pi0,
    draw_noise_and_time,
    encode,
    flow_error,
    integrate,
    velocity,
)


class Branches(NamedTuple):
    """What each branch is told about each sample, and how much it counts there."""

    conditions: Int[Array, "branch b"]
    """Values of `Optimality`."""
    weights: Float32[Array, "branch b"]
    """At least 0."""


def make_branches(
    config: GuidanceConfig, label: Int[Array, " b"], advantage: Float[Array, " b"], key: Key[Array, ""]
) -> Branches:
    """Conditions and weights for one batch, by `config.loss`:

    two_branch     c = (positive, none),   w = (1[label is positive] or max(advantage, 0), unconditional_weight)
    label_dropout  c = none with probability p, else the label;  w = 1

    The first with the indicator and weight 0.1 is CFGRL's loss, 1[A > 0] |v_positive - u|^2 + 0.1 |v_none - u|^2. Its
    variant with the advantage is RIPT's weighting. The second is classifier-free guidance in its first form
    (arXiv:2207.12598, algorithm 1), with the label that RIPT's guided variant uses; p = 0.1.

    Args:
      config: Which setting.
      label: From `advantage.label`, by the raw advantage: softplus makes every one positive.
      advantage: Processed, as a weight. One below 0 counts as 0: the loss would have no minimum.
      key: For the dropout.
    """
    positive = jnp.full_like(label, Optimality.POSITIVE)
    none = jnp.full_like(label, Optimality.NONE)
    if config.loss == "label_dropout":
        dropped = jax.random.bernoulli(key, config.dropout, label.shape)
        conditions = jnp.where(dropped, none, label)[None]
        return Branches(conditions, jnp.ones(conditions.shape, jnp.float32))
    if config.positive_weight == "indicator":
        weight = (label == Optimality.POSITIVE).astype(jnp.float32)
    else:
        weight = jnp.maximum(advantage.astype(jnp.float32), 0)
    return Branches(
        jnp.stack([positive, none]), jnp.stack([weight, jnp.full_like(weight, config.unconditional_weight)])
    )


def guided_loss(
    model: Pi0,
    params: Any,
    observation: Observation,
    actions: Float32[Array, "b t a"],
    action_is_pad: Bool[Array, "b t"],
    label: Int[Array, " b"],
    advantage: Float[Array, " b"],
    config: GuidanceConfig,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Flow-matching loss of all branches on the same noise and time:

        L = mean over real steps (i, t) of  sum_j w_ji |v(x_it, t_i | o_i, c_ji) - u_it|^2

    with conditions c and weights w from `make_branches`. The mean divides by the number of real steps, so a sample of
    weight 0 is a sample without pull, not an absent one (as in CFGRL's expectation).

    Args:
      model: With `config.optimality`.
      params: Its weights.
      observation: Of the chunk's first step.
      actions: Normalised, padded with zeros to action_dim.
      action_is_pad: True past the episode's end; the error of such steps has no part in the loss. The others attend to
        them, as to the steps of a whole chunk: they hold the last action again.
      label: Values of `Optimality`, from the raw advantage.
      advantage: Processed advantage, at least 0 (see `make_branches`).
      config: Which branches, and their weights.
      key: For noise, time and dropout.

    Returns:
      The loss, and means: the loss, and |v - u|^2 per condition over the samples that count under it.
    """
    flow_key, dropout_key = jax.random.split(key)
    branches = make_branches(config, label, advantage, dropout_key)
    context = encode(model, params, observation)
    noise, time = draw_noise_and_time(flow_key, actions)

    def error_under(condition: Int[Array, " b"]) -> Float32[Array, "b t"]:
        return flow_error(model, params, context, actions, noise, time, condition)

    # Only the condition has a branch axis: what does not depend on it, keys and values of the prefix above all, is
    # neither computed nor stored twice.
    errors = jax.vmap(error_under)(branches.conditions)
    real = ~action_is_pad
    loss = mean_of((branches.weights[..., None] * errors).sum(axis=0), real)
    metrics = {"guided_loss": loss}
    for condition in Optimality:
        counts = (branches.conditions == condition) & (branches.weights > 0)
        metrics[f"flow_loss_{condition.name.lower()}"] = mean_of(errors, counts[..., None] & real[None])
    return loss.value(), metrics


def guided_sample(
    model: Pi0,
    params: Any,
    context: Context,
    noise: Float32[Array, "b t a"],
    *,
    scale: float | Float[Array, ""] | Float[Array, " b"],
    steps: int | Int[Array, ""],
    known: Known | None = None,
) -> Float32[Array, "b t a"]:
    """Chunks along v = v_none + w (v_positive - v_none), from noise to action.

    Both suffixes go through the expert in one batch, over keys and values of the one prefix. Written as
    (1 - w) v_none + w v_positive, which is exact at w = 1 (the conditional policy) and w = 0 (the unconditional one).

    Args:
      model: With `config.optimality`.
      params: Its weights.
      context: The encoded observation.
      noise: Sample at t = 1.
      scale: w, one for all or one a sample; may be traced.
      steps: Euler steps; may be traced.
      known: As `integrate`.
    """
    b = noise.shape[0]
    conditions = jnp.stack([jnp.full((b,), c, jnp.int32) for c in (Optimality.NONE, Optimality.POSITIVE)])
    w = jnp.asarray(scale, jnp.float32)
    w = w[:, None, None] if w.ndim else w

    def field(x: Float32[Array, "b t a"], time: Float32[Array, " b"]) -> Float32[Array, "b t a"]:
        def under(condition: Int[Array, " b"]) -> Float32[Array, "b t a"]:
            return velocity(model, params, context, x, time, condition)

        none, positive = jax.vmap(under)(conditions)
        return (1 - w) * none + w * positive

    return integrate(field, noise, steps, known)
