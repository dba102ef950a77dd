"""CRC-32C (Castagnoli, RFC 3720) with numpy: the checksum of TFRecord files.

A CRC is linear over GF(2). So the data are cut into lanes of equal length whose remainders are computed side by side,
two bytes a table look-up, and the remainders are joined in pairs: that of A followed by B is that of A, moved over the
length of B by a linear map, xor that of B. Zeros in front of the data change nothing in a remainder that starts at 0;
the standard's start value of all ones is the same as inverting the first four bytes.
"""

import functools

import numpy as np
from jaxtyping import UInt32

POLYNOMIAL = 0x82F63B78  # reflected
LANE_WORDS = 512
"""32-bit words of a lane: long enough for the joining to cost nothing, short enough for many lanes."""
SHORT_BYTES = 1024  # below this a plain loop is faster


def crc32c(data: bytes | memoryview) -> int:
    """Checksum of some bytes; crc32c(b"123456789") is 0xE3069283."""
    if len(data) < SHORT_BYTES:
        return _plain(data)
    lane_bytes = 4 * LANE_WORDS
    lanes = -(-len(data) // lane_bytes)
    padded = np.zeros(lanes * lane_bytes, np.uint8)
    first = len(padded) - len(data)
    padded[first:] = np.frombuffer(data, np.uint8)
    padded[first : first + 4] ^= 0xFF
    words = np.ascontiguousarray(padded.view("<u4").reshape(lanes, LANE_WORDS).T)
    low, high = _word_tables()
    rest = np.zeros(lanes, np.uint32)
    for word in words:
        rest ^= word
        rest = low[rest & 0xFFFF] ^ high[rest >> 16]
    return int(_join(rest)) ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """As TFRecord stores a CRC: turned by 15 bits and shifted, so that a CRC of data with CRCs in it stays good."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _byte_table() -> UInt32[np.ndarray, "256"]:
    """Remainder of each byte after 8 steps."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


@functools.cache
def _byte_list() -> list[int]:
    return _byte_table().tolist()


def _plain(data: bytes | memoryview) -> int:
    table, rest = _byte_list(), 0xFFFFFFFF
    for byte in data:
        rest = table[(rest ^ byte) & 0xFF] ^ (rest >> 8)
    return rest ^ 0xFFFFFFFF


@functools.cache
def _word_tables() -> tuple[UInt32[np.ndarray, "65536"], UInt32[np.ndarray, "65536"]]:
    """Remainders of a 32-bit word's lower and upper half after the word's 32 steps."""
    table = _byte_table()
    half = np.arange(1 << 16, dtype=np.uint32)

    def step(rest: np.ndarray) -> np.ndarray:
        return table[rest & 0xFF] ^ (rest >> 8)

    return step(step(step(step(half)))), step(step(half))


def _join(rest: UInt32[np.ndarray, " lanes"]) -> np.uint32:
    """Remainder of all lanes one after another."""
    power = 0  # lanes that each remainder stands for: 2 ** power
    while len(rest) > 1:
        if len(rest) % 2:
            rest = np.concatenate([np.zeros(1, np.uint32), rest])
        rest = _moved(rest[0::2], power) ^ rest[1::2]
        power += 1
    return rest[0]


def _moved(rest: UInt32[np.ndarray, " n"], power: int) -> UInt32[np.ndarray, " n"]:
    """Remainders after 2 ** power lanes of zeros."""
    tables = _move_tables(power)
    found = tables[0][rest & 0xFF]
    for byte in range(1, 4):
        found = found ^ tables[byte][(rest >> (8 * byte)) & 0xFF]
    return found


@functools.cache
def _move_tables(power: int) -> UInt32[np.ndarray, "4 256"]:
    """The linear map of 2 ** power lanes of zeros, by the four bytes of a remainder."""
    values = np.arange(256, dtype=np.uint32)
    inputs = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    if power:
        return _moved(_moved(inputs.reshape(-1), power - 1), power - 1).reshape(4, 256)
    table = _byte_table()
    for _ in range(4 * LANE_WORDS):
        inputs = table[inputs & 0xFF] ^ (inputs >> 8)
    return inputs
