"""Images decoded into their place in a batch."""

import io

import numpy as np
import pytest
import simplejpeg
from jaxtyping import UInt8
from PIL import Image

from chunkwise.data.images import decode_into, decode_same_size_into
from chunkwise.errors import DataError
from driving.data.images import FILTER
from tests.driving.drives import render

SIZE = (16, 24)


def jpeg(size: tuple[int, int], subsampling: str = "420") -> bytes:
    return simplejpeg.encode_jpeg(render(3, 2, size), quality=90, colorspace="RGB", colorsubsampling=subsampling)


def png(size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(render(3, 2, size)).save(out, format="PNG")
    return out.getvalue()


def decoded(decode: object, data: bytes) -> UInt8[np.ndarray, "h w 3"]:
    """What lands in one row of a batch; its neighbours must stay as they are."""
    batch = np.full((3, *SIZE, 3), 7, np.uint8)
    assert callable(decode)
    decode(memoryview(data), batch[1], source="here", filter=FILTER)
    assert (batch[[0, 2]] == 7).all()
    return batch[1]


@pytest.mark.parametrize(
    "data",
    # Of the size, of as many bytes but turned, smaller, larger, much larger; no JPEG.
    [
        jpeg(SIZE),
        jpeg(SIZE, "444"),
        jpeg((24, 16)),
        jpeg((8, 8)),
        jpeg((32, 48)),
        jpeg((128, 130)),
        png(SIZE),
        png((9, 9)),
    ],
)
def test_in_one_call_or_two_the_image_is_the_same(data: bytes):
    np.testing.assert_array_equal(decoded(decode_same_size_into, data), decoded(decode_into, data))


@pytest.mark.parametrize("data", [jpeg(SIZE)[:300], b"\xff\xd8\xff" + bytes(40), b"", b"no image at all"])
def test_damage_is_named(data: bytes):
    with pytest.raises(DataError, match="here: expected"):
        decoded(decode_same_size_into, data)
