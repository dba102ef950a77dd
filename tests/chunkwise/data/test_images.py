"""chunkwise/data/images.py: decoding, header checks, resizing with padding."""

import io
import struct
import zlib
from typing import get_args

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from chunkwise.data.images import (
    Filter,
    decode,
    decode_into,
    decode_jpeg_into,
    decode_same_size_into,
    encode_depth_png,
    encode_jpeg,
    encode_png,
    orientation,
    read_image_size,
    require_eight_bits,
    require_pixels,
    require_upright,
    resize_into,
    resize_with_pad,
    resized,
    shrink_into,
    shrinks,
)
from chunkwise.errors import DataError
from chunkwise.files.png import require_whole


def smooth(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 255) // max(width - 1, 1), (y * 255) // max(height - 1, 1), (x + y) % 200], -1).astype(
        np.uint8
    )


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_png_comes_back_exactly() -> None:
    image = smooth(20, 30)
    np.testing.assert_array_equal(decode(png(image), source="x"), image)


def test_grey_and_transparent_png_become_rgb() -> None:
    grey = smooth(4, 5)[..., 0]
    np.testing.assert_array_equal(decode(png(grey), source="x"), np.repeat(grey[..., None], 3, -1))
    rgba = np.concatenate([smooth(4, 5), np.full((4, 5, 1), 9, np.uint8)], -1)
    np.testing.assert_array_equal(decode(png(rgba), source="x"), rgba[..., :3])
    np.testing.assert_array_equal(decode(png(rgba[..., 2:]), source="x"), np.repeat(rgba[..., 2:3], 3, -1))
    black = grey > 128
    np.testing.assert_array_equal(decode(png(black), source="x"), np.repeat(255 * black[..., None], 3, -1))


def test_what_is_encoded_as_png_comes_back_exactly() -> None:
    image = smooth(6, 7)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(image)))), image)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(image[..., 0])))), image[..., 0])


def test_a_depth_map_is_shown_bright_where_it_is_near() -> None:
    """Of 1, 2 and 3 m: 255, 255 - 215 / 2, and 40; nothing was measured at 0, NaN and infinity."""
    depth = np.array([[1.0, 2.0, 3.0], [0.0, np.nan, np.inf]], np.float32)
    shown = np.asarray(Image.open(io.BytesIO(encode_depth_png(depth))))
    assert shown.tolist() == [[255, 148, 40], [0, 0, 0]]
    assert np.asarray(Image.open(io.BytesIO(encode_depth_png(np.full((2, 2), 5))))).tolist() == [[255, 255]] * 2


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_an_image_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=f"a: expected an image of at least 1 pixel, found {size[0]} x {size[1]}"):
        require_pixels(*size, "a")


def test_jpeg_is_within_its_bound() -> None:
    image = smooth(48, 64)
    decoded = decode(encode_jpeg(image, quality=95), source="x")
    error = np.abs(decoded.astype(int) - image)
    assert error.mean() < 1.5
    np.testing.assert_array_equal(decoded, np.asarray(Image.open(io.BytesIO(encode_jpeg(image, quality=95)))))


@pytest.mark.parametrize("encode", [png, lambda image: encode_jpeg(image, quality=90)])
def test_a_truncated_image_is_named_and_never_half_decoded(encode) -> None:
    data = encode(smooth(64, 64))
    with pytest.raises(DataError, match=r"episode 3, row 5.*64 x 64.*damaged"):
        decode(data[: len(data) // 2], source="episode 3, row 5")


def test_a_header_that_declares_too_much_is_refused_before_decoding() -> None:
    data = bytearray(png(smooth(8, 8)))
    data[16:24] = (10_000).to_bytes(4, "big") * 2
    with pytest.raises(DataError, match="10000 x 10000"):
        read_image_size(bytes(data), source="x")


def test_other_formats_and_depth_maps_are_refused() -> None:
    with pytest.raises(DataError, match="GIF89a"):
        decode(b"GIF89a" + bytes(50), source="x")
    depth = io.BytesIO()
    Image.fromarray(np.full((4, 4), 3000, np.uint16)).save(depth, "PNG")
    with pytest.raises(DataError, match=r"^x: expected an 8-bit image, found a PNG of 16 bits \(a depth map\?\)"):
        decode(depth.getvalue(), source="x")


def png_of_16_bits_a_channel() -> bytes:
    """1 x 1, written by hand: Pillow writes none, and reads its high bytes alone."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header, pixel = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0), struct.pack(">BHHH", 0, 4095, 2048, 15)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(pixel)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_colours_of_16_bits_are_refused_by_the_first_bytes() -> None:
    """A camera's 12 bits were numbers from 0 to 15."""
    data = png_of_16_bits_a_channel()
    require_eight_bits(png(smooth(4, 5))[:64], "x")
    for refused in (lambda: decode(data, source="x"), lambda: require_eight_bits(data[:64], "x")):
        with pytest.raises(DataError, match=r"^x: expected an 8-bit image, found a PNG of 16 bits"):
            refused()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("stated", [None, 1, 3, 6, 8, 9])
def test_an_orientation_that_viewers_follow_is_refused(kind: str, stated: int | None) -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0110] = "a camera's name, which comes before"
    if stated is not None:
        exif[0x0112] = stated
    Image.fromarray(smooth(32, 48)).save(file, kind, exif=exif)
    data = file.getvalue()
    turned = stated if stated in (3, 6, 8) else 1
    assert orientation(data) == turned
    if turned == 1:
        require_upright(data, "x")
    else:
        with pytest.raises(DataError, match=rf"^x: .* EXIF orientation {turned}: .*exiftran.*jpegtran"):
            require_upright(data, "x")
    for end in range(len(data)):
        assert orientation(data[:end]) in (1, turned)


def test_exif_data_of_a_big_endian_camera() -> None:
    tiff = b"MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    assert orientation(b"\xff\xd8\xff\xe1\0\x28Exif\0\0" + tiff) == 6
    assert orientation(b"\xff\xd8\xff\xe0\0\x28Exif\0\0" + tiff) == 1, "no segment of EXIF data"
    assert orientation(encode_jpeg(smooth(8, 8), quality=90)) == 1


def test_resizing_pads_with_black_bars_of_equal_width() -> None:
    image = np.full((48, 64, 3), 200, np.uint8)
    padded = resize_with_pad(image, 32, 32)  # 64 -> 32 wide, 48 -> 24 high: 4 black rows above and below
    assert padded.shape == (32, 32, 3)
    assert (padded[4:28] == 200).all()
    assert not padded[:4].any()
    assert not padded[28:].any()


def test_an_odd_remainder_leaves_its_row_below() -> None:
    padded = resize_with_pad(np.full((46, 64, 3), 200, np.uint8), 32, 32)  # 23 rows: 4 above, 5 below
    assert (padded[4:27] == 200).all()
    assert not padded[:4].any()
    assert not padded[27:].any()


def test_resizing_is_the_bilinear_average_of_pixels() -> None:
    image = np.zeros((2, 4, 3), np.uint8)
    image[:, :2], image[:, 2:] = 40, 120
    np.testing.assert_array_equal(resize_with_pad(image, 2, 4), image)  # same size: untouched
    half = resize_with_pad(image, 1, 2)  # antialiased triangle filter of half-width 2 around x = 1 and x = 3
    weights = np.array([0.75, 0.75, 0.25])  # of pixels at distance 0.5, 0.5, 1.5
    left = (weights * [40, 40, 120]).sum() / weights.sum()
    assert abs(int(half[0, 0, 0]) - left) <= 1
    assert int(half[0, 0, 0]) + int(half[0, 1, 0]) == 160


def png_of(size: tuple[int, int, int, int, int], rows: bytes) -> bytes:
    """A PNG of width, height, depth, colour and interlacing, all checksums right."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    width, height, depth, colour, interlaced = size
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        ((5, 3, 8, 2, 0), 3 * 16),
        ((5, 3, 8, 6, 0), 3 * 21),
        ((9, 2, 1, 0, 0), 2 * 3),
        ((5, 3, 4, 3, 0), 3 * 4),
        # Of 5 x 3, the seven passes have 1x1, 1x1, none, 1x1, 3x1, 2x2 and 5x1 pixels (columns x rows), a byte each.
        ((5, 3, 8, 0, 1), 2 + 2 + 2 + 4 + 2 * 3 + 6),
    ],
)
def test_a_png_that_lacks_the_last_byte_of_its_rows_is_damaged(size: tuple[int, int, int, int, int], rows: int):
    require_whole(png_of(size, bytes(rows)))
    require_whole(png_of(size, bytes(rows + 3_000_000)))
    with pytest.raises(ValueError, match=f"its rows are {rows - 1} of {rows} bytes"):
        require_whole(png_of(size, bytes(rows - 1)))


def test_rows_that_pillow_would_fill_with_black_are_refused():
    data = png_of((5, 3, 8, 2, 0), bytes(3 * 16 - 16))
    with pytest.raises(DataError, match="s: expected a whole JPEG or PNG of 3 x 5, found damaged data: its rows are"):
        decode(data, source="s")


def test_a_flipped_bit_anywhere_in_a_png_is_refused():
    data = png_of((5, 3, 8, 2, 0), bytes(range(48)))
    for at in range(8, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 4
        with pytest.raises(DataError):
            decode(bytes(flipped), source="s")


def test_both_filters_by_hand() -> None:
    """Four columns become two: their means in pairs, or triangles of half-width 2 around x = 1 and x = 3."""
    image = np.zeros((2, 4, 3), np.uint8)
    image[:, :, 0] = [0, 80, 120, 200]
    found = {}
    for name in get_args(Filter):
        found[name] = np.full((2, 2, 3), 9, np.uint8)
        resize_into(image, found[name], filter=name)
        np.testing.assert_array_equal(resized(image, 2, 2, filter=name), found[name])
        assert resized(image, 2, 4, filter=name) is image
        assert not found[name][:, :, 1:].any()
    assert found["area"][0, :, 0].tolist() == [40, 160]
    weights = np.array([0.75, 0.75, 0.25]) / 1.75  # of pixels at distance 0.5, 0.5, 1.5
    expected = [weights @ [0, 80, 120], weights @ [200, 120, 80]]
    np.testing.assert_allclose(found["bilinear"][0, :, 0], expected, atol=0.51)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(16, 24), (8, 8), (40, 10)])
def test_decoding_into_a_place_is_decoding_and_resizing(kind: str, size: tuple[int, int]) -> None:
    """Where the JPEG decoder has no smaller scale to offer, it is this to the bit."""
    data = io.BytesIO()
    y, x = np.mgrid[:16, :24]
    Image.fromarray(np.stack([8 * y, 8 * x, 4 * (x + y)], -1).astype(np.uint8)).save(data, kind)
    whole = decode(data.getvalue(), source="x")
    for name in get_args(Filter):
        out = np.zeros((*size, 3), np.uint8)
        decode_into(data.getvalue(), out, source="x", filter=name)
        if size != (8, 8) or kind == "PNG":
            np.testing.assert_array_equal(out, resized(whole, *size, filter=name))
        again = np.zeros_like(out)
        decode_same_size_into(data.getvalue(), again, source="x", filter=name)
        np.testing.assert_array_equal(again, out)


def test_a_jpeg_is_shrunk_while_it_is_decoded_and_a_png_after_it():
    """By libjpeg to three eighths first: other pixels than those of the whole image, as `decode_jpeg_into` has them."""
    shown = np.random.default_rng(0).integers(0, 256, (240, 320, 3)).astype(np.uint8)
    jpeg, lossless = encode_jpeg(shown, quality=90), encode_png(shown)
    found, direct, whole = (np.empty((64, 96, 3), np.uint8) for _ in range(3))
    decode_into(jpeg, found, source="", filter="area")
    decode_jpeg_into(jpeg, direct, source="", filter="area")
    np.testing.assert_array_equal(found, direct)
    resize_into(decode(jpeg, source=""), whole, filter="area")
    assert not np.array_equal(found, whole)
    decode_into(lossless, found, source="", filter="area")
    resize_into(shown, whole, filter="area")
    np.testing.assert_array_equal(found, whole)


def test_libjpegs_scales_are_known():
    """Against what the decoder gives of a JPEG."""
    for size in ((16, 24), (17, 23), (48, 64), (9, 100)):
        jpeg = encode_jpeg(np.zeros((*size, 3), np.uint8), quality=50)
        for wanted in ((1, 1), (7, 9), (14, 21), (15, 21), (15, 20), (16, 20), (42, 56), (43, 56), (8, 88), (8, 87)):
            if all(want <= have for want, have in zip(wanted, size, strict=True)):
                shown = simplejpeg.decode_jpeg(jpeg, min_height=wanted[0], min_width=wanted[1], min_factor=1)
                assert shrinks(size, wanted) == (shown.shape[:2] != size), (size, wanted)
    assert not shrinks((48, 64), (48, 8))
    assert not shrinks((48, 64), (50, 64))


@pytest.mark.parametrize("name", get_args(Filter))
def test_pixels_are_shrunk_as_their_jpeg_is(name: Filter):
    """Grey stripes two pixels wide: the mean of an area sees them, libjpeg leaves them out."""
    y, x = np.mgrid[:96, :120]
    image = (100 + 60 * ((x + y) // 2 % 2)[..., None] + np.stack([x, y, x + y], -1) / 4).astype(np.uint8)
    jpeg = simplejpeg.encode_jpeg(image, quality=85, colorspace="RGB", colorsubsampling="420")
    for size in ((40, 50), (32, 40), (70, 80)):
        taught, found, whole = (np.zeros((*size, 3), np.uint8) for _ in range(3))
        decode_jpeg_into(jpeg, taught, source="", filter=name)
        shrink_into(decode(jpeg, source=""), found, filter=name)
        resize_into(decode(jpeg, source=""), whole, filter=name)
        near, far = (np.abs(one.astype(int) - taught).mean() for one in (found, whole))
        assert near < 2
        assert 3 * near < far, size
    for size in ((90, 110), (200, 100)):  # no scale of libjpeg's lies between
        found, whole = (np.zeros((*size, 3), np.uint8) for _ in range(2))
        shrink_into(image, found, filter=name)
        resize_into(image, whole, filter=name)
        np.testing.assert_array_equal(found, whole)
    long = np.zeros((1, 65_600, 3), np.uint8)
    shrink_into(long, np.zeros((1, 4, 3), np.uint8), filter=name)  # more than a JPEG can have
