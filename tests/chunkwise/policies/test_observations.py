"""What clients send as words: one text for all rows or one a row; anything else is refused by its name."""

from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from chunkwise.policies import observations
from chunkwise.policies.observations import texts


@pytest.mark.parametrize(
    ("sent", "rows", "expected"),
    [("go", 2, ["go", "go"]), (["a", "b"], 2, ["a", "b"]), (np.array(["a", "b"]), 2, ["a", "b"]), (("a",), 1, ["a"])],
)
def test_words_of_all_rows_or_of_each(sent: Any, rows: int, expected: list[str]) -> None:
    assert list(texts({"prompt": sent}, "prompt", rows=rows, single=rows == 1)) == expected


@pytest.mark.parametrize(
    "sent", [[["a"], ["a", "b"]], ["a", ["b"]], [["a"]], b"a", 3, [1], np.array([["a"]]), {"a": 1}]
)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_are_no_words_is_refused_by_name(sent: Any, rows: int) -> None:
    with pytest.raises(DataError, match="prompt: expected text"):
        texts({"prompt": sent}, "prompt", rows=rows, single=False)


@pytest.mark.parametrize(
    ("sent", "found"), [([[["a"] * 3]], "<U1"), ([[[None] * 3]], "object"), ([[[0.5] * 3]], r"float64 in 0\.5\.\.0\.5")]
)
def test_images_that_hold_no_pixels_are_refused_by_name(sent: Any, found: str) -> None:
    with pytest.raises(DataError, match=f"image top: expected uint8 in 0..255, found {found}"):
        observations.images(
            {"image": {"top": sent}}, ["top"], lambda _, one: one, rows=1, single=True, may_be_off=False
        )


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"\xff\xd8" * 40, "80 bytes; decode images before they are sent"),
        ("front.jpg", "str 'front.jpg'"),
        (None, "NoneType None"),
        ({"data": b"1"}, r"dict \{'data': b'1'\}"),
        (np.zeros((4, 5), np.uint8), r"uint8 \[4, 5\]"),
    ],
)
def test_what_is_no_array_is_named(sent: Any, found: str) -> None:
    with pytest.raises(DataError, match=rf"image top: expected one image \[h, w, 3\], found {found}$"):
        observations.images(
            {"image": {"top": sent}}, ["top"], lambda _, one: one, rows=1, single=True, may_be_off=False
        )
    with pytest.raises(DataError, match=rf"state: expected 3 numbers, or a batch of them, found {found}$"):
        observations.numbers({"state": sent}, "state", 3)


@pytest.mark.parametrize("may_be_off", [True, False])
def test_a_camera_that_is_off_in_some_rows_is_refused_by_name(may_be_off: bool) -> None:
    sent = {"image": {"top": [np.zeros((2, 4, 3), np.uint8), None]}}
    with pytest.raises(DataError, match=r"image top: expected images[^$]* found a list with None in it") as refused:
        observations.images(sent, ["top"], lambda _, one: one, rows=2, single=False, may_be_off=may_be_off)
    assert ("ask row by row" in str(refused.value)) == may_be_off


def test_cameras_that_a_policy_does_not_see_are_ignored_and_channels_may_come_first() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sent = {"image": {"top": image.transpose(2, 0, 1), "wrist": np.zeros((1, 1), np.float32)}}
    found = observations.images(sent, ["top"], lambda _, one: one, rows=1, single=True, may_be_off=False)
    assert list(found) == ["top"]
    top = found["top"]
    assert top is not None
    np.testing.assert_array_equal(top, image[None])
    with pytest.raises(DataError, match="image: expected a dict with"):
        observations.images(sent, ["top", "left"], lambda _, one: one, rows=1, single=True, may_be_off=False)


def test_images_sent_beside_others_are_those_of_the_dict() -> None:
    """As the spec writes them, and openpi's clients send theirs."""
    sent = {"state": 1, "image/top": 2, "image": {"hand": 3}, 4: 5}
    assert observations.nested(sent, "image") == {"state": 1, "image": {"hand": 3, "top": 2}, 4: 5}
    assert sent == {"state": 1, "image/top": 2, "image": {"hand": 3}, 4: 5}
    assert observations.nested({"image/top": None}, "image") == {"image": {"top": None}}
    assert observations.nested(alone := {"image": 3}, "image") is alone


def test_an_image_that_is_sent_twice_or_beside_no_dict_is_refused() -> None:
    with pytest.raises(DataError, match=r"expected each camera once, found \['top'\] in the dict and as entries"):
        observations.nested({"image/top": 2, "image": {"top": 3}}, "image")
    with pytest.raises(DataError, match=r"image: expected a dict by camera beside \['image/top'\], found int"):
        observations.nested({"image/top": 2, "image": 3}, "image")
