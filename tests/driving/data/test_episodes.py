"""Bad episodes are refused with file and key; legal ones, however bare, are read."""

import dataclasses
import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from chunkwise.errors import DataError
from chunkwise.files import cache
from chunkwise.files.budget import LimitError
from driving.config import DataConfig
from driving.data.batches import open_data
from driving.data.episodes import examine, load_episode, write_episode
from driving.data.index import ABSENT, INDEX_FILE, PRESENT, Index, load, pack, unpack
from driving.data.scan import scan, scan_file
from driving.data.schema import schema
from driving.validate import validate
from tests.driving.drives import SIZE, extrinsics, frame_tree, render, write_drive

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def camera(tree: dict[str, Any], frame: int = 2, name: str = "front") -> dict[str, Any]:
    return tree["frames"][frame]["observations"]["cameras"][name]


def state(tree: dict[str, Any], frame: int = 2) -> dict[str, Any]:
    return tree["frames"][frame]["observations"]["state"]


def test_the_schema_is_a_schema_of_2020_12():
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_least_that_is_legal(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text('{"episode_id": "a", "domain": "robotics", "frames": [{"t": 0, "observations": {}}]}')
    episode = load_episode(file)
    assert (episode.cameras, episode.t.tolist(), episode.waypoints.shape) == ((), [0.0], (1, 0, 2))
    assert np.isnan(episode.pose).all()
    index, problems = scan_file(file, tmp_path)
    assert index is not None
    assert not problems


def test_everything_that_is_optional_is_read(tmp_path: Path):
    def change(tree: dict[str, Any]) -> None:
        camera(tree)["t_offset_s"] = -0.025
        camera(tree)["pose"] = {"x_m": 1.0, "y_m": 2.0, "yaw_rad": 0.5}
        tree["frames"][2]["observations"]["route_command"] = "left"
        tree["frames"][2]["expert"] = {"waypoints": [[1.0, 0.5], [2.0, 1.0]]}
        tree["waypoint_spec"] = {"horizon_steps": 2, "dt": 0.25, "frame": "ego", "units": "m"}
        tree["source"] = {"dataset": "set", "scene_id": "7"}

    episode = load_episode(write_drive(tmp_path, "a", frames=4, change=change, images=False))
    front = episode.cameras.index("front")
    assert episode.t_offset_s[2, front] == -0.025
    assert episode.t_offset_s[1, front] == 0
    np.testing.assert_array_equal(episode.camera_pose[2, front], [1.0, 2.0, 0.5])
    assert np.isnan(episode.camera_pose[1, front]).all()
    assert episode.route_command.tolist() == [0, 0, 1, 0]
    assert episode.waypoint_dt_s == 0.25
    np.testing.assert_array_equal(episode.waypoints[2], [[1.0, 0.5], [2.0, 1.0]])
    assert np.isnan(episode.waypoints[1]).all()
    assert episode.recording == "set/7"
    np.testing.assert_array_equal(episode.intrinsics[0, front], [[40, 0, 24.5], [0, 42, 15.5], [0, 0, 1]])
    np.testing.assert_allclose(episode.extrinsics[0, front].reshape(-1), extrinsics("front"))


def put(place: Callable[[dict[str, Any]], dict[str, Any]], key: str, value: Any) -> Change:
    def change(tree: dict[str, Any]) -> None:
        place(tree)[key] = value

    return change


def remove(key: str) -> Change:
    def change(tree: dict[str, Any]) -> None:
        del tree[key]

    return change


BAD: list[tuple[Change, str, str]] = [
    (remove("episode_id"), "", "the keys episode_id, domain, frames"),
    (remove("domain"), "", "the keys episode_id, domain, frames"),
    (put(lambda t: t, "domain", "sea"), "domain", 'found "sea"'),
    (put(lambda t: t, "frames", []), "frames", "minItems 1"),
    (put(lambda t: t["frames"][1], "t", "0.1"), "frames[1].t", 'number, found "0.1"'),
    (put(lambda t: t["frames"][1], "t", True), "frames[1].t", "number, found true"),
    (put(lambda t: t["frames"][0], "t", -1.0), "frames[0].t", "minimum 0"),
    (put(lambda t: t["frames"][2], "t", 0.1), "frames[2].t", "more than 0.1"),
    (put(lambda t: t["frames"][2], "observations", None), "frames[2].observations", "object, found null"),
    (put(camera, "image_path", 5), "frames[2].observations.cameras.front.image_path", "string or null"),
    (put(camera, "intrinsics", [1.0, 2.0]), "frames[2].observations.cameras.front.intrinsics", "0 or 4 or 9 numbers"),
    (put(camera, "intrinsics", [0.0, 1.0, 2.0, 3.0]), "frames[2].observations.cameras.front.intrinsics", "above 0"),
    # Nine numbers that are no matrix, as Waymo writes them: f_u, f_v, c_u, c_v and five of distortion.
    (put(camera, "intrinsics", [40.0, 42.0, 24.5, 15.5, 0.1, 0.0, 0.0, 0.0, 0.0]), "front.intrinsics", "matrix"),
    (put(camera, "extrinsics", [1.0] * 16), "frames[2].observations.cameras.front.extrinsics", "a rotation"),
    (put(camera, "extrinsics", [1.0] * 12), "frames[2].observations.cameras.front.extrinsics", "0 or 16 numbers"),
    (put(camera, "pose", {"x_m": 1.0}), "frames[2].observations.cameras.front.pose", "x_m, y_m, yaw_rad"),
    (put(state, "speed_mps", "fast"), "frames[2].observations.state.speed_mps", "number or null"),
    (lambda t: state(t).pop("y_m"), "frames[2].observations.state", "dependentRequired"),
    (put(lambda t: t["frames"][2], "expert", {"waypoints": [[1.0, 2.0, 3.0]]}), "expert.waypoints[0]", "maxItems 2"),
    (put(lambda t: t, "waypoint_spec", {"dt": 0}), "waypoint_spec.dt", "exclusiveMinimum 0"),
    (put(lambda t: t, "waypoint_spec", {"frame": "world"}), "waypoint_spec.frame", "one of ['ego']"),
    (put(state, "x_m", 10**400), "x_m", "maximum 1e+30"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "key", "text"), BAD, ids=range(len(BAD)))
def test_bad_values_are_named_with_file_and_key(tmp_path: Path, change: Change, key: str, text: str):
    file = write_drive(tmp_path, "a", frames=4, change=change, images=False)
    episode, problems = examine(file)
    assert episode is None
    assert any(key in problem.key and text in str(problem) for problem in problems), problems
    assert all(problem.file == str(file) for problem in problems)
    with pytest.raises(DataError, match="problem"):
        load_episode(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"episode_id": "a", "t": NaN}', "NaN at key 't'"),
        ('{"episode_id": "a", "t": [-Infinity]}', "Infinity"),
        ('{"episode_id": "a", "t": 1e999}', "1e999"),
        ('{"episode_id": "a", "episode_id": "b"}', "'episode_id' twice"),
        ("[" * 100_000 + "]" * 100_000, "nesting"),
        ("[" * 500 + "]" * 500, "nesting"),
        ('{"t": ' + "1" * 5000 + "}", "digits"),
        ('{"episode_id": "a"', "Expecting"),
        ("", "Expecting"),
        ("[]", "object"),
    ],
    ids=range(10),
)
def test_bad_json_is_refused(tmp_path: Path, text: str, words: str):
    file = tmp_path / "a.json"
    file.write_text(text)
    episode, problems = examine(file)
    assert episode is None
    assert words in str(problems[0])
    assert str(file) in str(problems[0])


def test_bytes_that_are_no_text(tmp_path: Path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    assert examine(tmp_path / "a.json")[0] is None


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside.jpg",
        "images/../../outside.jpg",
        "https://example.com/a.jpg",
        "file:///a.jpg",
        "a\\b.jpg",
    ],
)
def test_paths_that_lead_out_are_refused(tmp_path: Path, path: str):
    (tmp_path / "outside.jpg").write_bytes(b"")
    root = tmp_path / "set"
    file = write_drive(root, "a", frames=4, change=put(camera, "image_path", path))
    index, problems = scan_file(file, root)
    assert index is None
    assert problems[0].key == "frames[2].observations.cameras.front.image_path"
    assert path in problems[0].found


def test_links_that_lead_out_or_round_are_refused(tmp_path: Path):
    root = tmp_path / "set"
    root.mkdir()
    (tmp_path / "secret.jpg").write_bytes(simplejpeg.encode_jpeg(render(0, 0)))
    (root / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "round.jpg").symlink_to(root / "round.jpg")
    os.mkfifo(root / "pipe.jpg")
    for name in ("link.jpg", "round.jpg", "pipe.jpg"):
        file = write_drive(root, "a", frames=4, change=put(camera, "image_path", name))
        index, problems = scan_file(file, root.resolve())
        assert index is None, name
        assert problems[0].key.endswith("front.image_path")


def test_images_that_are_none(tmp_path: Path):
    file = write_drive(tmp_path, "a", frames=4)
    target = tmp_path / "a_images" / "0002_front.jpg"
    whole = target.read_bytes()
    Image.new("RGB", (10_000, 10_000)).save(tmp_path / "bomb.png")
    bad = {
        "cut short": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"no image at all",
        "a large image of few bytes": (tmp_path / "bomb.png").read_bytes(),
    }
    for what, data in bad.items():
        target.write_bytes(data)
        index, problems = scan_file(file, tmp_path)
        assert index is None, what
        assert problems[0].key == "frames[2].observations.cameras.front.image_path"
        assert "a_images/0002_front.jpg" in problems[0].found


def test_images_of_two_sizes_in_one_camera_are_refused(tmp_path: Path):
    file = write_drive(tmp_path, "a", frames=4)
    turned = simplejpeg.encode_jpeg(np.ascontiguousarray(render(0, 0).transpose(1, 0, 2)))
    (tmp_path / "a_images" / "0002_front.jpg").write_bytes(turned)
    index, problems = scan_file(file, tmp_path)
    assert index is None
    assert "32 x 48 and 48 x 32" in problems[0].found


def test_a_path_below_another_folder_of_the_dataset_is_legal(tmp_path: Path):
    write_drive(tmp_path / "set", "a", frames=4)
    change = put(camera, "image_path", "../set/a_images/0001_front.jpg")
    file = write_drive(tmp_path / "other", "b", frames=4, change=change)
    index, problems = scan_file(file, tmp_path.resolve())
    assert not problems
    assert index is not None
    assert index.path(2, index.cameras.index("front")) == "set/a_images/0001_front.jpg"


def test_hashes_of_a_new_dataset_are_saved_as_often_however_many_drives_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    saved, write = list[int](), cache.write
    monkeypatch.setattr(cache, "write", lambda kind, *rest: saved.append(kind == "hashes") or write(kind, *rest))
    counts = []
    for name, drives in (("few", 2), ("many", 9)):
        for number in range(drives):
            write_drive(tmp_path / name, f"drive_{number}", frames=3)
        saved.clear()
        time.sleep(0.1)  # what changed a moment ago is not kept
        scan(tmp_path / name)
        counts.append(sum(saved))
    assert counts[0] == counts[1] >= 1


def test_the_index_is_parsed_once_moves_with_the_folder_and_sees_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "one"
    write_drive(root, "a", frames=5, start_yaw=1.0)
    write_drive(root, "b", frames=4, change=lambda t: t["frames"][1]["observations"]["cameras"].pop("side_left"))
    first, problems = scan(root)
    assert not problems
    assert first is not None
    parsed: list[str] = []

    def counted(path: Path):
        parsed.append(path.name)
        return examine(path)

    monkeypatch.setattr("driving.data.scan.examine", counted)
    root.rename(tmp_path / "two")
    again, _ = scan(tmp_path / "two")
    assert again is not None
    assert parsed == []
    for name in ("t", "pose", "image_status", "path_bytes", "calibration", "intrinsics", "waypoints"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    write_drive(tmp_path / "two", "b", frames=6)
    changed, _ = scan(tmp_path / "two")
    assert changed is not None
    assert parsed == ["b.json"]
    assert changed.lengths.tolist() == [5, 6]
    np.testing.assert_array_equal(changed.t[:5], first.t[:5])
    front = changed.cameras.index("front")
    assert changed.path(7, front) == "b_images/0002_front.jpg"
    np.testing.assert_array_equal(changed.intrinsics[changed.calibration[7, front]][0], [40.0, 0.0, 24.5])


def test_an_absent_image_that_comes_back_is_seen(tmp_path: Path):
    write_drive(tmp_path, "a", frames=4)
    file = tmp_path / "a_images" / "0002_front.jpg"
    data = file.read_bytes()
    file.unlink()
    index, _ = scan(tmp_path)
    assert index is not None
    front = index.cameras.index("front")
    assert index.image_status[:, front].tolist() == [1, 1, 2, 1]
    file.write_bytes(data)
    index, _ = scan(tmp_path)
    assert index is not None
    assert index.image_status[:, front].tolist() == [1, 1, 1, 1]


def test_an_index_beside_the_episodes_is_not_read(tmp_path: Path):
    write_drive(tmp_path / "set", "a", frames=4)
    before, _ = scan(tmp_path / "set")
    assert before is not None
    (tmp_path / "secret.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((32, 48, 3), np.uint8)))
    name = b"../secret.jpg"
    lengths = before.path_lengths.copy()
    first = before.path_bytes.tobytes()
    lengths[0, 0], text = len(name), name + first[before.path_lengths[0, 0] :]
    false = dataclasses.replace(before, path_bytes=np.frombuffer(text, np.uint8), path_lengths=lengths)
    assert false.path(0, 0) == "../secret.jpg"
    (tmp_path / "set" / INDEX_FILE).write_bytes(pack(false))
    data = open_data(DataConfig(path=str(tmp_path / "set"), image_size=SIZE), "all")
    assert data.index.path(0, 0) == before.path(0, 0)
    assert [note for note in data.notes if "_index.npz is ignored" in note]
    assert data.batch(np.array([0]))["images"][0, 0, 0].any()


def test_a_cached_index_is_asked_neither_for_paths_nor_for_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_drive(tmp_path / "set", "a", frames=4)
    before, _ = scan(tmp_path / "set")
    assert before is not None
    (tmp_path / "secret.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((32, 48, 3), np.uint8)))
    (tmp_path / "set" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    name = b"link.jpg"
    lengths = before.path_lengths.copy()
    lengths[0, 0], text = len(name), name + before.path_bytes.tobytes()[before.path_lengths[0, 0] :]
    false = dataclasses.replace(before, path_bytes=np.frombuffer(text, np.uint8), path_lengths=lengths)
    read = cache.read

    def poisoned(kind: str, key: str) -> bytes | None:
        return b'["x"]\n' + pack(false) if kind == "driving" else read(kind, key)

    monkeypatch.setattr(cache, "read", poisoned)
    after, problems = scan(tmp_path / "set")
    assert problems == []
    assert after is not None
    assert after.path(0, 0) == before.path(0, 0)


@pytest.mark.parametrize("change", ["other pixels", "another size", "gone", "back", "replaced by a link"])
def test_images_that_change_are_seen_when_the_dataset_is_opened_again(tmp_path: Path, change: str):
    write_drive(tmp_path / "set", "a", frames=4, dt=0.1)
    file = tmp_path / "set" / "a_images" / "0002_front.jpg"
    whole = file.read_bytes()
    if change == "back":
        file.unlink()
    index, _ = scan(tmp_path / "set")
    assert index is not None
    front = index.cameras.index("front")
    black = simplejpeg.encode_jpeg(np.zeros((32, 48, 3), np.uint8))
    if change == "other pixels":
        file.write_bytes(black)
        again, _ = scan(tmp_path / "set")
        assert again is not None
        assert again.drive_hashes != index.drive_hashes
    elif change == "another size":
        for each in (tmp_path / "set" / "a_images").glob("*_front.jpg"):
            each.write_bytes(simplejpeg.encode_jpeg(np.zeros((64, 96, 3), np.uint8)))
        again, _ = scan(tmp_path / "set")
        assert again is not None
        assert again.image_size[:, front].tolist() == [[64, 96]] * 4
        # 40 pixels of focal length in images of 64 x 96 are 20 in a batch of 32 x 48.
        batch = open_data(DataConfig(path=str(tmp_path / "set"), image_size=SIZE), "all").batch(np.array([2]))
        assert batch["intrinsics"][0, 0, 0, 0, 0] == 20.0
    elif change in ("gone", "back"):
        file.write_bytes(whole) if change == "back" else file.unlink()
        again, _ = scan(tmp_path / "set")
        assert again is not None
        assert again.image_status[2, front] == (PRESENT if change == "back" else ABSENT)
    else:
        (tmp_path / "secret.jpg").write_bytes(black)
        file.unlink()
        file.symlink_to(tmp_path / "secret.jpg")
        again, problems = scan(tmp_path / "set")
        assert again is None
        assert "leads out of the dataset" in problems[0].found
        assert "--data.allow-links-to" in problems[0].found


def test_a_hub_snapshot_of_episodes_is_read(tmp_path: Path):
    plain = tmp_path / "plain"
    write_drive(plain, "a", frames=4)
    blobs, root = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in plain.rglob("*") if path.is_file())):
        file.rename(blobs / f"{number:040x}")
        link = root / file.relative_to(plain)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / f"{number:040x}", link.parent))
    (tmp_path / "mine").symlink_to(root)
    for path in (root, tmp_path / "mine", root / "a.json"):
        data = open_data(DataConfig(path=str(path), image_size=SIZE), "all")
        assert data.index.files == ("a.json",)
        assert data.index.path(2, data.index.cameras.index("front")) == "a_images/0002_front.jpg"
        assert data.batch(np.array([2]))["images"].any()
    assert validate([root])["problems"] == []
    (root / "a_images" / "0002_front.jpg").unlink()
    (root / "a_images" / "0002_front.jpg").symlink_to(plain / "x.jpg")
    _, problems = scan(root)
    assert "leads out of the dataset" in problems[0].found


def whole_index(tmp_path: Path) -> Index:
    write_drive(tmp_path, "a", frames=4)
    index, _ = scan(tmp_path)
    assert index is not None
    return index


CONTRADICTIONS: dict[str, Callable[[Index], dict[str, Any]]] = {
    "expected of": lambda i: {"speed_mps": i.speed_mps[:3]},
    "speed_mps as float32": lambda i: {"speed_mps": i.speed_mps.astype(np.float32)},
    "pose of shape (4, 2)": lambda i: {"pose": i.pose[:, :2]},
    "image_status of shape": lambda i: {"picture": i.image_status[:, :4]},
    "lengths that do not add up": lambda i: {"lengths": i.lengths + 1},
    "lengths with 0": lambda i: {"lengths": i.lengths * 0},
    "path_lengths that do not add up": lambda i: {"path_lengths": i.path_lengths + 1},
    "path_lengths with -": lambda i: {"path_lengths": -i.path_lengths},
    "waypoints, where the counts say": lambda i: {"waypoint_counts": i.waypoint_counts + 1},
    "rated_counts that do not add up": lambda i: {"rated_counts": i.rated_counts + 1},
    "image_status from": lambda i: {"picture": i.image_status + np.uint8(2)},
    "calibration from": lambda i: {"calibration": i.calibration + np.int32(99)},
    "image_size from": lambda i: {"picture_size": i.image_size - np.int32(99)},
    "route_command from": lambda i: {"route_command": i.route_command + np.int8(9)},
    "ids: ": lambda i: {"ids": (*i.ids, "b", "c", "d", "e")},
    "which are not sorted": lambda i: {"cameras": i.cameras[::-1]},
    "which leads out": lambda i: {"files": ("../a.json",)},
    "images without a name": lambda i: {
        "path_lengths": np.where(
            np.arange(i.path_lengths.size).reshape(i.path_lengths.shape) == 0, 0, i.path_lengths
        ).astype(np.int32),
        "path_bytes": i.path_bytes[int(i.path_lengths[0, 0]) :],
    },
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_an_index_whose_arrays_contradict_one_another_is_refused(tmp_path: Path, words: str):
    index = whole_index(tmp_path)
    assert unpack(pack(index), source="x").ids == ("a",)
    with np.load(io.BytesIO(pack(index))) as arrays:
        values = dict(arrays)
    assert {"picture", "picture_size"} <= set(values), "a pack's arrays keep the names of earlier versions"
    head = json.loads(values.pop("head").tobytes())
    for name, value in CONTRADICTIONS[words](index).items():
        (head if name in head else values)[name] = value
    np.savez(tmp_path / "false.npz", head=np.frombuffer(json.dumps(head).encode(), np.uint8), **values)
    with pytest.raises(DataError) as error:
        load(tmp_path / "false.npz")
    assert any(word in str(error.value) for word in words.split("|")), str(error.value)


def test_an_index_that_would_take_more_memory_than_its_file_is_refused(tmp_path: Path):
    index = whole_index(tmp_path)
    head = np.frombuffer(json.dumps({"format": "chunkwise-driving-index-2"}).encode(), np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", head=head, t=np.zeros(40_000_000))
    with pytest.raises(LimitError, match=r"--data.limits.expansion"):
        load(tmp_path / "bomb.npz")
    claims = np.lib.format.header_data_from_array_1_0(index.t) | {"shape": (10**12,)}
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as archive, archive.open("t.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, claims)
    with pytest.raises(DataError, match=r"t: expected 8000000000000 bytes for float64"):
        load(tmp_path / "claims.npz")
    (tmp_path / "text.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match=r"text\.npz: expected a whole \.npz file"):
        load(tmp_path / "text.npz")


def test_the_drive_hash_does_not_see_names(tmp_path: Path):
    write_drive(tmp_path, "a", frames=4)
    tree = json.loads((tmp_path / "a.json").read_text())
    write_episode(tmp_path / "copy.json", tree | {"episode_id": "other"})
    index, _ = scan(tmp_path)
    assert index is not None
    assert index.ids == ("a", "other")
    assert index.drive_hashes[0] == index.drive_hashes[1]
    assert index.content_hashes[0] != index.content_hashes[1]


def test_write_episode_writes_nothing_bad(tmp_path: Path):
    frames = [frame_tree(i, 0.1 * i) for i in (0, 2, 1)]
    with pytest.raises(DataError, match=r"frames\[2\]\.t"):
        write_episode(tmp_path / "a.json", {"episode_id": "a", "domain": "driving", "frames": frames})
    assert not list(tmp_path.iterdir())
    write_episode(tmp_path / "a.json", {"episode_id": "a", "domain": "driving", "frames": frames[:2]})
    assert load_episode(tmp_path / "a.json").t.tolist() == [0.0, 0.2]


def test_size_is_height_and_width(tmp_path: Path):
    index, _ = scan_file(write_drive(tmp_path, "a", frames=2), tmp_path)
    assert index is not None
    assert index.image_size[0, 0].tolist() == list(SIZE) == [32, 48]
