"""Images on the host: decode, encode, resize, each in one place. Always uint8, height x width x RGB."""

import contextlib
import io
import struct
import zlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import simplejpeg
from jaxtyping import Shaped, UInt8
from PIL import Image, PngImagePlugin

from chunkwise.errors import DataError
from chunkwise.files import budget, png

Filter = Literal["area", "bilinear"]
"""How an image is stretched; both look at every pixel, so nothing flickers from frame to frame.

area: the mean of the area that a pixel covers, bilinear where the image grows. Q-chunking, which decodes images while
    it trains: it takes a quarter to a third less time than bilinear.
bilinear: a triangle as wide as two pixels of the result. Driving: packs and the measured tables hold images made by it,
    and another filter would make them images of another dataset.

`resize_with_pad` is bilinear too, because openpi is, and equal to it to the bit.
"""

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # markers of JPEG between 0xC0 and 0xCF that begin no frame: tables and a reserved one
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_ORIENTATION = 0x0112
MAX_JPEG_SIDE = 65_500
_MAX_SEGMENTS = 100
"""Segments of a JPEG's head that are looked at one by one; cameras write 6 to 20."""

SHRINK_QUALITY = 95
"""Of the JPEG by which pixels are shrunk: 90 is up to 0.12 of 255 farther from training's pixels, 100 up to 0.25 nearer
at one and a half times the time."""


def decode(data: bytes | memoryview, *, source: str) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes a JPEG or PNG into RGB.

    Args:
      data: The file's bytes.
      source: Names the image in errors, e.g. "episode 3, observation.images.base, frame 17".

    Raises:
      DataError: If the bytes are neither, are cut short or damaged, lack rows, cost more than a limit, or hold 16-bit
        depth.
    """
    height, width = read_image_size(data, source=source)
    try:
        if data[:3] == _JPEG:
            require_few_scans(data, source=source)
            return simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
        require_eight_bits(data, source)
        png.require_whole(data)
        # Not Image.open, which has a limit of pixels of its own. Texts and profiles are bounded by Pillow.
        with PngImagePlugin.PngImageFile(io.BytesIO(data)) as png_file:
            return np.asarray(png_file.convert("RGB"))
    except (ValueError, OSError, SyntaxError, EOFError, OverflowError, struct.error, zlib.error) as error:
        raise DataError(
            f"{source}: expected a whole JPEG or PNG of {height} x {width}, found damaged data: {error}"
        ) from error


def read_image_size(data: bytes | memoryview, *, source: str) -> tuple[int, int]:
    """Height and width from the header alone. Raises DataError for other formats and above the limit of pixels."""
    if data[:3] == _JPEG:
        try:
            height, width = (int(size) for size in simplejpeg.decode_jpeg_header(data)[:2])
        except ValueError as error:
            raise DataError(f"{source}: expected a JPEG header, found damaged data: {error}") from error
    elif data[:8] == _PNG and len(data) >= 24:
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    else:
        begin = bytes(data[:8])
        raise DataError(f"{source}: expected JPEG or PNG data, found {len(data)} bytes that begin with {begin!r}")
    require_pixels(height, width, source)
    return height, width


def require_eight_bits(head: bytes | memoryview, source: str) -> None:
    """Raises DataError where an image's first bytes are those of a PNG of 16 bits: a depth map, or 12 bits of a camera,
    of which an 8-bit image would keep the high byte alone."""
    if head[:8] == _PNG and len(head) > 24 and head[24] > 8:
        raise DataError(
            f"{source}: expected an 8-bit image, found a PNG of {head[24]} bits (a depth map?); scale it to 0..255, "
            "and write it with 8"
        )


def require_upright(head: bytes, source: str) -> None:
    """Raises DataError where EXIF data in an image's first bytes say that its pixels lie turned or mirrored.

    Decoders here give the pixels as they are stored, where browsers and OpenCV turn them.
    """
    if (found := orientation(head)) > 1:
        raise DataError(
            f"{source}: expected pixels that are stored upright, found EXIF orientation {found}: viewers turn the "
            "image, and training would not. Turn the pixels (exiftran -a, or Pillow's ImageOps.exif_transpose), or "
            "take the tag away where they are right as they are stored (jpegtran -copy none)"
        )


def orientation(head: bytes) -> int:
    """Returns the orientation, 1 to 8, that EXIF data in an image's first bytes state; 1 where none is stated.

    Read here, since a parser of all of EXIF takes more time, and warns where other tags are damaged.
    """
    if head[:8] == _PNG:
        tiff = head.partition(b"eXIf")[2]
    else:
        before, _, tiff = head.partition(b"Exif\0\0")
        tiff = tiff if before[-4:-2] == b"\xff\xe1" else b""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    with contextlib.suppress(struct.error):
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, first)
        for entry in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, first + 2 + 12 * entry)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    return 1


def require_pixels(height: int, width: int, source: str) -> None:
    """Raises DataError for a size of 0, and above the limit of pixels."""
    if not height > 0 < width:
        raise DataError(f"{source}: expected an image of at least 1 pixel, found {height} x {width}")
    if height * width > budget.current().image_pixels:
        raise budget.LimitError(source, "image_pixels", f"{height} x {width}")


def require_uint8(image: np.ndarray, name: str) -> None:
    """Raises DataError unless an array is a [h, w, 3] uint8 image; says what to do with floats in 0..1."""
    if image.dtype != np.uint8:
        low, high = (image.min(), image.max()) if image.size and image.dtype.kind in "biuf" else (0, 0)
        between = f" in {low:g}..{high:g}" if image.dtype.kind in "biuf" else ""
        hint = "; multiply floats in 0..1 by 255 and cast" if image.dtype.kind == "f" else ""
        raise DataError(f"image {name}: expected uint8 in 0..255, found {image.dtype}{between}{hint}")
    if image.ndim != 3 or image.shape[-1] != 3 or not image.size:
        raise DataError(f"image {name}: expected [height, width, 3], found shape {image.shape}")


def require_few_scans(data: bytes | memoryview, *, source: str) -> None:
    """Refuses a JPEG that passes over its image more often than the limit says, before it is decoded.

    A camera's JPEG has one scan with all components, and a look at its head is all that it costs: 2 microseconds. In
    any other, and wherever something odd comes before the first scan, the marks of scans are counted; in a scan's own
    data 0xFF is never followed by one.

    Raises:
      LimitError: It is above.
    """
    if not _is_one_scan(data):
        scans = bytes(data).count(b"\xff\xda")
        if scans > budget.current().image_scans:
            raise budget.LimitError(source, "image_scans", f"{scans} scans")


def _is_one_scan(data: bytes | memoryview) -> bool:
    """Whether the head shows beyond doubt that the first scan is the only one that is decoded."""
    at, end, components = 2, len(data) - 10, 0
    for _ in range(_MAX_SEGMENTS):
        if at >= end or data[at] != 0xFF:
            return False
        kind = data[at + 1]
        if kind == 0xDA:
            return 0 < components == data[at + 4]
        if 0xC0 <= kind <= 0xCF and kind not in _NO_FRAME:
            if kind in _PROGRESSIVE or components:
                return False
            components = data[at + 9]
        elif kind < 0xC0 or 0xD0 <= kind <= 0xD9:
            return False
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return False


def encode_jpeg(image: UInt8[np.ndarray, "h w 3"], *, quality: int) -> bytes:
    """Encodes RGB as JPEG without chroma subsampling, which would blur coloured edges."""
    return simplejpeg.encode_jpeg(
        np.ascontiguousarray(image), quality=quality, colorspace="RGB", colorsubsampling="444"
    )


def encode_png(image: UInt8[np.ndarray, "h w *c"]) -> bytes:
    """Encodes RGB [h, w, 3] or grey [h, w] without loss, fast rather than small."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def encode_depth_png(depth: Shaped[np.ndarray, "h w"]) -> bytes:
    """Encodes a depth map as grey for people: the nearest 255, the farthest 40, 0 where nothing was measured."""
    known = np.isfinite(depth) & (depth > 0)
    grey = np.zeros(depth.shape, np.uint8)
    if known.any():
        measured = depth[known].astype(np.float64)
        near, far = measured.min(), measured.max()
        grey[known] = np.rint(255 - 215 * (measured - near) / (far - near or 1)).astype(np.uint8)
    return encode_png(grey)


def decode_into(
    data: bytes | memoryview,
    out: UInt8[np.ndarray, "h w 3"],
    *,
    source: str,
    filter: Filter,
) -> None:
    """Decodes a JPEG or PNG into memory that is there already, stretched to that memory's size.

    Args:
      data: The file's bytes.
      out: C-contiguous; its height and width are the size wanted.
      source: Names the image in errors.
      filter: As of `resize_into`.

    Raises:
      DataError: As `decode`.
    """
    if data[:3] == _JPEG:
        decode_jpeg_into(data, out, source=source, filter=filter)
    else:
        resize_into(decode(data, source=source), out, filter=filter)


def decode_jpeg_into(
    data: bytes | memoryview,
    out: UInt8[np.ndarray, "h w 3"],
    *,
    source: str,
    filter: Filter = "area",
    bgr: bool = False,
) -> None:
    """Decodes a JPEG into memory that is there already, stretched to that memory's size.

    At the recorded size the decoder writes straight into `out`. A smaller image is decoded by libjpeg at the nearest
    eighth that is not below it, several times faster than whole, and the rest of the way is `resize_into`. Python's
    lock is released.

    Args:
      data: The JPEG.
      out: C-contiguous; its height and width are the size wanted.
      source: Names the image in errors.
      filter: As of `resize_into`.
      bgr: The recorder handed RGB to an encoder that takes BGR: red and blue are exchanged back.

    Raises:
      DataError: The data are damaged or cut short.
    """
    height, width = out.shape[:2]
    colours = "BGR" if bgr else "RGB"
    size = read_image_size(data, source=source)
    require_few_scans(data, source=source)
    try:
        if size == (height, width):
            simplejpeg.decode_jpeg(data, colorspace=colours, buffer=out, strict=True)
            return
        scaled = simplejpeg.decode_jpeg(
            data, colorspace=colours, min_height=height, min_width=width, min_factor=1, strict=True
        )
    except ValueError as error:
        raise DataError(
            f"{source}: expected a whole JPEG of {size[0]} x {size[1]}, found damaged data: {error}"
        ) from error
    resize_into(scaled, out, filter=filter)


OTHER_SHAPE = 0.05
"""Share by which width / height may differ before a policy tells of it: 16 rows of 480 are 3 %, and 5:4 is 6 % from
4:3."""

Size = tuple[int, int]
"""Height and width."""


def one_shape(counts: Mapping[Size, int]) -> Size | None:
    """Returns the commonest of the sizes at which a camera was recorded.

    Args:
      counts: How many images have each.

    Returns:
      None where they are of several shapes, and where they are squares: those may be whole views, squeezed before.
    """
    if not counts:
        return None
    commonest = max(counts, key=lambda size: (counts[size], size))
    square = commonest[0] == commonest[1]
    return None if square or any(other_shape(size, commonest) for size in counts) else commonest


def other_shape(size: Size, other: Size) -> bool:
    """Whether width / height of two sizes differ by more than OTHER_SHAPE."""
    (height, width), (high, wide) = size, other
    return not 1 / (1 + OTHER_SHAPE) <= width * high / (height * wide) <= 1 + OTHER_SHAPE


def shrinks(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Whether libjpeg itself makes a JPEG of height and width `size` smaller on its way to `wanted`.

    It can at seven eighths, rounded up, the largest of its scales below 1.
    """
    return all(-(-have * 7 // 8) >= want for have, want in zip(size, wanted, strict=True))


def shrink_into(
    image: UInt8[np.ndarray, "h w 3"], out: UInt8[np.ndarray, "h2 w2 3"], *, filter: Filter = "area"
) -> None:
    """Stretches an image to the size of `out` as `decode_jpeg_into` does a JPEG of it.

    What libjpeg leaves out of each 8 x 8 pixels while it shrinks is in no pixel that comes out, where `resize_into`
    averages it, or takes it for something coarser. So pixels are encoded as JPEG, and decoded by the same call: of
    three photos of 480 x 720 and 600 x 512, shrunk to four sizes, 0.3 to 1.5 of 255 in the mean from the pixels of
    their own JPEG (4:2:0 or 4:4:4, quality 85), where those of `resize_into` are 0.7 to 10 from them; of one of 4:2:2,
    which subsamples one axis alone, 0.7 to 2.8 and 1 to 10. It takes as long as encoding.
    """
    height, width = out.shape[:2]
    if max(image.shape) <= MAX_JPEG_SIDE and shrinks((image.shape[0], image.shape[1]), (height, width)):
        decode_jpeg_into(encode_jpeg(image, quality=SHRINK_QUALITY), out, source="an image", filter=filter)
    else:
        resize_into(image, out, filter=filter)


def decode_same_size_into(
    data: bytes | memoryview, out: UInt8[np.ndarray, "h w 3"], *, source: str, filter: Filter
) -> None:
    """As `decode_into`, in one call where the data are a JPEG of the size of `out`, as the caller expects.

    The header is not read on its own first, which would take Python's lock once more for every image.
    """
    require_few_scans(data, source=source)
    try:
        shown = simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out, strict=True)
    except ValueError:  # no JPEG, larger than `out`, or damaged: the other one tells which
        decode_into(data, out, source=source, filter=filter)
        return
    if shown.shape != out.shape:
        decode_into(data, out, source=source, filter=filter)


def resize_into(
    image: UInt8[np.ndarray, "h w 3"], out: UInt8[np.ndarray, "h2 w2 3"], *, filter: Filter = "area"
) -> None:
    """Stretches an image to the size of `out`; each axis is scaled on its own."""
    rows, columns = image.shape[:2]
    height, width = out.shape[:2]
    if (rows, columns) == (height, width):
        np.copyto(out, image)
        return
    shrinks = height <= rows and width <= columns
    how = Image.Resampling.BOX if shrinks and filter == "area" else Image.Resampling.BILINEAR
    np.copyto(out, np.asarray(Image.fromarray(image).resize((width, height), resample=how)))


def resized(
    image: UInt8[np.ndarray, "h w 3"], height: int, width: int, *, filter: Filter
) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Returns an image stretched to a size; itself, where it has that size."""
    if image.shape[:2] == (height, width):
        return image
    out = np.empty((height, width, 3), np.uint8)
    resize_into(image, out, filter=filter)
    return out


def resize_with_pad(image: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Fits an image into height x width without distortion; what is left over is black, shared by both sides.

    Bilinear with antialiasing, sizes cut to whole pixels: the result of openpi's client (image_tools) to the bit.
    """
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    ratio = max(columns / width, rows / height)
    fit_height, fit_width = max(1, int(rows / ratio)), max(1, int(columns / ratio))
    fitted = Image.fromarray(image).resize((fit_width, fit_height), resample=Image.Resampling.BILINEAR)
    top, left = (height - fit_height) // 2, (width - fit_width) // 2
    padded = np.zeros((height, width, 3), np.uint8)
    padded[top : top + fit_height, left : left + fit_width] = np.asarray(fitted)
    return padded
