import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chunkwise.errors import ConfigError, DataError, StorageError
from chunkwise.files.links import Bounds
from driving.config import DataConfig
from driving.convert import convert, detect, main
from driving.converters import episode_writer
from driving.converters.episode_writer import (
    MAX_NAME,
    ConvertSettings,
    Drive,
    DriveCamera,
    DriveFrame,
    EpisodeWriter,
    camera_names,
    file_name,
)
from driving.data.batches import collate, open_data
from driving.data.episodes import episode_names, load_episode
from tests.driving.converters import waymo_files
from tests.driving.converters.test_lerobot import write_l2d
from tests.driving.converters.test_nuscenes import write as write_nuscenes


def test_a_converted_drive_is_trained_on(tmp_path: Path):
    waymo_files.write_v2(tmp_path / "training", drop=[(1, "SIDE_LEFT")])
    convert(tmp_path / "training", tmp_path / "out", report=lambda _: None)
    data = open_data(DataConfig(path=str(tmp_path / "out"), image_size=(16, 24), waypoint_steps=3), "all")
    batch = data.batch(data.anchors)
    assert batch["image_valid"].shape == (6, 1, 5)
    assert not batch["image_valid"][1, 0, 3]
    assert int(batch["image_valid"].sum()) == 29
    np.testing.assert_allclose(batch["speed_mps"][:, 0], waymo_files.SPEED, rtol=1e-5)
    # The car on its circle 0.1, 0.2, 0.3 s later, in its own frame; masked past the end.
    turns = waymo_files.TURN * 0.1 * np.arange(1, 4)
    places = waymo_files.RADIUS * np.stack([np.sin(turns), 1 - np.cos(turns)], axis=1)
    np.testing.assert_allclose(batch["waypoints"][0], places, atol=1e-3)
    assert batch["waypoint_valid"].sum(1).tolist() == [3, 3, 3, 2, 1, 0]
    samples = [data.sample(int(row)) for row in data.anchors[:2]]
    found = collate(samples, stack_images=True)
    assert found["image_valid_by_cam"]["side_left"].tolist() == [True, False]


def test_the_same_source_gives_the_same_bytes(tmp_path: Path):
    waymo_files.write_v2(tmp_path / "training")
    for name in ("one", "two"):
        convert(tmp_path / "training", tmp_path / name, report=lambda _: None)
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 32
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_formats_are_recognised(tmp_path: Path):
    assert detect(waymo_files.write_v2(tmp_path / "a" / "training").parent) == "waymo_v2"
    assert detect(write_nuscenes(tmp_path / "b")) == "nuscenes"
    assert detect(write_l2d(tmp_path / "c")) == "lerobot"
    waymo_files.write_v1(tmp_path / "d" / "x.tfrecord")
    with pytest.raises(DataError, match="say --format waymo_v1 or waymo_e2e"):
        detect(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/training").symlink_to(tmp_path / "d")
    with pytest.raises(DataError, match="say --format waymo_v1 or waymo_e2e"):
        detect(tmp_path / "linked")
    with pytest.raises(DataError, match="found none of them"):
        detect(tmp_path / "e")
    with pytest.raises(DataError, match="there is no such file or folder"):
        detect(tmp_path / "f")


def test_exit_codes_and_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    waymo_files.write_v2(tmp_path / "training")
    source, out, other = str(tmp_path / "training"), str(tmp_path / "out"), str(tmp_path / "other")
    assert main([source, out, "--camera", "SIDE_LEFT=", "--camera", "SIDE_RIGHT=right"]) == 0
    assert "wrote 1 episode(s), 6 frame(s), 24 image(s) into" in capsys.readouterr().out
    assert main([source, out]) == 64
    assert "exists; convert into a folder that does not exist yet" in capsys.readouterr().err
    for options, text in (
        (["--sweeps"], "--sweeps means nothing for waymo_v2; it is for nuscenes"),
        (["--state", "speed_mps=a:0"], "--state means nothing for waymo_v2; it is for lerobot"),
        (["--format", "lerobot", "--quality", "0"], "--quality is 0; expected 1 to 100"),
    ):
        assert main([source, other, *options]) == 64
        assert text in capsys.readouterr().err
    assert main([source, other, "--format", "nuscenes"]) == 65
    assert main([source, other, "--format", "waymo_v1"]) == 65
    assert "expected files *.tfrecord" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([source, other, "--camera", "front"])
    assert stop.value.code == 64
    assert not Path(other).exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    waymo_files.write_v2(tmp_path / "training")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EpisodeWriter, "add_drive", full)
    with pytest.raises(StorageError, match=r"could not be written: .*No space left"):
        convert(tmp_path / "training", tmp_path / "out", report=lambda _: None)
    assert os.listdir(tmp_path) == ["training"]


def test_an_image_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kills: what the thread raised is forgotten."""
    waymo_files.write_v2(tmp_path / "training")
    monkeypatch.setattr(episode_writer, "write_ahead", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match=r"could not be written: .*No space left"):
        convert(tmp_path / "training", tmp_path / "out", report=lambda _: None)
    assert os.listdir(tmp_path) == ["training"]


def test_images_that_are_left_out_are_gone_though_they_are_written_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kills: an image is removed before it is written."""
    write = episode_writer.write_ahead

    def late(path: Path, content: bytes) -> None:
        time.sleep(0.05)
        write(path, content)

    monkeypatch.setattr(episode_writer, "write_ahead", late)
    with EpisodeWriter(tmp_path, images=True) as writer:
        kept = writer.add_image("a", "0", waymo_files.jpeg(0, 1), source="file")
        assert writer.add_image("a", "1", waymo_files.jpeg(1, 1), source="file")
        writer.discard_images(after=1)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jpg")] == [kept]


def test_an_episode_that_the_schema_refuses_is_a_problem(tmp_path: Path):
    writer = EpisodeWriter(tmp_path, images=True)
    camera = DriveCamera(path=None, intrinsics=(0.0, 1.0, 2.0, 3.0))
    frames = [DriveFrame(time_s=t, cameras={"front": camera}) for t in (1.0, 1.0)]
    writer.add_drive(Drive(id="a", dataset="d", scene_id="s", split=None, frames=frames), source="file")
    writer.add_drive(Drive(id="b", dataset="d", scene_id="s", split=None, frames=[]), source="file")
    text = "\n".join(str(problem) for problem in writer.problems)
    assert "file, a: frames[1].t: expected more than 0.0, found 0.0" in text
    assert (
        "file, a: frames[0].observations.cameras.front.intrinsics: expected fx, fy, cx, cy with focal lengths" in text
    )
    assert "file: b: expected at least 1 frame, found none" in text
    assert not list(tmp_path.iterdir())


def test_names_of_files_are_safe():
    assert file_name("../../etc/passwd") == "drive.._.._etc_passwd"
    assert file_name("_a") == "drive_a"
    assert file_name("..") == "drive.."
    assert file_name("") == "drive"
    assert file_name("scene-0061") == "scene-0061"
    assert len(file_name("_" + "x" * 5000)) == MAX_NAME
    assert (file_name("左"), file_name("右"), file_name("Überhol 2/ж")) == ("左", "右", "Überhol_2_ж")
    assert file_name("左" * 200) == "左" * 66  # 198 bytes
    assert file_name("a\ud800b") == "a_b"


NAMES = st.lists(st.text(st.sampled_from("ab._- :/\\\n\0\ud800ä"), max_size=4) | st.text(max_size=300), max_size=8)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES)
@example(names=["../../../climbed", "_a", "drive_a", ".b", "_", "a:b", "a_b", "x" * 200, "x" * 201])
def test_every_drive_that_is_counted_is_found_and_every_other_is_a_problem(tmp_path: Path, names: list[str]):
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        writer = EpisodeWriter(Path(folder), images=False)
        for name in names:
            frames = [DriveFrame(time_s=i / 10, cameras={}, pose=(0.0, 0.0, 0.0)) for i in range(2)]
            drive = Drive(id=name, dataset="d", scene_id="s", split=None, frames=frames)
            writer.add_drive(drive, source=f"file {len(writer.problems) + len(writer.drives)}")
        found = episode_names(Path(folder), Bounds(Path(folder))) if writer.drives else []
        assert len(found) == len(writer.drives)
        assert len(names) == len(writer.drives) + len({p.file for p in writer.problems})
        assert sorted(load_episode(Path(folder) / name).id for name in found) == sorted(
            name.removesuffix(".json") for name in found
        )


def test_wrong_settings(tmp_path: Path):
    source = waymo_files.write_v2(tmp_path / "training")
    with pytest.raises(ConfigError, match="--quality is 101"):
        convert(source, tmp_path / "out", format="lerobot", settings=ConvertSettings(quality=101))


@pytest.mark.parametrize(
    ("folder", "split"), [("training", "training"), ("val", "val"), ("testing_location", "testing_location")]
)
def test_a_linked_split_of_parquet_files_keeps_its_name(tmp_path: Path, folder: str, split: str):
    waymo_files.write_v2(tmp_path / "disk" / folder)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / folder).symlink_to(tmp_path / "disk" / folder)
    with pytest.raises(DataError, match=rf"{folder}: a path that leads out of the dataset, to .*allow-links-to"):
        convert(tmp_path / "set", tmp_path / "out", report=lambda _: None)
    allowed = ConvertSettings(allow_links_to=(str(tmp_path / "disk"),))
    convert(tmp_path / "set", tmp_path / "out", settings=allowed, report=lambda _: None)
    (name,) = episode_names(tmp_path / "out", Bounds(tmp_path / "out"))
    assert load_episode(tmp_path / "out" / name).split == split


@pytest.mark.parametrize("name", ["a/b", "a_b"])
def test_cameras_whose_images_would_have_one_name_are_refused_before_anything_is_read(name: str):
    known = {"one": "a b", "two": name}
    with pytest.raises(ConfigError, match=r"would name several cameras, or their files; give each a name of its own"):
        camera_names(known, ConvertSettings())
    assert camera_names(known, ConvertSettings(cameras={"two": "c"})) == {"one": "a b", "two": "c"}
    apart = {"one": "_x", "two": "drive_x"}  # of drives these would be one
    assert camera_names(apart, ConvertSettings()) == apart
