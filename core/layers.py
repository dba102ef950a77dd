"""Layers used by more than one package."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

KERNEL_INIT = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


class MLP(nn.Module):
    hidden_sizes: tuple[int, ...]
    output_size: int
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        for size in self.hidden_sizes:
            x = nn.gelu(nn.Dense(size, kernel_init=KERNEL_INIT)(x))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
        return nn.Dense(self.output_size, kernel_init=KERNEL_INIT)(x)
