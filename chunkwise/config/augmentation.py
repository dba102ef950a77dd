"""How training images are changed at random on the device (chunkwise/models/augmentation.py). No jax here."""

import dataclasses

from chunkwise.config.experiment import require_fraction, require_non_negative


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """Changes to every training image, drawn anew at each update; the defaults are what openpi does.

    openpi asks for a saturation of 0.5 too, which its library (augmax 0.4) computes and does not use.
    """

    crop: float = 0.95
    """Height and width of the window that is enlarged to the whole image, not of cameras at a wrist."""
    rotate_degrees: float = 5.0
    """Largest rotation each way, of the same cameras."""
    colour_probability: float = 0.5
    """Share of the images whose colours are changed."""
    brightness: float = 0.3
    """Drawn from -x to x; so are the next three."""
    contrast: float = 0.4
    hue: float = 0.1
    """Of a circle."""
    saturation: float = 0.0

    def __post_init__(self) -> None:
        require_fraction(self, "crop", "colour_probability", "brightness", "contrast", "hue", "saturation")
        require_non_negative(self, "rotate_degrees")
        if self.crop <= 0 or self.contrast >= 1:
            raise ValueError(
                f"AugmentationConfig.crop is {self.crop} and contrast {self.contrast}; expected a crop above 0 and a "
                "contrast below 1"
            )
