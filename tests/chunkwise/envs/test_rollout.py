"""Rollouts as files: given back whole, and refused by name when they are damaged."""

import dataclasses
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.envs.frames import Frames
from chunkwise.envs.rollout import load, save
from chunkwise.errors import DataError
from chunkwise.files.npz import stored_bytes
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
    arrays: Any = dict(np.load(path))
    facts = json.loads(str(arrays["facts"]))
    assert facts.pop("offset") == [0.5, -0.25]
    assert facts.pop("offset_steps") is None
    np.savez(path, **arrays | {"facts": np.array(json.dumps(facts))})
    assert load(path).offset == ()
    assert load(path).offset_steps is None
    np.savez(path, **arrays | {"facts": np.array(json.dumps(facts | {"offset_steps": "3"}))})
    with pytest.raises(DataError, match="offset_steps"):
        load(path)


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


@pytest.mark.parametrize("by_frame", [True, False])
def test_images_are_packed_by_frame_and_given_back(tmp_path: Path, by_frame: bool):
    rng = np.random.default_rng(0)
    smooth = np.repeat(rng.integers(0, 255, (6, 24, 1, 3), np.uint8), 24, axis=2)
    images = {"smooth": smooth, "noise": rng.integers(0, 256, (6, 24, 24, 3), np.uint8)}
    depth = rng.random((6, 24, 24)).astype(np.float32)
    rollout = dataclasses.replace(make_rollout(), observations=images | {"depth": depth})
    save(tmp_path / "x.npz", rollout)
    found = load(tmp_path / "x.npz", by_frame=by_frame).observations
    for name, value in images.items():
        assert isinstance(found[name], Frames) == by_frame
        assert (len(found[name]), found[name].shape, found[name].dtype) == (6, value.shape, np.uint8)
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(found[name][-2], value[-2])
        np.testing.assert_array_equal(list(found[name]), value)
        np.testing.assert_array_equal(found[name][1:4], value[1:4])
        assert isinstance(found[name][1:4][2:], Frames) == by_frame
        np.testing.assert_array_equal(found[name][1:4][2:][0], value[3])
        with pytest.raises(IndexError):
            found[name][6]
    np.testing.assert_array_equal(found["depth"], depth)
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        sizes = {name: archive.getinfo(f"frames/{name}.npy").file_size for name in images}
    assert sizes["smooth"] < smooth.nbytes / 4
    assert 0 < sizes["noise"] - images["noise"].nbytes < 500, "what does not become smaller is stored"
    assert load(tmp_path / "x.npz", outcome_only=True).observations == {}


def test_files_of_before_images_were_packed_are_read(tmp_path: Path):
    rollout = make_rollout()
    arrays: dict[str, Any] = {f"observation/{name}": value for name, value in rollout.observations.items()}
    facts = {name: getattr(rollout, name) for name in ("success", "seed", "draw", "init_hash", "prompt", "step")}
    facts |= {"weights": rollout.weights, "task": ""}
    np.savez_compressed(
        tmp_path / "x.npz",
        facts=np.array(json.dumps(facts)),
        actions=rollout.actions,
        rewards=rollout.rewards,
        **arrays,
    )
    for by_frame in (False, True):
        found = load(tmp_path / "x.npz", by_frame=by_frame)
        for name, value in rollout.observations.items():
            np.testing.assert_array_equal(found.observations[name], value)


def test_a_damaged_frame_is_named_and_the_others_are_read(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    rollout = dataclasses.replace(make_rollout(), observations={"agentview_image": noise})
    save(tmp_path / "x.npz", rollout)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    offset, size = stored_bytes(tmp_path / "x.npz")["frames/agentview_image"]
    data[offset + size // 2] ^= 4  # of the fourth frame of six
    (tmp_path / "x.npz").write_bytes(data)
    images = load(tmp_path / "x.npz", by_frame=True).observations["agentview_image"]
    for number in (0, 1, 2, 4, 5):
        np.testing.assert_array_equal(images[number], rollout.observations["agentview_image"][number])
    with pytest.raises(DataError, match=r"x.npz: agentview_image: frame 3"):
        images[3]
    with pytest.raises(DataError, match=r"x.npz: .* CRC"):
        load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("ends", "shape", "said"),
    [
        ([2, 1, 9], (1, 1, 3), "found ends up to 9"),
        ([3, 6, 8], (1, 1, 3), "found ends up to 8"),
        ([3, 6, 9], (1, 1, 4), "frame 0"),
    ],
)
def test_frames_that_lie_are_refused(ends: list[int], shape: tuple[int, ...], said: str):
    with pytest.raises(DataError, match=said):
        Frames(np.arange(9, dtype=np.uint8), np.array(ends), shape, "x")[0]


def test_a_bomb_is_not_unpacked(tmp_path: Path):
    """Frames whose stream holds more than a frame, and a frame larger than any image."""
    bomb = np.frombuffer(zlib.compress(bytes(10_000_000)), np.uint8)
    frames = Frames(bomb, np.array([len(bomb)]), (2, 2, 3), "x")
    with pytest.raises(DataError, match="expected 12 bytes"):
        frames[0]
    save(tmp_path / "x.npz", make_rollout())
    arrays: dict[str, Any] = dict(np.load(tmp_path / "x.npz"))
    facts = json.loads(str(arrays["facts"]))
    for shape, said in (([100_000, 100_000, 3], "image_pixels|image-pixels"), ([12, 12], "of shape"), (7, "TypeError")):
        facts["frames"]["agentview_image"] = shape
        arrays["facts"] = np.array(json.dumps(facts))
        np.savez(tmp_path / "y.npz", **arrays)
        for by_frame in (True, False):
            with pytest.raises(DataError, match=said):
                load(tmp_path / "y.npz", by_frame=by_frame)
