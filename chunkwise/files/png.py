"""Whether a PNG is whole: decoders fill rows that are not there with black, and pass over checksums of the pixels."""

import struct
import zlib

_HEADER = struct.Struct(">IIBBBBB")
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a pixel, by the type of colour."""
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced image: first column and row, and steps to the next ones. https://www.w3.org/TR/png-3/#8Interlace"""
_PIECE = 1 << 20


def require_whole(data: bytes | memoryview) -> None:
    """Looks at the checksum of every chunk, and counts the rows that the pixels unpack to.

    Args:
      data: Of a PNG, from its signature on.

    Raises:
      ValueError: A chunk is cut short or has another checksum, the end is missing, or rows are.
      zlib.error: The pixels are no deflated data, or have another checksum.
    """
    view, at, wanted, found = memoryview(data), 8, 0, 0
    unpacker = zlib.decompressobj()
    kind = b""
    while kind != b"IEND":
        size = int.from_bytes(view[at : at + 4], "big")
        kind, content = bytes(view[at + 4 : at + 8]), view[at + 8 : at + 8 + size]
        end = at + 12 + size
        if end > len(view):
            raise ValueError(f"it ends at byte {len(view)}, in a chunk of {size} bytes")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise ValueError(f"the chunk {kind!r} has another checksum")
        if kind == b"IHDR" and size == _HEADER.size and not wanted:
            wanted = _bytes(content)
        elif kind == b"IDAT":
            piece: bytes | memoryview = content
            # Data beyond the last row are nobody's; they are not unpacked.
            while piece and not unpacker.eof and found <= wanted:
                found += len(unpacker.decompress(piece, _PIECE))
                piece = unpacker.unconsumed_tail
        at = end
    if found < wanted or not wanted:
        raise ValueError(f"its rows are {found} of {wanted} bytes")


def _bytes(header: memoryview) -> int:
    """Bytes of all rows, each with that of its filter."""
    width, height, depth, colour, _, _, interlaced = _HEADER.unpack(header)
    bits = depth * _SAMPLES.get(colour, 0)
    total = 0
    for left, top, across, down in _PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        total += rows * (1 + (columns * bits + 7) // 8) if columns > 0 < rows else 0
    return total
