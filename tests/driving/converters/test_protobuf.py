import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkwise.errors import DataError
from chunkwise.files import budget
from driving.converters.protobuf import Message
from tests.driving.converters.waymo_files import doubles, field, float32, packed, varint


def test_fields_by_number():
    data = field(1, "name") + field(2, -3) + float32(3, 0.5) + doubles(4, [1.5, -2.0]) + packed(5, [0.25, 4.0])
    data += field(6, field(1, 7)) + field(6, field(1, 8)) + field(9, b"\x00\xff")
    message = Message(data, "m")
    assert message.text(1) == "name"
    assert message.integer(2) == -3
    assert message.number(3) == 0.5
    assert message.numbers(4).tolist() == [1.5, -2.0]
    assert message.packed_floats(5).tolist() == [0.25, 4.0]
    assert [inner.integer(1) for inner in message.messages(6)] == [7, 8]
    inner = message.message(6)
    assert inner is not None
    assert inner.integer(1) == 8
    assert bytes(message.data(9) or b"") == b"\x00\xff"


def test_packed_doubles_and_the_last_of_several_scalars():
    message = Message(field(1, struct.pack("<2d", 1.0, 2.0)) + field(2, 5) + field(2, 6), "m")
    assert message.numbers(1).tolist() == [1.0, 2.0]
    assert message.integer(2) == 6


def test_absent_fields():
    message = Message(b"", "m")
    assert (message.text(1), message.integer(1), message.number(1), message.data(1), message.message(1)) == (None,) * 5
    assert (message.messages(1), message.numbers(1).tolist(), message.packed_floats(1).tolist()) == ([], [], [])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**29 - 1))
def test_integers_come_back(value: int, number: int):
    assert Message(field(number, value), "m").integer(number) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (field(1, "abc")[:-1], "m: field 1: expected 3 bytes, found 2: the message is cut short"),
        (varint(1 << 3 | 1) + b"1234", "m: field 1: expected 8 bytes, found 4"),
        (b"\x08" + b"\x80" * 11, "m: byte 11: expected a varint of at most 10 bytes"),
        (b"\x08\x80", "m: byte 2: expected a varint of at most 10 bytes, found no end of it"),
        (varint(1 << 3 | 3), "m: byte 1: expected a field's number and kind, found number 1, kind 3"),
        (b"\x00\x00", "m: byte 1: expected a field's number and kind, found number 0, kind 0"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, message: str):
    with pytest.raises(DataError, match=message):
        Message(data, "m")


def test_a_field_of_another_kind():
    message = Message(field(1, 5) + field(2, "abc") + field(3, b"\xff"), "record 3")
    with pytest.raises(DataError, match="record 3: field 1: expected a length and bytes, found a varint"):
        message.text(1)
    with pytest.raises(DataError, match="record 3: field 2: expected a varint, found a length and bytes"):
        message.integer(2)
    with pytest.raises(DataError, match="record 3: field 2: expected packed numbers of 4 bytes, found 3 bytes"):
        message.packed_floats(2)
    with pytest.raises(DataError, match="record 3: field 1: expected floating point numbers, found a varint"):
        message.numbers(1)
    with pytest.raises(DataError, match="record 3: field 3: expected UTF-8 text"):
        message.text(3)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes):
    try:
        message = Message(data, "m")
        for number in range(1, 16):
            message.numbers(number)
    except DataError as error:
        assert str(error).startswith("m: ")  # noqa: PT017


def test_fields_of_a_message_have_a_limit():
    data = b"".join(field(1, number) for number in range(5))
    with budget.using(metadata_values=5):
        assert Message(data, "m").integer(1) == 4
    with budget.using(metadata_values=4), pytest.raises(budget.LimitError, match="m: expected at most 4 values"):
        Message(data, "m")


def test_packed_numbers_and_the_fields_of_inner_messages_count_as_values():
    data = field(1, packed(1, [0.0] * 5)) + field(2, packed(1, [0.0] * 4))
    with budget.using(metadata_values=13):  # two messages, their field each, and nine numbers
        outer = Message(data, "m")
        assert [len(inner.packed_floats(1)) for inner in (*outer.messages(1), *outer.messages(2))] == [5, 4]
    with budget.using(metadata_values=12):
        outer = Message(data, "m")
        assert [len(inner.packed_floats(1)) for inner in outer.messages(1)] == [5]
        with pytest.raises(budget.LimitError, match="field 2, field 1: expected at most 12 values"):
            outer.messages(2)[0].packed_floats(1)
