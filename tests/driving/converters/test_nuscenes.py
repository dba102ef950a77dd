import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from chunkwise.data.convert import Jobs
from chunkwise.errors import ConfigError, DataError
from driving.config import DataConfig
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.converters.nuscenes import CAMERA_MAP, NuscenesConverter
from driving.data.batches import open_data
from driving.data.episodes import Episode, load_episode
from driving.validate import validate
from tests.driving.converters import test_nuscenes as test_module

SPEED, TURN, RADIUS = 8.0, 0.4, 20.0
START = 1_532_402_927_600_000  # microseconds
SIZE = (36, 64)
NAMES = ("front", "front_left", "front_right", "rear", "side_left", "side_right")
DELAYS = {"CAM_FRONT": 0.012, "CAM_FRONT_RIGHT": 0.02, "CAM_BACK_RIGHT": 0.028, "CAM_BACK": 0.037}
DELAYS |= {"CAM_BACK_LEFT": 0.047, "CAM_FRONT_LEFT": 0.004}
"""Seconds from a sample's timestamp to each camera's."""
PERIOD = 1 / 12
SAMPLES = 4  # key frames, every sixth camera frame


def pose_at(seconds: float) -> tuple[float, float, float]:
    yaw = 2.0 + TURN * seconds
    return 600 + RADIUS * (math.sin(yaw) - math.sin(2)), 1600 - RADIUS * (math.cos(yaw) - math.cos(2)), yaw


def quaternion(yaw: float) -> list[float]:
    return [math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]


def jpeg(number: int, camera: int) -> bytes:
    image = np.full((*SIZE, 3), (30 * camera, 7 * number, 60), np.uint8)
    return simplejpeg.encode_jpeg(image, quality=95, colorspace="RGB")


def write(root: Path, *, version: str = "v1.0-mini", scenes: int = 1) -> Path:
    """Tables and images of scenes with one car each on a circle; LiDAR and radar rows as in the real tables."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in ("scene", "sample", "sample_data", "ego_pose")}
    tables["sensor"] = [{"token": f"s_{c}", "channel": c, "modality": "camera"} for c in CAMERA_MAP]
    tables["sensor"].append({"token": "s_LIDAR_TOP", "channel": "LIDAR_TOP", "modality": "lidar"})
    tables["calibrated_sensor"] = [
        {
            "token": f"k_{c}",
            "sensor_token": f"s_{c}",
            "translation": [1.7, 0.1, 1.5],
            # The view along x of the vehicle: camera x is -y of the vehicle, camera y is -z.
            "rotation": [0.5, -0.5, 0.5, -0.5],
            "camera_intrinsic": [[1266.4, 0.0, 816.2], [0.0, 1267.4, 491.5], [0.0, 0.0, 1.0]],
        }
        for c in CAMERA_MAP
    ]
    lidar = {"token": "k_LIDAR_TOP", "sensor_token": "s_LIDAR_TOP", "camera_intrinsic": []}
    tables["calibrated_sensor"].append({**lidar, "translation": [0.9, 0, 1.8], "rotation": [1, 0, 0, 0]})
    for scene in range(scenes):
        _add_scene(root, tables, scene)
    (root / version).mkdir(parents=True)
    for name, rows in tables.items():
        (root / version / f"{name}.json").write_text(json.dumps(rows, indent=0))
    return root


def _add_scene(root: Path, tables: dict[str, list[dict[str, Any]]], scene: int) -> None:
    tokens = [f"sample_{scene}_{i}" for i in range(SAMPLES)]
    name = f"scene-{61 + scene:04d}"
    more = {"log_token": "log", "nbr_samples": SAMPLES, "description": "Parked truck, turn left"}
    tables["scene"].append(
        {
            "token": f"scene_{scene}",
            "name": name,
            "first_sample_token": tokens[0],
            "last_sample_token": tokens[-1],
            **more,
        }
    )
    for i, token in enumerate(tokens):
        row: dict[str, Any] = {"token": token, "timestamp": START + 500_000 * i, "scene_token": f"scene_{scene}"}
        row["prev"], row["next"] = tokens[i - 1] if i else "", tokens[i + 1] if i + 1 < SAMPLES else ""
        tables["sample"].append(row)
    for number in range(6 * (SAMPLES - 1) + 1):
        for camera, (channel, delay) in enumerate(DELAYS.items()):
            seconds, token = number * PERIOD + delay, f"d_{scene}_{number}_{channel}"
            x, y, yaw = pose_at(seconds)
            pose = {"token": f"p_{token}", "timestamp": 0, "translation": [x, y, 0.0], "rotation": quaternion(yaw)}
            tables["ego_pose"].append(pose)
            key = number % 6 == 0
            file = f"{'samples' if key else 'sweeps'}/{channel}/{name}__{number:03d}.jpg"
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(jpeg(number, camera))
            tables["sample_data"].append(
                {
                    "token": token,
                    "sample_token": tokens[min((number + 3) // 6, SAMPLES - 1)],
                    "ego_pose_token": pose["token"],
                    "calibrated_sensor_token": f"k_{channel}",
                    "timestamp": START + round(seconds * 1e6),
                    "fileformat": "jpg",
                    "is_key_frame": key,
                    "height": SIZE[0],
                    "width": SIZE[1],
                    "filename": file,
                    "prev": "",
                    "next": "",
                }
            )
    lidar = dict(tables["sample_data"][-1], token=f"lidar_{scene}", calibrated_sensor_token="k_LIDAR_TOP")
    tables["sample_data"].append(lidar | {"filename": "samples/LIDAR_TOP/x.pcd.bin", "height": 0, "width": 0})


def change(root: Path, table: str, row: int, **values: Any) -> None:
    file = root / "v1.0-mini" / f"{table}.json"
    rows = json.loads(file.read_text())
    rows[row] |= values
    file.write_text(json.dumps(rows))


def converted(source: Path, **options: Any) -> Episode:
    out = source.parent / "out"
    convert(source, out, settings=ConvertSettings(**options), report=lambda _: None)
    return load_episode(out / "scene-0061.json")


def refused(source: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        convert(source, source.parent / "out", settings=ConvertSettings(**options), report=lambda _: None)
    assert not (source.parent / "out").exists()
    return str(caught.value)


def test_key_frames(tmp_path: Path):
    episode = converted(write(tmp_path / "nuscenes"))
    assert (episode.id, episode.recording, episode.cameras) == ("scene-0061", "nuscenes/scene-0061", NAMES)
    np.testing.assert_allclose(episode.t, [0, 0.5, 1, 1.5], atol=2e-6)
    np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=1e-3)
    np.testing.assert_allclose(episode.yaw_rate_radps, TURN, rtol=1e-3)
    channels = {name: channel for channel, name in CAMERA_MAP.items()}
    for frame in range(SAMPLES):
        seconds = 0.5 * frame + DELAYS["CAM_FRONT"]
        np.testing.assert_allclose(episode.pose[frame], pose_at(seconds), atol=1e-5)
        for k, name in enumerate(NAMES):
            delay = DELAYS[channels[name]]
            np.testing.assert_allclose(episode.t_offset_s[frame, k], delay - DELAYS["CAM_FRONT"], atol=2e-6)
            np.testing.assert_allclose(episode.camera_pose[frame, k], pose_at(0.5 * frame + delay), atol=1e-5)
            path = episode.image_paths[frame][k]
            assert path is not None
            content = (tmp_path / "out" / path).read_bytes()
            assert content == jpeg(6 * frame, list(DELAYS).index(channels[name]))
    np.testing.assert_allclose(episode.intrinsics[0, 0], [[1266.4, 0, 816.2], [0, 1267.4, 491.5], [0, 0, 1]])
    # 10 m along the view, 1 m to the right, 2 m down.
    np.testing.assert_allclose(episode.extrinsics[0, 0] @ [1, 2, 10, 1], [11.7, -0.9, -0.5, 1], atol=1e-9)


def test_sweeps_give_every_image_once_at_12_hz(tmp_path: Path):
    episode = converted(write(tmp_path / "nuscenes"), sweeps=True)
    frames = 6 * (SAMPLES - 1) + 1
    np.testing.assert_allclose(episode.t, PERIOD * np.arange(frames), atol=2e-6)
    paths = [path for row in episode.image_paths for path in row]
    assert None not in paths
    assert len(set(paths)) == 6 * frames
    np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=1e-3)


@pytest.mark.parametrize("step", [0.5, 0.65])
@pytest.mark.parametrize(("sweeps", "source"), [(False, "expert"), (False, "poses"), (True, "expert")])
def test_windows_are_whole_at_key_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, sweeps: bool, source: Any
):
    """The schema's own numbers: key frames 0.5 s apart, in real scenes up to 0.65, every sixth camera frame one."""
    monkeypatch.setattr(test_module, "SAMPLES", 8)
    monkeypatch.setattr(test_module, "PERIOD", step / 6)
    episode = converted(write(tmp_path / "nuscenes"), sweeps=sweeps)
    data = open_data(DataConfig(path=str(tmp_path / "out"), waypoint_source=source, waypoint_steps=30), "all")
    batch = data.batch(data.anchors)
    end = episode.t[-1] + (DELAYS["CAM_BACK_LEFT"] - DELAYS["CAM_FRONT"] if source == "expert" else 0)
    places = np.array([pose_at(0.1 * (i + 1)) for i in range(30)])
    radial = places - pose_at(0.0)
    ahead = np.cos(2) * radial[:, 0] + np.sin(2) * radial[:, 1], np.cos(2) * radial[:, 1] - np.sin(2) * radial[:, 0]
    for seconds in (1.0, 2.0, 3.0):
        whole = batch["waypoint_valid"][:, : round(10 * seconds)].all(axis=1)
        np.testing.assert_array_equal(whole, episode.t + seconds <= end + 1e-6)
        assert whole.mean() > (end - seconds) / end - 0.15
    wrong = np.abs(batch["waypoints"] - np.stack(ahead, axis=-1))[batch["waypoint_valid"]]
    # A chord lies up to v w dt^2 / 8 beside the arc: 0.1 to 0.17 m between key frames, 1.7 mm between the last camera
    # of a sweep and the first of the next.
    apart = step if source == "poses" else step / 6 - (DELAYS["CAM_BACK_LEFT"] - DELAYS["CAM_FRONT_LEFT"])
    assert SPEED * TURN * apart**2 / 20 < wrong.max() < SPEED * TURN * apart**2 / 8 * 1.1 + 1e-4
    assert not validate([tmp_path / "out"])["problems"]


def test_a_camera_without_a_key_frame_and_a_front_without_one(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    change(root, "sample_data", 6 * 6 + list(DELAYS).index("CAM_BACK"), is_key_frame=False)
    change(root, "sample_data", 12 * 6 + list(DELAYS).index("CAM_FRONT"), is_key_frame=False)
    episode = converted(root)
    assert [row[NAMES.index("rear")] is None for row in episode.image_paths] == [False, True, False, False]
    assert [row[NAMES.index("front")] is None for row in episode.image_paths] == [False, False, True, False]
    others = np.mean([delay for channel, delay in DELAYS.items() if channel != "CAM_FRONT"])
    np.testing.assert_allclose(episode.t[2], 1 + others - DELAYS["CAM_FRONT"], atol=2e-6)
    np.testing.assert_allclose(episode.pose[2], pose_at(1 + float(others)), atol=1e-3)


def test_several_scenes_names_and_no_images(tmp_path: Path):
    root = write(tmp_path / "nuscenes", scenes=2)
    episode = converted(root, images=False, cameras={"CAM_BACK": "", "CAM_BACK_LEFT": "back_left"})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_dataset.json",
        "scene-0061.json",
        "scene-0062.json",
    ]
    assert episode.cameras == ("back_left", "front", "front_left", "front_right", "side_right")
    assert len(episode.t) == SAMPLES


def test_two_key_images_of_one_camera_in_a_sample_are_refused(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    file = root / "v1.0-mini" / "sample_data.json"
    rows = json.loads(file.read_text())
    image = rows[0]["filename"].replace("__000", "__000b")
    (root / image).write_bytes(jpeg(0, 0))
    rows.append(rows[0] | {"token": "twice", "timestamp": rows[0]["timestamp"] - 3000, "filename": image})
    file.write_text(json.dumps(rows))
    found = refused(root)
    assert "scene-0061, d_0_0_CAM_FRONT: expected one image of each camera a frame, found another of CAM_FRONT" in found
    assert found.count("one image of each camera") == 1


def test_problems_of_several_files_are_in_one_report(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    (root / "samples/CAM_FRONT/scene-0061__000.jpg").unlink()
    (tmp_path / "secret.jpg").write_bytes(jpeg(0, 0))
    change(root, "sample_data", 1, filename="../secret.jpg")
    change(root, "sample_data", 2, width=36, height=64)
    change(root, "ego_pose", 3, rotation=[0, 0, 0, 0])
    change(root, "sample_data", 4, ego_pose_token="none")
    text = refused(root)
    assert text.startswith("5 problem(s):")
    for line in (
        "samples/CAM_FRONT/scene-0061__000.jpg: expected an image that sample_data names, found No such file",
        "d_0_0_CAM_FRONT_RIGHT.filename: expected a path inside the dataset, found '../secret.jpg': a path that leads",
        "scene-0061__000.jpg: expected height x width 64 x 36 as in the calibration, found 36 x 64",
        "ego_pose.json: scene-0061, p_d_0_0_CAM_BACK: expected a pose, found rotation [0, 0, 0, 0]",
        "ego_pose.json: scene-0061, none: expected a pose, found no such row",
    ):
        assert line in text


def test_tables_that_are_not_whole(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    change(root, "sample", 1, next="sample_0_0")
    assert "expected a chain of samples by `next`, found 'sample_0_0' twice" in refused(root)
    change(root, "sample", 1, next="")
    assert "found an end at 2 of 4 samples, without 'sample_0_2'" in refused(root)
    change(root, "sample_data", 5, calibrated_sensor_token="x")
    assert "d_0_0_CAM_FRONT_LEFT: expected a calibrated_sensor with a sensor, found token 'x'" in refused(root)
    change(root, "sample_data", 7, sample_token="y")
    assert "sample_data.json: d_0_1_CAM_FRONT_RIGHT: expected the token of a sample, found 'y'" in refused(root)
    (root / "v1.0-mini/ego_pose.json").write_text('[{"token": "a", "rotation": [1, 0, 0, 0]}]')
    assert "ego_pose.json: row 0: expected the keys ['token', 'translation', 'rotation'], found no ['translation']" in (
        refused(root)
    )
    (root / "v1.0-mini/ego_pose.json").write_text('[{"token": "a", "translation": [NaN, 0, 0]}]')
    assert "expected JSON with finite numbers and unique keys, found NaN" in refused(root)
    (root / "v1.0-mini/sensor.json").unlink()
    assert "sensor.json: expected a JSON file, found no such file" in refused(root)


def test_several_versions_must_be_told_apart(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    write(root, version="v1.0-trainval")
    with pytest.raises(ConfigError, match=r"several versions, \['v1.0-mini', 'v1.0-trainval'\]; name one as SOURCE"):
        convert(root, tmp_path / "out", report=lambda _: None)
    convert(root / "v1.0-mini", tmp_path / "out", report=lambda _: None)
    assert load_episode(tmp_path / "out/scene-0061.json").cameras == NAMES


def test_linked_images_are_converted_where_their_folder_is_allowed(tmp_path: Path):
    root = write(tmp_path / "nuscenes")
    (tmp_path / "disk").mkdir()
    (root / "samples").rename(tmp_path / "disk/samples")
    (root / "samples").symlink_to(tmp_path / "disk/samples")
    text = refused(root)
    assert "filename: expected a path inside the dataset, found 'samples/CAM_" in text
    assert f"--data.allow-links-to {tmp_path}/disk/samples/CAM_" in text
    episode = converted(root, allow_links_to=(str(tmp_path / "disk"),))
    assert len(episode.t) == SAMPLES


def test_a_version_without_scenes_is_no_dataset(tmp_path: Path):
    root = write(tmp_path / "nuscenes", scenes=0)
    assert "nuscenes: expected at least one episode, found none in 0 unit(s)" in refused(root)


def test_a_scene_of_which_an_image_changed_is_converted_anew(tmp_path: Path):
    """Kills: parts that are kept by the tables alone, though an image that they copied is another one."""
    root = write(tmp_path / "nuscenes", scenes=2)
    name = "samples/CAM_FRONT/scene-0062__006.jpg"
    whole = (root / name).read_bytes()
    (root / name).write_bytes(b"no image")
    assert name in refused(root)
    (root / name).write_bytes(whole)
    (root / "samples/CAM_FRONT/scene-0061__006.jpg").write_bytes(jpeg(99, 5))
    path = converted(root).image_paths[1][NAMES.index("front")]
    assert path is not None
    assert (tmp_path / "out" / path).read_bytes() == jpeg(99, 5)


def test_the_files_of_a_scene_are_the_tables_and_the_images_that_are_copied(tmp_path: Path):
    root = write(tmp_path / "nuscenes", scenes=2)

    def images(**options: Any) -> set[str]:
        files = NuscenesConverter(root, ConvertSettings(**options)).files("scene-0062")
        assert sum(path.suffix == ".json" for path in files) == 6
        return {path.relative_to(root).as_posix() for path in files if path.suffix != ".json"}

    keys = {f"samples/{channel}/scene-0062__{6 * i:03d}.jpg" for channel in CAMERA_MAP for i in range(SAMPLES)}
    assert images() == keys
    assert images(cameras={"CAM_BACK": ""}) == {name for name in keys if "CAM_BACK/" not in name}
    assert len(images(sweeps=True)) == 6 * (6 * (SAMPLES - 1) + 1)
    assert images(images=False) == set()


def test_samples_of_another_scene_are_none_of_this_one(tmp_path: Path):
    """Else frames stand in two episodes, which may fall on both sides of a split."""
    root = write(tmp_path / "nuscenes", scenes=2)
    change(root, "sample", 1, next="sample_1_1")
    assert "scene-0061: expected a chain of samples by `next`, found 'sample_1_1', which is of scene 'scene_1'" in (
        refused(root)
    )


def test_a_camera_that_is_not_known_costs_its_scene_alone(tmp_path: Path):
    root = write(tmp_path / "nuscenes", scenes=101)
    rows = 6 * (6 * (SAMPLES - 1) + 1) + 1
    change(root, "sample_data", 3 * rows + 5, calibrated_sensor_token="x")
    convert(root, tmp_path / "out", settings=ConvertSettings(images=False), jobs=Jobs(on_bad="skip"), report=print)
    names = {path.stem for path in (tmp_path / "out").glob("scene*.json")}
    assert names == {f"scene-{61 + scene:04d}" for scene in range(101)} - {"scene-0064"}


def test_sweeps_without_a_front_are_frames_without_it(tmp_path: Path):
    """Two front images are missing, a key frame's and a sweep's: the other cameras' lose none of theirs."""
    root = write(tmp_path / "nuscenes")
    file = root / "v1.0-mini" / "sample_data.json"
    gone = {f"d_0_{number}_CAM_FRONT" for number in (4, 6)}
    file.write_text(json.dumps([row for row in json.loads(file.read_text()) if row["token"] not in gone]))
    episode = converted(root, sweeps=True)
    assert len(episode.t) == 19
    front = NAMES.index("front")
    without = [i for i, row in enumerate(episode.image_paths) if row[front] is None]
    assert without == [4, 6]
    shown = [sum(path is not None for path in row) for row in episode.image_paths]
    assert shown == [5 if i in without else 6 for i in range(19)]
    others = np.mean([delay for channel, delay in DELAYS.items() if channel != "CAM_FRONT"])
    np.testing.assert_allclose(episode.t[4], 4 * PERIOD + others - DELAYS["CAM_FRONT"], atol=2e-6)
    assert (np.diff(episode.t) > 0).all()
