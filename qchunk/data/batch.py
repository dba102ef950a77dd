"""What a batch holds: keys, dtypes, shapes, ranges; and the specification's float form of it."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

import cv2
import numpy as np
from jaxtyping import Bool, Float32, Shaped, UInt8

from chunkwise.data.buffers import LentBuffers
from chunkwise.data.threads import Workers

Layout = Literal["kchw", "khwc"]
UNIT = np.arange(256, dtype=np.float32) / np.float32(255)
"""0 to 1 of each value of an 8-bit image, the quotients that a division gives."""


class Observations(TypedDict):
    """What the robot sees at one frame of each row."""

    qpos: Float32[np.ndarray, "b s"]
    """Joint positions (rad or m, as recorded); None where a reader of one's own gives none."""
    state: Float32[np.ndarray, "b s"] | None
    """Full state vector, where the files have one."""
    images: UInt8[np.ndarray, "b k h w 3"] | None
    """RGB, 0 to 255, of data.cameras in that order; None without cameras."""
    depth_images: Shaped[np.ndarray, "b k h w"] | None
    """Depth of data.depth_cameras, dtype and unit as recorded; None without depth cameras."""


class Batch(TypedDict):
    """One batch. t = agent.horizon steps of the chunk that starts at frame s of an episode of L frames."""

    observations: Observations
    """Frame s."""
    next_observations: Observations
    """Frame s + t, or the last one recorded."""
    actions: Float32[np.ndarray, "b t a"]
    """Actions of frames s + i, normalised; past the end the last one repeated."""
    rewards: Float32[np.ndarray, "b t"]
    """Cumulative: sum over j <= i of discount^j r[s + j], up to the end or the first terminated frame."""
    masks: Float32[np.ndarray, "b t"]
    """1 if a value may be bootstrapped after step i; 0 from the first terminated frame on."""
    valid: Float32[np.ndarray, "b t"]
    """1 where frame s + i exists."""
    terminals: Bool[np.ndarray, "b t"]
    """True from the episode's last frame or the first terminated frame on."""
    is_positive: Bool[np.ndarray, " b"]
    """Label of the row's episode."""
    final_reward: Float32[np.ndarray, " b"]
    """rewards[:, -1]."""


def specification_batch(batch: Batch, *, layout: Layout = "kchw") -> dict[str, Any]:
    """The batch with images as the pool loader's specification gives them: float32 on the host.

    observations and next_observations hold exactly qpos, images and depth_images: images float32 in 0 to 1, depth
    float32 in the unit recorded, None where no camera was asked for. Every other entry is the batch's own array.
    This form takes four times the memory and several times the time of the bytes it is made from.

    Args:
      batch: With images or without.
      layout: Axes of a row's images: "kchw" (3, h, w for each camera, what torch's networks take) or "khwc", the axes
        in the specification's table of a transition.
    """
    return SpecificationForm(layout=layout, threads=1)(batch)


def specification_batches(
    batches: Iterator[Batch], *, layout: Layout = "kchw", threads: int = 0
) -> Iterator[dict[str, Any]]:
    """`specification_batch` of every batch, by several threads and into memory that is used again.

    Args:
      batches: From `make_batches`.
      layout: As of `specification_batch`.
      threads: That convert; 0 takes one a core.
    """
    return map(SpecificationForm(layout=layout, threads=threads), batches)


class SpecificationForm:
    """Converts batches; keeps the memory of those that are no longer held by anyone."""

    def __init__(self, *, layout: Layout, threads: int) -> None:
        self._layout, self._workers, self._buffers = layout, Workers(threads), LentBuffers()

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """`batch` in the specification's form."""
        return dict(batch) | {name: self._observations(batch[name]) for name in ("observations", "next_observations")}

    def _observations(self, observations: Observations) -> dict[str, Any]:
        images, depth = observations["images"], observations["depth_images"]
        return {
            "qpos": observations["qpos"],
            "images": None if images is None else self._floats(images),
            "depth_images": None if depth is None else depth.astype(np.float32),
        }

    def _floats(self, images: UInt8[np.ndarray, "b k h w 3"]) -> Float32[np.ndarray, "b k _ _ _"]:
        shape = np.moveaxis(images, -1, 2).shape if self._layout == "kchw" else images.shape
        out = self._buffers.lend(shape, np.float32)
        places = list(itertools.product(range(len(images)), range(images.shape[1])))

        def convert(i: int) -> None:
            # By planes, each looked up in one pass, since memory is what limits it: 0.77 ms at 480 x 640 on an Intel
            # Xeon, where a copy divided in place took 0.92. The planes' memory is kept: where the C library hands it
            # back, new pages cost 0.7 ms.
            image, floats = images[places[i]], out[places[i]]
            parts = [(image, floats)]
            if self._layout == "kchw":
                planes = self._buffers.lend((3, *image.shape[:2]), np.uint8)
                parts = zip(cv2.split(image, list(planes)), floats, strict=True)
            for part, result in parts:
                cv2.LUT(part, UNIT, dst=result)

        self._workers.run(convert, len(places))
        return out
