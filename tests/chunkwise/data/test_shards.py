import struct
from pathlib import Path

import pytest

from chunkwise.data.shards import open_shards, raw_image, read_images, write_records
from chunkwise.errors import DataError


def test_records_hold_the_images_of_a_frame(tmp_path: Path):
    """Frame n of shard s has the images s n and, of another camera that is absent in odd frames, n."""

    def records(shard: int) -> list[list[bytes]]:
        return [[bytes([shard, n]), bytes([n]) if n % 2 == 0 else b""] for n in range(3 - shard)]

    names = ("pictures-00000.arrayrecord", "pictures-00001.arrayrecord")
    listed = [{"file": name, "rows": write_records(tmp_path / name, records(n))} for n, name in enumerate(names)]
    assert [one["rows"] for one in listed] == [3, 2]
    found = open_shards(tmp_path, listed, 5)
    images = [tuple(map(bytes, read_images(found, n, 2, source="x"))) for n in range(5)]
    assert images == [(b"\0\0", b"\0"), (b"\0\1", b""), (b"\0\2", b"\2"), (b"\1\0", b"\0"), (b"\1\1", b"")]
    assert found[0] == struct.pack("<I", 2) + b"\0\0" + struct.pack("<I", 1) + b"\0"


def test_a_record_of_fewer_cameras_and_an_image_of_another_size_are_refused():
    with pytest.raises(DataError, match=r"pack: record 0: expected images as manifest\.json says"):
        read_images([struct.pack("<I", 1) + b"a"], 0, 2, source="pack: record 0")
    with pytest.raises(DataError, match="pack: expected a whole record"):
        read_images([b""], 1, 1, source="pack")
    assert raw_image(memoryview(bytes(range(18))), 2, 3, source="x")[1, 0].tolist() == [9, 10, 11]
    with pytest.raises(DataError, match=r"expected images as manifest\.json says, 2 x 2, found 18 bytes"):
        raw_image(memoryview(bytes(18)), 2, 2, source="x")
