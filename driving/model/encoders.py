"""From the images of several cameras to tokens, a vector a camera, and one vector of the scene.

One encoder serves all cameras. A camera that is masked is replaced by zeros before it is encoded and by a learned
vector afterwards, so nothing of its pixels, NaN included, reaches any output. The scene is made from the concatenated
camera vectors: which camera saw what is kept, where a mean over cameras would lose it.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt8

from chunkwise.models.layers import KERNEL_INIT, attention, convolve
from chunkwise.models.remat import ATTENTION, INPUT, marked, rematerialised
from driving.config import STEM, ConvConfig, ModelConfig, VitConfig

TOKEN_WIDTH = 32
"""Width to which a token is brought before all tokens of a camera are concatenated: position survives, and cheaply."""
RAY_WIDTH = 32
"""Of what is made of a token's ray before it is added to the token."""
ZEROS = nn.initializers.zeros_init()
POSITION_INIT = nn.initializers.normal(0.02)


class Features(NamedTuple):
    """What the encoder makes of one moment."""

    tokens: Float[Array, "b k gh gw d"]
    """A grid for each camera; of a masked camera they are tokens of a black image."""
    cameras: Float[Array, "b k v"]
    """One vector a camera; of a masked camera a learned one."""
    scene: Float[Array, "b s"]


def grid(config: ModelConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of the token grid of one camera.

    Raises:
      ValueError: If the image is not a whole number of tokens.
    """
    patch = config.token_pixels
    if height % patch or width % patch:
        raise ValueError(f"images of {height} x {width}; expected multiples of {patch} pixels, a token's size")
    return height // patch, width // patch


class SceneEncoder(nn.Module):
    """Images of k cameras at one moment to Features."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        images: UInt8[Array, "b k h w 3"] | Float[Array, "b k h w 3"],
        valid: Bool[Array, "b k"],
        hidden: Bool[Array, "b k gh gw"] | None = None,
        looks: Float[Array, "b k gh gw 6"] | None = None,
    ) -> Features:
        """Encodes.

        Args:
          images: RGB from 0 to 255.
          valid: Which cameras have an image.
          hidden: Tokens whose pixels are replaced by a learned mask token before anything mixes them, or None.
          looks: Ray of each token (driving/model/rays.py), 0 where it is not known; None: the model reads none.
        """
        b, k, h, w, _ = images.shape
        seen = jnp.where(valid[:, :, None, None, None], images, jnp.zeros((), images.dtype))
        x = seen.astype(jnp.float32).reshape(b * k, h, w, 3) / 127.5 - 1.0
        grids = None if hidden is None else hidden.reshape(b * k, *hidden.shape[2:])
        encoder = ConvEncoder(self.config.conv) if self.config.vit is None else VitEncoder(self.config.vit)
        tokens = encoder(x, grids)
        tokens = tokens.reshape(b, k, *tokens.shape[1:])
        camera = self.param("camera", POSITION_INIT, (k, tokens.shape[-1]))
        tokens = tokens + camera[None, :, None, None, :]
        if looks is not None:
            # Of a ray that is not known the bias alone is left; at the start nothing is added.
            ray = nn.gelu(nn.Dense(RAY_WIDTH, kernel_init=KERNEL_INIT, name="ray")(looks))
            tokens = tokens + nn.Dense(tokens.shape[-1], kernel_init=ZEROS, name="ray_out")(ray)
        narrow = nn.gelu(nn.Dense(TOKEN_WIDTH, kernel_init=KERNEL_INIT, name="narrow")(nn.gelu(tokens)))
        cameras = nn.Dense(self.config.camera_width, kernel_init=KERNEL_INIT, name="join")(narrow.reshape(b, k, -1))
        missing = self.param("missing", POSITION_INIT, (k, self.config.camera_width))
        cameras = jnp.where(valid[:, :, None], cameras, missing[None])
        scene = nn.Dense(self.config.scene_width, kernel_init=KERNEL_INIT, name="fuse")(
            nn.gelu(nn.LayerNorm(name="norm")(cameras)).reshape(b, -1)
        )
        return Features(tokens=tokens, cameras=cameras, scene=scene)


class ConvEncoder(nn.Module):
    """Patches of 4 x 4 pixels, then stages of residual 3 x 3 convolutions, each at half the resolution before."""

    config: ConvConfig

    @nn.compact
    def __call__(self, x: Float[Array, "m h w 3"], hidden: Bool[Array, "m gh gw"] | None) -> Float[Array, "m gh gw d"]:
        x = nn.Dense(self.config.channels[0], kernel_init=KERNEL_INIT, name="stem")(_merge(x, STEM))
        mask_token = self.param("mask_token", POSITION_INIT, (x.shape[-1],))
        if hidden is not None:
            finer = 2 ** (len(self.config.channels) - 1)
            wide = jnp.repeat(jnp.repeat(hidden, finer, axis=1), finer, axis=2)
            x = jnp.where(wide[..., None], mask_token[None, None, None], x)
        for stage, (channels, blocks) in enumerate(zip(self.config.channels, self.config.blocks, strict=True)):
            if stage > 0:
                x = nn.Dense(channels, kernel_init=KERNEL_INIT, name=f"down_{stage}")(_merge(nn.gelu(x), 2))
            for block in range(blocks):
                y = nn.LayerNorm(name=f"norm_{stage}_{block}")(x)
                x = x + Convolution(channels, name=f"conv_{stage}_{block}")(nn.gelu(y))
        return x


class Convolution(nn.Module):
    """A 3 x 3 convolution, zeros beyond the edge. Its kernel is that of a dense layer on each place's nine neighbours,
    row by row, as saved runs have it."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "m h w c"]) -> Float[Array, "m h w c2"]:
        channels = x.shape[-1]
        kernel = self.param("kernel", KERNEL_INIT, (9 * channels, self.features))
        bias = self.param("bias", ZEROS, (self.features,))
        return convolve(x, kernel.reshape(3, 3, channels, self.features), 1) + bias[None, None, None]


class VitEncoder(nn.Module):
    """A vision transformer (arXiv:2010.11929) with learned positions and pre-norm blocks."""

    config: VitConfig

    @nn.compact
    def __call__(self, x: Float[Array, "m h w 3"], hidden: Bool[Array, "m gh gw"] | None) -> Float[Array, "m gh gw d"]:
        x = nn.Dense(self.config.width, kernel_init=KERNEL_INIT, name="patches")(_merge(x, self.config.patch_size))
        m, gh, gw, d = x.shape
        mask_token = self.param("mask_token", POSITION_INIT, (d,))
        if hidden is not None:
            x = jnp.where(hidden[..., None], mask_token[None, None, None], x)
        x = x.reshape(m, gh * gw, d) + self.param("position", POSITION_INIT, (gh * gw, d))[None]
        remat = self.config.remat_policy if self.config.remat else None
        for i in range(self.config.depth):
            x = rematerialised(functools.partial(VitEncoder._block, i=i), remat)(self, x)
        return nn.LayerNorm(name="norm")(x).reshape(m, gh, gw, d)

    def _block(self, x: Float[Array, "m n d"], i: int) -> Float[Array, "m n d"]:
        """Block i: x stays float32, each product is of the config's type."""
        c = self.config
        dtype = jnp.dtype(c.dtype)
        x = marked(x, INPUT)
        y = nn.LayerNorm(name=f"norm_attention_{i}")(x).astype(dtype)
        attend = attention(self, c.num_heads, dtype=dtype, attention_fn=_attend, name=f"attention_{i}")
        x = x + attend(y).astype(jnp.float32)
        y = nn.LayerNorm(name=f"norm_mlp_{i}")(x).astype(dtype)
        y = nn.gelu(nn.Dense(c.mlp_dim, dtype=dtype, name=f"up_{i}")(y))
        return x + nn.Dense(x.shape[-1], dtype=dtype, name=f"down_{i}")(y).astype(jnp.float32)


def _attend(
    query: Float[Array, "m n e d"], key: Float[Array, "m n e d"], value: Float[Array, "m n e d"], **_: Any
) -> Float[Array, "m n e d"]:
    """Attention of e heads, its softmax in float32 whatever the products are in; flax would take theirs."""
    with jax.numpy_dtype_promotion("standard"):  # it promotes bfloat16 with float32
        return marked(jax.nn.dot_product_attention(query, key, value), ATTENTION)


def _merge(x: Float[Array, "m h w c"], n: int) -> Float[Array, "m h2 w2 c2"]:
    """Blocks of n x n places as one place with n n c channels."""
    m, h, w, c = x.shape
    x = x.reshape(m, h // n, n, w // n, n, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(m, h // n, w // n, n * n * c)
