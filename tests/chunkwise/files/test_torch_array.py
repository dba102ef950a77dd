"""Arrays of torch.save: read without a pickle being run, and nothing else taken for one."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.torch_array import read_torch_array

STATES = np.random.default_rng(0).standard_normal((5, 9))


def written(path: Path, value: Any, protocol: int = 2, member: str = "archive/data.pkl") -> Path:
    """A file as torch.save writes one of a numpy array."""
    content = value if isinstance(value, bytes) else pickle.dumps(value, protocol)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr("archive/version", "3\n")
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", ["<f8", "<f4", ">f8"])
def test_an_array_comes_back_to_the_bit(tmp_path: Path, protocol: int, kind: str):
    expected = STATES.astype(kind)
    got = read_torch_array(written(tmp_path / "a", expected, protocol))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, expected.astype(np.float64))


def test_arrays_in_fortrans_order_and_older_numpys_are_read(tmp_path: Path):
    np.testing.assert_array_equal(read_torch_array(written(tmp_path / "f", np.asfortranarray(STATES))), STATES)
    older = pickle.dumps(STATES, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    np.testing.assert_array_equal(read_torch_array(written(tmp_path / "o", older)), STATES)


class Runs:
    """What an attacker would put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_nothing_that_a_pickle_calls_is_called(tmp_path: Path):
    for protocol in (2, 4):
        file = written(tmp_path / f"evil{protocol}", Runs(tmp_path / "made"), protocol)
        with pytest.raises(DataError, match=r"a pickle that calls posix\.mkdir\. It is not unpickled.*numpy\.savez"):
            read_torch_array(file)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.arange(4), "of an array of 'i8' numbers"),
        (np.array([None, 1.0], dtype=object), "opcode EMPTY_LIST|'O8' numbers"),
        ({"states": STATES}, "opcode EMPTY_DICT"),
        ((1, 2), "of a tuple"),
        (b"\x80\x02K\x01\x86.", "takes more from its stack"),
        (b"\x80\x02(K\x01", "broken"),
        (b"\x80\x02h\x05.", "broken"),
        (b"", "broken"),
        (pickle.dumps(STATES, 2).replace(b"K\x05K\x09\x86", b"K\x05K\x08\x86"), r"of an array of shape \(5, 8\)"),
    ],
    ids=["integers", "objects", "dict", "tuple", "underflow", "cut", "memory", "empty", "shape"],
)
def test_whatever_else_a_pickle_holds_is_refused(tmp_path: Path, value: Any, said: str):
    with pytest.raises(DataError, match=said):
        read_torch_array(written(tmp_path / "x", value))


def test_other_files_are_refused(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.write_bytes(pickle.dumps(STATES))
    with pytest.raises(DataError, match=r"expected a zip archive as torch.save writes it since version 1\.6"):
        read_torch_array(plain)
    with pytest.raises(DataError, match=r"expected one data\.pkl.*found 0"):
        read_torch_array(written(tmp_path / "member", STATES, member="archive/other.pkl"))
    with pytest.raises(FileNotFoundError):
        read_torch_array(tmp_path / "missing")
    whole = written(tmp_path / "whole", STATES)
    damaged = bytearray(whole.read_bytes())
    damaged[damaged.index(pickle.dumps(STATES, 2)) + 300] ^= 1
    whole.write_bytes(damaged)
    with pytest.raises(DataError, match="CRC"):
        read_torch_array(whole)


def test_an_archive_may_not_unpack_to_more_than_the_limits(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(3 << 20))
    with budget.using(free_mib=1), pytest.raises(DataError, match="expansion"):
        read_torch_array(tmp_path / "bomb")
