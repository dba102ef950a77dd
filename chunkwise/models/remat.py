"""Layers that are computed again in the backward pass, and what is kept of them nevertheless."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from chunkwise.config.experiment import RematPolicy

INPUT, ATTENTION = "layer_input", "attention"
"""Names by which a layer marks its input, and the averages of values that its attention makes, before any product."""


def rematerialised(layer: Any, policy: RematPolicy | None, **options: Any) -> Any:
    """Returns a layer that computes itself again in the backward pass.

    Args:
      layer: A Linen module's class, or a method of one.
      policy: What is kept; None: everything, nothing is computed again. Numbers are the same with each.
      options: Further ones of flax's `remat`.
    """
    return layer if policy is None else nn.remat(layer, policy=_kept(policy), **options)


def marked(x: Any, name: str) -> Any:
    """Returns the same array, which a policy may keep by its name."""
    return checkpoint_name(x, name)


def _kept(policy: RematPolicy) -> Callable[..., Any] | None:
    """jax's policy of that name: called for each operation of a layer, it says whether its results are kept."""
    policies = jax.checkpoint_policies
    if policy == "attention":
        return policies.save_only_these_names(ATTENTION)
    if policy == "products":
        return policies.dots_with_no_batch_dims_saveable
    if policy == "inputs_on_host":
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=[INPUT],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return None
