"""Images of environments at the size that was asked for."""

import numpy as np

from chunkwise.data.images import resize_into, shrink_into
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.suites.cameras import rendered


def test_each_camera_is_resized_as_its_recordings_were():
    """One was recorded as JPEGs that libjpeg shrinks, the other raw."""
    shown = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)
    asked: list[tuple[str, int, int]] = []

    def render(name: str, height: int, width: int) -> np.ndarray:
        asked.append((name, height, width))
        return shown

    spec = EnvSpec(suite="x", cameras=("top", "side"), image_size=(20, 30), render_size=(48, 64), shrunk=("side",))
    images = rendered(spec, render)
    assert asked == [("top", 48, 64), ("side", 48, 64)]
    whole, jpeg = (np.zeros((20, 30, 3), np.uint8) for _ in range(2))
    resize_into(shown, whole)
    shrink_into(shown, jpeg)
    np.testing.assert_array_equal(images["top"], whole)
    np.testing.assert_array_equal(images["side"], jpeg)
    assert not np.array_equal(whole, jpeg)
