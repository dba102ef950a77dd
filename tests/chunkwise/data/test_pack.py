"""What the manifest of a pack must say, and that its tables fit it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.pack import read_manifest, read_pack_table
from chunkwise.errors import DataError

GOOD = {
    "format": "chunkwise-pack-1",
    "fps": 10.0,
    "cameras": ["a", "b"],
    "image_size": [24, 32],
    "encoding": "jpeg",
    "tasks": {"0": "x", "3": "y"},
    "shards": [],
}


def write(folder: Path, **values: Any) -> Path:
    (folder / "manifest.json").write_text(json.dumps({**GOOD, **values}))
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"fps": 0},
        {"cameras": ["a", "a"]},
        {"cameras": [""]},
        {"tasks": {"\u0663": "x"}},
        {"tasks": {"-1": "x"}},
        {"tasks": {"0": 1}},
        {"image_size": [10**6, 10**6]},
        {"image_size": [8192, 8192]},
    ],
)
def test_odd_values_are_refused(tmp_path: Path, values: dict[str, Any]):
    assert read_manifest(write(tmp_path)) == GOOD
    with pytest.raises(DataError, match=f"manifest.json: .*{next(iter(values))}"):
        read_manifest(write(tmp_path, **values))


def test_tasks_that_the_manifest_lacks_are_named(tmp_path: Path):
    columns: dict[str, Any] = {"/lengths": np.array([2]), "/episodes": np.array([0])}
    np.savez(write(tmp_path) / "tables.npz", **columns, task_index=np.array([[0], [3]]))
    assert read_pack_table(tmp_path).tasks == {0: "x", 3: "y"}
    np.savez(tmp_path / "tables.npz", **columns, task_index=np.array([[0], [2]]))
    with pytest.raises(DataError, match=r"tables.npz: expected tasks of manifest.json, \[0, 3\], found \[2\]"):
        read_pack_table(tmp_path)
