"""Images in ALOHA-layout HDF5: /observations/images/<camera> and /observations/images_depth/<camera>.

Colour is raw, uint8 [T, h, w, 3], or JPEG: one row of bytes a frame, padded with zeros to the longest, as uint8 [T, n]
or as byte strings of n bytes. ALOHA's tools write the real lengths to /compress_len, one row a camera in the order in
which the *recorder* named them, which no file remembers, and sometimes with rows for depth cameras; so the row of a
camera is found by its lengths. Depth is raw, [T, h, w], uint16, uint8 or float32; it may
lie in /observations/depth_images/<camera> too.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import h5py
import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8

from chunkwise.data.buffers import returned
from chunkwise.data.images import decode_jpeg_into, read_image_size, require_pixels
from chunkwise.data.problems import Problem
from chunkwise.data.threads import Workers
from chunkwise.errors import DataError, one_line
from chunkwise.files import budget
from qchunk.data.readers.hdf5 import (
    IMAGES,
    UNREADABLE,
    Refused,
    members,
    read_attribute,
    require_affordable,
    require_readable,
    resolve,
)
from qchunk.data.readers.report import ImageReport

COLOUR = "/observations/images"
DEPTH = "/observations/images_depth"
ALSO_DEPTH = "/observations/depth_images"
"""Where the original loader looks. A camera is named as below DEPTH, wherever its maps lie."""
LENGTHS = "/compress_len"
BLOCK = 16
"""Raw frames that are read at once: 15 MB of 480 x 640."""
_END = b"\xff\xd9"  # of every JPEG


@dataclasses.dataclass(frozen=True, kw_only=True)
class JpegRows:
    """JPEGs of one camera, one after another."""

    data: UInt8[np.ndarray, " bytes"]
    offsets: Int64[np.ndarray, " _"]
    """T + 1 of them: frame t is data[offsets[t] : offsets[t + 1]]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, frame: int) -> memoryview:
        """The JPEG of one frame."""
        return self.data[self.offsets[frame] : self.offsets[frame + 1]].data

    def only(self, frames: Int64[np.ndarray, " n"]) -> "JpegRows":
        """Copies the JPEGs of these frames."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(self.offsets)[frames])])
        data = returned(int(offsets[-1]))
        for place, frame in enumerate(frames.tolist()):
            data[offsets[place] : offsets[place + 1]] = self.data[self.offsets[frame] : self.offsets[frame + 1]]
        return JpegRows(data=data, offsets=offsets)


def camera_path(name: str) -> str:
    """Returns the path that names a camera, for the path of its dataset in a file."""
    inside = name.removeprefix(ALSO_DEPTH)
    return name if inside == name else DEPTH + inside


def is_jpeg(dataset: h5py.Dataset) -> bool:
    """Whether a colour dataset holds JPEGs or raw pixels.

    Raises:
      Refused: It is neither, or reading it is not safe, or it contradicts the file's attribute `compress`.
    """
    require_readable(dataset, kinds=IMAGES)
    shape, kind = dataset.shape, dataset.dtype.kind
    raw = len(shape) == 4 and shape[3] == 3 and dataset.dtype == np.uint8
    rows = (len(shape) == 2 and dataset.dtype == np.uint8) or (len(shape) == 1 and kind == "S")
    if not raw and not rows:
        raise Refused("uint8 pixels [T, h, w, 3], or one row of JPEG bytes a frame", f"{dataset.dtype} of {shape}")
    if raw:
        _require_pixels(shape)
    declared = read_attribute(dataset.file, "compress")
    if isinstance(declared, bytes | str):
        text = declared.decode(errors="replace") if isinstance(declared, bytes) else declared
        if (word := text.strip().lower()) not in _WORDS:
            raise Refused("the attribute compress as true or false", repr(text[:40]))
        declared = _WORDS[word]
    if declared is not None and bool(declared) != rows:
        found = f"{'JPEG rows' if rows else 'pixels'} of shape {shape}"
        raise Refused(f"{'JPEG rows' if declared else 'pixels'}, as the attribute compress={declared} says", found)
    return rows


_WORDS = {"true": True, "1": True, "false": False, "0": False}
"""Of the attribute `compress`, where it is a text."""


def require_depth(dataset: h5py.Dataset) -> None:
    """Raises Refused unless the dataset holds depth maps that are safe to read."""
    require_readable(dataset)
    shape = dataset.shape
    if len(shape) != 3 or dataset.dtype.newbyteorder("=") not in (np.uint16, np.float32, np.uint8):
        raise Refused("depth maps [T, h, w] of uint16, float32 or uint8", f"{dataset.dtype} of {shape}")
    _require_pixels(shape)


def _require_pixels(shape: tuple[int, ...]) -> None:
    """Of one image or depth map, [T, h, w, ...]."""
    try:
        require_pixels(shape[1], shape[2], "")
    except DataError as error:
        expected, _, found = str(error).removeprefix(": expected ").partition(", found ")
        raise Refused(expected, found) from error


def read_jpegs(dataset: h5py.Dataset) -> JpegRows:
    """All JPEGs of a camera without their padding.

    Raises:
      Refused: /compress_len says where the JPEGs end, and they do not.
    """
    padded = np.asarray(dataset[()])
    padded = padded.view(np.uint8).reshape(len(padded), -1) if len(padded) else np.zeros((0, 0), np.uint8)
    # A JPEG ends with 0xFFD9, so zeros behind it are padding.
    lengths = np.array([len(row.tobytes().rstrip(b"\0")) for row in padded], np.int64)
    table = resolve(dataset.file, LENGTHS)
    if table is not None:
        require_readable(table)
        lengths = _recorded_lengths(padded, lengths, np.asarray(table[()]))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    data = returned(int(offsets[-1]))
    for row, length, first in zip(padded, lengths, offsets, strict=False):
        data[first : first + length] = row[:length]
    return JpegRows(data=data, offsets=offsets)


def _recorded_lengths(
    padded: UInt8[np.ndarray, "T n"], found: Int64[np.ndarray, " T"], table: Shaped[np.ndarray, "..."]
) -> Int64[np.ndarray, " T"]:
    """The row of /compress_len that is this camera's: the one after whose lengths most of its JPEGs end."""
    frames, width = padded.shape
    if table.ndim != 2 or table.shape[1] != frames:
        raise Refused(f"{LENGTHS} of shape [cameras, {frames}]", f"shape {table.shape}")
    if not np.isfinite(table).all():
        raise Refused(f"{LENGTHS} of finite numbers", "NaN or Inf")
    lengths = table.astype(np.int64)
    # Of another camera with larger JPEGs, lengths lie beyond these rows: cut to them, they would end where all JPEGs of
    # an unchanging image do.
    within = (lengths >= 2) & (lengths <= width)
    agree = (lengths == found) | (within & _ends(padded, np.clip(lengths, 2, width)))
    best = int(agree.sum(1).argmax()) if len(lengths) else 0
    if not len(lengths) or 2 * agree[best].sum() < frames:
        raise Refused(f"a row of {LENGTHS} with the lengths of these JPEGs", "none that fits half of them")
    bad = np.flatnonzero(~agree[best])
    if len(bad):
        at = int(bad[0])
        expected = f"a JPEG of {lengths[best, at]} bytes, as {LENGTHS} says"
        raise Refused(expected, f"one that does not end there ({len(bad)} such row(s))", row=at)
    return lengths[best]


def _ends(padded: UInt8[np.ndarray, "T n"], lengths: Int64[np.ndarray, "rows T"]) -> Bool[np.ndarray, "rows T"]:
    """Whether the JPEG's end marker stands right before these lengths."""
    frames = np.arange(len(padded))[None, :]
    return (padded[frames, lengths - 2] == _END[0]) & (padded[frames, lengths - 1] == _END[1])


def blocks(dataset: h5py.Dataset) -> Iterator[tuple[int, Shaped[np.ndarray, "frames ..."]]]:
    """Raw frames, BLOCK at a time, each block with the number of its first frame.

    Raises:
      Refused: A frame cannot be read; with its row.
    """
    for first in range(0, len(dataset), BLOCK):
        try:
            yield first, dataset[first : first + BLOCK]
        except UNREADABLE:
            for row in range(first, min(first + BLOCK, len(dataset))):
                try:
                    dataset[row]
                except UNREADABLE as error:
                    raise Refused("readable data", one_line(error), row=row) from error
            raise


def examine_images(
    h5: h5py.File, file: str, length: int, workers: Workers
) -> tuple[dict[str, ImageReport], list[Problem]]:
    """Reads and decodes every image of every camera.

    Args:
      h5: Open.
      file: For the messages.
      length: Frames of the episode.
      workers: Decode.

    Returns:
      A report for each camera whose images are all good, by the path of its dataset, and what is wrong with others.
    """
    reports: dict[str, ImageReport] = {}
    problems: list[Problem] = []
    for group in (COLOUR, DEPTH, ALSO_DEPTH):
        try:
            names = [f"{group}/{name}" for name in members(h5, group)]
        except Refused as refused:
            problems.append(refused.problem(file, group))
            continue
        require_affordable(h5, names, streamed=True)
        for name in names:
            try:
                if camera_path(name) in reports:
                    raise Refused(f"depth of a camera in one place, {DEPTH} or {ALSO_DEPTH}", "both")
                report = _examine(h5, name, length, workers)
                reports[camera_path(name)] = dataclasses.replace(report, stored_at=name if group == ALSO_DEPTH else "")
            except Refused as refused:
                problems.append(refused.problem(file, name))
            except UNREADABLE as error:
                problems.append(Refused("readable data", one_line(error)).problem(file, name))
    return reports, problems


def _examine(h5: h5py.File, name: str, length: int, workers: Workers) -> ImageReport:
    dataset = resolve(h5, name)
    if dataset is None:  # a group lists names that no path can say: "", ".", "a/b"
        raise Refused("a dataset of this name", "none")
    jpeg = name.startswith(f"{COLOUR}/") and is_jpeg(dataset)
    if camera_path(name).startswith(f"{DEPTH}/"):
        require_depth(dataset)
    if len(dataset) != length:
        expected = f"{length} rows, as many as the episode has frames"
        raise Refused(expected, f"{len(dataset)} rows", row=min(len(dataset), length))
    if jpeg:
        return _examine_jpegs(read_jpegs(dataset), workers)
    digest = hashlib.sha256()
    for first, block in blocks(dataset):
        digest.update(np.ascontiguousarray(block, block.dtype.newbyteorder("=")).data)
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            row = first + int(np.flatnonzero(~np.isfinite(block).all((1, 2)))[0])
            raise Refused("finite numbers", "NaN or Inf", row=row)
    height, width = dataset.shape[1:3]
    return ImageReport(
        encoding="raw",
        height=height,
        width=width,
        dtype=str(dataset.dtype.newbyteorder("=")),
        stored=dataset.nbytes,
        digest=digest.hexdigest(),
    )


def _examine_jpegs(rows: JpegRows, workers: Workers) -> ImageReport:
    height, width = common_size(rows)
    bad: dict[int, str] = {}
    clock = budget.Clock("")

    def decode(frame: int) -> None:
        try:
            clock.check()
            decode_jpeg_into(rows[frame], np.empty((height, width, 3), np.uint8), source="")
        except DataError as error:
            bad[frame] = str(error).removeprefix(": ")

    workers.run(decode, len(rows))
    if bad:
        row = min(bad)
        raise Refused("a whole JPEG", f"{bad[row].partition('found ')[2]} ({len(bad)} such row(s))", row=row)
    return ImageReport(
        encoding="jpeg",
        height=height,
        width=width,
        dtype="uint8",
        stored=rows.data.nbytes,
        digest=hashlib.sha256(rows.data.data).hexdigest(),
    )


def common_size(rows: JpegRows) -> tuple[int, int]:
    """Height and width that the headers of all frames name.

    Raises:
      Refused: They differ, or a frame is no JPEG.
    """
    first: tuple[int, int] | None = None
    for frame in range(len(rows)):
        try:
            size = read_image_size(rows[frame], source="")
        except DataError as error:
            raise Refused("a JPEG", str(error).partition("found ")[2], row=frame) from error
        if bytes(rows[frame][:3]) != b"\xff\xd8\xff":
            raise Refused("a JPEG, as cv2.imencode('.jpg', ...) writes it", "a PNG", row=frame)
        first = first or size
        if size != first:
            raise Refused(
                f"a JPEG of {first[0]} x {first[1]}, as in the first frame", f"{size[0]} x {size[1]}", row=frame
            )
    if first is None:
        raise Refused("at least 1 frame", "none")
    return first
