import hashlib
import struct
from pathlib import Path

import pytest

from chunkwise.data.shards import (
    describe_file,
    open_shards,
    raw_image,
    read_images,
    require_described,
    require_whole,
    write_records,
)
from chunkwise.errors import DataError
from chunkwise.files import identity
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds


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


def test_shards_that_were_exchanged_are_told_by_their_records(tmp_path: Path):
    """In all they are as many as before; this a manifest of any version tells."""
    for name, rows in (("a", 3), ("b", 2)):
        write_records(tmp_path / name, ([bytes([n])] for n in range(rows)))
    assert len(open_shards(tmp_path, [{"file": "a", "rows": 3}, {"file": "b", "rows": 2}], 5)) == 5
    with pytest.raises(DataError, match=r"/a: expected 2 records as manifest\.json says, found 3"):
        open_shards(tmp_path, [{"file": "a", "rows": 2}, {"file": "b", "rows": 3}], 5)
    with pytest.raises(DataError, match="expected shards inside the pack"):
        open_shards(tmp_path, [{"file": "a", "rows": 3}, {"file": "a", "rows": 3}], 6)
    with pytest.raises(DataError, match="expected at least one shard"):
        open_shards(tmp_path, [], 0)


def test_records_that_are_not_there_are_none_of_another_shard(tmp_path: Path):
    for name in ("a", "b"):
        write_records(tmp_path / name, [[name.encode()]])
    records = open_shards(tmp_path, [{"file": name, "rows": 1} for name in ("a", "b")], 2)
    for record in (-1, 2):
        with pytest.raises(IndexError):
            records[record]


def test_a_file_is_described_by_size_and_hashes(tmp_path: Path):
    """SHA-256 of abc as FIPS 180 has it."""
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert describe_file(tmp_path / "a") == {"file": "a", "bytes": 3, "hash": known, "sha256": known}


def test_of_a_large_file_a_sample_is_compared_at_opening_and_all_by_the_full_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of 20 bytes the sample is bytes 0, 1, 18 and 19; 2 and 10 are no part of its last or first block."""
    for name, value in (("WHOLE_BYTES", 4), ("EDGE_BYTES", 1), ("BLOCKS", 2), ("BLOCK_BYTES", 1)):
        monkeypatch.setattr(identity, name, value)
    file = tmp_path / "a"
    file.write_bytes(bytes(20))
    manifest = {"shards": [{**describe_file(file), "rows": 1}]}
    assert manifest["shards"][0]["sha256"] == hashlib.sha256(bytes(20)).hexdigest()

    def opened() -> None:
        files = Files(Bounds(tmp_path), remember=False)
        files.require(["a"])
        require_described(tmp_path, manifest, files)

    opened()
    require_whole(tmp_path, manifest)
    file.write_bytes(bytes(10) + b"x" + bytes(9))
    opened()
    with pytest.raises(DataError, match=r"/a: expected sha256 .* as manifest\.json says, found sha256"):
        require_whole(tmp_path, manifest)
    file.write_bytes(bytes(19) + b"x")
    with pytest.raises(DataError, match=r"/a: expected hash .* as manifest\.json says, found hash"):
        opened()
    require_described(tmp_path, manifest)
    file.write_bytes(bytes(21))
    with pytest.raises(DataError, match=r"/a: expected bytes 20 as manifest\.json says, found bytes 21"):
        require_described(tmp_path, manifest)
    require_whole(tmp_path, {"shards": [{"file": "a", "rows": 1}]})
