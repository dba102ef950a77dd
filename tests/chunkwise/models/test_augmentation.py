"""chunkwise/models/augmentation.py against numpy, and against what augmax, which openpi uses, makes of given draws."""

import colorsys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chunkwise.config.augmentation import AugmentationConfig
from chunkwise.models.augmentation import augmented, moved, recoloured

FIXTURE = Path(__file__).parents[2] / "fixtures/augmax.npz"
STILL = AugmentationConfig(crop=1.0, rotate_degrees=0.0, colour_probability=0.0)


def bilinear(image: np.ndarray, row: float, column: float) -> np.ndarray:
    """One place of an image, by hand; 0 outside."""
    total = np.zeros(image.shape[-1])
    for i in (int(np.floor(row)), int(np.floor(row)) + 1):
        for j in (int(np.floor(column)), int(np.floor(column)) + 1):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += (1 - abs(row - i)) * (1 - abs(column - j)) * image[i, j]
    return total


def test_chain_and_colours_are_those_of_openpis_library() -> None:
    with np.load(FIXTURE) as recorded:
        images, draws, changed = recorded["images"], recorded["draws"], recorded["changed"]
    height, width = images.shape[1:3]
    scale = int(height * 0.95) / height, int(width * 0.95) / width
    for image, draw, expected in zip(images, draws, changed, strict=True):
        x = moved(jnp.asarray(image / 255, jnp.float32), jnp.asarray(draw[:2]), scale, jnp.asarray(draw[2]))
        got = recoloured(x, jnp.array([*draw[3:6], 0.0]))
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_geometry_by_hand() -> None:
    image = np.random.default_rng(0).uniform(size=(7, 9, 3)).astype(np.float32)

    def found(offset: tuple[float, float], scale: tuple[float, float], angle: float) -> np.ndarray:
        return np.asarray(moved(jnp.asarray(image), jnp.array(offset), scale, jnp.asarray(angle)))

    window = found((0.25, -0.5), (1.0, 1.0), 0.0)
    np.testing.assert_allclose(window[3, 4], bilinear(image, 3.25, 3.5), atol=1e-6)  # its centre
    np.testing.assert_allclose(window[6, 0], bilinear(image, 6.25, -0.5), atol=1e-6)  # towards black beyond the image
    larger = found((0.0, 0.0), (0.5, 0.75), 0.0)
    np.testing.assert_allclose(larger[5, 1], bilinear(image, 3 + 0.5 * 2, 4 - 0.75 * 3), atol=1e-6)
    square = image[:, 1:8]
    quarter = moved(jnp.asarray(square), jnp.zeros(2), (1.0, 1.0), jnp.asarray(np.pi / 2))
    np.testing.assert_allclose(quarter, np.rot90(square, 1), atol=1e-5)
    turned = found((0.5, 0.0), (0.9, 0.8), 0.3)
    down, right = 2 - 3, 6 - 4
    row = 0.9 * (np.cos(0.3) * down + np.sin(0.3) * right) + 3 + 0.5
    column = 0.8 * (np.cos(0.3) * right - np.sin(0.3) * down) + 4
    np.testing.assert_allclose(turned[2, 6], bilinear(image, row, column), atol=1e-6)


def test_colours_by_hand() -> None:
    pixels = np.random.default_rng(1).uniform(size=(1, 6, 3)).astype(np.float32)
    pixels[0, 0], pixels[0, 1], pixels[0, 2] = 0.0, 1.0, 0.4

    def changed(*amounts: float) -> np.ndarray:
        return np.asarray(recoloured(jnp.asarray(pixels), jnp.array(amounts, jnp.float32)))[0]

    np.testing.assert_allclose(changed(0, 0, 0, 0), pixels[0], atol=1e-6)
    for pixel, turned, dull, bright in zip(
        pixels[0], changed(0, 0, 0.1, 0), changed(0, 0, 0, -0.5), changed(0.2, 0, 0, 0), strict=True
    ):
        h, s, v = colorsys.rgb_to_hsv(*pixel.astype(float))
        np.testing.assert_allclose(turned, colorsys.hsv_to_rgb(h + 0.1, s, v), atol=1e-5)
        np.testing.assert_allclose(dull, colorsys.hsv_to_rgb(h, 0.5 * s, v), atol=1e-5)
        np.testing.assert_allclose(bright, colorsys.hsv_to_rgb(h, s, 0.8 * v + 0.2), atol=1e-5)
    steep = changed(0, 0.4, 0, 0)
    slant = np.tan(1.4 * np.pi / 4)
    np.testing.assert_allclose(steep[2], slant * (0.4 - 0.5) + 0.5, atol=1e-6)  # of the grey pixel
    np.testing.assert_allclose(steep[:2], [[0, 0, 0], [1, 1, 1]], atol=1e-6)
    assert (changed(-0.3, 0, 0, 0)[1] == np.float32(0.7)).all()


def images(rows: int, cameras: int = 2) -> jnp.ndarray:
    y, x = np.mgrid[:16, :16]
    plane = np.stack([8 * y + 60, 8 * x + 60, 200 - 4 * y], axis=-1).astype(np.uint8)
    return jnp.asarray(np.broadcast_to(plane, (rows, cameras, 16, 16, 3)))


@pytest.mark.long
def test_draws_are_a_functions_of_the_key_and_differ_from_image_to_image() -> None:
    config, key = AugmentationConfig(), jax.random.key(3)
    one, again = (augmented(images(4), key, config, (True, False)) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - augmented(images(4), jax.random.key(4), config, (True, False))).max() > 1
    assert len({np.asarray(image).tobytes() for image in one[:, 0]}) == 4
    np.testing.assert_allclose(augmented(images(2), key, STILL, (True, True)), images(2), atol=1e-3)


def test_wrist_cameras_keep_their_geometry() -> None:
    config = AugmentationConfig(colour_probability=0.0)
    shown = np.asarray(augmented(images(3), jax.random.key(0), config, (True, False)))
    np.testing.assert_allclose(shown[:, 1], images(3)[:, 1], atol=1e-3)
    assert (np.abs(shown[:, 0] - np.asarray(images(3))[:, 0]).max((1, 2, 3)) > 3).all()


def test_shares_and_ranges_are_openpis() -> None:
    """Half of the images change colours; offsets, angles and brightness spread evenly over their ranges."""
    rows, key = 2000, jax.random.key(7)
    coloured = augmented(images(rows), key, AugmentationConfig(contrast=0.0, hue=0.0), (False, False))
    changed = np.abs(np.asarray(coloured) - np.asarray(images(rows))).max((2, 3, 4)) > 0.5
    assert abs(changed.mean() - 0.5) < 3 * np.sqrt(0.25 / changed.size)
    # Value v of hsv becomes v (1 + b), or v (1 - b) + 255 b: of the brightest pixel, 180 and more, b comes back.
    value = np.asarray(images(1))[0, 0].max(-1).astype(float)
    at = np.unravel_index(value.argmax(), value.shape)
    seen = np.asarray(coloured).max(-1)[:, :, at[0], at[1]][changed]
    b = np.where(seen < value.max(), seen / value.max() - 1, (seen - value.max()) / (255 - value.max()))
    assert (np.abs(b) <= 0.3 + 1e-4).all()
    assert abs(b.mean()) < 3 * 0.3 / np.sqrt(3 * b.size)
    assert abs(b.std() - 0.3 / np.sqrt(3)) < 0.01


@pytest.mark.parametrize("changes", [{"crop": 0.0}, {"contrast": 1.0}, {"hue": 1.5}, {"rotate_degrees": -1.0}])
def test_what_cannot_be_drawn_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"AugmentationConfig\."):
        AugmentationConfig(**changes)
