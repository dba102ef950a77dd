"""The clipped ratio of PPO (arXiv:1707.06347): L = mean of -min(r A, clip(r, 1 - e, 1 + e) A)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from chunkwise.train.metrics import Mean, mean_of


def clipped_loss(
    log_prob: Float32[Array, "b k t"],
    behaviour: Float32[Array, "b k t"],
    advantage: Float[Array, " b"],
    valid: Bool[Array, "b t"],
    clip: float,
) -> tuple[Float[Array, ""], dict[str, Mean]]:
    """Returns PPO's loss, and means over the k draws of each row, each of t parts whose probabilities multiply.

    Args:
      log_prob: Of each part of each draw, under the policy that trains. A draw is a step of a sampler, of which a
        chunk's steps are parts, or the choice of a mode, which is one part.
      behaviour: The same under the policy that sampled.
      advantage: Of the rollout; positive is better than its group.
      valid: Parts that count; a row without any does not.
      clip: How far from 1 a ratio still counts.

    Returns:
      The loss, and `ppo_loss`, `ratio`, `clipped_share` (of ratios farther than `clip` from 1), and `approx_kl`: the
      mean of r - 1 - log r, which estimates how far the policy that trains is from the one that sampled, at least 0.
    """
    counts = valid[:, None]
    change = jnp.where(counts, log_prob - behaviour, 0).sum(axis=-1)
    ratio, weight = jnp.exp(change), advantage.astype(jnp.float32)[:, None]
    gain = jnp.minimum(ratio * weight, jnp.clip(ratio, 1 - clip, 1 + clip) * weight)
    real = jnp.broadcast_to(valid.any(axis=-1)[:, None], ratio.shape)
    loss = mean_of(-gain, real)
    return loss.value(), {
        "ppo_loss": loss,
        "ratio": mean_of(ratio, real),
        "clipped_share": mean_of((jnp.abs(ratio - 1) > clip).astype(jnp.float32), real),
        "approx_kl": mean_of(ratio - 1 - change, real),
    }
