"""Networks of Q-chunking: an ensemble of critics and a policy network, MLPs on an observation and a chunk.

A chunk is flat here: d = t a numbers. Initialisers, activation, and layer norm after it are those of the official
implementations of Q-chunking (arXiv:2507.07969) and FQL (arXiv:2502.02538).
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from chunkwise.arrays import PyTree
from chunkwise.models.layers import KERNEL_INIT, MLP

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # RLPD's


class Critic(nn.Module):
    """Q(s, a_t:t+h) of an ensemble whose members share nothing; a single critic keeps the ensemble's axis."""

    hidden_sizes: tuple[int, ...]
    num_critics: int
    layer_norm: bool

    @nn.compact
    def __call__(self, observations: Float[Array, "*#b s"], chunks: Float[Array, "*#b d"]) -> Float[Array, "e *b"]:
        ensemble = _ensemble(MLP, self.num_critics)
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


class Value(nn.Module):
    """V(s)."""

    hidden_sizes: tuple[int, ...]
    layer_norm: bool

    @nn.compact
    def __call__(self, observations: Float[Array, "b s"]) -> Float[Array, " b"]:
        return MLP(self.hidden_sizes, 1, self.layer_norm, name="mlp")(observations)[..., 0]


class ReluMLP(nn.Module):
    """RLPD's hidden layers: layer norm where asked for, then ReLU; no output layer."""

    hidden_sizes: tuple[int, ...]
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "b _"]) -> Float[Array, "b d"]:
        for i, size in enumerate(self.hidden_sizes):
            x = nn.Dense(size, kernel_init=KERNEL_INIT, name=f"layer_{i}")(x)
            if self.layer_norm:
                x = nn.LayerNorm(name=f"norm_{i}")(x)
            x = nn.relu(x)
        return x


class _ReluValue(nn.Module):
    """One member of RLPD's ensemble."""

    hidden_sizes: tuple[int, ...]
    layer_norm: bool

    @nn.compact
    def __call__(self, observations: Float[Array, "b s"], chunks: Float[Array, "b d"]) -> Float[Array, " b"]:
        x = ReluMLP(self.hidden_sizes, self.layer_norm, name="mlp")(jnp.concatenate([observations, chunks], axis=-1))
        return nn.Dense(1, kernel_init=KERNEL_INIT, name="output")(x)[..., 0]


class ReluCritic(nn.Module):
    """Q(s, a) of an ensemble, with RLPD's layers (arXiv:2302.02948)."""

    hidden_sizes: tuple[int, ...]
    num_critics: int
    layer_norm: bool

    @nn.compact
    def __call__(self, observations: Float[Array, "b s"], chunks: Float[Array, "b d"]) -> Float[Array, "e b"]:
        return _ensemble(_ReluValue, self.num_critics)(self.hidden_sizes, self.layer_norm, name="members")(
            observations, chunks
        )


class GaussianPolicy(nn.Module):
    """Mean and log standard deviation of a Gaussian over flat chunks, before tanh, with RLPD's layers."""

    hidden_sizes: tuple[int, ...]
    chunk_size: int
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observations: Float[Array, "b s"]) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
        x = ReluMLP(self.hidden_sizes, self.layer_norm, name="mlp")(observations)
        mean = nn.Dense(self.chunk_size, kernel_init=KERNEL_INIT, name="mean")(x)
        log_std = nn.Dense(self.chunk_size, kernel_init=KERNEL_INIT, name="log_std")(x)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


def _ensemble(member: type[nn.Module], size: int) -> Any:
    """A module like `member` whose weights have a leading axis: all see the same input, each has its own weights."""
    return nn.vmap(
        member,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,  # pyright: ignore[reportArgumentType]  (None means that all members see the same input)
        out_axes=0,
        axis_size=size,
    )


def apply(network: nn.Module, params: PyTree, *inputs: Array) -> Array:
    """Output of a network with the weights `params`."""
    output: Any = network.apply({"params": params}, *inputs)
    return output
