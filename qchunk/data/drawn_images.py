"""The images of one batch: the arrays that they fill, and drawing them from the pool's by several threads.

Where frames stay JPEGs decoding is what a batch costs. The draws of a block of steps are known when it begins, and with
them which of its images come again, and when; those that come soon enough for the memory there is are decoded once, and
kept until then.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped, UInt8

from chunkwise.data.threads import Workers
from qchunk.data.batch import Batch
from qchunk.data.frames import Drawable, EpisodeFrames
from qchunk.data.image_store import ImageForm

Work = tuple[Drawable, int, np.ndarray, int]
"""An image to be drawn: from where, which of those there, where to, and the step that draws it again, 0 for none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageArrays:
    """Arrays for the images of one batch, of the observations and of the next ones; empty where there are none."""

    colour: tuple[UInt8[np.ndarray, "b k h w 3"], ...]
    depth: tuple[Shaped[np.ndarray, "b _ _ _"], ...]

    @classmethod
    def make(cls, form: ImageForm, rows: int, new: Callable[[tuple[int, ...], Any], np.ndarray]) -> "ImageArrays":
        """Arrays with undefined content, from `new(shape, dtype)`."""
        colour, depth = (), ()
        if form.image_size is not None:
            colour = tuple(new((rows, len(form.colour), *form.image_size, 3), np.uint8) for _ in range(2))
        if form.depth_size is not None:
            depth = tuple(new((rows, len(form.depth), *form.depth_size), form.depth_dtype) for _ in range(2))
        return cls(colour=colour, depth=depth)

    def rows(self, first: int, end: int) -> "ImageArrays":
        """Views of a stretch of the batch's rows."""
        return ImageArrays(
            colour=tuple(x[first:end] for x in self.colour), depth=tuple(x[first:end] for x in self.depth)
        )

    def work(
        self,
        episodes: Sequence[EpisodeFrames],
        frames: tuple[Sequence[int], Sequence[int]],
        due: tuple[Sequence[int], Sequence[int]],
    ) -> list[Work]:
        """What fills these arrays: row i with frame frames[0][i] of episodes[i], and with frames[1][i] as the next.

        `due` has the steps that draw them again, 0 for none.
        """
        found: list[Work] = []
        for arrays, of in ((self.colour, "colour"), (self.depth, "depth")):
            for array, shown, again in zip(arrays, frames, due, strict=bool(arrays)):
                for episode, frame, step, places in zip(episodes, shown, again, array, strict=True):
                    cameras = episode.colour if of == "colour" else episode.depth
                    at = episode.place(frame)
                    found += [(camera, at, place, step) for camera, place in zip(cameras, places, strict=True)]
        return found

    def put_into(self, batch: Batch) -> None:
        """Makes these arrays the batch's images."""
        for i, name in enumerate(("observations", "next_observations")):
            batch[name]["images"] = self.colour[i] if self.colour else None
            batch[name]["depth_images"] = self.depth[i] if self.depth else None


def steps_until_again(drawn: Int64[np.ndarray, "steps n"]) -> Int64[np.ndarray, "steps n"]:
    """For each draw of a block, how many steps later its image is drawn again in the block; 0 where it is not.

    Args:
      drawn: Numbers of the images that each step draws.
    """
    flat = drawn.ravel()
    order = np.argsort(flat, kind="stable")  # of one image in the order of its steps
    step = order // drawn.shape[1]
    wait = np.zeros_like(flat)
    wait[order[:-1]] = np.where(flat[order[1:]] == flat[order[:-1]], step[1:] - step[:-1], 0)
    return wait.reshape(drawn.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Held:
    """An image that waits."""

    frames: Drawable
    """Kept alive by this, so that its id stays its own."""
    slot: int
    due: int
    """Step that draws it."""


class KeptImages:
    """Memory for decoded images, from the step that decodes one to the step that draws it again.

    Steps that threads build out of order may miss an image; they decode it then, so batches never depend on this.
    """

    def __init__(self, count: int, image_size: tuple[int, int]) -> None:
        """Room for `count` images."""
        self._images: UInt8[np.ndarray, "n h w 3"] = np.empty((count, *image_size, 3), np.uint8)
        self._free = list(range(count))
        self._held: dict[tuple[int, int], _Held] = {}
        self._lock = threading.Lock()
        self.decoded, self.reused = 0, 0
        """Images that `write` decoded, and that it found here."""

    def window(self, starts: int, draws: int, cameras: int) -> int:
        """Steps within which an image must come again to be kept, so that about as many are kept as there is room for.

        Each of d draws is uniform over n starts; one that comes again x draws later has the density 1 / n there (for x
        below n) and is kept for x draws: those up to w draws hold w^2 / 2 n images at a time.

        Args:
          starts: Of the pools that are drawn from, n.
          draws: Of a step, d.
          cameras: Images of a draw.
        """
        room = len(self._images) / cameras
        return int(math.sqrt(2 * starts * room) / draws)

    def write(self, frames: Drawable, frame: int, out: Shaped[np.ndarray, "h w *c"], due: int) -> None:
        """Writes an image, kept or decoded, and keeps it until step `due`, where that is not 0 and there is room."""
        if not frames.decodes(frame):
            frames.write(frame, out)
            return
        key = (id(frames), frame)
        with self._lock:
            held = self._held.pop(key, None)
        if held is None:
            frames.write(frame, out)
            slot = self._take_slot() if due else None
            if slot is not None:
                np.copyto(self._images[slot], out)
        else:
            slot = held.slot
            np.copyto(out, self._images[slot])
        with self._lock:
            self.decoded, self.reused = self.decoded + (held is None), self.reused + (held is not None)
            if slot is None:
                return
            if due and key not in self._held:
                self._held[key] = _Held(frames=frames, slot=slot, due=due)
            else:
                self._free.append(slot)

    def forget(self, before: int) -> None:
        """Frees images that steps before `before` should have drawn and did not, since they were built too early."""
        with self._lock:
            for key in [key for key, held in self._held.items() if held.due < before]:
                self._free.append(self._held.pop(key).slot)

    def forget_all(self) -> None:
        """Frees every image that waits."""
        with self._lock:
            self._free += [held.slot for held in self._held.values()]
            self._held.clear()

    def _take_slot(self) -> int | None:
        with self._lock:
            return self._free.pop() if self._free else None


def draw(work: Sequence[Work], workers: Workers, kept: KeptImages | None = None) -> None:
    """Decodes or copies every image of `work`."""

    def write(i: int) -> None:
        frames, frame, place, due = work[i]
        if kept is None:
            frames.write(frame, place)
        else:
            kept.write(frames, frame, place, due)

    workers.run(write, len(work))
