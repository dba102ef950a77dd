"""Reads single fields of protocol buffer messages by number, without their definitions or generated code.

A message is a sequence of fields: a varint of number * 8 + kind, then by kind 0 a varint, 1 eight bytes, 2 a length and
that many bytes (text, bytes, a message, or packed numbers), 5 four bytes. Source:
https://protobuf.dev/programming-guides/encoding. What is not asked for is stepped over without a copy.
"""

import collections
import itertools
import operator

import numpy as np
from jaxtyping import Float64

from chunkwise.files import budget
from driving.converters.refused import Refused

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_KINDS = {VARINT: "a varint", EIGHT: "8 bytes", BYTES: "a length and bytes", FOUR: "4 bytes"}


class Message:
    """The fields of one message; a field that is absent is None, or empty where it may be repeated.

    Asking for a field as another kind than it has raises Refused.
    """

    def __init__(self, data: bytes | memoryview, where: str, *, within: "Message | None" = None) -> None:
        """Walks over the fields.

        Args:
          data: The message.
          where: Names it in errors.
          within: The message around it, with which it shares the limit of values.

        Raises:
          Refused: The bytes are no message.
          LimitError: Fields and packed numbers, those of the messages inside among them, are above metadata_values.
        """
        self._where = where
        self._values: list[int] = [0] if within is None else within._values
        self._fields: dict[int, list[tuple[int, int | memoryview]]] = collections.defaultdict(list)
        view = memoryview(data)
        at = fields = 0
        most = budget.current().metadata_values - self._values[0]
        end = len(view)
        while at < end:
            tag, at = self._varint(view, at)
            number, kind = tag >> 3, tag & 7
            value: int | memoryview
            if number == 0 or kind not in _KINDS:
                raise self._bad(f"byte {at}", "a field's number and kind", f"number {number}, kind {kind}")
            if kind == VARINT:
                value, at = self._varint(view, at)
            else:
                if kind == BYTES:
                    length, at = self._varint(view, at)
                else:
                    length = 8 if kind == EIGHT else 4
                if at + length > end:
                    raise self._bad(f"field {number}", f"{length} bytes", f"{end - at}: the message is cut short")
                value, at = view[at : at + length], at + length
            self._fields[number].append((kind, value))
            fields += 1
            if fields > most:
                raise budget.LimitError(where, "metadata_values", "more fields")
        self._values[0] += fields

    def integer(self, number: int) -> int | None:
        """A signed integer or an enum."""
        values = self._of(number, VARINT)
        if not values:
            return None
        value = int(values[-1])  # pyright: ignore[reportArgumentType]
        return value - (1 << 64) if value >> 63 else value

    def data(self, number: int) -> memoryview | None:
        """Bytes, not copied."""
        values = self._of(number, BYTES)
        return values[-1] if values else None  # pyright: ignore[reportReturnType]

    def text(self, number: int) -> str | None:
        """UTF-8 text."""
        data = self.data(number)
        if data is None:
            return None
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise self._bad(f"field {number}", "UTF-8 text", f"{bytes(data[:16])!r}") from error

    def message(self, number: int) -> "Message | None":
        """A message inside this one; of several, the last."""
        found = self.messages(number)
        return found[-1] if found else None

    def messages(self, number: int) -> "list[Message]":
        """A repeated message."""
        values = self._of(number, BYTES)
        return [Message(value, f"{self._where}, field {number}", within=self) for value in values]  # pyright: ignore[reportArgumentType]

    def number(self, number: int) -> float | None:
        """A float or a double."""
        values = self.numbers(number)
        return float(values[-1]) if len(values) else None

    def numbers(self, number: int) -> Float64[np.ndarray, " n"]:
        """A repeated double, packed or one by one, or a repeated float one by one."""
        return self._floats(number, "<f8", 8)

    def packed_floats(self, number: int) -> Float64[np.ndarray, " n"]:
        """A repeated float, packed or one by one."""
        return self._floats(number, "<f4", 4)

    def _floats(self, number: int, packed: str, size: int) -> Float64[np.ndarray, " n"]:
        found: list[np.ndarray] = [np.zeros(0)]
        for kind, values in itertools.groupby(self._fields.get(number, ()), key=operator.itemgetter(0)):
            if kind == VARINT:
                raise self._bad(f"field {number}", "floating point numbers", _KINDS[kind])
            pieces: list[memoryview] = [value for _, value in values]  # pyright: ignore[reportAssignmentType]
            for piece in pieces if kind == BYTES else ():
                if len(piece) % size:
                    raise self._bad(f"field {number}", f"packed numbers of {size} bytes", f"{len(piece)} bytes")
                self._values[0] += len(piece) // size
                budget.require("metadata_values", self._values[0], f"{self._where}, field {number}")
            code = {EIGHT: "<f8", FOUR: "<f4", BYTES: packed}[kind]
            found.append(np.frombuffer(b"".join(pieces), code).astype(np.float64))  # at once: a pose has 16, one by one
        return np.concatenate(found)

    def _of(self, number: int, kind: int) -> list[int | memoryview]:
        for found, _ in self._fields.get(number, ()):
            if found != kind:
                raise self._bad(f"field {number}", _KINDS[kind], _KINDS[found])
        return [value for _, value in self._fields.get(number, ())]

    def _varint(self, view: memoryview, at: int) -> tuple[int, int]:
        if at < len(view) and view[at] < 0x80:  # most are one byte: half of the time of a message of doubles
            return view[at], at + 1
        value = shift = 0
        while True:
            if at == len(view) or shift > 63:
                raise self._bad(f"byte {at}", "a varint of at most 10 bytes", "no end of it")
            byte = view[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at

    def _bad(self, key: str, expected: str, found: str) -> Refused:
        return Refused(self._where, key, expected, found)
