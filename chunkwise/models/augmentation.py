"""Random changes of images on the device, inside the train step: crops, rotations, colours.

`augmented` is openpi's augmentation (its models/model.py with augmax 0.4): what each image shows is drawn from its own
key, so that the same key gives the same images wherever a run goes on. Images are 0 to 1 there, 0 to 255 outside.
`windowed` and `coloured` do what Pillow does, by numbers that the caller drew.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, Key, UInt8

from chunkwise.config.augmentation import AugmentationConfig

GREY = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a pixel's grey: ITU-R BT.601, as in Pillow."""
MID_GREY = 127.5


def augmented(
    images: UInt8[Array, "b k h w 3"], key: Key[Array, ""], config: AugmentationConfig, moves: Sequence[bool]
) -> Float[Array, "b k h w 3"]:
    """Crops, resizes and rotates the images of some cameras, and changes the colours of half of all.

    Args:
      images: As they were decoded.
      key: Of this update.
      config: How much.
      moves: Of each camera, whether its images are cropped and rotated; those of a wrist are not.

    Returns:
      0 to 255, not rounded.
    """
    b, k = images.shape[:2]
    keys = jax.random.split(key, (b, k))
    x = images.astype(jnp.float32) / 255

    def camera(i: int) -> Float[Array, "b h w 3"]:
        return jax.vmap(lambda key, one: _augment(key, one, config, moves[i]))(keys[:, i], x[:, i])

    return 255 * jnp.stack([camera(i) for i in range(k)], axis=1)


def _augment(
    key: Key[Array, ""], image: Float[Array, "h w 3"], config: AugmentationConfig, moves: bool
) -> Float[Array, "h w 3"]:
    centre, angle, colours, changes = jax.random.split(key, 4)
    if moves:
        whole = image.shape[:2]
        inner = [int(length * config.crop) for length in whole]
        slack = jnp.array([(length - kept) / 2 for length, kept in zip(whole, inner, strict=True)])
        turn = math.radians(config.rotate_degrees)
        image = moved(
            image,
            jax.random.uniform(centre, (2,), minval=-slack, maxval=slack),
            (inner[0] / whole[0], inner[1] / whole[1]),
            jax.random.uniform(angle, minval=-turn, maxval=turn),
        )
    limits = jnp.array([config.brightness, config.contrast, config.hue, config.saturation])
    amounts = jax.random.uniform(colours, (4,), minval=-limits, maxval=limits)
    return jnp.where(jax.random.bernoulli(changes, config.colour_probability), recoloured(image, amounts), image)


def moved(
    image: Float[Array, "h w c"], offset: Float[Array, "2"], scale: tuple[float, float], angle: Float[Array, ""]
) -> Float[Array, "h w c"]:
    """Returns a window of the image, enlarged to the image's size and then turned about its centre.

    Each pixel is interpolated once, between the four nearest ones; what lies outside of the image is black.

    Args:
      image: To look at.
      offset: Of the window's centre from the image's, down and right, in pixels.
      scale: Height and width of the window, as parts of the image's.
      angle: Counter-clockwise.
    """
    rows, columns = (jnp.arange(length, dtype=jnp.float32) - (length - 1) / 2 for length in image.shape[:2])
    down, right = jnp.meshgrid(rows, columns, indexing="ij")
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    places = [
        scale[0] * (cos * down + sin * right) + offset[0] + (image.shape[0] - 1) / 2,
        scale[1] * (cos * right - sin * down) + offset[1] + (image.shape[1] - 1) / 2,
    ]
    return jax.vmap(lambda channel: map_coordinates(channel, places, order=1), in_axes=-1, out_axes=-1)(image)


def recoloured(image: Float[Array, "h w 3"], amounts: Float[Array, "4"]) -> Float[Array, "h w 3"]:
    """Returns the image with another brightness, contrast, hue and saturation; amounts of 0 leave it as it is.

    The first two change the value of hue, saturation and value, the third turns the hue by that part of a circle.

    Args:
      image: 0 to 1.
      amounts: Brightness, contrast and saturation from -1 to 1, hue from -0.5 to 0.5.
    """
    brightness, contrast, hue_turn, saturation_change = amounts
    value, low = image.max(-1), image.min(-1)
    spread = value - low
    first = jnp.argmax(image, axis=-1)
    after, before = (jnp.take_along_axis(image, ((first + n) % 3)[..., None], axis=-1)[..., 0] for n in (1, 2))
    grey = spread == 0
    hue = jnp.where(grey, 0.0, (2 * first.astype(jnp.float32) + (after - before) / jnp.where(grey, 1.0, spread)) / 6)
    saturation = jnp.where(value == 0, 0.0, spread / jnp.where(value == 0, 1.0, value))
    value = _contrasted(_brightened(value, brightness), contrast)
    hue, saturation = hue + hue_turn, _brightened(saturation, saturation_change)
    place = (jnp.array([5.0, 3.0, 1.0])[None, None] + 6 * hue[..., None]) % 6
    share = jnp.clip(jnp.minimum(place, 4 - place), 0, 1)
    return value[..., None] * (1 - saturation[..., None] * share)


def _brightened(x: Float[Array, "*s"], amount: Float[Array, ""]) -> Float[Array, "*s"]:
    """Towards 0 for a negative amount, towards 1 for a positive one."""
    return jnp.where(amount < 0, x * (1 + amount), x * (1 - amount) + amount)


def _contrasted(x: Float[Array, "*s"], amount: Float[Array, ""]) -> Float[Array, "*s"]:
    """Steeper in the middle and flatter at both ends for a positive amount, so that 0 and 1 stay where they are."""
    slant = jnp.tan((amount + 1) * (jnp.pi / 4))
    bend = slant / (2 * (1 + slant))
    ends = jnp.where(x < bend, x / slant, x / slant + 1 - 1 / slant)
    return jnp.where((x < bend) | (x > 1 - bend), ends, slant * (x - 0.5) + 0.5)


def windowed(
    images: Float[Array, "m h w c"], share: Float[Array, " m"], place: Float[Array, "m 2"]
) -> Float[Array, "m h w c"]:
    """Returns a window of each image, enlarged to the image's size, as Pillow's bilinear `resize` of a box does.

    Each pixel is interpolated between the four nearest ones, beyond the image's edge the nearest. As two products with
    matrices: gathers are slow on CPUs.

    Args:
      images: To look at.
      share: Of height and of width that is left out, 0 to below 1.
      place: Which part of that lies before the window: down, right; 0 to 1.
    """

    def weights(length: int, before: Float[Array, " m"]) -> Float[Array, "m length length"]:
        pixel = jnp.arange(length, dtype=jnp.float32)
        at = before[:, None] * share[:, None] * length + (pixel[None] + 0.5) * (1 - share[:, None]) - 0.5
        at = jnp.clip(at, 0.0, length - 1.0)
        return jnp.maximum(1 - jnp.abs(at[:, :, None] - pixel[None, None]), 0.0)

    down, right = weights(images.shape[1], place[:, 0]), weights(images.shape[2], place[:, 1])
    return jnp.einsum("mij,mjkc->mikc", down, jnp.einsum("mkl,mjlc->mjkc", right, images))


def coloured(images: Float[Array, "m h w 3"], factors: Float[Array, "m 3"]) -> Float[Array, "m h w 3"]:
    """Returns images in other colours, as Pillow's ImageEnhance.Color and a table of levels make them, unrounded.

    Distances from a pixel's grey times the saturation; then the brightness, and distances from mid-grey times the
    contrast. What leaves 0 to 255 is cut off after each of the two.

    Args:
      images: 0 to 255.
      factors: Brightness, contrast, saturation; 1 leaves an image as it is.
    """
    brightness, contrast, saturation = (factors[:, i, None, None, None] for i in range(3))
    grey = images @ jnp.array(GREY)[:, None]
    x = jnp.clip(grey + saturation * (images - grey), 0.0, 255.0)
    return jnp.clip((x * brightness - MID_GREY) * contrast + MID_GREY, 0.0, 255.0)
