"""TFRecord files without TensorFlow. A record: length (uint64), its masked CRC-32C, the payload, its masked CRC-32C.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, section TFRecords format details.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from chunkwise.files import budget
from driving.converters.refused import Refused


class Rest(Refused):
    """A file that cannot be read from some place on."""

    lost = 1
    """Records that are there, as far as the size of those before tells."""


def read_records(path: Path) -> Iterator[tuple[str, bytes | Refused]]:
    """Payload of each record, or what is wrong with it, and words that say where it is.

    Raises:
      Rest: The file is empty, cannot be read, is cut short, or the checksum of a length is wrong; names the record and
        its byte. What comes after cannot be found. A length is believed only after its checksum and the file's size
        agree with it, so a damaged one allocates nothing.
    """
    offset = number = size = 0
    try:
        with budget.open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise Rest(path.name, "", "at least one record", "0 bytes: a copy that was cut off?")
            while offset < size:
                where = f"{path.name}: record {number} at byte {offset}"
                try:
                    length = _read_length(file, size - offset, where)
                except Refused as error:
                    rest = Rest(where, "", error.problem.expected, error.problem.found)
                    rest.lost = max(1, round(number * (size - offset) / offset)) if offset else 1
                    raise rest from error
                yield where, _read_payload(file, length, where)
                offset += 12 + length + 4
                number += 1
    except OSError as error:
        where = f"{path.name}: record {number} at byte {offset}"
        raise Rest(where, "", "a readable file", error.strerror or str(error)) from error


def _read_length(file: BinaryIO, left: int, where: str) -> int:
    """Bytes of the payload of the record at the file's position; `left` bytes are left in the file."""
    header = file.read(12)
    if len(header) < 12:
        raise Refused(where, "", "a header of 12 bytes", f"{len(header)}: the file is cut short")
    length, checksum = struct.unpack("<QI", header)
    _compare(where, "length", header[:8], checksum)
    if length + 4 > left - 12:
        raise Refused(where, "", f"{length + 4} more bytes", f"{left - 12}: the file is cut short")
    budget.require("record_mib", length, where)
    return length


def _read_payload(file: BinaryIO, length: int, where: str) -> bytes | Refused:
    payload = file.read(length)
    try:
        _compare(where, "payload", payload, struct.unpack("<I", file.read(4))[0])
    except Refused as error:  # its length is right: the next record begins behind it
        return error
    return payload


def _compare(where: str, what: str, data: bytes, stored: int) -> None:
    found = masked_checksum(data)
    if found != stored:
        raise Refused(where, "", f"the {what}'s checksum {stored:08x}", f"{found:08x}: damaged data")


def masked_checksum(data: bytes) -> int:
    """CRC-32C as TFRecord stores it: turned by 15 bits and shifted: one of data with others in it stays good."""
    checksum = google_crc32c.value(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
