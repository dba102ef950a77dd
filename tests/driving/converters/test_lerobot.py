import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.data.convert import Jobs
from chunkwise.data.images import decode
from chunkwise.errors import ConfigError, DataError
from driving.convert import convert
from driving.converters.episode_writer import ConvertSettings
from driving.converters.lerobot import LerobotConverter, _state
from driving.data.episodes import Episode, load_episode
from tests import lerobot_files
from tests.lerobot_files import write_video

FPS, LENGTHS, SIZE = 10, (7, 5), (24, 32)
SPEED, TURN = 8.0, 0.4
CAMERAS = ("front_left", "left_forward", "right_forward", "left_backward", "right_backward", "rear", "map")
AXES = ["speed", "heading", "heading_error", "hp_loc_latitude", "hp_loc_longitude", "hp_loc_altitude"]
AXES += ["acceleration_x", "acceleration_y"]


def pose_at(seconds: float) -> tuple[float, float, float]:
    """Metres east and north, and the heading of a car that begins to the north-west."""
    yaw = 2.0 + TURN * seconds
    radius = SPEED / TURN
    return radius * (math.sin(yaw) - math.sin(2)), -radius * (math.cos(yaw) - math.cos(2)), yaw


def smooth_images(length: int, episode: int, camera: int) -> np.ndarray:
    values = 30 + 25 * camera + 4 * np.arange(length) + 60 * episode
    return np.broadcast_to(values[:, None, None, None], (length, *SIZE, 3)).astype(np.uint8)


def write_l2d(root: Path, *, cameras: tuple[str, ...] = CAMERAS, rename: str = "observation.state.vehicle") -> Path:
    """A v3.0 set as yaak-ai/L2D-v3 has it: features of its info.json, two episodes in one file of each kind."""
    names = {key: f"observation.images.{key}" for key in cameras}
    features: dict[str, Any] = {
        key: {"dtype": "video", "shape": [3, *SIZE], "names": ["channel", "height", "width"]} for key in names.values()
    }
    features[rename] = {"dtype": "float32", "shape": [8], "names": {"axes": AXES}}
    features["observation.state.road"] = {"dtype": "string", "shape": [1], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for key in ("frame_index", "episode_index", "index", "task_index"):
        features[key] = {"dtype": "int64", "shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "KIA Niro EV 2023",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0], "task": ["Follow the road"]}), root / "meta/tasks.parquet")
    start, rows, tables = 0, [], []
    for index, length in enumerate(LENGTHS):
        row: dict[str, Any] = {"episode_index": index, "length": length, "data/chunk_index": 0, "data/file_index": 0}
        for key in names.values():
            row |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": 0}
            row |= {f"videos/{key}/from_timestamp": start / FPS, f"videos/{key}/to_timestamp": (start + length) / FPS}
        rows.append(row)
        tables.append(_table(index, length, start, rename))
        start += length
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.concat_tables(tables), root / "data/chunk-000/file-000.parquet")
    for camera, key in enumerate(names.values()):
        film = np.concatenate([smooth_images(length, index, camera) for index, length in enumerate(LENGTHS)])
        write_video(root / f"videos/{key}/chunk-000/file-000.mp4", film)
    return root


def _table(index: int, length: int, start: int, rename: str) -> pa.Table:
    frames = np.arange(length)
    state = np.zeros((length, 8))
    for frame in frames:
        x, y, yaw = pose_at(frame / FPS)
        north = 52 + math.degrees(y / 6371008.8)
        east = 7.5 + math.degrees(x / 6371008.8 / math.cos(math.radians(52)))
        state[frame, :5] = SPEED * 3.6, (90 - math.degrees(yaw)) % 360, 0, north, east
    return pa.table(
        {
            rename: pa.FixedSizeListArray.from_arrays(pa.array(state.astype(np.float32).ravel()), 8),
            "observation.state.road": ["residential"] * length,
            "timestamp": pa.array((frames / FPS).astype(np.float32)),
            "frame_index": pa.array(frames),
            "episode_index": pa.array(np.full(length, index)),
            "index": pa.array(start + frames),
            "task_index": pa.array(np.zeros(length, np.int64)),
        }
    )


def converted(source: Path, **options: Any) -> list[Episode]:
    out = source.parent / "out"
    convert(source, out, settings=ConvertSettings(**options), report=lambda _: None)
    return [load_episode(path) for path in sorted(out.glob("*.json")) if path.name != "_dataset.json"]


def test_l2d_is_known(tmp_path: Path):
    episodes = converted(write_l2d(tmp_path / "L2D"))
    assert [episode.id for episode in episodes] == ["L2D_000000", "L2D_000001"]
    names = ("front", "front_left", "front_right", "rear", "side_left", "side_right")
    keys = ("front_left", "left_forward", "right_forward", "rear", "left_backward", "right_backward")
    for index, episode in enumerate(episodes):
        assert episode.cameras == names
        np.testing.assert_allclose(episode.t, np.arange(LENGTHS[index]) / FPS)
        np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=1e-5)  # recorded in km/h
        for frame in range(LENGTHS[index]):
            x, y, yaw = pose_at(frame / FPS)
            # 32-bit degrees are half a metre apart.
            np.testing.assert_allclose(episode.pose[frame, :2], (x, y), atol=0.5)
            assert math.remainder(episode.pose[frame, 2] - yaw, math.tau) == pytest.approx(0, abs=1e-5)
            for k, key in enumerate(keys):
                path = episode.image_paths[frame][k]
                assert path is not None
                found = decode((tmp_path / "out" / path).read_bytes(), source="")
                expected = 30 + 25 * CAMERAS.index(key) + 4 * frame + 60 * index
                assert abs(float(found.mean()) - expected) < 3


def test_columns_of_the_user_take_the_place_of_l2ds_own(tmp_path: Path):
    source = write_l2d(tmp_path / "L2D")
    key = "observation.state.vehicle"
    state = {"x_m": f"{key}:6", "y_m": f"{key}:7", "yaw_rad": f"{key}:2"}
    episode = converted(source, images=False, state=state)[0]
    np.testing.assert_array_equal(episode.pose, np.zeros((LENGTHS[0], 3)))  # what these columns hold
    np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=1e-5)
    with pytest.raises(ConfigError, match="--state: heading_deg and yaw_rad say the same; expected one of them"):
        LerobotConverter(source, ConvertSettings(images=False, state=state | {"heading_deg": f"{key}:1"}))


def test_columns_of_other_sets_are_the_users(tmp_path: Path):
    source = write_l2d(tmp_path / "set", cameras=("wide", "left"), rename="observation.state")
    state = {"speed_mps": "observation.state:0:0.5", "yaw_rate_radps": "observation.state:2"}
    episode = converted(source, state=state, cameras={"observation.images.wide": "front"})[0]
    assert episode.cameras == ("front", "left")
    np.testing.assert_allclose(episode.speed_mps, SPEED * 3.6 * 0.5, rtol=1e-6)
    assert episode.yaw_rate_radps.tolist() == [0.0] * LENGTHS[0]
    assert np.isnan(episode.pose).all()


def test_positions_alone_give_a_position_and_an_unsigned_speed(tmp_path: Path):
    source = write_l2d(tmp_path / "set", rename="observation.state")
    state = {"x_m": "observation.state:0:0", "y_m": "observation.state:1:0.1"}
    episode = converted(source, state=state, images=False)[0]
    assert np.isnan(episode.pose[:, 2]).all()
    headings = 90 - np.degrees([pose_at(frame / FPS)[2] for frame in range(LENGTHS[0])])
    np.testing.assert_allclose(episode.pose[:, 1], headings % 360 * 0.1, rtol=1e-5)
    assert np.isnan(episode.speed_mps[0]), "nothing came before"
    np.testing.assert_allclose(episode.speed_mps[1:], math.degrees(TURN) * 0.1, rtol=1e-3)
    assert all(path is None for row in episode.image_paths for path in row)


def test_a_drive_over_the_antimeridian_goes_on():
    """At the equator a ten-thousandth of a degree is 11.12 m: 6371008.8 pi / 180 / 10^4."""
    values = {"latitude_deg": np.zeros(3), "longitude_deg": np.array([179.9999, -180.0, -179.9999])}
    found = _state(values, np.arange(3.0))
    np.testing.assert_allclose([field["position"][0] for field in found], [0.0, 11.1195, 22.2390], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"say where the vehicle's state is: --state speed_mps=KEY:INDEX:FACTOR.*the dataset has"),
        (
            {"state": {"speed": "observation.state:0"}},
            r"--state speed=observation.state:0: expected one of speed_mps, ",
        ),
        ({"state": {"speed_mps": "observation.state"}}, "expected KEY:INDEX or KEY:INDEX:FACTOR"),
        ({"state": {"speed_mps": "observation.state:8"}}, r"speed_mps=observation.state:8: found shape \(8,\)"),
        ({"state": {"speed_mps": "velocity:0"}}, "speed_mps=velocity:0: found no such feature"),
        ({"state": {"x_m": "observation.state:0"}}, "x_m and y_m are needed together"),
        ({"cameras": {"top": "front"}}, r"no cameras \['top'\]; it has \['observation.images.front_left'"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str):
    source = write_l2d(tmp_path / "set", rename="observation.state")
    with pytest.raises(ConfigError, match=message):
        converted(source, **options)


def test_a_video_with_too_few_frames_names_the_episode(tmp_path: Path):
    source = write_l2d(tmp_path / "L2D")
    write_video(source / "videos/observation.images.rear/chunk-000/file-000.mp4", smooth_images(9, 0, 0))
    with pytest.raises(
        DataError, match=r"episode 1, videos/observation.images.rear/.*: expected 5 frames from 0.700 s"
    ):
        converted(source)
    assert not (tmp_path / "out").exists()


def test_a_bad_episode_of_a_hundred_is_left_out_where_that_is_asked_for(tmp_path: Path):
    episodes = lerobot_files.record([2] * 100, size=(2, 2))
    episodes[7].state[1, 0] = np.nan
    source = lerobot_files.write_v21(tmp_path / "set", episodes, storage="image")
    settings = ConvertSettings(state={"speed_mps": "observation.state:0"}, images=False)
    with pytest.raises(DataError, match=r"1 problem\(s\):\n  .*episode 7.*observation.state, row 1: expected finite"):
        convert(source, tmp_path / "out", settings=settings, report=lambda _: None)
    convert(source, tmp_path / "out", settings=settings, jobs=Jobs(on_bad="skip"), report=lambda _: None)
    found = [load_episode(path) for path in sorted((tmp_path / "out").glob("set_*.json"))]
    assert [one.id for one in found] == [f"set_{index:06d}" for index in range(100) if index != 7]
    np.testing.assert_allclose(found[7].speed_mps, episodes[8].state[:, 0], atol=1e-6)


def test_the_files_of_an_episode_are_those_that_are_read_through_links_to_folders_as_well(tmp_path: Path):
    """Kills: parts that are kept though a table in a linked folder changed."""
    source = write_l2d(tmp_path / "L2D", cameras=("front_left", "left_forward", "right_forward"))
    (source / "notes.txt").write_text("")
    (source / "data").rename(tmp_path / "tables")
    (source / "data").symlink_to(tmp_path / "tables")

    def names(**options: Any) -> set[str]:
        settings = ConvertSettings(allow_links_to=(str(tmp_path / "tables"),), **options)
        files = LerobotConverter(source, settings).files("episode 0")
        return {path.relative_to(source).as_posix() for path in files}

    tables = {"meta/info.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"}
    tables |= {"data/chunk-000/file-000.parquet"}
    films = {f"videos/observation.images.{key}/chunk-000/file-000.mp4" for key in ("left_forward", "right_forward")}
    assert names(cameras={"observation.images.front_left": ""}) == tables | films
    assert names(images=False) == tables


def test_cameras_of_any_script_have_images_of_their_own(tmp_path: Path):
    """Kills: two cameras whose images get one name, and a good source that is refused for it."""
    source = write_l2d(tmp_path / "set", cameras=("左", "右"), rename="observation.state")
    episode = converted(source, state={"speed_mps": "observation.state:0"})[0]
    assert episode.cameras == ("右", "左")
    assert episode.image_paths[0] == ("images/set_000000/000000_右.jpg", "images/set_000000/000000_左.jpg")


def test_depth_stays_out_unless_it_is_named(tmp_path: Path):
    """Kills: depth maps trained on as a camera."""
    source = write_l2d(tmp_path / "set", cameras=("front", "range", "grey"), rename="observation.state")
    file = source / "meta/info.json"
    info = json.loads(file.read_text())
    info["features"]["observation.images.range"]["info"] = {"video.is_depth_map": True}
    info["features"]["observation.images.grey"]["shape"] = [1, *SIZE]
    file.write_text(json.dumps(info))
    state = {"speed_mps": "observation.state:0"}
    assert converted(source, state=state)[0].cameras == ("front", "grey")
    named = {"observation.images.range": "range"}
    settings = ConvertSettings(state=state, cameras=named)
    assert sorted(LerobotConverter(source, settings)._names.values()) == ["front", "grey", "range"]
