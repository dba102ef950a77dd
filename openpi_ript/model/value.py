"""A distributional value: how good it is to be where an observation was made, on a scale from -1 to 0.

The network is small and its own: it sees the state, the images through a few convolutions, and the task as a number. So
it takes policies with and without cameras alike, and its updates cost little beside theirs. That of pi*0.6
(arXiv:2511.14759) is a vision-language model.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, UInt8

from chunkwise.models.layers import MLP, Conv

FEATURES = (16, 32, 32, 32)
"""Channels of the convolutions, each of which halves height and width."""
FARTHEST = 10.0
"""Deviations at which a normalised state is cut off: a dimension that never moved in the data is divided by 1e-6."""


class ValueNetwork(nn.Module):
    """Logits of a distribution over `bins` evenly spaced values."""

    bins: int
    tasks: int
    width: int

    @nn.compact
    def __call__(
        self, state: Float32[Array, "b s"], task: Int[Array, " b"], images: UInt8[Array, "b k h w 3"] | None
    ) -> Float32[Array, "b n"]:
        """Returns the logits.

        Args:
          state: Normalised.
          task: Number of each row's task, below `tasks`.
          images: None: the policy has no cameras.
        """
        inputs = [jnp.clip(state, -FARTHEST, FARTHEST), jax.nn.one_hot(task, self.tasks)]
        if images is not None:
            b, k = images.shape[:2]
            x = images.reshape(b * k, *images.shape[2:]).astype(jnp.float32) / 127.5 - 1
            for number, features in enumerate(FEATURES):
                x = nn.relu(Conv(features, (3, 3), strides=2, name=f"conv_{number}")(x))
            inputs.append(x.reshape(b, -1))
        return MLP((self.width, self.width), self.bins, layer_norm=True, name="head")(*inputs)


def expected_value(logits: Float[Array, "b n"]) -> Float[Array, " b"]:
    """Returns the mean of the distribution over values from -1 to 0."""
    return jax.nn.softmax(logits) @ jnp.linspace(-1.0, 0.0, logits.shape[-1])


def two_hot(value: Float[Array, " b"], bins: int) -> Float[Array, "b n"]:
    """Returns the distribution over the two bins around each value whose mean it is; values are -1 to 0."""
    place = (jnp.clip(value, -1.0, 0.0) + 1) * (bins - 1)
    return jnp.maximum(0.0, 1 - jnp.abs(place[:, None] - jnp.arange(bins, dtype=jnp.float32)[None]))


def cross_entropy(logits: Float[Array, "b n"], value: Float[Array, " b"]) -> Float[Array, " b"]:
    """Returns how badly each distribution foresaw the value that was observed, in nats."""
    return -(two_hot(value, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(axis=-1)
