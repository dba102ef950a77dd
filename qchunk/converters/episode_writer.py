"""Writes one episode in the project's ALOHA layout: docs/data_formats.md, and docs/converting.md for the images.

  /observations/qpos, /observations/state   float32  the observation; two names of one dataset
  /action                                   float32
  /reward float64, /terminated bool         where the source has them
  /observations/images/<camera>             uint8    T x bytes, JPEG rows padded with zeros; or T x h x w x 3
  /compress_len                             int64    cameras x T, bytes of each JPEG; cameras in alphabetical order

The same input gives the same bytes: no times, no paths of the machine.
"""

from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from jaxtyping import UInt8

from chunkwise.data.images import encode_jpeg
from chunkwise.errors import DataError
from chunkwise.files.aloha_hdf5 import write_array, write_jpegs
from qchunk.converters.recording import Images, Recording


def write_episode(
    path: Path, recording: Recording, *, success: bool | None, images: Literal["jpeg", "raw", "none"], quality: int
) -> None:
    """Writes the file; it must not exist.

    Args:
      path: The file.
      recording: What to write; its images are read here.
      success: The episode's label, or None for none.
      images: How images are stored.
      quality: JPEG quality.

    Raises:
      DataError: An image could not be read, images of one camera differ in size, or a text has a NUL in it.
      OSError: The file could not be written.
    """
    with h5py.File(path, "x") as h5:
        write_array(h5, "/observations/qpos", recording.observation)
        h5["/observations/state"] = h5["/observations/qpos"]  # a hard link: no second copy
        write_array(h5, "/action", recording.action)
        if recording.reward is not None:
            write_array(h5, "/reward", recording.reward)
        if recording.terminated is not None:
            write_array(h5, "/terminated", recording.terminated)
        for name, x in recording.extra.items():
            write_array(h5, name, x)
        h5.attrs["source"] = recording.id
        for name, value in recording.attributes.items():
            try:
                h5.attrs[name] = value
            except ValueError as error:
                found = f"{value!r:.200}: {error}"
                raise DataError(f"{recording.id}: {name}: expected a text without NUL, found {found}") from error
        if success is not None:
            h5.attrs["success"] = success
        if recording.images is not None and images == "jpeg":
            _write_jpeg(h5, recording.id, recording.images, quality)
        elif recording.images is not None and images == "raw":
            _write_raw(h5, recording.id, recording.images, len(recording.action))


def _write_jpeg(h5: h5py.File, source: str, images: Images, quality: int) -> None:
    rows: dict[str, list[bytes]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for frame, cameras in enumerate(images()):
        for name, image in cameras.items():
            _check_size(source, frame, name, image, sizes)
            rows.setdefault(name, []).append(encode_jpeg(image, quality=quality))
    write_jpegs(h5, rows)


def _write_raw(h5: h5py.File, source: str, images: Images, length: int) -> None:
    datasets: dict[str, h5py.Dataset] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for frame, cameras in enumerate(images()):
        for name, image in cameras.items():
            _check_size(source, frame, name, image, sizes)
            if name not in datasets:
                datasets[name] = h5.create_dataset(
                    f"/observations/images/{name}",
                    (length, *image.shape),
                    np.uint8,
                    chunks=(1, *image.shape),
                    fletcher32=True,
                )
            datasets[name][frame] = image
    h5.attrs["compress"] = False


def _check_size(
    source: str, frame: int, camera: str, image: UInt8[np.ndarray, "h w 3"], sizes: dict[str, tuple[int, ...]]
) -> None:
    expected = sizes.setdefault(camera, image.shape)
    if image.shape != expected:
        raise DataError(f"{source}: {camera}, row {frame}: expected shape {expected} as in row 0, found {image.shape}")
