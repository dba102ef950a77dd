"""What clients send is read, or refused with a typed error; nothing else happens."""

import contextlib
import math
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkwise.policies import wire
from chunkwise.policies.wire import MessageError, pack, unpack

ARRAY = {b"__ndarray__": True, b"dtype": "<f4", b"shape": [2], b"data": bytes(8)}
SCALAR = {b"__npgeneric__": True, b"dtype": "<f4", b"data": 1.5}


def message(value: Any) -> bytes:
    return msgpack.packb({"x": value})  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "incomplete input"),
        (b"\xc1", "FormatError"),
        (b"\x01", "expected a map, found int"),
        (b"\x80\x80", "extra data"),
        (b"\x91" * 100_000, "StackError"),
        (b"\x81\xa1x" * 100_000, "StackError"),
        (b"\x81\xa1x" + b"\x91" * 20 + b"\x01", "at most 8 levels"),
        (b"\x81\xa1x" * 20 + b"\x01", "at most 8 levels"),
        (b"\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "exceeds max_map_len"),
        (b"\xdb\xff\xff\xff\xff", "incomplete input"),
        (message("x" * (1 << 17)), "exceeds max_str_len"),
        (b"\x82\xa1a\x01\xa1a\x02", "the key 'a' twice"),
        (b"\x81\x01\x02", "int is not allowed for map key"),
        (b"\x81\xa1\xff\x02", "can't decode byte 0xff"),
        (message(msgpack.ExtType(5, b"")), "an extension type, 5"),
        (message(msgpack.ExtType(5, b"1234")), "exceeds max_ext_len"),
        (message(msgpack.Timestamp(1, 2)), "exceeds max_ext_len"),
        (message([[[]] * 4000] * 20), "more than 65536 items"),
        (message([dict.fromkeys(map(str, range(100)))] * 60), "more than 4096 entries"),
        (message({b"__ndarray__": True}), "an array's map without b'data', b'dtype', b'shape'"),
        *(
            (message(ARRAY | {b"dtype": dtype}), "the dtype")
            for dtype in (
                "|O",
                "|V8",
                "<U4",
                "|S4",
                "M8[s]",
                "f4,f4",
                "(2,)f4",
                "<c8",
                "<f16",
                "f",
                "",
                4,
                None,
                ["<f4"],
            )
        ),
        *(
            (message(ARRAY | {b"shape": shape}), "with the shape")
            for shape in ([-2], [-1, -2], [2.0], ["2"], [True, 2], 2, None, "2", [[2]], [1] * 8 + [2], [0, 1 << 62])
        ),
        *((message(ARRAY | {b"shape": shape}), "in 8 bytes") for shape in ([1], [3], [], [0], [1 << 30, 1 << 30])),
        (message(ARRAY | {b"data": "12345678"}), "from str"),
        (message(ARRAY | {b"data": [0.0, 0.0]}), "from list"),
        (message(SCALAR | {b"data": [1]}), "a scalar of float32 from list"),
        (message(SCALAR | {b"dtype": "|O"}), "the dtype '|O'"),
        (message(SCALAR | {b"dtype": "|u1", b"data": 300}), "out of bounds for uint8"),
        (message(SCALAR | {b"dtype": "|u1", b"data": math.nan}), "cannot convert float NaN to integer"),
    ],
)
def test_what_is_no_message_is_refused_by_name(data: bytes, expected: str):
    with pytest.raises(MessageError) as refused:
        unpack(data)
    assert expected in str(refused.value)


def test_numbers_that_do_not_fit_are_infinite():
    assert np.isinf(unpack(message(SCALAR | {b"data": 1e300}))["x"])


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
)
keys = st.text(max_size=3) | st.sampled_from([b"__ndarray__", b"__npgeneric__", b"dtype", b"shape", b"data"])
dtypes = st.sampled_from(["<f4", "|u1", "|b1", "<i8", "|O", ">f8", "<f2", "V3"])
arrays = st.fixed_dictionaries(
    {
        b"__ndarray__": st.just(True),
        b"dtype": dtypes | leaves,
        b"shape": st.lists(st.integers(-2, 9), max_size=10) | leaves,
        b"data": st.binary(max_size=80) | leaves,
    }
)
scalars = st.fixed_dictionaries({b"__npgeneric__": st.just(True), b"dtype": dtypes | leaves, b"data": leaves})
values = st.recursive(
    leaves | arrays | scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(values, st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_a_message_or_a_typed_error(value: Any, at: int, byte: int):
    whole = msgpack.packb({"x": value})
    assert whole is not None
    flipped = bytearray(whole)
    flipped[at % len(whole)] ^= byte
    for data in (whole, whole[: at % len(whole)], bytes(flipped)):
        with contextlib.suppress(MessageError):
            read = unpack(data)
            assert isinstance(read, dict)
            for array in _arrays(read):
                assert array.dtype.kind in "biuf"


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [array for item in items for array in _arrays(item)]
    return [value] if isinstance(value, np.ndarray) else []


def test_a_message_takes_a_few_times_its_own_memory():
    """A list of a byte is an object of 56; announced lengths are no reason to allocate."""
    bombs = [
        b"\x81\xa1x\xdc\x10\x00" + b"\xdc\x0f\x00" * 900,  # lists that announce lists
        b"\x81\xa1x\xdc\x10\x00" + (b"\xdc\x10\x00" + b"\x90" * 4096) * 40,
        b"\x81\xa1x\xdc\x10\x00" + (b"\xde\x01\x00" + b"\xa1a\x80" * 256) * 40,
    ]
    for bomb in bombs:
        tracemalloc.start()
        try:
            with pytest.raises(MessageError):
                unpack(bomb)
            assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
        finally:
            tracemalloc.stop()


def test_what_is_packed_is_read(monkeypatch: pytest.MonkeyPatch):
    state = np.arange(6, dtype=">f8").reshape(2, 3)
    back = unpack(pack({"state": state, "empty": np.zeros((0, 3), np.uint8), "zero": np.float64(2)}))
    np.testing.assert_array_equal(back["state"], state)
    assert back["empty"].shape == (0, 3)
    assert back["zero"] == 2
    monkeypatch.setattr(wire, "MAX_ENTRIES", 4)
    with pytest.raises(MessageError, match="exceeds max_map_len"):
        unpack(msgpack.packb(dict.fromkeys("abcde")) or b"")


def test_as_many_items_and_entries_as_are_allowed_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "MAX_ITEMS", 3)  # a list counts as one, and each of its items
    assert unpack(msgpack.packb({"x": [1, 2]}) or b"") == {"x": [1, 2]}
    with pytest.raises(MessageError, match="more than 3 items in lists"):
        unpack(msgpack.packb({"x": [1, 2, 3]}) or b"")
    monkeypatch.setattr(wire, "MAX_ENTRIES", 4)
    assert unpack(msgpack.packb({"a": {"b": 1}}) or b"") == {"a": {"b": 1}}
    with pytest.raises(MessageError, match="more than 4 entries"):
        unpack(msgpack.packb({"a": {"b": 1, "c": 2}}) or b"")
