import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.data.images import decode
from chunkwise.errors import ConfigError, DataError
from driving.convert import convert
from driving.convert import main as convert_main
from driving.converters.episode_writer import ConvertSettings
from driving.converters.waymo_frames import camera_name, exposure_time, extrinsics_of
from driving.data.episodes import Episode, load_episode
from tests.driving.converters import waymo_files as files
from tests.driving.converters.waymo_files import DELAYS, SEGMENT, SPEED, TURN, pose_at

NAMES = ("front", "front_left", "front_right", "side_left", "side_right")
IMAGE = "[CameraImageComponent]"


def silent(_: str) -> None:
    pass


def converted(source: Path, format: Any, **options: Any) -> Episode:
    """The one episode of a source."""
    out = source.parent / "out" if source.is_file() else source.parent / f"{source.name}_out"
    convert(source, out, format=format, settings=ConvertSettings(**options), report=silent)
    (file,) = [path for path in out.glob("*.json") if path.name != "_dataset.json"]
    return load_episode(file)


def refused(source: Path, format: Any, *, kept: bool = False, **options: Any) -> str:
    out = source.parent / "refused"
    with pytest.raises(DataError) as caught:
        convert(source, out, format=format, settings=ConvertSettings(**options), report=silent)
    assert not out.exists()
    assert bool(list(out.parent.glob(".*.part"))) == kept
    return str(caught.value)


def check_episode(episode: Episode, *, speed_error: float = 1e-5) -> None:
    """What both Perception formats must give for the car on its circle."""
    assert episode.cameras == NAMES
    assert episode.recording.endswith(SEGMENT)
    np.testing.assert_allclose(episode.t, 0.1 * np.arange(6), atol=2e-6)
    for frame in range(6):
        front = 0.1 * frame + DELAYS["FRONT"]
        np.testing.assert_allclose(episode.pose[frame], pose_at(front), atol=2e-6)
        for k, name in enumerate(NAMES):
            delay = DELAYS[name.upper()]
            np.testing.assert_allclose(episode.t_offset_s[frame, k], delay - DELAYS["FRONT"], atol=2e-6)
            np.testing.assert_allclose(episode.camera_pose[frame, k], pose_at(0.1 * frame + delay), atol=2e-6)
            np.testing.assert_allclose(episode.intrinsics[frame, k], [[50, 0, 24], [0, 51, 16], [0, 0, 1]])
    np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=speed_error)
    np.testing.assert_allclose(episode.yaw_rate_radps, TURN, rtol=1e-5)


class TestV2:
    def test_values(self, tmp_path: Path):
        check_episode(converted(files.write_v2(tmp_path / "training"), "waymo_v2"))

    def test_images_are_the_files_bytes_at_their_frames(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "set" / "training").parent
        episode = converted(source, None)
        out = tmp_path / "set_out"
        for frame in range(6):
            for k, name in enumerate(NAMES):
                path = episode.image_paths[frame][k]
                assert path is not None
                assert (out / path).read_bytes() == files.jpeg(frame, files.NUMBERS[name.upper()])
        tree = json.loads((out / f"{SEGMENT}.json").read_text())
        assert tree["source"] == {"dataset": "waymo_perception_v2", "scene_id": SEGMENT, "split": "training"}
        about = json.loads((out / "_dataset.json").read_text())
        assert (about["episodes"], about["frames"], about["images"]) == (1, 6, 30)

    @pytest.mark.parametrize("names", [str.upper, str.lower, lambda c: str(files.NUMBERS[c])])
    def test_cameras_by_name_or_by_number_as_text(self, tmp_path: Path, names: Any):
        check_episode(converted(files.write_v2(tmp_path / "training", names=names), "waymo_v2"))

    def test_extrinsics_take_camera_coordinates_to_the_vehicle(self, tmp_path: Path):
        episode = converted(files.write_v2(tmp_path / "training"), "waymo_v2")
        front, left = episode.extrinsics[0, NAMES.index("front")], episode.extrinsics[0, NAMES.index("side_left")]
        # A point 10 m along the view, 1 m to the right, 2 m down.
        np.testing.assert_allclose(front @ [1, 2, 10, 1], [1.5 + 10, -1, 2.1 - 2, 1], atol=1e-6)
        cos, sin = math.cos(1.6), math.sin(1.6)
        np.testing.assert_allclose(left @ [0, 0, 10, 1], [11.5 * cos, 11.5 * sin, 2.1, 1], atol=1e-6)
        matrix = np.array(files.camera_to_vehicle("FRONT")).reshape(4, 4)
        np.testing.assert_allclose(
            np.array(extrinsics_of(matrix)).reshape(4, 4) @ [0, 0, 1, 0], matrix @ [1, 0, 0, 0], atol=1e-12
        )

    def test_speed_from_poses_where_there_is_no_velocity(self, tmp_path: Path):
        gone: dict[str, Any] = {f"{IMAGE}.velocity.linear_velocity.{axis}": None for axis in "xyz"}
        episode = converted(files.write_v2(tmp_path / "training", changes=gone), "waymo_v2")
        check_episode(episode, speed_error=1e-3)
        assert not (episode.speed_mps == SPEED).all()

    def test_times_from_the_shutter_where_the_pose_has_none(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "training", changes={f"{IMAGE}.pose_timestamp": None})
        check_episode(converted(source, "waymo_v2"))

    def test_a_missing_camera_leaves_the_frame_and_a_missing_front_gives_its_time_to_the_others(self, tmp_path: Path):
        drop = [(2, "SIDE_LEFT"), (3, "FRONT"), *[(4, camera) for camera in files.NUMBERS]]
        episode = converted(files.write_v2(tmp_path / "training", drop=drop), "waymo_v2")
        assert len(episode.t) == 6
        seen = [[path is not None for path in row] for row in episode.image_paths]
        assert seen[2] == [True, True, True, False, True]
        assert seen[3] == [False, True, True, True, True]
        assert seen[4] == [False] * 5
        # Frame 3: the mean of the other four delays is 0.05, too. Frame 4 is as late as the others, and has their pose.
        np.testing.assert_allclose(episode.t, 0.1 * np.arange(6), atol=2e-6)
        np.testing.assert_allclose(episode.pose[3], pose_at(0.35), atol=1e-3)
        np.testing.assert_allclose(episode.pose[4], pose_at(0.45), atol=1e-2)
        np.testing.assert_allclose(episode.speed_mps, SPEED, rtol=2e-3)

    def test_without_images_no_frame_is_lost(self, tmp_path: Path):
        episode = converted(files.write_v2(tmp_path / "training"), "waymo_v2", images=False)
        check_episode(episode)
        assert all(path is None for row in episode.image_paths for path in row)
        assert not (tmp_path / "training_out" / "images").exists()

    def test_cameras_renamed_and_left_out(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "training")
        cameras = {"FRONT": "ahead", "SIDE_LEFT": "", "SIDE_RIGHT": ""}
        assert converted(source, "waymo_v2", cameras=cameras).cameras == ("ahead", "front_left", "front_right")
        with pytest.raises(ConfigError, match=r"has no cameras \['TOP'\]; it has \['FRONT', "):
            convert(source, tmp_path / "x", settings=ConvertSettings(cameras={"TOP": "top"}), report=silent)
        with pytest.raises(ConfigError, match=r"\['front_left'\] would name several cameras"):
            convert(source, tmp_path / "x", settings=ConvertSettings(cameras={"FRONT": "front_left"}), report=silent)

    def test_a_map_of_cameras_from_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        """In place of the format's own: what it does not name is left out, and `--camera` still changes one."""
        source, file = files.write_v2(tmp_path / "training"), tmp_path / "cameras.json"
        file.write_text('{"FRONT": "ahead", "SIDE_LEFT": "left", "SIDE_RIGHT": "right"}')
        arguments = [str(source), str(tmp_path / "out"), "--camera-map", str(file)]
        assert convert_main([*arguments, "--camera", "SIDE_LEFT=", "--camera", "SIDE_RIGHT=beside"]) == 0
        assert load_episode(tmp_path / "out" / f"{SEGMENT}.json").cameras == ("ahead", "beside")
        for content, words in (
            ('{"ROOF": "up"}', "--camera-map: the source has no cameras ['ROOF']"),
            ('{"FRONT": "a", "REAR": "a"}', "['a'] would name several cameras"),
            ('["FRONT"]', 'expected {"CAMERA": "name", ...}'),
            ("{", "expected JSON"),
        ):
            file.write_text(content)
            try:
                code = convert_main([*arguments[:1], str(tmp_path / "none"), *arguments[2:]])
            except SystemExit as end:
                code = end.code
            assert code == 64
            assert words in capsys.readouterr().err

    def test_every_problem_is_in_one_report(self, tmp_path: Path):
        numbers = [1, 2, 3, 4, 5] * 6
        numbers[3], numbers[7] = 9, 1
        times = [files.START + 100_000 * (i // 5) for i in range(30)]
        times[12] = 5
        images = [files.jpeg(i // 5, i % 5 + 1) for i in range(30)]
        images[20], images[21] = b"not a JPEG", files.jpeg(0, 0, (48, 32))
        text = refused(
            files.write_v2(
                tmp_path / "training",
                changes={
                    "key.camera_name": pa.array(numbers, pa.int8()),
                    "key.frame_timestamp_micros": pa.array(times, pa.int64()),
                    f"{IMAGE}.image": pa.array(images, pa.binary()),
                },
            ),
            "waymo_v2",
        )
        unit = f"camera_image/{SEGMENT}.parquet"
        assert text.startswith("5 problem(s):")
        assert f"{unit}: row 3, key.camera_name: expected 1 to 8, or a camera's name, found 9" in text
        assert f"{unit}: row 7, key.camera_name: expected each camera once in a frame, found a second FRONT" in text
        assert f"{unit}: row 12, key.frame_timestamp_micros: expected a frame of vehicle_pose, found 5" in text
        assert f"{unit}, row 20, FRONT: expected JPEG or PNG data, found 10 bytes that begin" in text
        # Height and width are told apart: an image of 48 x 32 is not one of 32 x 48.
        assert (
            f"{unit}, row 21, FRONT_LEFT: expected height x width 32 x 48 as in the calibration, found 48 x 32" in text
        )

    @pytest.mark.parametrize("component", ["camera_calibration", "vehicle_pose"])
    def test_a_component_of_another_segment_is_refused(self, component: str, tmp_path: Path):
        source = files.write_v2(tmp_path / "training")
        changed(source / component, lambda table: another(table, slice(2, None)))
        text = refused(source, "waymo_v2")
        assert "expected one segment a file, and the same in all three components, found " in text
        assert f"999_other ({component}/{SEGMENT}.parquet, row 2)" in text

    def test_a_camera_that_is_calibrated_twice_is_refused(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "training")
        changed(source / "camera_calibration", lambda table: pa.concat_tables([table, table.slice(1, 1)]))
        text = refused(source, "waymo_v2")
        assert f"camera_calibration/{SEGMENT}.parquet: row 5, key.camera_name: expected each camera once, " in text

    def test_segments_without_images_are_told(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "set" / "training").parent
        for component in ("camera_calibration", "vehicle_pose"):
            folder = source / "training" / component
            (folder / "222_other.parquet").write_bytes((folder / f"{SEGMENT}.parquet").read_bytes())
        said: list[str] = []
        convert(source, tmp_path / "out", format="waymo_v2", report=said.append)
        told = "left out, since there are no images of them: 1 (training/222_other.parquet)"
        assert told in "\n".join(said)

    def test_missing_and_damaged_components(self, tmp_path: Path):
        source = files.write_v2(tmp_path / "training")
        calibration = source / "camera_calibration" / f"{SEGMENT}.parquet"
        whole = calibration.read_bytes()
        calibration.write_bytes(whole[: len(whole) // 2])
        pose = source / "vehicle_pose" / f"{SEGMENT}.parquet"
        pose.unlink()
        text = refused(source, "waymo_v2")
        assert f"camera_calibration/{SEGMENT}.parquet: expected a whole parquet file, found" in text
        assert f"vehicle_pose/{SEGMENT}.parquet: expected this component of the segment, found no such file" in text
        source = files.write_v2(tmp_path / "columns", changes={f"{IMAGE}.image": None})
        assert f"expected the columns ['{IMAGE}.image'], found ['key.segment_context_name'" in refused(
            source, "waymo_v2"
        )


def changed(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    file = folder / f"{SEGMENT}.parquet"
    pq.write_table(change(pq.read_table(file)), file)


def another(table: pa.Table, rows: slice) -> pa.Table:
    """The table, of whose rows some say another segment."""
    names = table["key.segment_context_name"].to_pylist()
    names[rows] = ["999_other"] * len(names[rows])
    column = "key.segment_context_name"
    return table.set_column(table.schema.get_field_index(column), column, [names])


class TestV1:
    def test_values(self, tmp_path: Path):
        source = files.write_v1(tmp_path / f"segment-{SEGMENT}_with_camera_labels.tfrecord")
        episode = converted(source, "waymo_v1")
        check_episode(episode)
        path = episode.image_paths[3][NAMES.index("side_right")]
        assert path is not None
        assert (tmp_path / "out" / path).read_bytes() == files.jpeg(3, 5)

    def test_frames_may_come_in_any_order_and_lack_cameras(self, tmp_path: Path):
        frames = [files.v1_frame(f, drop=["SIDE_LEFT"] if f == 2 else []) for f in (5, 0, 3, 2, 1, 4)]
        episode = converted(files.write_v1(tmp_path / "a.tfrecord", frames=frames), "waymo_v1")
        assert [row[3] is not None for row in episode.image_paths] == [True, True, False, True, True, True]
        np.testing.assert_allclose(episode.t, 0.1 * np.arange(6), atol=2e-6)

    def test_speed_from_poses(self, tmp_path: Path):
        frames = [files.v1_frame(f, moving=False) for f in range(6)]
        check_episode(converted(files.write_v1(tmp_path / "a.tfrecord", frames=frames), "waymo_v1"), speed_error=1e-3)

    def test_damage_is_refused_with_its_place(self, tmp_path: Path):
        source = files.write_v1(tmp_path / "a.tfrecord")
        whole = source.read_bytes()
        begins = [sum(len(files.record(files.v1_frame(f))) for f in range(n)) for n in range(4)]
        damaged = bytearray(whole)
        damaged[begins[2] + 1000] ^= 1
        source.write_bytes(damaged)
        assert f"a.tfrecord: record 2 at byte {begins[2]}: expected the payload's checksum" in refused(
            source, "waymo_v1"
        )
        source.write_bytes(whole[: begins[3] + 500])
        text = refused(source, "waymo_v1")
        assert f"a.tfrecord: record 3 at byte {begins[3]}: expected" in text
        assert "the file is cut short" in text

    def test_records_that_are_no_frames_and_frames_twice(self, tmp_path: Path):
        frames = [files.v1_frame(0), b"\x0a\xff", files.e2e_frame(1), files.v1_frame(0)]
        text = refused(files.write_v1(tmp_path / "a.tfrecord", frames=frames), "waymo_v1")
        assert "record 1 at byte" in text
        assert "expected a varint of at most 10 bytes" in text
        assert "record 2 at byte" in text
        assert f"a.tfrecord: {SEGMENT}: expected each frame once, found timestamp {files.START} twice" in text

    def test_one_segment_in_two_files(self, tmp_path: Path):
        for name in ("a", "b"):
            files.write_v1(tmp_path / "set" / f"{name}.tfrecord")
        text = refused(tmp_path / "set", "waymo_v1", kept=True)  # each file is good in itself
        assert f"b.tfrecord: {SEGMENT}: expected each drive once, found it is also in a.tfrecord" in text

    def test_a_pose_that_is_no_matrix_and_an_unknown_camera(self, tmp_path: Path):
        short = (
            files.field(1, files.context(SEGMENT)) + files.field(2, 5) + files.field(3, files.doubles(1, [1.0] * 15))
        )
        strange = files.field(1, files.context(SEGMENT)) + files.field(2, 6)
        strange += files.field(4, files.field(1, 0) + files.field(2, files.jpeg(0, 1)))
        text = refused(files.write_v1(tmp_path / "a.tfrecord", frames=[short, strange]), "waymo_v1")
        assert "record 0 at byte 0: pose: expected 16 finite numbers, found 15 numbers, 15 of them finite" in text
        assert "images[].name: expected 1 to 8, found 0" in text


class TestEndToEnd:
    def test_values_of_a_segment_spread_over_files(self, tmp_path: Path):
        root = tmp_path / "set"
        rated = [(9.5, [(1.0, 0.0), (2.0, 9.5)]), (-1.0, [(5.0, 5.0)]), (3.0, [(1.0, 0.0), (2.0, 3.0)])]
        files.write_v1(
            root / "val.tfrecord-00000-of-00002", frames=[files.e2e_frame(2, rated=rated), files.e2e_frame(0)]
        )
        files.write_v1(root / "val.tfrecord-00001-of-00002", frames=[files.e2e_frame(1, intent=0)])
        episode = converted(root, "waymo_e2e")
        assert (episode.id, episode.cameras) == ("a0b1c2", ("front", "front_left", "front_right", "side_right"))
        np.testing.assert_allclose(episode.t, [0, 0.1, 0.2], atol=2e-6)
        np.testing.assert_allclose(episode.speed_mps, 6.5, rtol=1e-6)
        assert episode.route_command.tolist() == [1, 0, 1]
        assert np.isnan(episode.pose).all()
        assert (episode.waypoint_dt_s, episode.waypoints.shape) == (0.25, (3, 20, 2))
        np.testing.assert_allclose(episode.waypoints[1, :, 0], 2.0 * np.arange(1, 21))
        np.testing.assert_allclose(episode.waypoints[1, :, 1], 0.1 * np.arange(20), atol=1e-6)
        tree = json.loads((tmp_path / "set_out" / "a0b1c2.json").read_text())
        found = [frame.get("expert", {}).get("rated_trajectories") for frame in tree["frames"]]
        assert found[:2] == [None, None]
        assert found[2] == [
            {"score": 9.5, "dt": 0.25, "waypoints": [[1.0, 0.0], [2.0, 9.5]]},
            {"score": 3.0, "dt": 0.25, "waypoints": [[1.0, 0.0], [2.0, 3.0]]},
        ]
        path = episode.image_paths[2][0]
        assert path is not None
        image = decode((tmp_path / "set_out" / path).read_bytes(), source="")
        assert abs(int(image[5, 5, 1]) - 40) <= 3

    def test_a_test_frame_without_a_future(self, tmp_path: Path):
        source = files.write_v1(tmp_path / "a.tfrecord", frames=[files.e2e_frame(0, future=0)])
        assert converted(source, "waymo_e2e").waypoints.shape == (1, 0, 2)

    def test_positions_of_different_lengths(self, tmp_path: Path):
        bad = files.e2e_frame(0) + files.field(5, files.packed(1, [1.0, 2.0]) + files.packed(2, [1.0]))
        text = refused(files.write_v1(tmp_path / "a.tfrecord", frames=[bad]), "waymo_e2e")
        assert "record 0 at byte 0: future_states.pos_x, pos_y: expected as many of both, found 2 and 1" in text

    @pytest.mark.parametrize(
        ("score", "places", "words"),
        [
            (10.5, [(1.0, 0.0)], "preference_score: expected 0 to 10, or -1 for none, found 10.5"),
            (float("nan"), [(1.0, 0.0)], "preference_score: expected 0 to 10, or -1 for none, found nan"),
            (5.0, [], "pos_x, pos_y: expected at least one place of a rated trajectory, found none"),
            (
                5.0,
                [(1.0, 0.0), (2.0, float("inf"))],
                "pos_x, pos_y: expected finite numbers, found (2.0, inf) at place 1",
            ),
        ],
    )
    def test_ratings_that_are_none(self, tmp_path: Path, score: float, places: Any, words: str):
        bad = files.e2e_frame(0, rated=[(7.0, [(1.0, 0.0)]), (score, places)])
        text = refused(files.write_v1(tmp_path / "a.tfrecord", frames=[bad]), "waymo_e2e")
        assert f"a.tfrecord: record 0 at byte 0: preference_trajectories[1].{words}" in text


@pytest.mark.parametrize("format", ["waymo_v1", "waymo_v2"])
def test_a_velocity_that_is_no_number_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
):
    monkeypatch.setattr(files, "velocity", lambda t: (SPEED, math.nan if t > 0.3 else 0.0, TURN))
    if format == "waymo_v1":
        text = refused(files.write_v1(tmp_path / "a.tfrecord"), format)
        assert "a.tfrecord: record 3 at byte" in text
        assert ", FRONT: velocity: expected finite numbers, found (8.0, nan), yaw rate 0.4" in text
    else:
        text = refused(files.write_v2(tmp_path / "training"), format)
        assert "row 15, FRONT: [CameraImageComponent].velocity: expected finite numbers, found (8.0, nan)" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "FRONT"),
        (np.int8(5), "SIDE_RIGHT"),
        ("3", "FRONT_RIGHT"),
        ("side_left", "SIDE_LEFT"),
        (b"REAR", "REAR"),
        ("CameraName.FRONT", "FRONT"),
        (8, "REAR_RIGHT"),
        (0, None),
        (9, None),
        ("UNKNOWN", None),
        (None, None),
    ],
)
def test_camera_names(value: Any, expected: str | None):
    assert camera_name(value) == expected


def test_the_time_of_an_image():
    assert exposure_time(3.0, 1.0, 2.0) == 3.0
    assert exposure_time(None, 1.0, 2.0) == exposure_time(0.0, 1.0, 2.0) == 1.5
    assert exposure_time(None, 1.0, None) is exposure_time(None, None, 2.0) is None
    assert exposure_time(0.0, 1.0, 0.0) is exposure_time(0.0, 0.0, 2.0) is None  # protobuf's 0 is "not set"
