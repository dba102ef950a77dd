"""Batches: what they hold by time and with parts missing, and that batch i is a function of (seed, i)."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.errors import ConfigError, DataError
from chunkwise.files import budget
from driving.config import CAMERAS, AugmentConfig, DataConfig
from driving.data.augment import draw
from driving.data.batch import Batch
from driving.data.batches import make_batches, open_data
from driving.data.images import CachedImages, FileImages
from driving.data.tables import PAST_S
from driving.data.targets import relative_pose
from driving.tasks.waypoints import inputs
from tests.driving.drives import SIZE, SPEED, TURN, pose_at, write_drive


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for i in range(4):
        write_drive(folder, f"e{i}", frames=25, start_yaw=0.7 * i)
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `make_batches` reads of a config."""

    run: RunConfig
    train: TrainConfig
    data: DataConfig


def config(root: Path, seed: int = 0, batch_size: int = 6, **data: Any) -> Settings:
    data = {"val_fraction": 0.25, "test_fraction": 0.0, "image_size": SIZE} | data
    return Settings(
        run=RunConfig(seed=seed),
        train=TrainConfig(steps=1, batch_size=batch_size),
        data=DataConfig(path=str(root), **data),
    )


def assert_equal(one: Batch, other: Batch) -> None:
    assert set(one) == set(other)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def different(one: Batch, other: Batch) -> bool:
    return not np.array_equal(one["frame"], other["frame"]) or not np.array_equal(one["episode"], other["episode"])


AUGMENT = AugmentConfig(crop=0.2, brightness=0.2, camera_dropout=0.2, flip=0.5)


def test_the_types_of_a_batch(root: Path):
    batch = next(make_batches(config(root, offsets_s=(-0.5, 0.0, 0.3))))
    expected = {
        "images": ((6, 3, 5, 32, 48, 3), np.uint8),
        "image_valid": ((6, 3, 5), np.bool_),
        "time_valid": ((6, 3), np.bool_),
        "t": ((6, 3), np.float64),
        "camera_t": ((6, 3, 5), np.float64),
        "intrinsics": ((6, 3, 5, 3, 3), np.float32),
        "extrinsics": ((6, 3, 5, 4, 4), np.float32),
        "calibration_valid": ((6, 3, 5), np.bool_),
        "speed_mps": ((6, 3), np.float32),
        "speed_valid": ((6, 3), np.bool_),
        "yaw_rad": ((6, 3), np.float32),
        "yaw_valid": ((6, 3), np.bool_),
        "yaw_rate_radps": ((6, 3), np.float32),
        "yaw_rate_valid": ((6, 3), np.bool_),
        "past_motion": ((6, 6), np.float32),
        "past_motion_valid": ((6, 6), np.bool_),
        "relative_pose": ((6, 3, 3), np.float32),
        "relative_pose_valid": ((6, 3), np.bool_),
        "waypoints": ((6, 20, 2), np.float32),
        "waypoint_valid": ((6, 20), np.bool_),
        "route_command": ((6,), np.int32),
        "episode": ((6,), np.int32),
        "frame": ((6,), np.int32),
    }
    assert {key: (value.shape, value.dtype.type) for key, value in batch.items()} == expected  # pyright: ignore[reportAttributeAccessIssue]


def test_the_values_of_a_batch(root: Path):
    data = open_data(config(root, offsets_s=(-0.5, 0.0, 0.3)).data, "all")
    assert data.config.anchor == 1
    rows = np.array([25 + 10, 25 + 2, 2 * 25 + 24])  # e1 in the middle, e1 near its start, the end of e2
    batch = data.batch(rows)
    np.testing.assert_array_equal(batch["episode"], [1, 1, 2])
    np.testing.assert_array_equal(batch["frame"], [10, 2, 24])
    np.testing.assert_array_equal(batch["time_valid"], [[True, True, True], [False, True, True], [True, True, False]])
    np.testing.assert_allclose(batch["t"], [[0.5, 1.0, 1.3], [0.0, 0.2, 0.5], [1.9, 2.4, 0.0]])
    np.testing.assert_array_equal(batch["image_valid"], np.repeat(batch["time_valid"][..., None], 5, axis=2))
    for b, n in np.argwhere(batch["time_valid"]).tolist():
        expected = pose_at(batch["t"][b, n], 0.7 * batch["episode"][b])
        np.testing.assert_allclose(batch["yaw_rad"][b, n], expected[2], rtol=1e-6)
        origin = np.array(pose_at(batch["t"][b, 1], 0.7 * batch["episode"][b]))
        np.testing.assert_allclose(batch["relative_pose"][b, n], relative_pose(origin, np.array(expected)), atol=1e-5)
        assert batch["speed_mps"][b, n] == np.float32(SPEED)
        assert batch["yaw_rate_radps"][b, n] == np.float32(TURN)
        for k in range(5):
            shown = data.sample(int(data.tables.rows[rows[b], n]))["images_by_cam"][CAMERAS[k]]  # pyright: ignore
            np.testing.assert_array_equal(batch["images"][b, n, k], shown)
    assert (batch["images"][~batch["image_valid"]] == 0).all()
    np.testing.assert_array_equal(batch["relative_pose"][:, 1], 0)
    assert batch["waypoint_valid"].sum(1).tolist() == [14, 20, 0]


def test_changes_are_known_where_both_moments_are(tmp_path: Path):
    """Frames at 10 Hz: 0.25 s before frame 2 is frame 0, within 0.1 s; nobody knows the speed of frame 6.

    0.25 s before frame 9 lies between frames 6 and 7: of two that are equally near the earlier is taken.
    """

    def forget(tree: dict[str, Any]) -> None:
        tree["frames"][6]["observations"]["state"]["speed_mps"] = None
        del tree["frames"][6]["observations"]["state"]["x_m"], tree["frames"][6]["observations"]["state"]["y_m"]

    write_drive(tmp_path, "a", frames=13, change=forget)
    data = open_data(config(tmp_path, offsets_s=(0.0, 0.1)).data, "all")
    batch = data.batch(np.array([1, 2, 5, 6, 9, 11, 12]))
    speed = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    turn = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    np.testing.assert_array_equal(batch["past_motion_valid"], np.concatenate([speed, turn], axis=1).astype(bool))
    seen = inputs(batch, 0)
    assert seen["known_motion"][3].tolist() == [False, True, False, False, False, True, True, False]
    assert seen["motion"][3].tolist() == [0.0, np.float32(TURN)]


def test_changes_are_from_then_to_now(tmp_path: Path):
    """A car that gains 2 m/s a second is 1 m/s faster than half a second before; its yaw rate falls by 0.1 a second."""

    def speed_up(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            t = frame["t"]
            frame["observations"]["state"] |= {"speed_mps": 5 + 2 * t, "yaw_rate_radps": 0.3 - 0.1 * t}

    write_drive(tmp_path, "a", frames=13, change=speed_up)
    data = open_data(config(tmp_path).data, "all")
    seconds = np.array(PAST_S)
    assert data.tables.past_motion_valid[12].all()
    np.testing.assert_allclose(data.tables.past_motion[12], [*(2 * seconds), *(-0.1 * seconds)], atol=0.11)
    assert (data.tables.past_motion[12, :3] > 0).all()
    assert (data.tables.past_motion[12, 3:] < 0).all()


def test_intrinsics_follow_the_image_to_another_size(root: Path):
    data = open_data(config(root, image_size=(64, 24)).data, "all")
    batch = data.batch(np.array([3]))
    assert batch["images"].shape[3:5] == (64, 24)
    # 32 x 48 images, fx 40, fy 42, cx 24.5, cy 15.5: twice as high, half as wide.
    np.testing.assert_allclose(batch["intrinsics"][0, 0, 0], [[20, 0, 12.25], [0, 84, 31], [0, 0, 1]])


def test_batches_are_a_function_of_seed_and_step(root: Path):
    one = make_batches(config(root, augment=AUGMENT))
    first = [next(one) for _ in range(4)]
    other = make_batches(config(root, augment=AUGMENT))
    for batch in first:
        assert_equal(batch, next(other))
    assert_equal(first[2], next(make_batches(config(root, augment=AUGMENT), start_step=2)))
    assert different(first[0], first[1])
    assert different(first[0], next(make_batches(config(root, seed=1, augment=AUGMENT))))
    far = 10**9 + 7
    assert_equal(
        next(make_batches(config(root, augment=AUGMENT), start_step=far)),
        next(make_batches(config(root, augment=AUGMENT), start_step=far)),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(root: Path, threads: int):
    plain = make_batches(config(root, augment=AUGMENT), start_step=5)
    threaded = make_batches(config(root, augment=AUGMENT, read_threads=threads), start_step=5)
    for _ in range(12):
        assert_equal(next(plain), next(threaded))


def test_shards_share_one_stream(root: Path):
    whole = next(make_batches(config(root, augment=AUGMENT), start_step=3))
    for count in (2, 3):
        parts = [
            next(make_batches(config(root, augment=AUGMENT), start_step=3, shard=p, num_shards=count))
            for p in range(count)
        ]
        joined = {key: np.concatenate([part[key] for part in parts]) for key in whole}
        assert_equal(whole, joined)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="multiple of the number of shards"):
        make_batches(config(root), num_shards=4)


def test_an_epoch_shows_every_anchor_once(root: Path):
    data = open_data(config(root).data)
    batches = data.batches(seed=0, batch_size=5)
    epochs = []
    for _ in range(2):
        seen = [next(batches) for _ in range(15)]
        epochs.append([(e, f) for batch in seen for e, f in zip(batch["episode"], batch["frame"], strict=True)])
        assert len(set(epochs[-1])) == 75 == len(data.anchors)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("how", ["absent", "null", "null path"])
def test_a_frame_without_a_camera_is_kept_and_masked(tmp_path: Path, how: str):
    def change(tree: dict[str, Any]) -> None:
        cameras = tree["frames"][3]["observations"]["cameras"]
        if how == "absent":
            del cameras["side_left"]
        elif how == "null":
            cameras["side_left"] = None
        else:
            cameras["side_left"]["image_path"] = None
        tree["frames"][4]["observations"] = {"state": tree["frames"][4]["observations"]["state"]}

    write_drive(tmp_path, "a", frames=6, change=change)
    data = open_data(config(tmp_path).data, "all")
    assert data.anchors.tolist() == [0, 1, 2, 3, 5]
    batch = data.batch(np.array([2, 3, 4]))
    assert batch["images"].shape == (3, 1, 5, 32, 48, 3)
    np.testing.assert_array_equal(
        batch["image_valid"][:, 0], [[True] * 5, [True, True, True, False, True], [False] * 5]
    )
    assert (batch["images"][1, 0, 3] == 0).all()
    assert not batch["calibration_valid"][1, 0, 3]
    assert batch["waypoint_valid"].sum(1).tolist() == [3, 2, 1]  # frames without images still tell where the car was
    assert len(open_data(config(tmp_path, min_cameras=5).data, "all").anchors) == 4
    assert len(open_data(config(tmp_path, min_cameras=0).data, "all").anchors) == 6


def test_a_camera_that_no_episode_has_is_masked(root: Path):
    data = open_data(config(root, cameras=("rear", "front")).data, "all")
    batch = data.batch(np.array([0]))
    assert batch["image_valid"][0, 0].tolist() == [False, True]
    assert batch["calibration_valid"][0, 0].tolist() == [False, True]
    assert data.notes[0] == f"data.cameras: no episode has ['rear'], masked in every sample; found {sorted(CAMERAS)}"
    assert not any("data.cameras" in note for note in open_data(config(root).data, "all").notes)
    with pytest.raises(DataError, match="rear"):
        open_data(config(root, cameras=("rear",)).data, "all")


def test_absent_files_are_refused_or_masked_and_counted(tmp_path: Path):
    write_drive(tmp_path, "a", frames=6)
    (tmp_path / "a_images" / "0002_front.jpg").unlink()
    (tmp_path / "a_images" / "0005_side_left.jpg").unlink()
    with pytest.raises(DataError, match=r"frames\[2\].observations.cameras.front.image_path") as refused:
        open_data(config(tmp_path).data, "all")
    assert "2 problem(s)" in str(refused.value)
    assert "a_images/0005_side_left.jpg" in str(refused.value)
    data = open_data(config(tmp_path, missing_files="mask").data, "all")
    assert any(note.startswith("2 images are named") for note in data.notes)
    batch = data.batch(np.array([2, 5]))
    assert batch["image_valid"].sum() == 8
    assert not batch["image_valid"][0, 0, 0]
    assert not batch["image_valid"][1, 0, 3]


def test_an_image_that_goes_away_while_training_is_an_error_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    write_drive(tmp_path, "a", frames=4)
    data = open_data(config(tmp_path).data, "all")
    file = tmp_path / "a_images" / "0002_front.jpg"
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(DataError, match=r"0002_front.jpg.* up to 4 tries"):
        data.batch(np.array([2]))
    file.write_bytes(whole[: 2 * len(whole) // 3])
    with pytest.raises(DataError, match=r"0002_front.jpg: changed since .* found content \w+ of \d+ bytes"):
        data.batch(np.array([2]))


def test_a_read_error_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    write_drive(tmp_path, "a", frames=4)
    data = open_data(config(tmp_path).data, "all")
    expected = data.batch(np.array([1]))
    failures, read = 2, budget.read_bytes

    def flaky(file: str, name: str) -> bytes:
        nonlocal failures
        if file.endswith("0001_front.jpg") and failures:
            failures -= 1
            raise OSError(5, "Input/output error")
        return read(file, name)

    monkeypatch.setattr(budget, "read_bytes", flaky)
    assert_equal(data.batch(np.array([1])), expected)
    assert failures == 0


def test_bad_episodes_are_all_in_one_error_or_skipped_below_one_percent(tmp_path: Path):
    for i in range(2):
        write_drive(tmp_path, f"e{i}", frames=3)
    write_drive(tmp_path, "x", frames=3, change=lambda tree: tree.update(domain="sea"))
    write_drive(tmp_path, "y", frames=3, change=lambda tree: tree.update(episode_id="e1"))
    with pytest.raises(DataError) as refused:
        open_data(config(tmp_path).data, "all")
    for words in ("2 problem(s)", "x.json: domain", "y.json: episode_id", "as in e1.json"):
        assert words in str(refused.value)
    with pytest.raises(DataError, match="2 of 4 episodes are bad"):
        open_data(config(tmp_path, on_bad="skip").data, "all")


def test_a_dataset_without_episodes_or_images(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder"):
        open_data(config(tmp_path / "none").data)
    with pytest.raises(DataError, match="found none"):
        open_data(config(tmp_path).data)
    write_drive(tmp_path, "a", frames=3, change=lambda t: [f["observations"].pop("cameras") for f in t["frames"]])
    with pytest.raises(DataError, match="expected images of"):
        open_data(config(tmp_path).data, "all")


def test_incomplete_samples_are_masked_or_dropped(root: Path):
    masked = open_data(config(root, offsets_s=(0.0, 1.0)).data, "all")
    dropped = open_data(config(root, offsets_s=(0.0, 1.0), incomplete="drop").data, "all")
    assert len(masked.anchors) == 100
    assert len(dropped.anchors) == 4 * 15
    assert dropped.batch(dropped.anchors)["time_valid"].all()


def test_the_time_of_each_exposure_is_in_the_extrinsics(tmp_path: Path):
    """Cameras fire up to 25 ms apart, 0.75 m at 15 m/s; the matrices lead to the vehicle at the frame's time."""

    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            cameras = frame["observations"]["cameras"]
            cameras["front_left"]["t_offset_s"] = 0.05
            cameras["side_left"]["t_offset_s"] = 0.05
            x, y, yaw = pose_at(frame["t"] + 0.05)
            cameras["side_left"]["pose"] = {"x_m": float(x), "y_m": float(y), "yaw_rad": float(yaw)}

    write_drive(tmp_path, "a", frames=6, change=change)
    write_drive(tmp_path, "b", frames=6)
    data = open_data(config(tmp_path).data, "all")
    late, plain = data.batch(np.array([3])), data.batch(np.array([9]))
    np.testing.assert_allclose(late["camera_t"][0, 0], [0.3, 0.35, 0.3, 0.35, 0.3])
    x, y, yaw = relative_pose(np.array(pose_at(0.3)), np.array(pose_at(0.35)))
    moved = np.array([[np.cos(yaw), -np.sin(yaw), 0, x], [np.sin(yaw), np.cos(yaw), 0, y], [0, 0, 1, 0], [0, 0, 0, 1]])
    for k, shift in enumerate([np.eye(4), moved, np.eye(4), moved, np.eye(4)]):
        np.testing.assert_allclose(late["extrinsics"][0, 0, k], shift @ plain["extrinsics"][0, 0, k], atol=1e-5)
    assert x > 0.39


def test_a_recorded_pose_of_an_exposure_counts_more_than_speed_and_yaw_rate(tmp_path: Path):
    """The car skids: 0.5 m ahead and 0.2 m to the left of where its frame is, turned by 0.1."""

    def change(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            camera, (x, y, yaw) = frame["observations"]["cameras"]["side_left"], pose_at(frame["t"])
            place = {"x_m": x + 0.5 * np.cos(yaw) - 0.2 * np.sin(yaw), "y_m": y + 0.5 * np.sin(yaw) + 0.2 * np.cos(yaw)}
            camera |= {"t_offset_s": 0.05, "pose": {**place, "yaw_rad": yaw + 0.1}}

    write_drive(tmp_path, "a", frames=6, change=change)
    write_drive(tmp_path, "b", frames=6)
    data = open_data(config(tmp_path).data, "all")
    late, plain = data.batch(np.array([3])), data.batch(np.array([9]))
    c, s = np.cos(0.1), np.sin(0.1)
    moved = np.array([[c, -s, 0, 0.5], [s, c, 0, 0.2], [0, 0, 1, 0], [0, 0, 0, 1]])
    side = CAMERAS.index("side_left")
    np.testing.assert_allclose(late["extrinsics"][0, 0, side], moved @ plain["extrinsics"][0, 0, side], atol=1e-5)


def test_waypoints_come_from_the_episode_or_from_poses(tmp_path: Path):
    def change(tree: dict[str, Any]) -> None:
        for i, frame in enumerate(tree["frames"]):
            if i != 2:
                frame["expert"] = {"waypoints": [[float(j), 7.0] for j in range(20)]}

    write_drive(tmp_path, "a", frames=25, change=change)
    expert = open_data(config(tmp_path).data, "all").batch(np.array([1, 2]))
    poses = open_data(config(tmp_path, waypoint_source="poses").data, "all").batch(np.array([1, 2]))
    np.testing.assert_array_equal(expert["waypoints"][0], [[j, 7.0] for j in range(20)])
    np.testing.assert_array_equal(expert["waypoints"][1], poses["waypoints"][1])  # this frame lists none
    ahead = relative_pose(np.array(pose_at(0.1)), np.array(pose_at(2.1)))
    np.testing.assert_allclose(poses["waypoints"][0, 19], ahead[:2], atol=1e-4)


def test_episode_fraction_nests(tmp_path: Path):
    for i in range(4):
        write_drive(tmp_path, f"e{i}", frames=2)
    members = [
        set(open_data(config(tmp_path, episode_fraction=f, val_fraction=0.0).data).episodes.tolist())
        for f in (0.1, 0.5, 1.0)
    ]
    assert [len(m) for m in members] == [1, 2, 4]
    assert members[0] < members[1] < members[2]


def test_the_cache_keeps_its_budget_and_changes_nothing(root: Path):
    data = open_data(config(root).data, "all")
    inner = data.images
    assert isinstance(inner, FileImages)
    nbytes = 32 * 48 * 3
    cache = CachedImages(inner, 7 * nbytes + 100)
    cached = dataclasses.replace(data, images=cache)
    rows = data.anchors[:6]
    for _ in range(3):
        assert_equal(cached.batch(rows), data.batch(rows))
        assert cache.bytes == 7 * nbytes
    assert isinstance(open_data(config(root, cache_mb=1).data, "all").images, CachedImages)


def test_the_fingerprint_sees_content_and_not_the_place(tmp_path: Path):
    write_drive(tmp_path / "one", "a", frames=4)
    before = open_data(config(tmp_path / "one").data, "all").fingerprint()
    (tmp_path / "one").rename(tmp_path / "two")
    assert open_data(config(tmp_path / "two").data, "all").fingerprint() == before
    write_drive(tmp_path / "two", "a", frames=4, start_yaw=0.1)
    after = open_data(config(tmp_path / "two").data, "all").fingerprint()
    assert after["manifest"] != before["manifest"], "other content of as many frames"


def test_the_manifest_of_a_split_is_of_its_own_drives(root: Path):
    """So that a training run goes on where a drive was added for the test alone."""
    data = open_data(config(root).data, "train")
    assert 0 < len(data.episodes) < len(data.index.ids)
    other = next(i for i in range(len(data.index.ids)) if i not in data.episodes)

    def manifest(changed: int) -> str:
        hashes = ["f" * 64 if i == changed else known for i, known in enumerate(data.index.content_hashes)]
        index = dataclasses.replace(data.index, content_hashes=type(data.index.content_hashes)(hashes))
        return dataclasses.replace(data, index=index).fingerprint()["manifest"]

    assert manifest(other) == data.fingerprint()["manifest"] != manifest(int(data.episodes[0]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offsets_s", (0.5, 1.0)),
        ("offsets_s", (0.5, 0.0)),
        ("cameras", ()),
        ("cameras", ("front", "front")),
        ("image_size", (0, 4)),
        ("val_fraction", 1.0),
        ("episode_fraction", 0.0),
    ],
)
def test_settings_that_make_no_sense(field: str, value: Any):
    with pytest.raises(ValueError, match=field):
        DataConfig(path="x", **{field: value})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_missing_nothing_is_nan_and_what_is_masked_is_zero(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)

    def change(tree: dict[str, Any]) -> None:
        tree["frames"] = [frame for frame in tree["frames"] if rng.random() < 0.8] or tree["frames"][:1]
        lost = [key for key in tree["frames"][0]["observations"]["state"] if rng.random() < 0.3]
        for frame in tree["frames"]:
            seen = frame["observations"]
            for name in list(seen["cameras"]):
                how = rng.integers(6)
                if how == 0:
                    seen["cameras"][name] = None
                elif how == 1:
                    del seen["cameras"][name]["intrinsics"]
            for key in lost if rng.random() < 0.7 else []:
                seen["state"][key] = None
            if rng.random() < 0.2:
                del seen["state"]
            if rng.random() < 0.3:
                frame["expert"] = {"waypoints": [[1.0, 2.0]] * int(rng.integers(0, 25))}

    write_drive(tmp_path, "a", frames=14, change=change)
    tuned = config(tmp_path, offsets_s=(-0.3, 0.0, 0.2), min_cameras=0, tolerance_s=0.02, augment=AUGMENT).data
    data = open_data(tuned, "all")
    draws = draw([(0, i) for i in range(len(data.anchors))], seed=seed, times=3, cameras=5)
    batch = data.batch(data.anchors, draws)
    assert all(np.isfinite(value).all() for value in batch.values())  # pyright: ignore[reportArgumentType, reportCallIssue]
    for key, mask in (
        ("images", "image_valid"),
        ("t", "time_valid"),
        ("speed_mps", "speed_valid"),
        ("yaw_rad", "yaw_valid"),
        ("yaw_rate_radps", "yaw_rate_valid"),
        ("relative_pose", "relative_pose_valid"),
        ("waypoints", "waypoint_valid"),
    ):
        assert (batch[key][~batch[mask]] == 0).all(), key
    eye = np.broadcast_to(np.eye(4), batch["extrinsics"].shape)
    np.testing.assert_array_equal(batch["extrinsics"][~batch["calibration_valid"]], eye[~batch["calibration_valid"]])
