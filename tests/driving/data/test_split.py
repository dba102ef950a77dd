"""Splits: whole recordings, the same each time, and nothing on two sides."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from driving.config import DataConfig, Split
from driving.data.batches import open_data
from driving.data.index import Index
from driving.data.scan import scan
from driving.data.split import (
    SPLIT_FILE,
    SPLITS,
    Manifest,
    _groups,
    check_manifest,
    leaks,
    load_manifest,
    make_manifest,
    official_sides,
    save_manifest,
    share,
)
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
    other = opened(root, "train", val_fraction=0.0)
    assert set(other.episodes.tolist()) == sides["train"]
    assert any(
        "data.val_fraction 0 and data.test_fraction 0.25 would draw another split" in note for note in other.notes
    )
    other = opened(root, "train", test_fraction=0.0)  # which would leave the validation part as it is
    assert any("would draw another split" in note for note in other.notes)
    assert not any("another split" in note for note in opened(root, "train").notes)


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        (("training", "train", "val", "testing_location"), ["train", "train", "val", "test"]),
        (("training", "Train", "VAL", "test"), ["train", "train", "val", "test"]),
        (("training", "test", "val", ""), ["train", "test", "val", "train"]),  # one does not say
        (("v1.0-trainval",) * 4, None),
        (("v1.0-trainval", "v1.0-test", "val", "v1.0-trainval"), ["train", "test", "val", "train"]),
        (("val",) * 4, None),  # all that somebody has
        (("testing", "test", "testing_location", "test"), ["test"] * 4),
    ],
)
def test_a_split_that_the_source_states(tmp_path: Path, names: tuple[str, ...], sides: list[str] | None):
    for i, name in enumerate(names):
        source = {"dataset": "d", "scene_id": f"s{i}"} | ({"split": name} if name else {})
        write_drive(tmp_path, f"e{i}", frames=2, start_yaw=0.1 * i, source=source)
    index, _ = scan(tmp_path)
    assert index is not None
    assert index.splits == names
    assert official_sides(index) == sides
    manifest = make_manifest(index, val_fraction=0.25, test_fraction=0.25)
    found = [next(split for split in SPLITS if name in manifest.episodes[split]) for name in index.ids]
    if "train" not in found:
        with pytest.raises(DataError, match=r"no frame is left to draw.* 0 of 4 .*source\.split say which"):
            opened(tmp_path, "train")
    assert (found == sides) if sides else sorted(found) == ["test", "train", "train", "val"]


def test_what_is_kept_for_a_test_is_never_trained_on(tmp_path: Path):
    """Where none is for training, those for validation are, and what is missing is drawn from them."""
    for i, name in enumerate(("testing", "val", "val", "validation", "test")):
        write_drive(tmp_path, f"e{i}", frames=2, start_yaw=0.1 * i, source={"scene_id": f"s{i}", "split": name})
    index, _ = scan(tmp_path)
    assert index is not None
    assert official_sides(index) == ["test", "train", "train", "train", "test"]
    manifest = make_manifest(index, val_fraction=0.3, test_fraction=0.3)
    assert set(manifest.episodes["test"]) == {"e0", "e4"}
    assert len(manifest.episodes["train"]) == 2
    for i in (1, 2, 3):
        write_drive(tmp_path, f"e{i}", frames=2, start_yaw=0.1 * i, source={"scene_id": f"s{i}"})
    notes = opened(tmp_path, "train", val_fraction=0.3).notes
    assert "3 episode(s) have no source.split, where others have one: they are for training" in notes
    assert not any("name none of" in note for note in notes)


def test_words_that_name_no_part_are_noted(tmp_path: Path):
    for i, name in enumerate(("v1.0-mini", "v1.0-mini", "mine", "test")):
        write_drive(tmp_path, f"e{i}", frames=2, start_yaw=0.1 * i, source={"scene_id": f"s{i}", "split": name})
    notes = opened(tmp_path, "train", val_fraction=0.3).notes
    assert "source.split ['mine', 'v1.0-mini'] name none of train, val and test: taken as if they said nothing" in notes


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
        write_drive(root, f"e{i}", frames=2, start_yaw=0.1 * i, source=source, images=False)
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


def index_of(root: Path) -> Index:
    index, problems = scan(root)
    assert index is not None
    assert not problems
    return index


def test_a_share_is_of_the_episodes_that_it_is_taken_from(tmp_path: Path):
    """In the order of SHA-256 of "share <id>", sorted as they were; a larger share holds the smaller ones."""
    for i in range(9):
        write_drive(tmp_path, f"e{i}", frames=1, start_yaw=0.1 * i)
    index = index_of(tmp_path)
    episodes = np.array([1, 2, 4, 5, 7, 8])
    order = sorted(episodes.tolist(), key=lambda i: hashlib.sha256(f"share e{i}".encode()).digest())
    for fraction, count in ((0.01, 1), (0.2, 1), (0.3, 2), (0.5, 3), (0.7, 4), (0.9, 5), (1.0, 6)):
        found = share(index, episodes, fraction)
        assert found.tolist() == sorted(order[:count])
    assert share(index, episodes[:1], 0.4).tolist() == [1]
    # By way of the config: of the drives of training alone.
    train = opened(tmp_path, "train").episodes
    assert len(train) == 5
    assert opened(tmp_path, "train", episode_fraction=0.4).episodes.tolist() == share(index, train, 0.4).tolist()
    assert len(opened(tmp_path, "train", episode_fraction=0.4).episodes) == 2
    for split in ("val", "test"):
        assert len(opened(tmp_path, split, episode_fraction=0.4).episodes) == 2, "held-out drives are all used"


def test_a_drive_is_known_by_what_it_shows(tmp_path: Path):
    """By images, times, poses and speeds: another image is another drive, other names are the same one."""
    write_drive(tmp_path, "a", frames=3)
    tree = json.loads((tmp_path / "a.json").read_text())
    shutil.copytree(tmp_path / "a_images", tmp_path / "renamed")
    shutil.copytree(tmp_path / "a_images", tmp_path / "other")
    shutil.copyfile(tmp_path / "a_images/0000_front.jpg", tmp_path / "other/0001_front.jpg")

    def write(name: str, change: Callable[[dict[str, Any]], object], images: str = "a_images") -> None:
        copy = json.loads(json.dumps(tree | {"episode_id": name}).replace("a_images", images))
        change(copy)
        (tmp_path / f"{name}.json").write_text(json.dumps(copy))

    def later(copy: dict[str, Any]) -> None:
        copy["frames"][2]["t"] += 0.01

    write("same", lambda _: None)
    write("renamed", lambda _: None, "renamed")
    write("image", lambda _: None, "other")
    write("time", later)
    write("place", lambda copy: copy["frames"][1]["observations"]["state"].update(x_m=9.0))
    write("speed", lambda copy: copy["frames"][1]["observations"]["state"].update(speed_mps=9.0))
    write("camera", lambda copy: copy["frames"][1]["observations"]["cameras"].pop("front"))
    index = index_of(tmp_path)
    drives = dict(zip(index.ids, index.drive_hashes, strict=True))
    assert drives["same"] == drives["renamed"] == drives["a"]
    assert len(set(drives.values())) == 6


def test_the_manifest_of_a_part_is_the_same_split_of_it(tmp_path: Path):
    for name in "abcd":
        write_drive(tmp_path, name, frames=2, images=False)
    index = index_of(tmp_path)
    whole = Manifest(episodes={"train": {"a": "1", "x": "2"}, "val": {"y": "3", "c": "4"}, "test": {"b": "5"}})
    part = whole.of(index)
    assert part.episodes == {"train": {"a": "1"}, "val": {"c": "4"}, "test": {"b": "5"}}
    members: dict[Split, list[int]] = {"train": [0], "val": [2], "test": [1], "all": [0, 1, 2, 3]}
    for split, rows in members.items():
        assert whole.positions(index, split).tolist() == part.positions(index, split).tolist() == rows


def test_a_manifest_as_it_lies_on_disk(tmp_path: Path):
    """People read it, keep it beside their dataset and compare it: a line for each drive, the same bytes each time."""
    manifest = Manifest(episodes={"train": {"a": "12", "b": "34"}, "val": {"c": "56"}, "test": {}})
    save_manifest(manifest, tmp_path / "split.json")
    assert (tmp_path / "split.json").read_text().splitlines() == [
        "{",
        ' "format": "chunkwise-driving-split-1",',
        ' "train": {',
        '  "a": "12",',
        '  "b": "34"',
        " },",
        ' "val": {',
        '  "c": "56"',
        " },",
        ' "test": {}',
        "}",
    ]
    assert load_manifest(tmp_path / "split.json") == manifest


def test_leaks_name_the_pair_its_sides_and_why(tmp_path: Path):
    for i, scene in enumerate("pqpr"):
        source = {"dataset": "d", "scene_id": scene}
        write_drive(tmp_path, f"e{i}", frames=2, start_yaw=0.1 * i, source=source, images=False)
    index = index_of(tmp_path)
    assert leaks(index, ["train", "val", "train", "test"]) == []
    assert leaks(index, ["train", "val", "", "test"]) == [], "an episode in no split leaks nothing"
    pair = "'e0' (train) and 'e2' (val) come from the recording "
    assert leaks(index, ["train", "val", "val", "test"]) == [pair + index.recordings[0][:60]]
    same = dataclasses.replace(index, drive_hashes=("5", "6", "7", "5"))
    assert leaks(same, ["train", "train", "train", "test"]) == [
        "'e0' (train) and 'e3' (test) show the same drive, hash 5"
    ]
    chained = dataclasses.replace(index, drive_hashes=("5", "6", "7", "6"))
    groups = _groups(chained)
    assert groups[0] == groups[2] != groups[1] == groups[3]
    joined = _groups(dataclasses.replace(index, drive_hashes=("5", "5", "7", "5")))
    assert len(set(joined)) == 1, "e0 with e2 by recording, with e1 and e3 by what they show"


def test_an_error_of_a_manifest_shows_twenty_lines_and_counts_the_rest(tmp_path: Path):
    write_drive(tmp_path, "a", frames=2, images=False)
    index = index_of(tmp_path)
    drives = {"a": index.drive_hashes[0]}
    for lacking, last in ((20, "episode 'x19' of val is not in the dataset"), (23, "and 3 more")):
        val = {f"x{i}": "" for i in range(lacking)}
        manifest = Manifest(episodes={"train": drives, "val": val, "test": {}})
        with pytest.raises(DataError) as refused:
            check_manifest(manifest, index, source="s", may_lack=False)
        lines = str(refused.value).splitlines()
        assert lines[0] == "s: expected a split of this dataset without leaks, found:"
        assert lines[1] == "  episode 'x0' of val is not in the dataset"
        assert lines[-2].strip() == last
        assert len(lines) == 2 + min(lacking, 21)
        check_manifest(manifest, index, source="s", may_lack=True)


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
