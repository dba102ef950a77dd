"""Cases: .npz files, packs, indexes, TFRecord files."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from tests.bombs import Command, case
from tests.bombs.programs import (
    driving_convert,
    driving_validate,
    openpi_inspect,
    qchunk_convert,
    qchunk_inspect,
    train,
)

ROWS = 1000


def good_arrays(rows: int = ROWS) -> dict[str, np.ndarray]:
    """What an OGBench file holds."""
    terminals = np.zeros(rows, np.float32)
    terminals[-1] = 1
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(rows, 5)).astype(np.float32),
        "actions": rng.normal(size=(rows, 3)).astype(np.float32),
        "terminals": terminals,
    }


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    """Of an array of numpy's format."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


def write_npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """An .npz file of members as they are given."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def write_zeros(path: Path, name: str, head: bytes, count: int, method: int = zipfile.ZIP_DEFLATED) -> None:
    """Adds a member of `head` and so many zeros, a piece at a time."""
    with zipfile.ZipFile(path, "a", method) as archive, archive.open(f"{name}.npy", "w", force_zip64=True) as out:
        out.write(head)
        piece = bytes(1 << 20)
        while count > 0:
            out.write(piece[: min(count, len(piece))])
            count -= len(piece)


@case
def npz_of_zeros(folder: Path) -> Command:
    """1.6 MB of deflated zeros that are 1.6 GB of observations."""
    path = folder / "play.npz"
    write_zeros(path, "observations", header((10**8, 4)), 16 * 10**8)
    return qchunk_inspect(path)


@case
def npz_of_zeros_in_training(folder: Path) -> Command:
    """The same, in training."""
    path = folder / "play.npz"
    write_zeros(path, "observations", header((10**8, 4)), 16 * 10**8)
    return train("qchunk", path, "--data.format", "ogbench_npz")


@case
def npz_many_arrays_below_the_limit(folder: Path) -> Command:
    """Seven arrays of 200 MB, each of which alone would pass."""
    path = folder / "play.npz"
    for name in ("observations", "next_observations", "actions", "rewards", "masks", "qpos", "terminals"):
        write_zeros(path, name, header((50 * 10**6, 1)), 200 * 10**6)
    return qchunk_convert(path)


@case
def npz_header_bomb(folder: Path) -> Command:
    """A header that declares 1.9 GB of itself."""
    path = folder / "play.npz"
    write_zeros(path, "observations", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1900 << 20), 1900 << 20)
    return qchunk_inspect(path)


@case
def npz_declares_more_than_it_has(folder: Path) -> Command:
    """An array of 4 TB in 100 bytes."""
    arrays = good_arrays()
    members = {name: header(x.shape) + x.tobytes() for name, x in arrays.items()}
    members["observations"] = header((10**12, 1)) + bytes(100)
    return qchunk_inspect(write_npz(folder / "play.npz", members))


@case
def npz_of_lzma(folder: Path) -> Command:
    """LZMA, of which zipfile unpacks whatever a read of the file brings."""
    path = folder / "play.npz"
    write_zeros(path, "observations", header((10**8, 4)), 16 * 10**8, zipfile.ZIP_LZMA)
    return qchunk_inspect(path)


@case
def npz_unbalanced_parentheses(folder: Path) -> Command:
    """A header whose Python does not parse."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (((((3, }".ljust(117) + b"\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    return qchunk_inspect(write_npz(folder / "play.npz", {"observations": head + bytes(12)}))


@case
def npz_deep_parentheses(folder: Path) -> Command:
    """A header of 4,000 open parentheses, in training."""
    text = (b"(" * 4000 + b")" * 4000).ljust(8999) + b"\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    path = write_npz(folder / "play.npz", {"observations": head})
    return train("qchunk", path, "--data.format", "ogbench_npz")


@case
def pack_table_of_zeros(folder: Path) -> Command:
    """A pack whose table is 1.6 GB."""
    manifest = {
        "format": "chunkwise-pack-1",
        "fps": 10,
        "cameras": [],
        "image_size": [8, 8],
        "encoding": "jpeg",
        "tasks": {"0": "x"},
        "shards": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_zeros(folder / "tables.npz", "action", header((10**8, 4)), 16 * 10**8)
    return openpi_inspect(folder)


@case
def driving_pack_index_of_zeros(folder: Path) -> Command:
    """A pack of driving whose index is 1.6 GB."""
    manifest = {"format": "chunkwise-driving-pack-1", "image_size": [8, 8], "encoding": "jpeg", "shards": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_zeros(folder / "_index.npz", "t", header((2 * 10**8,), "<f8"), 16 * 10**8)
    return driving_validate(folder)


@case
def tfrecord_of_endless_fields(folder: Path) -> Command:
    """A record of 30 million fields of two bytes each."""
    from driving.converters.tfrecord import masked_checksum

    payload = b"\x10\x01" * 30_000_000
    head = struct.pack("<Q", len(payload))
    record = head + struct.pack("<I", masked_checksum(head)) + payload + struct.pack("<I", masked_checksum(payload))
    (folder / "source").mkdir()
    (folder / "source" / "a.tfrecord").write_bytes(record)
    return driving_convert(folder / "source", "waymo_v1")


@case
def tfrecord_of_eight_exabytes(folder: Path) -> Command:
    """A record's length that no file has, with the right checksum."""
    from driving.converters.tfrecord import masked_checksum

    head = struct.pack("<Q", 1 << 62)
    (folder / "source").mkdir()
    (folder / "source" / "a.tfrecord").write_bytes(head + struct.pack("<I", masked_checksum(head)) + bytes(100))
    return driving_convert(folder / "source", "waymo_v1")


@case
def npz_is_a_gzip_quine_of_zeros(folder: Path) -> Command:
    """A file that is no zip at all, but deflated zeros."""
    (folder / "play.npz").write_bytes(zlib.compress(bytes(10**8)))
    return qchunk_inspect(folder / "play.npz")
