"""Networks of Q-chunking: an ensemble of critics and a policy network, MLPs on an observation and a chunk.

A chunk is flat here: d = t a numbers. Initialisers, activation, and layer norm after it are those of the official
implementations of Q-chunking (arXiv:2507.07969) and FQL (arXiv:2502.02538).
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
from jaxtyping import Array, Float, UInt8

from core.arrays import PyTree
from core.layers import MLP


class Critic(nn.Module):
    """Q(s, a_t:t+h) of an ensemble whose members share nothing; a single critic keeps the ensemble's axis."""

    hidden_sizes: tuple[int, ...]
    num_critics: int
    layer_norm: bool

    @nn.compact
    def __call__(self, observations: Float[Array, "*#b s"], chunks: Float[Array, "*#b d"]) -> Float[Array, "e *b"]:
        ensemble = nn.vmap(
            MLP,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]  (None means that all members see the same input)
            out_axes=0,
            axis_size=self.num_critics,
        )
        return ensemble(self.hidden_sizes, 1, self.layer_norm, name="mlp")(observations, chunks)[..., 0]


class ChunkPolicy(nn.Module):
    """Maps an observation and a chunk of numbers to a chunk.

    With a time it is a velocity field v(t, s, x) whose last input is the time itself; without, a one-step policy
    mu(s, z) of noise z.
    """

    hidden_sizes: tuple[int, ...]
    chunk_size: int
    layer_norm: bool

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*#b s"], chunks: Float[Array, "*#b d"], t: Float[Array, "*#b 1"] | None = None
    ) -> Float[Array, "*b d"]:
        inputs = (observations, chunks) if t is None else (observations, chunks, t)
        return MLP(self.hidden_sizes, self.chunk_size, self.layer_norm, name="mlp")(*inputs)


def policy_input(observations: Mapping[str, Any], name: Literal["qpos", "state"]) -> Float[Array, "b s"]:
    """The array that the networks see.

    Raises:
      ValueError: If the dataset has no such array.
    """
    if observations[name] is None:
        raise ValueError(f"data.observation is {name!r}, which the batch lacks; set it to an array that is recorded")
    return observations[name]


def pictures(observations: Mapping[str, Any]) -> UInt8[Array, "b k h w 3"]:
    """The cameras' pictures.

    Raises:
      ValueError: If the batch has none.
    """
    if observations["images"] is None:
        raise ValueError("agent.encoder is set, but the batch has no pictures; name them in data.cameras")
    return observations["images"]


def apply(network: nn.Module, params: PyTree, *inputs: Array) -> Array:
    """Output of a network with the weights `params`."""
    output: Any = network.apply({"params": params}, *inputs)
    return output
