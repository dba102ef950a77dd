"""A training batch's images as augmentation wants them, changed inside the train step.

By numbers that the host drew, as driving/data/augment.py changes them on the host: the same, but for the rounding to
whole levels, which is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt8

from chunkwise.models.augmentation import coloured, windowed
from driving.config import AugmentConfig
from driving.data.augment import CHANGES, mirror_order


def changes_pixels(config: AugmentConfig) -> bool:
    """Whether training changes what an image shows."""
    return bool(config.crop or config.brightness or config.contrast or config.saturation or config.flip)


def changed(batch: Mapping[str, Any], config: AugmentConfig, cameras: Sequence[str]) -> dict[str, Any]:
    """Returns a batch whose images are changed as it says; as it is where it says nothing.

    Args:
      batch: With `images` [b, v, h, w, 3], v the k cameras at each moment.
      config: Says which changes there are.
      cameras: Names of the k cameras.
    """
    if CHANGES[0] not in batch:
        return dict(batch)
    rest = {name: value for name, value in batch.items() if name not in CHANGES}
    crop, colour, flipped = (batch[name] for name in CHANGES)
    return rest | {"images": change(batch["images"], crop, colour, flipped, config, cameras)}


def change(
    images: UInt8[Array, "b v h w 3"],
    crop: Float[Array, "b k 3"],
    colour: Float[Array, "b v 3"],
    flipped: Bool[Array, " b"],
    config: AugmentConfig,
    cameras: Sequence[str],
) -> Float[Array, "b v h w 3"]:
    """Returns images cropped, in other colours, and mirrored: 0 to 255, not rounded.

    Args:
      images: As read.
      crop: Share left out, and where the rest lies; the same at all moments.
      colour: Factors of brightness, contrast, saturation.
      flipped: Rows of which left and right change places, cameras and pixels.
      config: Says which changes there are.
      cameras: Names of the k cameras.
    """
    b, v, h, w, _ = images.shape
    k, moments = len(cameras), images.shape[1] // len(cameras)
    flat = images.astype(jnp.float32).reshape(b * v, h, w, 3)
    if config.crop:
        every = jnp.tile(crop, (1, moments, 1)).reshape(b * v, 3)
        flat = windowed(flat, every[:, 0], every[:, 1:])
    if config.brightness or config.contrast or config.saturation:
        flat = coloured(flat, colour.reshape(b * v, 3))
    x = flat.reshape(b, moments, k, h, w, 3)
    if config.flip:
        mirrored = x[:, :, jnp.array(mirror_order(cameras)), :, ::-1]
        x = jnp.where(flipped[:, None, None, None, None, None], mirrored, x)
    return x.reshape(b, v, h, w, 3)
