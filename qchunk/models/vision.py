"""What the networks see of images: convolutional encoders, and augmentation on the device inside the step.

Images are uint8 (b, k, h, w, 3) until they are here; recoloured ones are float32, 0 to 255. Which loss trains which
encoder is decided in qchunk/agents/base.py, `Agent.encode`; config.EncoderConfig describes it.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Real, UInt8

from chunkwise.models.layers import Conv, max_pool
from qchunk.config import AugmentConfig, EncoderConfig

GROUP = 16  # channels of a group of group norm (Wu & He 2018, arXiv:1803.08494, find 16 and 32 best)
GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601


class ImageEncoder(nn.Module):
    """One vector of a row's images: `feature_size` numbers for each camera, in the cameras' order.

    Each camera has weights of its own, named after it, or all share one set. A loop over the cameras, not a vmap over
    stacked weights, which would turn the convolutions into grouped ones: those are slow on CPUs and GPUs.
    """

    config: EncoderConfig
    cameras: tuple[str, ...]

    @property
    def size(self) -> int:
        """Numbers of the vector, d."""
        return len(self.cameras) * self.config.feature_size

    @nn.compact
    def __call__(self, images: Real[Array, "b k h w 3"]) -> Float[Array, "b d"]:
        b, k = images.shape[:2]
        x = images.astype(self.config.compute_dtype) / 127.5 - 1
        if self.config.share_cameras:
            return CameraEncoder(self.config, name="cameras")(x.reshape(b * k, *x.shape[2:])).reshape(b, -1)
        seen = [CameraEncoder(self.config, name=f"camera_{name}")(x[:, i]) for i, name in enumerate(self.cameras)]
        return jnp.concatenate(seen, axis=-1)


class CameraEncoder(nn.Module):
    """Images of one camera to features within -1 .. 1: trunk, pooling, dense layer, layer norm and tanh (DrQ's)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, images: Float[Array, "b h w 3"]) -> Float[Array, "b d"]:
        trunk = ImpalaTrunk if self.config.kind == "impala" else ResNetTrunk
        x = trunk(self.config, name="trunk")(images)
        if self.config.pooling == "spatial_softmax":
            x = spatial_softmax(x)
        elif self.config.pooling == "mean":
            x = x.mean(axis=(1, 2))
        else:
            x = x.reshape(len(x), -1)
        x = nn.Dense(self.config.feature_size, name="feature")(x.astype(jnp.float32))
        return jnp.tanh(nn.LayerNorm(name="feature_norm")(x))


class ImpalaTrunk(nn.Module):
    """The residual network of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, right).

    Each stage: 3 x 3 convolution, 3 x 3 maximum at stride 2, then residual blocks of two 3 x 3 convolutions, each after
    a ReLU. A ReLU ends the trunk. A stage halves height and width, rounding up.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        for i, width in enumerate(self.config.widths):
            conv = partial(Conv, width, (3, 3), dtype=self.config.compute_dtype)
            x = conv(name=f"stage_{i}")(x)
            x = max_pool(x, 3, 2)
            for j in range(self.config.blocks):
                y = conv(name=f"stage_{i}_block_{j}_0")(nn.relu(x))
                x = x + conv(name=f"stage_{i}_block_{j}_1")(nn.relu(y))
        return nn.relu(x)


class ResNetTrunk(nn.Module):
    """A residual network (He et al. 2015, arXiv:1512.03385) with group norm in place of batch norm.

    Stem: 7 x 7 convolution and 3 x 3 maximum, both at stride 2. Then stages of residual blocks of two 3 x 3
    convolutions; a stage after the first begins at stride 2. With four stages, 1 block a stage is 10 layers, 2 are 18.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        conv = partial(Conv, use_bias=False, dtype=self.config.compute_dtype)
        norm = partial(nn.GroupNorm, dtype=self.config.compute_dtype)
        widths = self.config.widths
        x = conv(widths[0], (7, 7), strides=2, name="stem")(x)
        x = nn.relu(norm(groups(widths[0]), name="stem_norm")(x))
        x = max_pool(x, 3, 2)
        for i, width in enumerate(widths):
            for j in range(self.config.blocks):
                stride, name = 2 if i > 0 and j == 0 else 1, f"stage_{i}_block_{j}"
                y = conv(width, (3, 3), strides=stride, name=f"{name}_0")(x)
                y = nn.relu(norm(groups(width), name=f"{name}_norm_0")(y))
                y = norm(groups(width), name=f"{name}_norm_1")(conv(width, (3, 3), name=f"{name}_1")(y))
                if x.shape != y.shape:
                    x = norm(groups(width), name=f"{name}_norm_skip")(
                        conv(width, (1, 1), strides=stride, name=f"{name}_skip")(x)
                    )
                x = nn.relu(x + y)
        return x


def groups(width: int) -> int:
    """Groups of a group norm over `width` channels; a layer narrower than two groups has one."""
    return max(1, width // GROUP)


def spatial_softmax(x: Float[Array, "b h w c"]) -> Float[Array, "b d"]:
    """Expected position of each channel's activation, d = 2 c: all x, then all y, from -1 (left, top) to 1.

    (Finn et al. 2016, arXiv:1509.06113.) In float32: bfloat16 keeps 8 bits, a step of half a pixel in 224.
    """
    b, h, w, c = x.shape
    share = jax.nn.softmax(x.astype(jnp.float32).reshape(b, h * w, c), axis=1).reshape(b, h, w, c)
    columns, rows = jnp.linspace(-1, 1, w), jnp.linspace(-1, 1, h)
    across = jnp.einsum("bhwc,w->bc", share, columns)
    down = jnp.einsum("bhwc,h->bc", share, rows)
    return jnp.concatenate([across, down], axis=-1)


def augment(images: UInt8[Array, "b k h w 3"], key: Key[Array, ""], config: AugmentConfig) -> Real[Array, "b k h w 3"]:
    """Random shift and colour jitter, one draw an image, or a row where `same_for_cameras` is set.

    The draws are a function of `key` alone. uint8 where colours stay as they are, else float32.
    """
    b, k = images.shape[:2]
    shift_key, colour_key = jax.random.split(key)
    draws = (b, 1 if config.same_for_cameras else k)
    if config.shift:
        offsets = jax.random.randint(shift_key, (*draws, 2), -config.shift, config.shift + 1)
        images = jax.vmap(jax.vmap(shift))(images, jnp.broadcast_to(offsets, (b, k, 2)))
    limits = jnp.array([config.brightness, config.contrast, config.saturation])
    if config.brightness or config.contrast or config.saturation:
        factors = 1 + limits[None, None] * jax.random.uniform(colour_key, (*draws, 3), minval=-1, maxval=1)
        images = jax.vmap(jax.vmap(recolour))(images, jnp.broadcast_to(factors, (b, k, 3)))
    return images


def shift(image: UInt8[Array, "h w 3"], offset: Int[Array, "2"]) -> UInt8[Array, "h w 3"]:
    """The image moved up by offset[0] and left by offset[1] pixels, its border repeated.

    With offsets drawn from -p .. p this is DrQ's padding by p pixels of the border and crop (arXiv:2004.13649).
    """
    h, w = image.shape[:2]
    rows = jnp.clip(jnp.arange(h) + offset[0], 0, h - 1)
    columns = jnp.clip(jnp.arange(w) + offset[1], 0, w - 1)
    return image[rows[:, None], columns[None, :]]


def recolour(image: UInt8[Array, "h w 3"], factors: Float[Array, "3"]) -> Float[Array, "h w 3"]:
    """Brightness, then contrast about the mean grey, then saturation about each pixel's grey; 1 leaves it as it is.

    0 to 255, not rounded: of 200,000 numbers a few lie so near a half that the order of the mean's sum, which depends
    on the number of devices, decides to which side. After 20 updates weights then differed by 7e-5, now by 6e-6.
    """
    grey = jnp.array(GREY)
    x = factors[0] * image.astype(jnp.float32)
    mean = (x @ grey).mean()
    x = mean + factors[1] * (x - mean)
    dull = (x @ grey)[..., None]
    x = dull + factors[2] * (x - dull)
    return jnp.clip(x, 0, 255)
