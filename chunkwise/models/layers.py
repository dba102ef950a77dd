"""Layers used by more than one package."""

from itertools import accumulate
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

KERNEL_INIT = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


class JoinedDense(nn.Module):
    """Dense layer on the concatenation of its inputs, which is never formed: W [x, y] + b = W_x x + W_y y + b.

    The inputs' leading axes broadcast, and each product has the leading axes of its own input: an observation that
    serves n samples is multiplied once, not n times (2.6 % of an update of Q-chunking with the best of 32 samples).
    """

    features: int

    @nn.compact
    def __call__(self, *inputs: Float[Array, "..."]) -> Float[Array, "..."]:
        ends = list(accumulate(x.shape[-1] for x in inputs))
        kernel = self.param("kernel", KERNEL_INIT, (ends[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        rows = jnp.split(kernel, ends[:-1])
        products = [x @ w for x, w in zip(inputs, rows, strict=True)]
        return sum(products, start=bias.reshape((1,) * (inputs[0].ndim - 1) + bias.shape))


class MLP(nn.Module):
    """Hidden layers of GELU (tanh form), each followed by layer norm where asked for, and a linear output layer."""

    hidden_sizes: tuple[int, ...]
    output_size: int
    layer_norm: bool = False

    @nn.compact
    def __call__(self, *inputs: Float[Array, "..."]) -> Float[Array, "..."]:
        """Output of shape (*leading, output_size).

        Args:
          inputs: Arrays of one rank, seen as one concatenated vector; their leading axes broadcast.
        """
        joined, *sizes = (*self.hidden_sizes, self.output_size)
        x = JoinedDense(joined, name="layer_0")(*inputs)
        for i, size in enumerate(sizes):
            x = nn.gelu(x)
            if self.layer_norm:
                x = nn.LayerNorm(name=f"norm_{i}")(x)
            x = nn.Dense(size, kernel_init=KERNEL_INIT, name=f"layer_{i + 1}")(x)
        return x


def attention(module: nn.Module, num_heads: int, **options: Any) -> nn.Module:
    """flax's MultiHeadDotProductAttention as a part of `module`, with a bias of its keys that is not trained.

    That bias adds the same to all logits of a query, so the softmax does not see it: its gradient is 0, and what comes
    out in floating point is rounding, which Adam would scale up to whole steps of the learning rate (after 20 updates
    the bias differed by more than its size between 1 and 8 devices). Weights loaded from elsewhere keep theirs.
    """
    still = nn.map_variables(
        nn.MultiHeadDotProductAttention,
        "params",
        trans_in_fn=_without_gradient_of_key_bias,
        init=module.is_initializing(),
    )
    return still(num_heads=num_heads, **options)


def _without_gradient_of_key_bias(variables: Any) -> Any:
    """The same variables; empty when the module is about to make them."""
    params = variables.get("params", {})
    if "key" not in params:
        return variables
    key = params["key"] | {"bias": jax.lax.stop_gradient(params["key"]["bias"])}
    return {"params": params | {"key": key}}


class Conv(nn.Module):
    """A convolution with SAME padding; its weights are those of flax's nn.Conv, name and shape."""

    features: int
    kernel_size: tuple[int, int]
    strides: int = 1
    use_bias: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the arithmetic; weights stay float32."""

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        y = convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.strides)
        if not self.use_bias:
            return y
        return (
            y + self.param("bias", nn.initializers.zeros_init(), (self.features,)).astype(self.dtype)[None, None, None]
        )


def convolve(
    x: Float[Array, "b h w c"], kernel: Float[Array, "rows columns c c2"], stride: int
) -> Float[Array, "b h2 w2 c2"]:
    """x convolved with the kernel, zeros beyond the edge, every `stride`-th place in height and width.

    On CPUs one product with every place's neighbourhood: XLA's own convolution is 40 times slower inside a loop there,
    and the train loop is one (15.1 s against 0.36 s for the gradient of one 3 x 3 layer on 32 x 64 x 64 x 16). Which
    of both it is depends on the device that the program is compiled for, not on the one that compiles it.
    """

    x = x.astype(kernel.dtype)  # lax's convolution takes no two types, as float32 images and weights of JAX_ENABLE_X64

    def own(x: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def product(x: Array, kernel: Array) -> Array:
        places = neighbourhoods(x, (kernel.shape[0], kernel.shape[1]), stride, fill=0.0)
        return jnp.concatenate(places, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])

    return jax.lax.platform_dependent(x, kernel, cpu=product, default=own)


def max_pool(x: Float[Array, "b h w c"], size: int, stride: int) -> Float[Array, "b h2 w2 c"]:
    """Maximum over size x size places with SAME padding; in a form whose gradient is fast on CPUs too."""
    first, *rest = neighbourhoods(x, (size, size), stride, fill=-jnp.inf)
    for other in rest:
        first = jnp.maximum(first, other)
    return first


def neighbourhoods(
    x: Float[Array, "b h w c"], size: tuple[int, int], stride: int, *, fill: float
) -> list[Float[Array, "b h2 w2 c"]]:
    """For each offset of a window of `size`, row by row, what lies there from every `stride`-th place."""
    counts = [-(-length // stride) for length in x.shape[1:3]]
    margins = []
    for count, length, window in zip(counts, x.shape[1:3], size, strict=True):
        beyond = max((count - 1) * stride + window - length, 0)
        margins.append((beyond // 2, beyond - beyond // 2))
    padded = jnp.pad(x, ((0, 0), *margins, (0, 0)), constant_values=fill)
    rows, columns = ((count - 1) * stride + 1 for count in counts)
    return [padded[:, i : i + rows : stride, j : j + columns : stride] for i in range(size[0]) for j in range(size[1])]
