"""SigLIP's image encoder: a ViT whose patch tokens are projected to the language model's width.

Sigmoid loss pretraining: arXiv:2303.15343; So400m shape: arXiv:2305.13035; as used by PaliGemma: arXiv:2407.07726.
Parameter names and shapes are those of openpi's checkpoints; layers are stacked on a leading axis.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from chunkwise.config.experiment import RematPolicy
from chunkwise.models.layers import attention
from chunkwise.models.remat import ATTENTION, INPUT, marked, rematerialised
from openpi_ript.config.model import SiglipConfig
from openpi_ript.model import int8


class LayerNorm(nn.Module):
    """Layer norm in f32, whatever the dtype of x (Linen's own mixes dtypes that strict promotion refuses)."""

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        centred = x32 - x32.mean(axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-6)
        return (normed * scale[None, None] + bias[None, None]).astype(x.dtype)


class MlpBlock(nn.Module):
    """Two dense layers with a GELU."""

    mlp_dim: int
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        inits: dict[str, Any] = {
            "kernel_init": nn.initializers.xavier_uniform(),
            "bias_init": nn.initializers.normal(1e-6),
        }
        hidden = nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype, **inits)(x))
        return nn.Dense(x.shape[-1], dtype=self.dtype, **inits)(hidden)


class EncoderBlock(nn.Module):
    """Pre-norm attention and MLP, each with a residual; a scan body, so it returns (carry, nothing)."""

    config: SiglipConfig
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> tuple[Float[Array, "b n d"], None]:
        attend = attention(
            self,
            self.config.num_heads,
            kernel_init=nn.initializers.xavier_uniform(),
            deterministic=True,
            dtype=self.dtype,
            attention_fn=_attend,
            name="MultiHeadDotProductAttention_0",
        )
        x = marked(x, INPUT)
        x = x + attend(LayerNorm(name="LayerNorm_0")(x))
        mlp = MlpBlock(self.config.mlp_dim, self.dtype, name="MlpBlock_0")
        return x + mlp(LayerNorm(name="LayerNorm_1")(x)), None


def _attend(*inputs: Any, **options: Any) -> Array:
    """flax's own attention; a policy may keep what it reads."""
    return marked(nn.dot_product_attention(*inputs, **options), ATTENTION)


class Encoder(nn.Module):
    """The stack of blocks and the last norm."""

    config: SiglipConfig
    dtype: str
    remat: RematPolicy | None
    """None: nothing is computed again."""
    unroll: int

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        # With FSDP a layer's weights are put together for that layer alone; with remat again in the backward pass, else
        # they are kept until then.
        gather = functools.partial(int8.gathered, dtype=self.dtype)
        whole: Any = nn.map_variables(EncoderBlock, "params", gather, init=True)
        block = rematerialised(whole, self.remat, prevent_cse=False)
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.config.depth,
            unroll=self.unroll,
        )
        x, _ = layers(self.config, self.dtype, name="encoderblock")(x)
        return LayerNorm(name="encoder_norm")(x)


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its size, as one product: inside a loop on a CPU XLA's own is many times slower."""

    width: int
    patch: int

    @nn.compact
    def __call__(self, images: Float[Array, "b h w c"]) -> Float[Array, "b n d"]:
        b, h, w, c = images.shape
        p = self.patch
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (p, p, c, self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        patches = images.reshape(b, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5)
        return patches.reshape(b, -1, p * p * c) @ kernel.reshape(p * p * c, self.width) + bias[None, None]


class Siglip(nn.Module):
    """Images to tokens, one per patch, without pooling."""

    config: SiglipConfig
    out_width: int
    dtype: str
    remat: RematPolicy | None
    """None: nothing is computed again."""
    unroll: int

    @nn.compact
    def __call__(self, images: Float[Array, "b h w c"]) -> Float[Array, "b n d"]:
        """Tokens of each image, rows of patches from the top.

        Args:
          images: In [-1, 1], f32. Patches and positions are computed in f32 whatever the dtype of the layers.
        """
        width = self.config.width
        x = PatchEmbedding(width, self.config.patch_size, name="embedding")(images)
        positions = self.param("pos_embedding", nn.initializers.normal(width**-0.5), (1, x.shape[1], width))
        x = (x + positions).astype(self.dtype)
        x = Encoder(self.config, self.dtype, self.remat, self.unroll, name="Transformer")(x)
        head = nn.Dense(self.out_width, dtype=self.dtype, kernel_init=nn.initializers.zeros, name="head")
        return head(x)
