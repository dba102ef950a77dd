"""Waymo's End-to-End set from records that its official messages wrote, against an own calculation of the motion."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.converters.waymo_segments import split_of
from driving.data import history
from driving.data.batches import open_data
from driving.data.episodes import load_episode
from driving.data.index import pack, unpack
from driving.data.scan import scan
from driving.data.split import SPLITS
from tests.driving.converters import waymo_files
from tests.driving.converters.waymo_files import START
from tests.driving.converters.waymo_protos import OFFICIAL

TURN, FASTER = 0.3, 0.8
"""rad/s and m/s^2 of a car that is at 8 m/s when its first frame is taken."""
PAST, FUTURE = 0.25 * np.arange(-15, 1), 0.25 * np.arange(1, 21)


def pose_at(t: float) -> tuple[float, float, float]:
    """x, y, yaw in the world, by 4,000 short steps."""
    steps = (np.arange(4000) + 0.5) / 4000 * t
    speed, yaw = 8 + FASTER * steps, TURN * steps
    return float((speed * np.cos(yaw)).mean() * t), float((speed * np.sin(yaw)).mean() * t), TURN * t


def seen_from(t: float, vector: tuple[float, float]) -> tuple[float, float]:
    """A vector of the world in the vehicle frame at a time."""
    cos, sin = math.cos(TURN * t), math.sin(TURN * t)
    return cos * vector[0] + sin * vector[1], cos * vector[1] - sin * vector[0]


def states(now: float, times: np.ndarray) -> np.ndarray:
    """Position, velocity and acceleration at some times, seen from now: (n, 6)."""
    x, y, _ = pose_at(now)
    rows = []
    for t in (now + times).tolist():
        there, yaw, speed = pose_at(t), TURN * t, 8 + FASTER * t
        cos, sin = math.cos(yaw), math.sin(yaw)
        along, across = FASTER, speed * TURN
        acceleration = along * cos - across * sin, along * sin + across * cos
        row = seen_from(now, (there[0] - x, there[1] - y))
        rows.append((*row, *seen_from(now, (speed * cos, speed * sin)), *seen_from(now, acceleration)))
    return np.array(rows)


def record(frame: int, *, segment: str = "a0b1c2", future: bool = True, **past: Any) -> bytes:
    """An E2EDFrame as the dataset has it: whole histories, identity poses, no velocity; fields of `past` replace."""
    message, now = OFFICIAL["E2EDFrame"](), 0.1 * frame
    message.frame.context.name = f"{segment}-{frame:03d}"
    message.frame.timestamp_micros = START + 100_000 * frame
    identity = np.eye(4).ravel().tolist()
    message.frame.pose.transform.extend(identity)
    for number in (1, 2, 3):
        image = message.frame.images.add(name=number, image=waymo_files.jpeg(frame, number))
        image.pose.transform.extend(identity)
        image.velocity.v_x = 0.0
        calibration = message.frame.context.camera_calibrations.add(name=number)
        calibration.intrinsic.extend(waymo_files.INTRINSICS)
        calibration.extrinsic.transform.extend(waymo_files.camera_to_vehicle("FRONT"))
        calibration.width, calibration.height = waymo_files.SIZE[1], waymo_files.SIZE[0]
    names = ("pos_x", "pos_y", "vel_x", "vel_y", "accel_x", "accel_y")
    columns = dict(zip(names, states(now, PAST).T, strict=True)) | past
    for name, values in columns.items():
        getattr(message.past_states, name).extend(values)
    if future:
        ahead = states(now, FUTURE)
        message.future_states.pos_x.extend(ahead[:, 0])
        message.future_states.pos_y.extend(ahead[:, 1])
    message.intent = 2
    return message.SerializeToString()


def write(file: Path, *records: bytes) -> Path:
    return waymo_files.write_v1(file, frames=list(records))


def converted(source: Path) -> Path:
    out = source.parent / f"{source.stem}_out"
    convert(source, out, format="waymo_e2e", settings=ConvertSettings(), report=lambda _: None)
    return out


def test_motion_is_that_of_the_history_and_no_pose_is_believed(tmp_path: Path):
    source = write(tmp_path / "a.tfrecord", *(record(frame) for frame in range(3)))
    episode = load_episode(converted(source) / "a0b1c2.json")
    assert np.isnan(episode.pose).all()
    assert np.isnan(episode.camera_pose).all()
    np.testing.assert_allclose(episode.speed_mps, [8, 8.08, 8.16], atol=1e-5)
    np.testing.assert_allclose(episode.yaw_rate_radps, TURN, atol=1e-5)
    for frame, found in enumerate(episode.history):
        assert found is not None
        assert found.dt_s == 0.25
        np.testing.assert_allclose(found.states, states(0.1 * frame, PAST), atol=2e-6, rtol=1e-6)
    tree = json.loads((tmp_path / "a_out/a0b1c2.json").read_text())
    assert [frame["name"] for frame in tree["frames"]] == ["a0b1c2-000", "a0b1c2-001", "a0b1c2-002"]


def test_every_frame_has_its_second_of_history_and_a_window_with_a_score(tmp_path: Path):
    source = write(tmp_path / "a.tfrecord", *(record(frame) for frame in (0, 1, 30)))
    config = DataConfig(path=str(converted(source)), waypoint_steps=20, waypoint_dt_s=0.25, cameras=("front",))
    data = open_data(config, "all")
    batch = data.batch(data.anchors)
    assert batch["past_motion_valid"].all()
    expected = [0.25 * FASTER, 0.5 * FASTER, FASTER, 0, 0, 0]  # also of the first frame, and of one after a gap
    np.testing.assert_allclose(batch["past_motion"], [expected] * 3, atol=2e-5)
    assert batch["waypoint_valid"].all()
    wanted = [states(t, FUTURE)[:, :2] for t in (0.0, 0.1, 3.0)]
    np.testing.assert_allclose(batch["waypoints"], wanted, atol=1e-4)
    index = unpack(pack(data.index), source="a pack")
    np.testing.assert_array_equal(index.history, data.index.history)
    np.testing.assert_array_equal(index.one(0).history_counts, [16, 16, 16])


def test_a_history_may_lack_velocity_and_a_standing_car_does_not_turn(tmp_path: Path):
    nothing: dict[str, Any] = {name: [] for name in ("vel_x", "vel_y", "accel_x", "accel_y")}
    still = dict.fromkeys(("vel_x", "vel_y"), [0.01] * 16)
    source = write(tmp_path / "a.tfrecord", record(0, **nothing), record(1, **still), record(2, vel_x=[0.3] * 16))
    episode = load_episode(converted(source) / "a0b1c2.json")
    np.testing.assert_allclose(episode.speed_mps, [np.nan, 0.01, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(episode.yaw_rate_radps[:2], [np.nan, 0.0])
    data = open_data(DataConfig(path=str(tmp_path / "a_out"), cameras=("front",), waypoint_steps=5), "all")
    batch = data.batch(data.anchors)
    np.testing.assert_array_equal(batch["past_motion_valid"][:, 0], [False, True, True])


def test_motion_by_hand():
    """Reverse is negative; a velocity of 0.3 m/s has no direction; a NaN is unknown, and so is what needs it."""
    velocity = [(-2.0, 0.0), (-2.0, -0.5), (0.3, 0.0), (0.05, 0.0), (0.0, 0.0), (np.nan, 0.0)]
    given = np.concatenate([np.zeros((6, 2)), velocity, np.zeros((6, 2))], axis=1)[None]
    speed, speed_known, rate, rate_known = history.motion(given, 0.25)
    np.testing.assert_allclose(speed[0], [-2, -math.hypot(2, 0.5), 0.3, 0.05, 0, 0])
    assert speed_known[0].tolist() == [True] * 5 + [False]
    np.testing.assert_allclose(rate[0], [0, math.atan2(0.5, 2) / 0.25, 0, 0, 0, 0])
    assert rate_known[0].tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("past", "words"),
    [
        ({"pos_y": [0.0]}, "past_states.pos_x, pos_y: expected 16 of both, as of pos_x, found 16 and 1"),
        ({"accel_x": []}, "past_states.accel_x, pos_y: expected 16 of both, as of pos_x, found 0 and 16"),
        ({"vel_x": [math.nan] * 16}, "past_states.vel_x, vel_y: expected finite numbers, found NaN or Inf"),
    ],
)
def test_histories_that_are_none(tmp_path: Path, past: dict[str, Any], words: str):
    words = words.replace("accel_x, pos_y", "accel_x, accel_y")
    with pytest.raises(DataError, match=words.replace(".", r"\.")):
        converted(write(tmp_path / "a.tfrecord", record(0, **past)))


def test_the_official_split_is_kept(tmp_path: Path):
    """Real files are named training_2025..., val_2025... and test_2025...; test frames have no future."""
    root = tmp_path / "set"
    start = 0
    for name, count, future in (("training_20250403", 5, True), ("val_20250421", 2, True), ("test_20250421", 3, False)):
        for i in range(count):
            frames = [record(start + frame, segment=f"{name[:4]}{i}", future=future) for frame in (0, 1)]
            write(root / f"{name}.tfrecord-{i:05d}-of-00009", *frames)
            start += 2
    out = converted(root)
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        data = open_data(DataConfig(path=str(out), cameras=("front",), val_fraction=0.5, test_fraction=0.0), split)
        found[split] = [data.index.ids[i] for i in data.episodes]
        assert any("as the dataset itself says" in note for note in data.notes) == (split == "train")
    assert found["train"] == [f"trai{i}" for i in range(5)]
    assert found["val"] == ["val_0", "val_1"]
    assert found["test"] == [f"test{i}" for i in range(3)]
    assert scan(out)[0].splits[0] == "testing"  # pyright: ignore[reportOptionalMemberAccess]


def test_parts_that_are_not_there_are_drawn_from_training(tmp_path: Path):
    root = tmp_path / "set"
    for i in range(8):
        split = "training" if i < 6 else "validation"
        write(root / split / f"a.tfrecord-{i:05d}", record(i, segment=f"s{i}"))
    config = DataConfig(path=str(converted(root)), cameras=("front",), val_fraction=0.6, test_fraction=0.3)
    sizes = {split: len(open_data(config, split).episodes) for split in SPLITS}
    assert sizes == {"train": 4, "val": 2, "test": 2}, "0.3 of 6 recordings for testing, nothing more for validation"


def test_the_folder_that_is_converted_may_be_the_split(tmp_path: Path):
    """SOURCE is validation/ itself; another folder's name that only begins so is none."""
    for folder, number, expected in (("validation", 0, "validation"), ("values", 1, "")):
        source = tmp_path / folder
        write(source / "a.tfrecord-00000", record(0, segment=f"s{number}"))
        convert(source, tmp_path / f"out_{folder}", format="waymo_e2e", report=lambda _: None)
        assert scan(tmp_path / f"out_{folder}")[0].splits == (expected,)  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("training_20250811.tfrecord-00000-of-00263", "training"),
        ("val_20250811.tfrecord-00000", "validation"),
        ("set/testing_location/segment-1.tfrecord", "testing"),
        ("training/values.tfrecord", "training"),
        ("trainer/segment-1.tfrecord", None),
        ("values/test2.tfrecord", None),
    ],
)
def test_a_split_is_a_word_of_a_name(path: str, split: str | None):
    assert split_of(path) == split


def test_a_segment_of_two_splits_is_refused(tmp_path: Path):
    for split, frame in (("training", 0), ("val", 1)):
        write(tmp_path / "set" / f"{split}.tfrecord", record(frame))
    with pytest.raises(DataError, match=r"expected a segment in files of one split, found 'training' in training\.tfr"):
        converted(tmp_path / "set")


def test_an_empty_file_beside_whole_ones_is_a_problem(tmp_path: Path):
    write(tmp_path / "set/training.tfrecord-0", record(0))
    write(tmp_path / "set/training.tfrecord-1")
    with pytest.raises(DataError, match=r"training\.tfrecord-1: expected at least one record, found 0 bytes"):
        converted(tmp_path / "set")


def test_a_linked_split_is_refused_by_name_or_converted_where_it_is_allowed(tmp_path: Path):
    """It was left out without a word, beside a folder that is no link."""
    write(tmp_path / "set/val/val_a.tfrecord-0", record(0, segment="here"))
    write(tmp_path / "disk/training/a.tfrecord-0", record(1, segment="there"))
    (tmp_path / "set/training").symlink_to(tmp_path / "disk/training")
    with pytest.raises(DataError, match=rf"training: a path that leads out .*--data\.allow-links-to {tmp_path}/disk"):
        converted(tmp_path / "set")
    allowed = ConvertSettings(allow_links_to=(str(tmp_path / "disk"),))
    convert(tmp_path / "set", tmp_path / "both", format="waymo_e2e", settings=allowed, report=lambda _: None)
    index = scan(tmp_path / "both")[0]
    assert index is not None
    assert dict(zip(index.ids, index.splits, strict=True)) == {"here": "validation", "there": "training"}
