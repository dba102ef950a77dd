"""Rollouts as files: given back whole, and refused by name when they are damaged."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.envs.rollout import load, save
from chunkwise.errors import DataError
from tests.openpi_ript.toy_rollouts import make_rollout


def test_a_file_gives_the_rollout_back_and_its_bytes_do_not_depend_on_the_clock(tmp_path: Path):
    rollout = make_rollout()
    save(tmp_path / "a/x.npz", rollout)
    save(tmp_path / "b/x.npz", rollout)
    found = load(tmp_path / "a/x.npz")
    assert {k: v for k, v in vars(found).items() if not isinstance(v, np.ndarray | dict)} == {
        k: v for k, v in vars(rollout).items() if not isinstance(v, np.ndarray | dict)
    }
    np.testing.assert_array_equal(found.actions, rollout.actions)
    for name, value in rollout.observations.items():
        np.testing.assert_array_equal(found.observations[name], value)
        assert found.observations[name].dtype == value.dtype
    assert (tmp_path / "a/x.npz").read_bytes() == (tmp_path / "b/x.npz").read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.npz"]


def test_what_the_policy_noted_of_its_chunks_is_given_back(tmp_path: Path):
    notes = {"chain": np.arange(12, dtype=np.float32).reshape(2, 3, 2), "log_prob": np.ones((2, 3), np.float32)}
    save(tmp_path / "x.npz", dataclasses.replace(make_rollout(), notes=notes))
    found = load(tmp_path / "x.npz")
    assert sorted(found.notes) == ["chain", "log_prob"]
    for name, value in notes.items():
        np.testing.assert_array_equal(found.notes[name], value)
        assert found.notes[name].dtype == np.float32
    assert set(found.observations) == set(make_rollout().observations)
    save(tmp_path / "y.npz", dataclasses.replace(make_rollout(), notes=notes | {"log_prob": np.ones(3, np.float32)}))
    with pytest.raises(DataError, match=r"y.npz: expected a note of each chunk under every name, found \[2, 3\]"):
        load(tmp_path / "y.npz")
    save(tmp_path / "z.npz", dataclasses.replace(make_rollout(), notes={"chain": np.array(["a"])}))
    with pytest.raises(DataError, match="chain of another type or shape"):
        load(tmp_path / "z.npz")


def test_an_offset_is_kept_and_files_of_before_there_was_any_are_read(tmp_path: Path):
    path = tmp_path / "x.npz"
    save(path, dataclasses.replace(make_rollout(), offset=(0.5, -0.25)))
    assert load(path).offset == (0.5, -0.25)
    arrays = dict(np.load(path))
    facts = json.loads(str(arrays["facts"]))
    assert facts.pop("offset") == [0.5, -0.25]
    np.savez(path, **arrays | {"facts": np.array(json.dumps(facts))})
    assert load(path).offset == ()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "pickled", "short"])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, damage: str):
    path = tmp_path / "x.npz"
    save(path, make_rollout())
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif damage == "pickled":
        np.savez(path, facts=np.array([{"seed": 1}], dtype=object))
    else:
        arrays = dict(np.load(path))
        arrays["actions"] = arrays["actions"][:-1]
        np.savez(path, **arrays)
    with pytest.raises(DataError, match=str(path)):
        load(path)
