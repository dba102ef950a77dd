"""Datasets of an episode in the HDF5 layout of ALOHA's tools, whoever records or converts it (docs/data_formats.md)."""

import zlib
from collections.abc import Mapping, Sequence

import h5py
import numpy as np
from jaxtyping import Int64, Shaped, UInt8

COMPRESS_LEN = "/compress_len"
DEPTH_DTYPES = ("uint8", "uint16", "float32")
"""Of depth maps, in numpy's names."""


def write_array(h5: h5py.File, name: str, x: np.ndarray) -> None:
    """Writes an array in one piece, with a checksum."""
    h5.create_dataset(name, data=x, chunks=x.shape, fletcher32=True)


def write_jpegs(h5: h5py.File, rows: Mapping[str, Sequence[bytes]]) -> None:
    """Writes encoded images by camera, and /compress_len; cameras in alphabetical order, all of the same length."""
    names = sorted(rows)
    lengths = []
    for name in names:
        padded, length = padded_rows(rows[name])
        h5.create_dataset(f"/observations/images/{name}", data=padded, chunks=(1, padded.shape[1]), fletcher32=True)
        lengths.append(length)
    write_array(h5, COMPRESS_LEN, np.stack(lengths))
    h5.attrs["compress"] = True


def deflated(depth: Shaped[np.ndarray, "h w"]) -> bytes:
    """Returns the numbers of a depth map, compressed as `write_depth` takes them."""
    return zlib.compress(depth.tobytes(), 1)


def write_depth(h5: h5py.File, name: str, rows: Sequence[bytes], shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Writes depth maps [T, h, w] as they were compressed by `deflated`, whose format has a checksum.

    Args:
      h5: The file.
      name: Of the camera.
      rows: Compressed maps, one a frame.
      shape: Height and width of each.
      dtype: Of their numbers, one of DEPTH_DTYPES.
    """
    maps = h5.create_dataset(
        f"/observations/images_depth/{name}", (len(rows), *shape), dtype, chunks=(1, *shape), compression="gzip"
    )
    for frame, row in enumerate(rows):
        maps.id.write_direct_chunk((frame, 0, 0), row)


def padded_rows(rows: Sequence[bytes]) -> tuple[UInt8[np.ndarray, "T n"], Int64[np.ndarray, " T"]]:
    """Returns byte strings as rows, padded with zeros to the longest, and the length of each."""
    lengths = np.array([len(row) for row in rows], np.int64)
    padded = np.zeros((len(rows), lengths.max()), np.uint8)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = np.frombuffer(row, np.uint8)
    return padded, lengths
