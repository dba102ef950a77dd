"""The images of a pool's episodes in memory: decoded and resized once, or as recorded and decoded when drawn.

Either way an image in a batch is the same function of the file's bytes and of data.image_size, so what is kept where
never shows in a batch, only in memory and time.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Shaped, UInt8

from chunkwise.data.images import decode_jpeg_into, resize_into
from qchunk.config import DataConfig
from qchunk.data.batch import Batch
from qchunk.data.image_store.workers import Workers
from qchunk.data.readers.aloha import AlohaSource, ImageFile
from qchunk.data.readers.aloha_images import COLOUR, DEPTH, JpegRows
from qchunk.data.readers.report import ImageReport
from qchunk.data.selection import camera_paths

Storage: TypeAlias = Literal["decoded", "recorded"]

LARGE_IMAGE = 2**19
"""Bytes of a colour image from which `Planes` are faster than a copy: of 480 x 640 1.5 times as many transitions a
second, of 224 x 224 0.9 times (benchmarks/aloha_loader.py)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageForm:
    """What the images in a batch are."""

    colour: tuple[str, ...]
    """Paths of the datasets of data.cameras, in order."""
    depth: tuple[str, ...]
    """The same of data.depth_cameras."""
    image_size: tuple[int, int] | None
    """Height and width of colour images; None without cameras."""
    depth_size: tuple[int, int] | None
    depth_dtype: np.dtype | None
    bgr: bool
    """JPEGs show red as blue."""

    @property
    def bytes_per_frame(self) -> int:
        """Of all cameras, decoded."""
        return self.colour_bytes * len(self.colour) + self.depth_bytes * len(self.depth)

    @property
    def colour_bytes(self) -> int:
        """Of one image."""
        return 0 if self.image_size is None else 3 * self.image_size[0] * self.image_size[1]

    @property
    def depth_bytes(self) -> int:
        """Of one depth map."""
        if self.depth_size is None or self.depth_dtype is None:
            return 0
        return self.depth_size[0] * self.depth_size[1] * self.depth_dtype.itemsize


def image_form(data: DataConfig, images: Mapping[str, ImageReport]) -> ImageForm:
    """Form of a run's images, given those of any one of its episodes, which indexing found to be alike."""
    paths = camera_paths(data)
    colour = tuple(name for name in paths if name.startswith(f"{COLOUR}/"))
    depth = tuple(name for name in paths if name.startswith(f"{DEPTH}/"))

    def size(names: tuple[str, ...]) -> tuple[int, int] | None:
        if not names:
            return None
        return data.image_size or (images[names[0]].height, images[names[0]].width)

    return ImageForm(
        colour=colour,
        depth=depth,
        image_size=size(colour),
        depth_size=size(depth),
        depth_dtype=np.dtype(images[depth[0]].dtype) if depth else None,
        bgr=data.jpeg_channels == "bgr",
    )


@runtime_checkable
class Frames(Protocol):
    """Images of one camera of one episode."""

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        ...

    def write(self, frame: int, out: np.ndarray) -> None:
        """Writes one image, at the size of `out`."""
        ...

    def decodes(self, frame: int) -> bool:
        """Whether that decodes a JPEG, which costs several times what a copy does."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """Images [T, h, w, 3] or depth maps [T, h, w], at their size in a batch or larger or smaller."""

    pixels: Shaped[np.ndarray, "T h w *c"]

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def put(self, frame: int, image: Shaped[np.ndarray, "h2 w2 *c"]) -> None:
        """Keeps an image or a depth map, resized where it must be."""
        _fit(image, self.pixels[frame])

    def write(self, frame: int, out: np.ndarray) -> None:
        _fit(self.pixels[frame], out)

    def decodes(self, frame: int) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jpegs:
    """Images as JPEG."""

    rows: JpegRows
    last: UInt8[np.ndarray, "h w 3"]
    """The last image, decoded: it is the next observation of every start in an episode's last chunk."""
    source: str
    bgr: bool

    @property
    def nbytes(self) -> int:
        return self.rows.data.nbytes + self.rows.offsets.nbytes + self.last.nbytes

    def write(self, frame: int, out: np.ndarray) -> None:
        if self.decodes(frame):
            decode_jpeg_into(self.rows[frame], out, source=f"{self.source}, row {frame}", bgr=self.bgr)
        else:
            np.copyto(out, self.last)

    def decodes(self, frame: int) -> bool:
        return frame != len(self.rows) - 1


def _fit(image: Shaped[np.ndarray, "h w *c"], out: Shaped[np.ndarray, "h2 w2 *c"]) -> None:
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

    def __init__(self, colour: Sequence[Frames], depth: Sequence[Frames]) -> None:
        self.colour, self.depth = tuple(colour), tuple(depth)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return sum(frames.nbytes for frames in (*self.colour, *self.depth))


class FrameStore:
    """Loads the images of episodes, and gives out again what is still in use in another pool."""

    def __init__(
        self,
        source: AlohaSource,
        form: ImageForm,
        storage: Storage,
        workers: Workers,
        *,
        spare: int,
        notes: tuple[str, ...],
    ) -> None:
        """Loads nothing yet. `spare` is how many decoded images may be kept; `notes` say how that was chosen."""
        self.form, self.workers, self.spare, self.notes = form, workers, spare, notes
        self.storage: Storage = storage
        self._source = source
        self._loaded: weakref.WeakValueDictionary[int, EpisodeFrames] = weakref.WeakValueDictionary()

    def load(self, index: int, cancelled: threading.Event | None = None) -> EpisodeFrames:
        """The images of one episode of the source.

        Raises:
          OSError: The file could not be read; worth another try.
          DataError: The file is no longer what was indexed.
          concurrent.futures.CancelledError: `cancelled` was set.
        """
        frames = self._loaded.get(index)
        if frames is None:
            with self._source.images(index) as file:
                name = self._source.ids[index]
                episode = _Loading(file, name, self.form, self.storage, self.workers, cancelled)
                frames = EpisodeFrames(
                    [episode.colour(name) for name in self.form.colour],
                    [episode.depth(name) for name in self.form.depth],
                )
            self._loaded[index] = frames
        return frames


@dataclasses.dataclass(frozen=True)
class _Loading:
    """One episode on its way into memory."""

    file: ImageFile
    id: str
    form: ImageForm
    storage: Storage
    workers: Workers
    cancelled: threading.Event | None

    def colour(self, name: str) -> Frames:
        assert self.form.image_size is not None
        size = (*self.form.image_size, 3)
        rows = self.file.jpegs(name)
        if rows is None:
            return self._raw_colour(name, size)
        source = f"{self.id}: {name}"
        if self.storage == "recorded":
            last = np.empty(size, np.uint8)
            decode_jpeg_into(rows[len(rows) - 1], last, source=f"{source}, row {len(rows) - 1}", bgr=self.form.bgr)
            return Jpegs(rows=rows, last=last, source=source, bgr=self.form.bgr)
        kept = self._room(size)

        def decode(frame: int) -> None:
            self._go_on()
            image = np.empty(size, np.uint8)
            decode_jpeg_into(rows[frame], image, source=f"{source}, row {frame}", bgr=self.form.bgr)
            kept.put(frame, image)

        self.workers.run(decode, len(rows))
        return kept

    def depth(self, name: str) -> Frames:
        assert self.form.depth_size is not None
        kept = Pixels(pixels=np.empty((self.file.length, *self.form.depth_size), self.form.depth_dtype))
        self._each(name, kept.put)
        return kept

    def _raw_colour(self, name: str, size: tuple[int, int, int]) -> Frames:
        """Raw images at their size in a batch; where they are to be kept as recorded, at their own."""
        own = (*self.file.size(name), 3)
        if self.storage == "recorded" and own != size:
            kept = Pixels(pixels=np.empty((self.file.length, *own), np.uint8))
        else:
            kept = self._room(size)
        self._each(name, kept.put)
        return kept

    def _room(self, size: tuple[int, int, int]) -> Planes | Pixels:
        """For a camera's images at their size in a batch."""
        if self.form.colour_bytes < LARGE_IMAGE:
            return Pixels(pixels=np.empty((self.file.length, *size), np.uint8))
        return Planes(planes=np.empty((self.file.length, 3, *size[:2]), np.uint8))

    def _each(self, name: str, keep: Callable[[int, np.ndarray], None]) -> None:
        """Calls `keep(frame, image)` for each image that the file holds raw, by all workers."""
        for first, block in self.file.blocks(name):
            self._go_on()

            def one(i: int, first: int = first, block: np.ndarray = block) -> None:
                keep(first + i, block[i])

            self.workers.run(one, len(block))

    def _go_on(self) -> None:
        if self.cancelled is not None and self.cancelled.is_set():
            raise CancelledError(f"loading the images of {self.id} was stopped")


Work = tuple[Frames, int, np.ndarray, int]
"""An image to be drawn: from where, which frame of it, where to, and the step that draws it again, 0 for none."""


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
                    found += [(camera, frame, place, step) for camera, place in zip(cameras, places, strict=True)]
        return found

    def put_into(self, batch: Batch) -> None:
        """Makes these arrays the batch's images."""
        for i, name in enumerate(("observations", "next_observations")):
            batch[name]["images"] = self.colour[i] if self.colour else None
            batch[name]["depth_images"] = self.depth[i] if self.depth else None
