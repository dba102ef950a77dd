"""How a pool keeps its images, chosen by the memory that data.memory_gib allows, and what the choice costs."""

import dataclasses

import numpy as np

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.sampling import STEPS_PER_BLOCK
from chunkwise.errors import ConfigError
from qchunk.config import DataConfig, QChunkConfig
from qchunk.data.image_store.buffers import SPARES
from qchunk.data.image_store.frames import FrameStore, ImageForm, Storage, image_form
from qchunk.data.image_store.workers import Workers
from qchunk.data.readers.aloha import AlohaSource

GIB = 1 << 30
SPARE_BYTES = GIB // 2
"""For decoded images that are drawn again soon, where frames stay JPEGs and data.memory_gib has room: docs/pool.md
has what that saves. With twice as much the loader was not faster."""


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


def open_store(config: QChunkConfig, source: EpisodeSource, *, pools: int, rows: int) -> FrameStore:
    """An empty store of images that keeps them as `plan` chooses; for a config with cameras.

    Raises:
      ConfigError: As `plan`.
    """
    assert isinstance(source, AlohaSource)  # the config allows cameras for ALOHA files alone
    form = image_form(config.data, source.images_of[0])
    chosen = plan(config, source, form, pools=pools, rows=rows)
    return FrameStore(
        source, form, chosen.storage, Workers(config.data.decode_threads), spare=chosen.spare, notes=chosen.notes
    )


def plan(config: QChunkConfig, source: AlohaSource, form: ImageForm, *, pools: int, rows: int) -> Plan:
    """Chooses by data.frames and data.memory_gib.

    Args:
      config: Of the run.
      source: The dataset.
      form: Of its images.
      pools: Virtual shards that this process loads.
      rows: Of a batch, in this process.

    Raises:
      ConfigError: What was asked for, or for auto both ways, exceeds the budget.
    """
    data = config.data
    resident = min(resident_episodes(data, pools), len(source))  # an episode in both pools is kept once
    batch = 2 * rows * form.bytes_per_frame
    buffers = batch * (SPARES + data.read_threads)
    needed: dict[Storage, int] = {
        "decoded": _largest(_decoded_bytes(source, form), resident) + buffers,
        "recorded": _largest(_recorded_bytes(source, form), resident) + buffers,
    }
    budget = int(data.memory_gib * GIB)
    both: list[Storage] = ["decoded", "recorded"]
    asked: list[Storage] = [storage for storage in both if data.frames in ("auto", storage)]
    fitting: list[Storage] = [storage for storage in asked if needed[storage] <= budget]
    if not fitting:
        sizes = " and ".join(f"{needed[storage] / GIB:.2f} GiB {_WAYS[storage]}" for storage in asked)
        raise ConfigError(
            f"data.memory_gib is {data.memory_gib:g}, but the images of {resident} episodes need {sizes}; lower "
            "data.episodes_per_epoch or data.image_size, set data.refresh rolling, or raise the budget"
        )
    spare = 0
    if fitting[0] == "recorded" and any(source.images_of[0][name].encoding == "jpeg" for name in form.colour):
        room = min(SPARE_BYTES, budget - needed["recorded"]) // form.colour_bytes
        spare = min(room, STEPS_PER_BLOCK * 2 * rows * len(form.colour))  # more are never drawn again in a block
    notes = _notes(config, source, form, fitting[0], needed, resident)
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
    resident: int,
) -> tuple[str, ...]:
    data = config.data
    other: Storage = "recorded" if storage == "decoded" else "decoded"
    size = form.image_size or form.depth_size
    assert size is not None
    cameras = len(form.colour) + len(form.depth)
    jpegs = sum(source.images_of[0][name].encoding == "jpeg" for name in form.colour)
    loaded = int(np.sort(source.lengths)[::-1][: data.episodes_per_epoch].sum()) * jpegs
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
