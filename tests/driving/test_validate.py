"""Validation: each defect that was seen in real loaders and files, found and named; good drives pass."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from driving.validate import main, validate
from tests.driving.drives import SIZE, SPEED, pose_at, write_drive

Tree = dict[str, Any]


def frames(tree: Tree) -> list[Tree]:
    return tree["frames"]


def state(tree: Tree, i: int) -> Tree:
    return tree["frames"][i]["observations"]["state"]


def add_waypoints(tree: Tree, *, by_index: bool = False) -> None:
    """What a converter lists: the next 20 poses in the vehicle frame, the last one repeated past the end."""
    last = frames(tree)[-1]["t"]
    for i, frame in enumerate(frames(tree)):
        x, y, yaw = pose_at(frame["t"])
        places = []
        for j in range(1, 21):
            t = min(frame["t"] + 0.1 * j, last)
            if by_index:
                t = frames(tree)[min(i + j, len(frames(tree)) - 1)]["t"]
            x2, y2, _ = pose_at(t)
            dx, dy = x2 - x, y2 - y
            places.append([np.cos(yaw) * dx + np.sin(yaw) * dy, np.cos(yaw) * dy - np.sin(yaw) * dx])
        frame["expert"] = {"waypoints": [[float(a), float(b)] for a, b in places]}


def speed_zero(tree: Tree) -> None:
    for i in range(len(frames(tree))):
        state(tree, i)["speed_mps"] = 0.0


def speed_in_kmh(tree: Tree) -> None:
    for i in range(len(frames(tree))):
        state(tree, i)["speed_mps"] = 3.6 * SPEED


def jump(tree: Tree) -> None:
    state(tree, 12)["x_m"] += 6.0


def spin(tree: Tree) -> None:
    state(tree, 12)["yaw_rad"] += 1.0


def sideways(tree: Tree) -> None:
    for i in range(len(frames(tree))):
        state(tree, i)["yaw_rad"] += np.pi / 2


def mirrored_waypoints(tree: Tree) -> None:
    add_waypoints(tree)
    for frame in frames(tree):
        frame["expert"]["waypoints"] = [[x, -y] for x, y in frame["expert"]["waypoints"]]


def waypoints_by_index(tree: Tree) -> None:
    del tree["frames"][5:9]
    add_waypoints(tree, by_index=True)


PROBLEMS: list[tuple[Callable[[Tree], None], str, str]] = [
    (speed_zero, "observations.state.speed_mps", "30 of 30 frames are off"),
    (speed_in_kmh, "observations.state.speed_mps", "28.80"),
    (jump, "frames[12].observations.state.x_m, y_m", "jump"),
    (spin, "observations.state.yaw_rad", "jump"),
    (sideways, "observations.state.yaw_rad", "as it travels"),
    (mirrored_waypoints, "expert.waypoints", "are off"),
    (waypoints_by_index, "expert.waypoints", "are off"),
]


@pytest.mark.parametrize(("change", "key", "words"), PROBLEMS, ids=[case[0].__name__ for case in PROBLEMS])
def test_labels_that_contradict_one_another(tmp_path: Path, change: Callable[[Tree], None], key: str, words: str):
    file = write_drive(tmp_path, "a", change=change)
    report = validate([tmp_path])
    assert report["refused"]
    found = report["problems"]
    assert all(problem["file"] == str(file) for problem in found)
    assert any(key in problem["key"] and words in problem["expected"] + problem["found"] for problem in found), found


def slow_start(tree: Tree) -> None:
    """Stands, then speeds up at 3 m/s2."""
    for i, frame in enumerate(frames(tree)):
        moving = max(frame["t"] - 1.0, 0.0)
        state(tree, i).update(x_m=1.5 * moving**2, y_m=0.0, yaw_rad=0.0, yaw_rate_radps=0.0, speed_mps=3.0 * moving)


def yaw_past_pi(tree: Tree) -> None:
    for i, frame in enumerate(frames(tree)):
        x, y, yaw = pose_at(frame["t"], 2.8)
        state(tree, i).update(x_m=float(x), y_m=float(y), yaw_rad=float(np.arctan2(np.sin(yaw), np.cos(yaw))))


def reverse(tree: Tree) -> None:
    for i, frame in enumerate(frames(tree)):
        state(tree, i).update(x_m=-5.0 * frame["t"], y_m=0.0, yaw_rad=0.0, yaw_rate_radps=0.0, speed_mps=-5.0)


def bare(tree: Tree) -> None:
    for frame in frames(tree):
        del frame["observations"]["state"]


@pytest.mark.parametrize("change", [None, add_waypoints, slow_start, yaw_past_pi, reverse, bare])
def test_good_drives_pass(tmp_path: Path, change: Callable[[Tree], None] | None):
    write_drive(tmp_path, "a", change=change)
    report = validate([tmp_path])
    assert report["problems"] == []
    filled = [remark["found"] for remark in report["remarks"]]
    # Frame i of 30 lists 20 places, of which 29 - i lie inside the drive: 20 + 19 + ... + 1 are repeated.
    assert filled == (["210 repeated places, which training masks"] if change is add_waypoints else [])


def test_waypoints_of_an_expert_are_not_where_the_car_went(tmp_path: Path):
    def change(tree: Tree) -> None:
        mirrored_waypoints(tree)
        tree["waypoint_spec"] = {"dt": 0.1, "driven": False}

    write_drive(tmp_path, "a", change=change)
    report = validate([tmp_path])
    assert (report["problems"], report["remarks"]) == ([], [])


def test_a_yaw_in_some_frames_is_a_remark(tmp_path: Path):
    def change(tree: Tree) -> None:
        for i, frame in enumerate(frames(tree)):
            if i % 3:
                del frame["observations"]["state"]["yaw_rad"]

    write_drive(tmp_path, "a", change=change)
    report = validate([tmp_path])
    assert report["problems"] == []
    assert [(remark["key"], remark["found"]) for remark in report["remarks"]] == [
        ("frames[1].observations.state.yaw_rad", "none in 20 of 30 frames; targets take it from those around it")
    ]


def test_a_place_in_some_frames_is_a_remark(tmp_path: Path):
    def change(tree: Tree) -> None:
        for i, frame in enumerate(frames(tree)):
            if i % 3:
                frame["observations"]["state"] = {"yaw_rad": frame["observations"]["state"]["yaw_rad"]}

    write_drive(tmp_path, "a", frames=29, change=change)
    report = validate([tmp_path])
    assert report["problems"] == []
    assert [(remark["key"], remark["found"]) for remark in report["remarks"]] == [
        (
            "frames[1].observations.state.x_m",
            "none in 19 of 29 frames, of which training knows no speed in 19, no pose to predict from in 1",
        )
    ]


def test_gaps_and_jitter_are_remarks(tmp_path: Path):
    def change(tree: Tree) -> None:
        del tree["frames"][10:12]
        tree["frames"][5]["t"] += 0.03

    write_drive(tmp_path, "a", change=change, frames=30)
    report = validate([tmp_path])
    remarks = [(remark["key"], remark["found"]) for remark in report["remarks"]]
    assert ("frames[*].t", "1 gap(s), the longest 0.300 s after frames[9]") in remarks
    assert ("frames[*].t", "steps of 0.0700 to 0.1300 s") in remarks


def overwrite(root: Path, camera: str, rows: range, image: np.ndarray) -> None:
    for i in rows:
        (root / "a_images" / f"{i:04d}_{camera}.jpg").write_bytes(simplejpeg.encode_jpeg(image))


def test_black_images(tmp_path: Path):
    write_drive(tmp_path, "a")
    overwrite(tmp_path, "side_left", range(3, 5), np.zeros((*SIZE, 3), np.uint8))
    report = validate([tmp_path])
    assert not report["refused"]
    assert report["cameras"]["side_left"]["black"] == 2
    assert "2 of 30 without a value above 8" in report["remarks"][0]["found"]
    overwrite(tmp_path, "side_left", range(20), np.zeros((*SIZE, 3), np.uint8))
    report = validate([tmp_path])
    keys = [problem["key"] for problem in report["problems"]]
    assert "frames[0].observations.cameras.side_left" in keys


def test_a_camera_slower_than_the_frames_freezes_too(tmp_path: Path):
    """Images in every other frame, as the town records them: three of one kind from the tenth on."""

    def every_other(tree: Tree) -> None:
        for frame in frames(tree)[1::2]:
            frame["observations"]["cameras"]["front"]["image_path"] = None

    write_drive(tmp_path, "a", change=every_other)
    overwrite(tmp_path, "front", range(10, 16, 2), np.full((*SIZE, 3), 90, np.uint8))
    report = validate([tmp_path])
    (problem,) = report["problems"]
    assert problem["key"] == "frames[10].observations.cameras.front"
    assert problem["found"] == "3 equal images in a row while the car moved 3.2 m"


def test_frozen_images_are_false_only_while_the_car_moves(tmp_path: Path):
    write_drive(tmp_path, "a")
    overwrite(tmp_path, "front", range(10, 16), np.full((*SIZE, 3), 90, np.uint8))
    report = validate([tmp_path])
    assert report["refused"]
    assert report["problems"][0]["key"] == "frames[10].observations.cameras.front"
    assert report["problems"][0]["found"] == "6 equal images in a row while the car moved 4.0 m"
    assert report["cameras"]["front"]["repeated"] == 5

    def stand(tree: Tree) -> None:
        for i in range(len(frames(tree))):
            state(tree, i).update(x_m=0.0, y_m=0.0, yaw_rad=0.0, speed_mps=0.0, yaw_rate_radps=0.0)

    write_drive(tmp_path, "a", change=stand)
    overwrite(tmp_path, "front", range(30), np.full((*SIZE, 3), 90, np.uint8))
    report = validate([tmp_path])
    assert not report["refused"]
    assert report["cameras"]["front"]["repeated"] == 29


def test_files_that_are_absent_or_do_not_decode(tmp_path: Path):
    write_drive(tmp_path, "a")
    (tmp_path / "a_images" / "0007_front.jpg").unlink()
    hurt = tmp_path / "a_images" / "0008_front.jpg"
    data = hurt.read_bytes()
    hurt.write_bytes(data[:700] + data[-2:])
    report = validate([tmp_path])
    found = {problem["key"]: problem["found"] for problem in report["problems"]}
    assert "absent, the first a_images/0007_front.jpg" in found["frames[7].observations.cameras.front.image_path"]
    assert "0008_front.jpg" in found["frames[8].observations.cameras.front.image_path"]
    assert report["cameras"]["front"]["absent"] == 1
    assert report["cameras"]["front"]["present"] == 29
    headers_only = validate([tmp_path], images=False)
    assert len(headers_only["problems"]) == 1


def test_ids_and_drives_that_occur_twice(tmp_path: Path):
    write_drive(tmp_path / "one", "a")
    tree = json.loads((tmp_path / "one" / "a.json").read_text())
    write_drive(tmp_path / "two", "a", start_yaw=1.0)
    (tmp_path / "one" / "b.json").write_text(json.dumps(tree | {"episode_id": "b"}))
    report = validate([tmp_path / "one", tmp_path / "two"])
    assert [problem["file"] for problem in report["problems"]] == [str(tmp_path / "two" / "a.json")]
    assert "'a', as in" in report["problems"][0]["found"]
    assert [remark["file"] for remark in report["remarks"]] == [str(tmp_path / "one" / "b.json")]


def test_the_table_and_the_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def change(tree: Tree) -> None:
        for frame in frames(tree)[:3]:
            frame["observations"]["cameras"]["side_right"] = None

    write_drive(tmp_path, "a", change=change)
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 episode(s), 0 bad; 30 frames, 2.9 s" in said
    row = next(line for line in said.splitlines() if line.startswith("side_right"))
    assert row.split() == ["side_right", "32x48", "90.0%", "27", "0", "27", "0", "0"]
    assert main([str(tmp_path / "none")]) == 65
    assert "no such folder" in capsys.readouterr().out
    (tmp_path / "b.json").write_text("{")
    assert main([str(tmp_path), "--json"]) == 65
    report = json.loads(capsys.readouterr().out)
    assert report["refused"]
    assert [episode["verdict"] for episode in report["episodes"]] == ["good", "bad"]
    assert main([str(tmp_path / "a.json")]) == main([str(tmp_path / "a.json"), "--no-pictures"]) == 0
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 64


def test_a_split_that_leaks_is_a_problem(tmp_path: Path):
    for name in ("a", "b"):
        write_drive(tmp_path, name, source={"dataset": "d", "scene_id": "1"}, start_yaw=float(ord(name)))
    listed = {"format": "chunkwise-driving-split-1", "train": {"a": ""}, "val": {"b": ""}, "test": {}}
    (tmp_path / "_split.json").write_text(json.dumps(listed))
    report = validate([tmp_path])
    assert "come from the recording d/1" in report["problems"][0]["found"]


def overflowing(tree: Tree) -> None:
    """Speeds are not recorded, and 1e30 m in a nanosecond are more than float32 can hold."""
    for i, frame in enumerate(frames(tree)):
        frame["t"] = 1e-9 * i
        del state(tree, i)["speed_mps"]
    state(tree, 5)["x_m"] = 1e30


def test_numbers_that_overflow_are_a_problem_of_their_episode_alone(tmp_path: Path):
    write_drive(tmp_path, "a", change=overflowing, images=False)
    write_drive(tmp_path, "b", change=jump, images=False, start_yaw=1.0)
    report = validate([tmp_path], images=False)
    assert [Path(entry["file"]).name for entry in report["episodes"]] == ["a.json", "b.json"]
    first, *rest = [problem for problem in report["problems"] if "image_path" not in problem["key"]]
    assert first["file"] == str(tmp_path / "a.json")
    assert (first["key"], first["expected"]) == ("frames[5]: speed_mps", "a number that float32 can hold")
    assert {problem["file"] for problem in rest} == {str(tmp_path / "b.json")}


def test_what_cannot_be_read_is_said_once(tmp_path: Path):
    for name in "abc":
        write_drive(tmp_path, name, frames=3, start_yaw=float(ord(name)), images=False, change=bare_of_images)
    text = (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text(text.replace('"t": 0.1', '"t": NaN'))
    split = {"format": "chunkwise-driving-split-1", "train": {}, "val": {}, "test": {}}
    (tmp_path / "_split.json").write_text(json.dumps(split))
    absent = tmp_path / "absent"
    found = {
        (Path(problem["file"]).name, problem["expected"]): problem["found"]
        for problem in validate([tmp_path, absent])["problems"]
    }
    assert found["b.json", "JSON with finite numbers and unique keys"] == "NaN at key 't'"
    assert found["absent", "a folder of driving episodes"] == "no such folder"
    assert "episode 'a' is in no split" in found["_split.json", "a split of this dataset without leaks"]


def bare_of_images(tree: Tree) -> None:
    for frame in frames(tree):
        frame["observations"]["cameras"] = {}


TRAINING = ["--config", "driving/debug", "--data.image-size", "32", "48", "--data.cameras", "front", "front_left"]


@pytest.fixture
def drives(tmp_path: Path) -> Path:
    """Four good drives of 2.9 s, which no split divides yet."""
    for number in range(4):
        write_drive(tmp_path / "drives", f"d{number}", start_yaw=0.3 * number)
    return tmp_path / "drives"


def test_what_training_would_say_is_asked_of_training(drives: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(drives), *TRAINING]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "training with this config takes this dataset"
    assert "split by recording into 2 train, 1 val, 1 test episodes" in said
    assert not (drives / "_split.json").exists(), "nothing is decided by looking"
    for fields, words in (
        (["--data.val-fraction", "0", "--eval.split", "val"], "expected episodes of val (eval.split)"),
        (["--data.cameras", "rear"], "expected images of ['rear'], found cameras"),
        (["--data.waypoint-dt-s", "3", "--data.waypoint-steps", "2"], "expected waypoints that are known up to 3 s"),
    ):
        assert main([str(drives), *TRAINING, *fields, "--json"]) == 65
        report = json.loads(capsys.readouterr().out)
        assert not report["problems"], "the drives themselves are good"
        assert words in report["refusal"]
    assert main([str(drives), *TRAINING, "--data.augment.flip", "0.5"]) == 64, "of the config, as training ends"
    assert "data.augment.flip needs both sides" in capsys.readouterr().out


def test_an_image_that_does_not_decode_ends_the_trainings_that_read_it(
    drives: Path, capsys: pytest.CaptureFixture[str]
):
    hurt = drives / "d1_images" / "0008_side_left.jpg"
    hurt.write_bytes(hurt.read_bytes()[:700] + hurt.read_bytes()[-2:])
    assert main([str(drives)]) == 65
    assert main([str(drives), *TRAINING]) == 0
    capsys.readouterr()
    assert main([str(drives), *TRAINING, "--data.cameras", "front", "side_left"]) == 65
    assert "training would end at the first image that does not decode, of 1" in capsys.readouterr().out
    assert main([str(drives), *TRAINING, "--data.cameras", "front", "side_left", "--no-images"]) == 0


def test_a_training_has_one_path_and_fields_have_a_config(drives: Path, capsys: pytest.CaptureFixture[str]):
    for words, said in (
        ([str(drives), str(drives), *TRAINING], "--config is of one training, whose data.path is one of 2 PATHs"),
        ([str(drives), "--data.cameras", "front"], "fields of a config need --config"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 64
        assert said in capsys.readouterr().err
    assert main([str(drives), "--config", "qchunk/debug"]) == 64
    assert "a QChunkConfig; expected a DrivingConfig" in capsys.readouterr().err
