"""Splits: whole recordings, the same each time, and nothing on two sides."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.data.batches import open_data
from driving.data.scan import scan
from driving.data.split import SPLIT_FILE, SPLITS, load_manifest, make_manifest
from tests.driving.drives import SIZE, write_drive


def dataset(root: Path, count: int = 8) -> Path:
    """Drives of which each two in turn are of one recording."""
    for i in range(count):
        write_drive(root, f"e{i}", frames=3, start_yaw=0.1 * i, source={"dataset": "d", "scene_id": f"s{i // 2}"})
    return root


def opened(root: Path, split: str, **data: float | str):
    data = {"val_fraction": 0.25, "test_fraction": 0.25} | data
    return open_data(DataConfig(path=str(root), image_size=SIZE, **data), split)  # pyright: ignore[reportArgumentType]


def test_recordings_stay_together_and_the_manifest_is_kept(tmp_path: Path):
    root = dataset(tmp_path / "set")
    sides = {split: set(opened(root, split).episodes.tolist()) for split in SPLITS}
    assert sorted(len(side) for side in sides.values()) == [2, 2, 4]
    assert set().union(*sides.values()) == set(range(8))
    for side in sides.values():
        assert {i ^ 1 for i in side} == side  # e0 with e1, e2 with e3, ...
    manifest = load_manifest(root / SPLIT_FILE)
    assert set(manifest.episodes["train"]) == {f"e{i}" for i in sides["train"]}
    # Other fractions change nothing where a manifest is there.
    assert set(opened(root, "train", val_fraction=0.0).episodes.tolist()) == sides["train"]


def test_the_split_depends_on_the_recordings_alone(tmp_path: Path):
    index, _ = scan(dataset(tmp_path / "set"))
    assert index is not None
    one = make_manifest(index, val_fraction=0.25, test_fraction=0.25)
    shutil.copytree(tmp_path / "set", tmp_path / "other")
    assert not (tmp_path / "other" / "_index.npz").exists()
    again, _ = scan(tmp_path / "other")
    assert again is not None
    assert make_manifest(again, val_fraction=0.25, test_fraction=0.25) == one


def test_recordings_are_drawn_by_their_hash(tmp_path: Path):
    """In the order of SHA-256 of "split <recording>": first those of validation, then those of testing."""
    root = tmp_path / "set"
    for i in range(11):
        source = {"dataset": "d", "scene_id": f"s{i}"}
        write_drive(root, f"e{i}", frames=2, start_yaw=0.1 * i, source=source, pictures=False)
    index, _ = scan(root)
    assert index is not None
    recordings = dict(zip(index.ids, index.recordings, strict=True))
    order = sorted(index.ids, key=lambda name: hashlib.sha256(f"split {recordings[name]}".encode()).digest())
    for val, test in ((4, 2), (2, 4)):  # of 11: 0.34 and 0.15 round to 3.74 and 1.65
        shares = {4: 0.34, 2: 0.15}
        found = make_manifest(index, val_fraction=shares[val], test_fraction=shares[test]).episodes
        assert set(found["val"]) == set(order[:val])
        assert set(found["test"]) == set(order[val : val + test])
        assert set(found["train"]) == set(order[val + test :])
        for members in found.values():
            assert dict(members) == {name: index.drive_hashes[index.ids.index(name)] for name in members}


def test_copies_of_a_drive_stay_together(tmp_path: Path):
    for i in range(6):
        write_drive(tmp_path, f"e{i}", frames=3, start_yaw=0.1 * i)
        tree = json.loads((tmp_path / f"e{i}.json").read_text())
        (tmp_path / f"copy{i}.json").write_text(json.dumps(tree | {"episode_id": f"copy{i}"}))
    for split in SPLITS:
        data = opened(tmp_path, split)
        names = {data.index.ids[i] for i in data.episodes}
        assert {name.replace("copy", "e") for name in names} == {name for name in names if name[0] == "e"}


def edited(root: Path, edit) -> None:
    file = root / SPLIT_FILE
    tree = json.loads(file.read_text())
    edit(tree)
    file.write_text(json.dumps(tree))


def test_a_recording_on_two_sides_is_refused(tmp_path: Path):
    root = dataset(tmp_path / "set")
    opened(root, "train")

    def move(tree: dict) -> None:
        name = next(iter(tree["train"]))
        tree["val"][name] = tree["train"].pop(name)

    edited(root, move)
    with pytest.raises(DataError, match=r"'e\d' \(.*come from the recording d/s"):
        opened(root, "train")


def test_the_same_drive_on_two_sides_is_refused(tmp_path: Path):
    root = dataset(tmp_path / "set")
    data = opened(root, "train")
    tree = json.loads((root / data.index.files[data.episodes[0]]).read_text())
    (root / "again.json").write_text(json.dumps(tree | {"episode_id": "again", "source": {}}))

    def add(manifest: dict) -> None:
        manifest["val"]["again"] = manifest["train"][tree["episode_id"]]

    edited(root, add)
    with pytest.raises(DataError, match="show the same drive"):
        opened(root, "val")


def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path):
    root = dataset(tmp_path / "set")
    opened(root, "train")
    whole = (root / SPLIT_FILE).read_text()
    for edit, words in (
        (lambda tree: tree["train"].popitem(), "is in no split"),
        (lambda tree: tree["train"].update(x="0"), "'x' of train is not in the dataset"),
        (lambda tree: tree["train"].update(dict.fromkeys(tree["train"], "0")), "has changed since"),
        (lambda tree: tree["val"].update(tree["test"]), "is in val and in test"),
        (lambda tree: tree.update(val=[]), "val: expected an object"),
        (lambda tree: tree.pop("format"), "expected format"),
    ):
        (root / SPLIT_FILE).write_text(whole)
        edited(root, edit)
        with pytest.raises(DataError, match=words):
            opened(root, "train")
    (root / SPLIT_FILE).write_text(whole)
    opened(root, "train")
    with pytest.raises(DataError, match=r"none\.json"):
        opened(root, "train", split_file=str(tmp_path / "none.json"))


def test_too_few_recordings(tmp_path: Path):
    write_drive(tmp_path, "a", frames=3)
    with pytest.raises(DataError, match=r"1 recording\(s\) cannot be split"):
        opened(tmp_path, "train")
    assert len(opened(tmp_path, "train", val_fraction=0.0, test_fraction=0.0).episodes) == 1
