import struct
from pathlib import Path

import numpy as np
import pytest

from chunkwise.errors import DataError
from chunkwise.files import budget
from driving.converters.refused import Refused
from driving.converters.tfrecord import Rest, masked_checksum, read_records
from tests.driving.converters.waymo_files import record, slow_crc32c


def masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def test_the_checksum_is_tensorflows():
    """Values of RFC 3720, appendix B.4, and the header of a record of 3 bytes as TensorFlow writes it."""
    for data, checksum in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"", 0)):
        assert masked_checksum(data) == masked(checksum)
    assert masked_checksum(b"") == 0xA282EAD8
    length = struct.pack("<Q", 3)
    assert masked_checksum(length) == masked(slow_crc32c(length))


class TestRecords:
    def write(self, path: Path) -> tuple[Path, list[bytes]]:
        payloads = [b"", b"abc", np.random.default_rng(0).bytes(5000)]
        path.write_bytes(b"".join(record(payload) for payload in payloads))
        return path, payloads

    def test_reads_what_was_written(self, tmp_path: Path):
        path, payloads = self.write(tmp_path / "a.tfrecord")
        found = list(read_records(path))
        assert [payload for _, payload in found] == payloads
        assert [where for where, _ in found] == [
            f"a.tfrecord: record {n} at byte {b}" for n, b in enumerate((0, 16, 35))
        ]

    def test_an_empty_file_is_what_a_copy_left_that_was_cut_off(self, tmp_path: Path):
        (tmp_path / "a").touch()
        with pytest.raises(Rest, match=r"a: expected at least one record, found 0 bytes") as caught:
            list(read_records(tmp_path / "a"))
        assert caught.value.lost == 1

    @pytest.mark.parametrize(
        ("byte", "message"),
        [
            (38, r"record 2 at byte 35: expected the length's checksum .*: damaged data"),
            (36, r"record 2 at byte 35: expected the length's checksum"),
            (45, r"record 2 at byte 35: expected the length's checksum"),
        ],
    )
    def test_a_flipped_bit_in_a_header_is_found_after_the_good_records(self, tmp_path: Path, byte: int, message: str):
        path, _ = self.write(tmp_path / "a.tfrecord")
        data = bytearray(path.read_bytes())
        data[byte] ^= 4
        path.write_bytes(data)
        found = []
        with pytest.raises(Rest, match=message) as caught:
            found.extend(read_records(path))
        assert caught.value.lost == 287  # of 17.5 bytes, as those before: 5,016 bytes are left
        # A generator passes on what came before the damage.
        records = read_records(path)
        assert [next(records)[1], next(records)[1]] == [b"", b"abc"]

    @pytest.mark.parametrize("byte", [28, 30, 31, 34])
    def test_a_flipped_bit_in_a_payload_or_its_checksum_costs_that_record(self, tmp_path: Path, byte: int):
        path, payloads = self.write(tmp_path / "a.tfrecord")
        data = bytearray(path.read_bytes())
        data[byte] ^= 4
        path.write_bytes(data)
        (_, first), (where, bad), (_, last) = read_records(path)
        assert [first, last] == [payloads[0], payloads[2]]
        assert where == "a.tfrecord: record 1 at byte 16"
        assert isinstance(bad, Refused)
        assert "record 1 at byte 16: expected the payload's checksum" in str(bad)

    @pytest.mark.parametrize(
        ("size", "message"),
        [
            (40, "record 2 at byte 35: expected a header of 12 bytes, found 5: the file is cut short"),
            (3000, "record 2 at byte 35: expected 5004 more bytes, found 2953: the file is cut short"),
            (5050, "record 2 at byte 35: expected 5004 more bytes, found 5003: the file is cut short"),
        ],
    )
    def test_a_truncated_file(self, tmp_path: Path, size: int, message: str):
        path, _ = self.write(tmp_path / "a.tfrecord")
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match=message):
            list(read_records(path))

    def test_a_length_that_no_disk_holds_allocates_nothing(self, tmp_path: Path):
        length = struct.pack("<Q", 1 << 60)
        (tmp_path / "a").write_bytes(length + struct.pack("<I", masked_checksum(length)))
        with pytest.raises(DataError, match=f"expected {(1 << 60) + 4} more bytes, found 0"):
            list(read_records(tmp_path / "a"))

    def test_a_record_has_a_limit(self, tmp_path: Path):
        path = tmp_path / "a.tfrecord"
        for size in (1 << 20, (1 << 20) + 1):
            payload = bytes(size)
            header = struct.pack("<Q", size)
            sums = [struct.pack("<I", masked_checksum(data)) for data in (header, payload)]
            path.write_bytes(header + sums[0] + payload + sums[1])
            with budget.using(record_mib=1):
                if size == 1 << 20:
                    assert [data for _, data in read_records(path)] == [payload]
                else:
                    with pytest.raises(budget.LimitError, match=r"record 0 at byte 0: expected at most 1 MiB"):
                        list(read_records(path))
