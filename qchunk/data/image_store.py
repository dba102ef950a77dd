"""The images of a pool's episodes in memory: decoded and resized once, or as recorded and decoded when drawn.

Either way an image in a batch is the same function of the file's bytes and of data.image_size, so what is kept where
never shows in a batch, only in memory and time. `plan` chooses the way by data.frames and data.memory_gib, `FrameStore`
loads episodes, and qchunk/data/drawn_images.py makes the images of a batch of them.
"""

import dataclasses
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Literal, TypeAlias

import numpy as np

from chunkwise.data.buffers import SPARES
from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.images import decode_jpeg_into, one_shape, shrinks
from chunkwise.data.sampling import STEPS_PER_BLOCK
from chunkwise.data.threads import Workers
from chunkwise.errors import ConfigError
from qchunk.config import DataConfig, QChunkConfig
from qchunk.data.frames import EpisodeFrames, Frames, Jpegs, Pixels, Planes
from qchunk.data.readers.aloha import AlohaSource, ImageFile
from qchunk.data.readers.aloha_images import COLOUR, DEPTH
from qchunk.data.readers.report import ImageReport
from qchunk.data.selection import camera_paths

Storage: TypeAlias = Literal["decoded", "recorded"]

LARGE_IMAGE = 2**19
"""Bytes of a colour image from which `Planes` are faster than a copy: of 480 x 640 1.5 times as many transitions a
second, of 224 x 224 0.9 times (benchmarks/aloha_loader.py)."""
GIB = 1 << 30
SPARE_BYTES = GIB // 2
"""For decoded images that are drawn again soon, where frames stay JPEGs and data.memory_gib has room: docs/pool.md
has what that saves. With twice as much the loader was not faster."""


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


def shrunk_cameras(cameras: Sequence[str], form: ImageForm, source: AlohaSource) -> Iterator[str]:
    """Yields the cameras most of whose images are JPEGs that libjpeg shrinks on their way into a batch.

    Args:
      cameras: Those of data.cameras.
      form: Of their images in a batch.
      source: Of the run.
    """
    if form.image_size is None:
        return
    for camera, path in zip(cameras, form.colour, strict=True):
        shrunk = sum(
            length
            for length, reports in zip(source.lengths, source.images_of, strict=True)
            if (report := reports[path]).encoding == "jpeg" and shrinks((report.height, report.width), form.image_size)
        )
        if 2 * shrunk > sum(source.lengths):
            yield camera


def recorded_sizes(cameras: Sequence[str], form: ImageForm, source: AlohaSource) -> dict[str, tuple[int, int]]:
    """Returns height and width at which cameras were recorded, where `one_shape` knows them.

    Args:
      cameras: Those of data.cameras.
      form: Of their images in a batch.
      source: Of the run.
    """
    found: dict[str, tuple[int, int]] = {}
    for camera, path in zip(cameras, form.colour, strict=True):
        counts: Counter[tuple[int, int]] = Counter()
        for length, reports in zip(source.lengths, source.images_of, strict=True):
            counts[reports[path].height, reports[path].width] += int(length)
        if (size := one_shape(counts)) is not None:
            found[camera] = size
    return found


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
                    file.length,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The choice, and the most that each way of keeping images can take, in bytes."""

    storage: Storage
    bytes_needed: dict[Storage, int]
    """Of all episodes that can be in memory at once, and of the batches under way."""
    spare: int
    """Decoded images of one camera that may be kept beside, until they are drawn again."""
    notes: tuple[str, ...]
    """What is printed."""


def resident_episodes(data: DataConfig, pools: int) -> int:
    """Most episodes in memory at once, while the next pool loads: two pools, or one and a part of a rolling refresh."""
    count = data.episodes_per_epoch
    behind = count if data.refresh == "epoch" else -(-count // data.refresh_parts)
    return pools * (count + behind)


def open_store(
    config: QChunkConfig,
    source: EpisodeSource,
    *,
    pools: int,
    rows: int,
    episodes: int | None = None,
    least: bool = False,
) -> FrameStore:
    """An empty store of images that keeps them as `plan` chooses; for a config with cameras.

    Raises:
      ConfigError: As `plan`.
    """
    assert isinstance(source, AlohaSource)  # the config allows cameras for ALOHA files alone
    form = image_form(config.data, source.images_of[0])
    chosen = plan(config, source, form, pools=pools, rows=rows, episodes=episodes, least=least)
    return FrameStore(
        source, form, chosen.storage, Workers(config.data.decode_threads), spare=chosen.spare, notes=chosen.notes
    )


def plan(
    config: QChunkConfig,
    source: AlohaSource,
    form: ImageForm,
    *,
    pools: int,
    rows: int,
    episodes: int | None = None,
    least: bool = False,
) -> Plan:
    """Chooses by data.frames and data.memory_gib.

    Args:
      config: Of the run.
      source: The dataset.
      form: Of its images.
      pools: Virtual shards that this process loads.
      rows: Of a batch, in this process.
      episodes: Of a single pool that no other follows; None: data.episodes_per_epoch and its refresh.
      least: Whether they are kept in the way that takes fewer bytes, whatever data.frames says: beside those of
        training.

    Raises:
      ConfigError: What was asked for, or for auto both ways, exceeds the budget.
    """
    data = config.data
    resident = resident_episodes(data, pools) if episodes is None else episodes
    resident = min(resident, len(source))  # an episode in both pools is kept once
    batch = 2 * rows * form.bytes_per_frame
    buffers = batch * (SPARES + data.read_threads)

    def resident_bytes(sizes: list[int]) -> int:
        last = 2 * form.bytes_per_frame
        whole = _largest(sizes, resident)
        if episodes is None and data.refresh_ahead is not None:
            whole = min(whole, _bytes_while_loading(config, source, sizes, pools=pools, rows=rows, last=last))
        return whole + buffers

    needed: dict[Storage, int] = {
        "decoded": resident_bytes(_decoded_bytes(source, form)),
        "recorded": resident_bytes(_recorded_bytes(source, form)),
    }
    budget = int(data.memory_gib * GIB)
    both: list[Storage] = ["decoded", "recorded"]
    asked: list[Storage] = [storage for storage in both if data.frames in ("auto", storage)]
    if least:
        asked = [min(both, key=lambda storage: needed[storage])]
    fitting: list[Storage] = [storage for storage in asked if needed[storage] <= budget]
    if not fitting:
        advice = "data.episodes_per_epoch or data.image_size, set data.refresh rolling"
        if episodes is not None:
            advice = "data.holdout or data.image_size"
        sizes = " and ".join(f"{needed[storage] / GIB:.2f} GiB {_WAYS[storage]}" for storage in asked)
        raise ConfigError(
            f"data.memory_gib is {data.memory_gib:g}, but the images of {resident} episodes need {sizes}; lower "
            f"{advice}, or raise the budget"
        )
    spare = 0
    if fitting[0] == "recorded" and any(source.images_of[0][name].encoding == "jpeg" for name in form.colour):
        room = min(SPARE_BYTES, budget - needed["recorded"]) // form.colour_bytes
        spare = min(room, STEPS_PER_BLOCK * 2 * rows * len(form.colour))  # more are never drawn again in a block
    loaded = episodes or data.episodes_per_epoch
    notes = _notes(config, source, form, fitting[0], needed, (loaded, resident))
    if spare:
        kept = f"up to {spare * form.colour_bytes / GIB:.2f} GiB more keep decoded images until they are drawn again"
        notes += (kept,)
    return Plan(storage=fitting[0], bytes_needed=needed, spare=spare, notes=notes)


_WAYS: dict[Storage, str] = {"decoded": "decoded once", "recorded": "as recorded"}


def _notes(
    config: QChunkConfig,
    source: AlohaSource,
    form: ImageForm,
    storage: Storage,
    needed: dict[Storage, int],
    counts: tuple[int, int],
) -> tuple[str, ...]:
    """What the choice costs; `counts` are of the episodes of a pool, and of those in memory at once."""
    data, (of_pool, resident) = config.data, counts
    other: Storage = "recorded" if storage == "decoded" else "decoded"
    size = form.image_size or form.depth_size
    assert size is not None
    cameras = len(form.colour) + len(form.depth)
    jpegs = sum(source.images_of[0][name].encoding == "jpeg" for name in form.colour)
    loaded = int(np.sort(source.lengths)[::-1][:of_pool].sum()) * jpegs
    drawn = 2 * config.train.batch_size * jpegs
    work = {
        "decoded": f"each pool decodes at most {loaded:,} JPEGs while it loads",
        "recorded": f"each batch decodes at most {drawn:,} JPEGs, an epoch {drawn * data.steps_per_epoch:,}",
    }
    return (
        f"images of {cameras} camera(s), {size[0]} x {size[1]}, kept {_WAYS[storage]}: at most "
        f"{needed[storage] / GIB:.2f} GiB for {resident} episodes and the batches under way "
        f"(data.memory_gib {data.memory_gib:g}); {work[storage]}",
        f"kept {_WAYS[other]} they would take {needed[other] / GIB:.2f} GiB; {work[other]}",
    )


def _bytes_while_loading(
    config: QChunkConfig, source: AlohaSource, sizes: list[int], *, pools: int, rows: int, last: int
) -> int:
    """Most bytes of images in memory while the next pool loads data.refresh_ahead updates before it is needed.

    Args:
      config: Of the run.
      source: The dataset.
      sizes: Bytes of each of its episodes.
      pools: Virtual shards that this process loads.
      rows: Of a batch, in this process.
      last: Most bytes that the last images of an episode take.
    """
    data = config.data
    images = 2 * rows * ((data.refresh_ahead or 0) + data.read_threads)
    drawn = math.ceil(images * max(size / length for size, length in zip(sizes, source.lengths.tolist(), strict=True)))
    lasts = pools * data.episodes_per_epoch * last  # which stay in any case
    return _largest(sizes, min(pools * data.episodes_per_epoch, len(source))) + drawn + lasts


def _largest(sizes: list[int], count: int) -> int:
    return sum(sorted(sizes, reverse=True)[:count])


def _decoded_bytes(source: AlohaSource, form: ImageForm) -> list[int]:
    return [int(length) * form.bytes_per_frame for length in source.lengths]


def _recorded_bytes(source: AlohaSource, form: ImageForm) -> list[int]:
    """With the last image of each camera, which is kept decoded, and eight bytes a frame to find its JPEG."""
    depth = [int(length) * form.depth_bytes * len(form.depth) for length in source.lengths]
    colour = []
    for length, reports in zip(source.lengths, source.images_of, strict=True):
        jpegs = sum(reports[name].encoding == "jpeg" for name in form.colour)
        stored = sum(reports[name].stored for name in form.colour)
        colour.append(stored + jpegs * (form.colour_bytes + 8 * (int(length) + 1)))
    return [a + b for a, b in zip(colour, depth, strict=True)]
