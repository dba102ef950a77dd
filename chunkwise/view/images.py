"""What is sent of images: JPEG and PNG alone, told by their first bytes."""

from chunkwise.errors import DataError

PNG = b"\x89PNG"
JPEG = b"\xff\xd8\xff"


def media_type(content: bytes) -> str:
    """Returns the type that the bytes themselves show. Raises DataError if they are neither JPEG nor PNG."""
    for begin, kind in ((JPEG, "image/jpeg"), (PNG, "image/png")):
        if content.startswith(begin):
            return kind
    raise DataError(f"expected a JPEG or PNG, found {len(content)} bytes that begin with {content[:8]!r}")
