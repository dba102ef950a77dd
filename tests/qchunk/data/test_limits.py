"""What an HDF5 file may cost: each limit holds just below and refuses just above."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from chunkwise.data.problems import Problem
from chunkwise.errors import DataError
from chunkwise.files import budget
from qchunk.data.dataset import open_dataset
from qchunk.data.pool import Pool
from qchunk.data.readers.hdf5 import Refused, open_h5, read_texts, require_affordable, require_readable
from qchunk.data.readers.report import beyond_float32_as_inf
from tests.qchunk.recordings import config, dataset

MIB = 1 << 20


def test_arrays_of_one_file_count_together(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as h5:
        for name in "ab":
            h5[name] = np.zeros(MIB, np.uint8)
    with open_h5(tmp_path / "a.hdf5") as h5:
        with budget.using(decoded_mib=2):
            require_affordable(h5, ["a", "b", "missing"])
        with budget.using(decoded_mib=1):
            require_affordable(h5, ["a"])
            require_affordable(h5, ["a", "b"], streamed=True)
            with pytest.raises(budget.LimitError, match="decoded-mib"):
                require_affordable(h5, ["a", "b"])


def test_how_much_larger_than_its_file_an_array_may_be(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as h5:
        h5.create_dataset("a", data=np.zeros(2 * MIB, np.uint8), compression="gzip", chunks=(MIB // 2,))
    with open_h5(tmp_path / "a.hdf5") as h5:
        with budget.using(free_mib=2):
            require_readable(h5["a"])  # pyright: ignore[reportArgumentType]
        with budget.using(free_mib=1), pytest.raises(Refused, match="expansion"):
            require_readable(h5["a"])  # pyright: ignore[reportArgumentType]


def test_the_chunk_of_a_small_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as h5:
        h5.create_dataset("a", data=np.zeros(10, np.uint8), maxshape=(None,), chunks=(2 * MIB,), compression="gzip")
    with open_h5(tmp_path / "a.hdf5") as h5:
        with budget.using(free_mib=2):
            require_readable(h5["a"])  # pyright: ignore[reportArgumentType]
        with budget.using(free_mib=1), pytest.raises(Refused, match="expansion"):
            require_readable(h5["a"])  # pyright: ignore[reportArgumentType]


def test_texts_have_a_limit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as h5:
        h5["a"] = ["one", "two", "three"]
    with open_h5(tmp_path / "a.hdf5") as h5:
        with budget.using(metadata_values=3):
            assert read_texts(h5["a"]) == ["one", "two", "three"]  # pyright: ignore[reportArgumentType]
        with budget.using(metadata_values=2), pytest.raises(Refused, match="metadata-values"):
            read_texts(h5["a"])  # pyright: ignore[reportArgumentType]


def test_width_none_chunks_without_number_and_rewards_beyond_float32(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as h5:
        h5.create_dataset("chunks", data=np.zeros((30, 2)), chunks=(1, 1))
        with budget.using(chunks=59), pytest.raises(Refused, match="at most 59 chunks"):
            require_readable(h5["chunks"])  # pyright: ignore[reportArgumentType]
        with budget.using(chunks=60):
            require_readable(h5["chunks"])  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(beyond_float32_as_inf(np.array([1e-50, -1e39, 3.4e38])), [1e-50, np.inf, 3.4e38])
    problem = Problem(file="a\n\x1b[2J", key="/a", expected="b", found="c\n")
    assert str(problem) == "a\\n\\x1b[2J: /a: expected b, found c\\n"


def test_a_file_that_was_indexed_under_other_limits_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        dataset(tmp_path / name)
    for file in (tmp_path / "first").glob("*.hdf5"):
        with h5py.File(file, "a") as h5:
            action = np.asarray(h5["action"])
            del h5["action"]
            h5.create_dataset("action", data=action, chunks=(1, action.shape[1]))
    one = config(tmp_path / "first")
    first = open_dataset(one)
    monkeypatch.setattr(budget, "_configured", budget.LIMITS)  # what opening the second changes is put back
    open_dataset(config(tmp_path / "second", limits=budget.Limits(chunks=2)))
    with pytest.raises(DataError, match=r"\.hdf5: expected at most 2 chunks .*--data\.limits\.chunks") as caught:
        Pool(one, 0, 0, dataset=first)
    assert "changed" not in str(caught.value)
