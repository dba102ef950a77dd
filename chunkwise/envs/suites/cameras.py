"""Images of a suite's cameras at the size that was asked for."""

from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import resize_into, shrink_into
from chunkwise.envs.environment import EnvSpec, Observation

Render = Callable[[str, int, int], UInt8[np.ndarray, "h w 3"]]
"""Renders a camera, by the name of its image, at a height and width."""


def rendered(spec: EnvSpec, render: Render) -> Observation:
    """Renders all cameras of a spec at its `render_size`, and resizes them to its `image_size`, as it says how."""
    images = {}
    for name in spec.cameras:
        image = render(name, *(spec.render_size or spec.image_size))
        if image.shape[:2] != spec.image_size:
            full, image = image, np.empty((*spec.image_size, 3), np.uint8)
            (shrink_into if name in spec.shrunk else resize_into)(full, image)
        images[name] = image
    return images
