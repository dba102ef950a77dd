"""The images of one episode in memory: pixels at their size in a batch or at their own, planes of colour, or JPEGs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Int64, Shaped, UInt8

from chunkwise.data.images import decode_jpeg_into, resize_into
from qchunk.data.readers.aloha_images import JpegRows


@runtime_checkable
class Drawable(Protocol):
    """What images of a batch are drawn from."""

    def write(self, frame: int, out: np.ndarray) -> None:
        """Writes one image, at the size of `out`."""
        ...

    def decodes(self, frame: int) -> bool:
        """Whether that decodes a JPEG, which costs several times what a copy does."""
        ...


@runtime_checkable
class Frames(Drawable, Protocol):
    """Images of one camera of one episode."""

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        ...

    def only(self, frames: Int64[np.ndarray, " n"]) -> "Frames":
        """Copies these images, at least one, in ascending order; image i of the copy is image frames[i] here."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planes:
    """Large colour images at their size in a batch, red, green and blue each on its own.

    OpenCV weaves three planes together with stores that bypass the cache, into which a batch of these does not fit
    anyway. The C library's copy goes through it.
    """

    planes: UInt8[np.ndarray, "T 3 h w"]

    @property
    def nbytes(self) -> int:
        return self.planes.nbytes

    def put(self, frame: int, image: UInt8[np.ndarray, "h2 w2 3"]) -> None:
        """Keeps an image, resized where it must be."""
        plane = self.planes[frame]
        if image.shape[:2] == plane.shape[1:]:
            cv2.split(image, list(plane))
        else:
            resize_into(image, plane.transpose(1, 2, 0))

    def write(self, frame: int, out: np.ndarray) -> None:
        plane = self.planes[frame]
        if cv2.merge(list(plane), out) is not out:  # OpenCV makes an array of its own where this one does not fit
            raise ValueError(f"expected uint8 of {(*plane.shape[1:], 3)} to write to, found {out.dtype} of {out.shape}")

    def decodes(self, frame: int) -> bool:
        return False

    def only(self, frames: Int64[np.ndarray, " n"]) -> "Planes":
        return Planes(planes=self.planes[frames])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """Images [T, h, w, 3] or depth maps [T, h, w], at their size in a batch or larger or smaller."""

    pixels: Shaped[np.ndarray, "T h w *c"]

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def put(self, frame: int, image: Shaped[np.ndarray, "h2 w2 *c"]) -> None:
        """Keeps an image or a depth map, resized where it must be."""
        fit(image, self.pixels[frame])

    def write(self, frame: int, out: np.ndarray) -> None:
        fit(self.pixels[frame], out)

    def decodes(self, frame: int) -> bool:
        return False

    def only(self, frames: Int64[np.ndarray, " n"]) -> "Pixels":
        return Pixels(pixels=self.pixels[frames])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jpegs:
    """Images as JPEG."""

    rows: JpegRows
    last: UInt8[np.ndarray, "h w 3"]
    """The last image, decoded: it is the next observation of every start in an episode's last chunk."""
    source: str
    bgr: bool
    numbers: Int64[np.ndarray, " T"] | None = None
    """Rows of the file that these are; None: all of them."""

    @property
    def nbytes(self) -> int:
        return self.rows.data.nbytes + self.rows.offsets.nbytes + self.last.nbytes

    def write(self, frame: int, out: np.ndarray) -> None:
        if self.decodes(frame):
            row = frame if self.numbers is None else self.numbers[frame]
            decode_jpeg_into(self.rows[frame], out, source=f"{self.source}, row {row}", bgr=self.bgr)
        else:
            np.copyto(out, self.last)

    def decodes(self, frame: int) -> bool:
        return frame != len(self.rows) - 1

    def only(self, frames: Int64[np.ndarray, " n"]) -> "Jpegs":
        if frames[-1] != len(self.rows) - 1:
            raise ValueError(f"the last of the images is {frames[-1]}; expected {len(self.rows) - 1}, kept decoded")
        numbers = frames if self.numbers is None else self.numbers[frames]
        return dataclasses.replace(self, rows=self.rows.only(frames), numbers=numbers)


def fit(image: Shaped[np.ndarray, "h w *c"], out: Shaped[np.ndarray, "h2 w2 *c"]) -> None:
    """Copies or resizes; depth maps by the nearest pixel, since a mean of two depths is a place where nothing is."""
    if image.shape == out.shape:
        np.copyto(out, image)
    elif image.ndim == 3:
        resize_into(image, out)
    else:
        rows, columns = (((2 * np.arange(n) + 1) * m) // (2 * n) for n, m in zip(out.shape, image.shape, strict=True))
        np.copyto(out, image[rows[:, None], columns[None, :]])


class EpisodeFrames:
    """All images of one episode that a batch can ask for."""

    def __init__(self, colour: Sequence[Frames], depth: Sequence[Frames], length: int) -> None:
        """Of an episode of so many frames."""
        self.colour, self.depth = tuple(colour), tuple(depth)
        self._length = length
        self._places: Mapping[int, int] | None = None  # of the frames that are here; None if all are

    def holds(self, frames: Sequence[int]) -> bool:
        """Whether all of these frames are here."""
        return self._places is None or all(frame in self._places for frame in frames)

    def place(self, frame: int) -> int:
        """Number of a frame in `colour` and `depth`."""
        return frame if self._places is None else self._places[frame]

    def only(self, frames: Int64[np.ndarray, " n"]) -> "EpisodeFrames":
        """Copies the images of these frames, and of the last one."""
        kept = np.union1d(frames, [self._length - 1])
        at = np.array([self.place(frame) for frame in kept.tolist()], np.int64)
        some = EpisodeFrames([x.only(at) for x in self.colour], [x.only(at) for x in self.depth], self._length)
        some._places = {frame: place for place, frame in enumerate(kept.tolist())}
        return some

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return sum(frames.nbytes for frames in (*self.colour, *self.depth))
