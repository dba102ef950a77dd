"""Small ALOHA-layout episodes with images for the tests, as ALOHA's tools write them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import simplejpeg

from tests.qchunk.recordings import arrays

HEIGHT, WIDTH = 24, 32
CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
RECORDED = ("cam_right_wrist", "cam_high", "cam_left_wrist")
"""The recorder's order, which is not that of the names."""


def scene(length: int, seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Moving shapes on a gradient with noise, uint8 [T, h, w, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    base = np.stack([x * 255 / width, y * 255 / height, (x + y) * 127 / width], -1)
    frames = np.repeat(base[None], length, 0) + rng.normal(0, 8, (length, height, width, 3))
    for t in range(length):
        frames[t, (3 * t) % (height - 6) :][:6, (5 * t + seed) % (width - 6) :][:, :6] = rng.integers(0, 256, 3)
    return frames.clip(0, 255).astype(np.uint8)


def encode(frames: np.ndarray) -> list[bytes]:
    """JPEGs of different lengths."""
    return [simplejpeg.encode_jpeg(frame, quality=70 + 3 * (t % 9)) for t, frame in enumerate(frames)]


def write_episode(
    file: Path,
    length: int,
    seed: int,
    *,
    jpeg: bool = True,
    lengths: bool = True,
    depth: bool = False,
    size: tuple[int, int] = (HEIGHT, WIDTH),
    **attrs: Any,
) -> dict[str, list[bytes]]:
    """Writes one episode with all cameras; returns the JPEGs of each, where it has any."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[bytes]] = {}
    with h5py.File(file, "w") as h5:
        for name, x in arrays(length, seed).items():
            h5[name] = x
        h5["/base_action"] = np.random.default_rng(seed).normal(size=(length, 2)).astype(np.float32)
        h5.attrs.update({"sim": False, "compress": jpeg, **attrs})
        frames = {name: scene(length, 10 * seed + i, *size) for i, name in enumerate(RECORDED)}
        if jpeg:
            found = {name: encode(x) for name, x in frames.items()}
            width = max(len(one) for each in found.values() for one in each)
            for name, each in found.items():
                rows = np.stack([np.frombuffer(one.ljust(width, b"\0"), np.uint8) for one in each])
                h5.create_dataset(f"/observations/images/{name}", data=rows, chunks=(1, width))
            if lengths:
                h5["/compress_len"] = np.array([[len(one) for one in found[name]] for name in RECORDED], np.float32)
        else:
            for name, x in frames.items():
                h5.create_dataset(f"/observations/images/{name}", data=x, chunks=(1, *x.shape[1:]))
        if depth:
            maps = np.random.default_rng(seed).integers(300, 5000, (length, *size), dtype=np.uint16)
            h5["/observations/images_depth/cam_high"] = maps
    return found


def dataset(root: Path, lengths: tuple[int, ...] = (7, 12, 5, 9, 20, 3), **options: Any) -> Path:
    """A folder of episodes of these lengths, alternately positive and negative by the attribute success."""
    for number, length in enumerate(lengths):
        write_episode(root / f"episode_{number}.hdf5", length, number, success=number % 2 == 0, **options)
    return root
