"""Cases: HDF5 episodes, robomimic and D4RL files."""

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.bombs import Command, case
from tests.bombs.programs import qchunk_convert, qchunk_inspect, train

T = 20


def good_episode(path: Path, *, without: tuple[str, ...] = ()) -> h5py.File:
    """An ALOHA-layout episode, open for what is to be wrong with it."""
    rng = np.random.default_rng(0)
    h5 = h5py.File(path, "w")
    for name, width in (("/observations/qpos", 5), ("/action", 3)):
        if name not in without:
            h5[name] = rng.normal(size=(T, width)).astype(np.float32)
    h5.attrs["success"] = True
    return h5


def zeros(h5: h5py.File, name: str, shape: tuple[int, ...], dtype: str = "f4", **settings: Any) -> None:
    """A dataset of zeros that are stored, packed, a chunk at a time."""
    chunks = settings.pop("chunks", (min(shape[0], 1 << 18), *shape[1:]))
    options = {"compression": "gzip", "compression_opts": 9, **settings}
    dataset = h5.create_dataset(name, shape, dtype, chunks=chunks, **options)
    for first in range(0, shape[0], chunks[0]):
        rows = min(chunks[0], shape[0] - first)
        dataset[first : first + rows] = np.zeros((rows, *shape[1:]), dtype)


@case
def hdf5_of_zeros(folder: Path) -> Command:
    """2 MB that are 2.0 GB of actions."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        zeros(h5, "/action", (36 * 10**6, 14))
    return qchunk_inspect(folder)


@case
def hdf5_of_zeros_in_training(folder: Path) -> Command:
    """The same, in training."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        zeros(h5, "/action", (36 * 10**6, 14))
    return train("qchunk", folder)


@case
def hdf5_each_array_below_the_limit(folder: Path) -> Command:
    """Five arrays of 240 MB each."""
    names = ("/action", "/base_action", "/observations/qpos", "/observations/state", "/sim/qpos")
    with good_episode(folder / "episode_0.hdf5", without=names) as h5:
        for name in names:
            zeros(h5, name, (6 * 10**6, 10))
    return qchunk_inspect(folder)


@case
def hdf5_deflate_that_outgrows_its_chunk(folder: Path) -> Command:
    """A chunk described as 1 KB that unpacks to 1.5 GB: HDF5 makes room for all that comes."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        dataset = h5.create_dataset("/action", (T, 14), "f4", chunks=(T, 14), compression="gzip")
        packer = zlib.compressobj(9)
        data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1500)) + packer.flush()
        dataset.id.write_direct_chunk((0, 0), data)
    return qchunk_inspect(folder)


@case
def hdf5_packed_twice(folder: Path) -> Command:
    """Deflate in deflate: a thousand times a thousand."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((T, 14))
        settings.set_deflate(9)
        settings.set_deflate(9)
        space = h5py.h5s.create_simple((T, 14))
        dataset = h5py.h5d.create(h5.id, b"action", h5py.h5t.IEEE_F32LE, space, settings)
        inner = zlib.compressobj(9)
        first = b"".join(inner.compress(bytes(1 << 20)) for _ in range(4000)) + inner.flush()
        dataset.write_direct_chunk((0, 0), zlib.compress(first, 9))
    return qchunk_inspect(folder)


@case
def hdf5_chunk_larger_than_the_array(folder: Path) -> Command:
    """One row in a chunk of 3.6 GB."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        dataset = h5.create_dataset(
            "/action", (T, 14), "f4", chunks=(64 * 10**6, 14), maxshape=(None, 14), compression="gzip"
        )
        packer = zlib.compressobj(9)
        data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(3418)) + packer.flush()
        dataset.id.write_direct_chunk((0, 0), data)
    return qchunk_inspect(folder)


@case
def hdf5_never_written(folder: Path) -> Command:
    """5.6 TB in 1.4 KB."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        h5.create_dataset("/action", (10**11, 14), "f4", chunks=(6, 14))
    return qchunk_inspect(folder)


@case
def hdf5_raw_images_of_zeros(folder: Path) -> Command:
    """3 MB that are 3 GB of raw images, a few at a time."""
    with good_episode(folder / "episode_0.hdf5") as h5:
        zeros(h5, "/observations/images/top", (T, 7000, 7000, 3), "u1", chunks=(1, 700, 7000, 3))
    return qchunk_inspect(folder)


@case
def hdf5_many_links_to_one_camera(folder: Path) -> Command:
    """20,000 cameras that are one."""
    with good_episode(folder / "episode_0.hdf5") as h5:
        rng = np.random.default_rng(0)
        h5["/observations/images/c"] = rng.integers(0, 255, (T, 64, 64, 3), np.uint8)
        for n in range(20_000):
            h5[f"/observations/images/c{n}"] = h5["/observations/images/c"]
    return qchunk_inspect(folder)


@case
def hdf5_attribute_of_shared_texts(folder: Path) -> Command:
    """An attribute of 3,000 texts of 1 MB that all are one."""
    with good_episode(folder / "episode_0.hdf5") as h5:
        _shared_texts(h5, "env", 3000)
    return qchunk_inspect(folder)


@case
def robomimic_mask_of_shared_texts(folder: Path) -> Command:
    """A list of 1,000,000 names of 64 KB each that all are one."""
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as h5:
        for name, width in (("actions", 3), ("obs/object", 4)):
            h5[f"data/demo_0/{name}"] = np.zeros((T, width), np.float32)
        dataset = h5.create_dataset(
            "mask/train", (1_000_000,), h5py.string_dtype(), chunks=(10_000,), compression="gzip"
        )
        _share(dataset, "x" * 65_000, 1_000_000)
    return qchunk_convert(path)


@case
def robomimic_demos_of_zeros(folder: Path) -> Command:
    """3,000 episodes that are one of 200 MB."""
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as h5:
        zeros(h5, "data/demo_0/actions", (5 * 10**6, 10))
        h5["data/demo_0/obs/object"] = h5["data/demo_0/actions"]
        for n in range(1, 3000):
            h5[f"data/demo_{n}"] = h5["data/demo_0"]
    return [*qchunk_convert(path), "--observation-keys", "object"]


@case
def d4rl_of_zeros(folder: Path) -> Command:
    """2 MB that are 2 GB of observations."""
    path = folder / "d4rl.hdf5"
    with h5py.File(path, "w") as h5:
        for name in ("observations", "actions"):
            zeros(h5, name, (25 * 10**6, 10))
        for name in ("rewards", "terminals", "timeouts"):
            h5[name] = np.zeros(10, np.float32)
    return qchunk_convert(path)


def _share(dataset: h5py.Dataset, text: str, count: int) -> None:
    """Makes all elements point to the first one's bytes."""
    dataset[0] = text
    dataset.file.flush()
    # The pointer that stands in the chunk: written once, then repeated.
    mask, chunk = dataset.id.read_direct_chunk((0,))
    del mask
    pointer = zlib.decompress(chunk)[:16]
    (rows,) = dataset.chunks or (1,)
    packed = zlib.compress(pointer * rows, 9)
    for first in range(0, count, rows):
        dataset.id.write_direct_chunk((first,), packed)


def _shared_texts(h5: h5py.File, name: str, count: int) -> None:
    """An attribute of `count` texts of 1 MB, whose pointers in the file are made one."""
    texts = np.array(["x" * (1 << 20)] + ["y"] * (count - 1), dtype=object)
    h5.attrs.create(name, texts, dtype=h5py.string_dtype())
    path = h5.filename
    h5.flush()
    # Each element is a length, and the address of a heap with an index in it: 16 bytes, one after another.
    content = bytearray(Path(path).read_bytes())
    at = content.find((1 << 20).to_bytes(4, "little"))
    while at >= 0 and content[at + 16 : at + 20] != (1).to_bytes(4, "little"):
        at = content.find((1 << 20).to_bytes(4, "little"), at + 1)
    assert at >= 0
    content[at : at + 16 * count] = bytes(content[at : at + 16]) * count
    h5.close()
    Path(path).write_bytes(content)
