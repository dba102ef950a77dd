import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chunkwise.data.convert import Jobs
from chunkwise.errors import ConfigError, DataError
from qchunk.config import DataConfig
from qchunk.convert import FORMATS, convert
from qchunk.data.index import open_source
from qchunk.inspect import inspect
from tests import lerobot_files
from tests.qchunk.converters.sources import (
    arrays_of,
    attributes_of,
    refused,
    settings,
)


@pytest.mark.parametrize("version", ["v21", "v30"])
def test_arrays_images_and_labels(tmp_path: Path, version: str):
    episodes = lerobot_files.record()
    write = {"v21": lerobot_files.write_v21, "v30": lerobot_files.write_v30}[version]
    convert(write(tmp_path / "set", episodes, storage="image"), tmp_path / "out", settings=settings(images="raw"))
    for index, episode in enumerate(episodes):
        path = tmp_path / f"out/episode_{index:05d}.hdf5"
        found, attributes = arrays_of(path), attributes_of(path)
        np.testing.assert_array_equal(found["observations/qpos"], episode.state, strict=True)
        np.testing.assert_array_equal(found["action"], episode.action, strict=True)
        np.testing.assert_array_equal(found["reward"], episode.reward.astype(np.float64), strict=True)
        assert found["terminated"].tolist() == episode.success.tolist()
        assert bool(attributes["success"]) is bool(episode.success.any())
        assert attributes["instruction"] == lerobot_files.TASKS[index % 2]
        for key in lerobot_files.CAMERAS:
            name = key.rpartition(".")[2]
            np.testing.assert_array_equal(found[f"observations/images/{name}"], episode.images[key], strict=True)
    assert open_source(DataConfig(path=str(tmp_path / "out")))[0].positives.tolist() == [True, False, True]


def test_bad_sets_are_refused_with_all_problems(tmp_path: Path):
    episodes = lerobot_files.record()
    episodes[0].state[2, 1] = np.nan
    episodes[2].timestamp[4] += 0.5
    text = refused(lerobot_files.write_v30(tmp_path / "set", episodes, storage="image"), tmp_path / "out")
    assert "episode 0, data/chunk-000/file-000.parquet: observation.state, row 2: expected finite numbers" in text
    assert "episode 2, data/chunk-000/file-001.parquet: timestamp, row 4: expected" in text


def test_a_bad_episode_of_a_hundred_is_left_out_where_that_is_asked_for(tmp_path: Path):
    episodes = lerobot_files.record([1] * 100, size=(2, 2))
    episodes[7].action[0, 0] = np.nan
    root = lerobot_files.write_v21(tmp_path / "set", episodes, storage="image")
    convert(root, tmp_path / "out", settings=settings(images="none"), jobs=Jobs(on_bad="skip"))
    whole = [f"episode_{index:05d}.hdf5" for index in range(100) if index != 7]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.hdf5")) == whole
    np.testing.assert_array_equal(arrays_of(tmp_path / "out/episode_00008.hdf5")["action"], episodes[8].action)
    skipped = json.loads((tmp_path / "out/dataset.json").read_text())["skipped"]
    assert (skipped["bad"], skipped["of"]) == (1, 100)
    assert "episode 7" in skipped["problems"][0]


def test_an_image_that_viewers_turn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """LeRobot's own reader turns it, too; taken as it is stored it would lie on its side."""

    def turned(image: np.ndarray) -> bytes:
        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = 6
        Image.fromarray(image).save(file, "PNG", exif=exif)
        return file.getvalue()

    monkeypatch.setattr(lerobot_files, "png", turned)
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record(), storage="image")
    text = refused(root, tmp_path / "out")
    assert re.search("episode 0, .*, row 0: .*pixels that are stored upright, found EXIF orientation 6", text)


def test_keys_that_are_not_there(tmp_path: Path):
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record(), storage="image")
    with pytest.raises(ConfigError, match=r"no features \['observation.joints'\]; the dataset has"):
        convert(root, tmp_path / "out", settings=settings(observation_keys=("observation.joints",)))
    with pytest.raises(ConfigError, match=r"no cameras \['top'\]; it has"):
        convert(root, tmp_path / "out", settings=settings(cameras={"top": "cam_high"}))


def info_changed(root: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The dataset, with other features in meta/info.json."""
    info = json.loads((root / "meta/info.json").read_text())
    change(info["features"])
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def test_the_files_of_an_episode_are_those_that_are_read_through_links_to_folders_as_well(tmp_path: Path):
    """Kills: parts that are kept though a table in a linked folder changed."""
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((3, 2)), storage="image_file")
    (root / "notes.txt").write_text("")
    (root / "data").rename(tmp_path / "tables")
    (root / "data").symlink_to(tmp_path / "tables")
    camera = lerobot_files.CAMERAS[0]
    chosen = settings(allow_links_to=(str(tmp_path / "tables"),), cameras={camera: "top"})
    expected = {f"meta/{name}" for name in ("info.json", "tasks.jsonl", "episodes.jsonl")}
    expected |= {f"data/chunk-000/episode_00000{i}.parquet" for i in range(2)}
    expected |= {
        f"images/{camera}/episode_00000{i}/frame_00000{frame}.png" for i, n in enumerate((3, 2)) for frame in range(n)
    }
    files = FORMATS.open("lerobot", root, chosen).files(0)
    assert {path.relative_to(root).as_posix() for path in files} == expected


@pytest.mark.parametrize("key", ["next.reward", "next.done", "next.success"])
def test_two_values_a_frame_are_no_outcome(tmp_path: Path, key: str):
    """Kills: rewards [T, 2] taken for those of 2 T frames."""
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((4, 3)), storage="image")
    info_changed(root, lambda features: features.update({key: {"dtype": "float32", "shape": [2], "names": None}}))
    for path in sorted((root / "data/chunk-000").iterdir()):
        table = pq.read_table(path)
        pairs = pa.array([[0.0, 1.0]] * len(table), pa.list_(pa.float32()))
        table = table.drop_columns([key]) if key in table.column_names else table
        pq.write_table(table.append_column(key, pairs), path)
    words = f"{key}: expected one value a frame (shape [1]), found 2 values"
    text = refused(root, tmp_path / "out")
    assert f"episode 0, data/chunk-000/episode_000000.parquet: {words}" in text
    assert "2 problem(s)" in text
    with pytest.raises(DataError, match=re.escape(words)):
        open_source(DataConfig(path=str(root), format="lerobot"))
    found = [(problem["key"], problem["found"]) for problem in inspect(str(root))["problems"]]
    assert found == [(key, "2 values")] * 2


@pytest.mark.parametrize(
    "depth",
    [
        {"shape": [24, 32, 1]},
        {"shape": [1, 24, 32]},
        {"info": {"video.is_depth_map": True}},
        {"video_info": {"video.is_depth_map": True}},
        {"info": {"is_depth_map": True}},
    ],
)
def test_depth_is_left_out_and_listed(tmp_path: Path, depth: dict[str, Any]):
    """Kills: depth maps taken for a colour camera."""
    colour, other = lerobot_files.CAMERAS
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((4, 3)), storage="image")
    info_changed(root, lambda features: features[other].update(depth))
    info_changed(root, lambda features: features[colour].update(info={"video.is_depth_map": False}))
    convert(root, tmp_path / "out")
    found = arrays_of(tmp_path / "out/episode_00000.hdf5")
    assert [name for name in found if "images" in name] == ["observations/images/base"]
    about = json.loads((tmp_path / "out/dataset.json").read_text())["about_the_source"]
    assert (about["cameras"], about["cameras_left_out"]) == ({colour: "base"}, [other])
    convert(root, tmp_path / "named", settings=settings(cameras={other: "depth"}))
    assert "observations/images/depth" in arrays_of(tmp_path / "named/episode_00000.hdf5")


@pytest.mark.parametrize("key", ["observation.images.left/top", "observation.images."])
def test_a_camera_whose_own_name_cannot_be_one_in_the_output_is_refused(tmp_path: Path, key: str):
    """Kills: an output that `chunkwise inspect` refuses."""
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((4, 3)), storage="image")
    info_changed(root, lambda features: features.update({key: features.pop(lerobot_files.CAMERAS[1])}))
    with pytest.raises(ConfigError, match=r"cannot name a camera of the output; give names without '/' by --camera"):
        convert(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_that_hdf5_cannot_hold_is_refused(tmp_path: Path):
    """Kills: h5py's ValueError, which is a traceback."""
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((4, 3)), storage="image")
    lines = [{"task_index": 0, "task": "open"}, {"task_index": 1, "task": "pick\0up"}]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = r"set episode 1: instruction: expected a text without NUL, found 'pick\\x00up'"
    with pytest.raises(DataError, match=words):
        convert(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rewards_that_say_where_episodes_end_are_converted_as_training_reads_them(tmp_path: Path):
    """-1 until success, then 0: successes are done in their last frame alone, others never, or once more than that."""
    root = lerobot_files.write_v21(tmp_path / "set", lerobot_files.record((4, 5, 6)), storage="image")
    done = {"dtype": "bool", "shape": [1], "names": None}
    info_changed(root, lambda features: features.update({"next.done": done}) or features.pop("next.success"))
    for number, path in enumerate(sorted((root / "data/chunk-000").iterdir())):
        table = pq.read_table(path).drop_columns(["next.success", "next.reward"])
        rewards, ends = np.full(len(table), -1.0, np.float32), np.zeros(len(table), bool)
        if number < 2:
            rewards[-1], ends[-1] = 0.0, True
        table = table.append_column("next.reward", pa.array(rewards)).append_column("next.done", pa.array(ends))
        pq.write_table(table, path)
    convert(root, tmp_path / "out", settings=settings(images="none"))
    direct = open_source(DataConfig(path=str(root), format="lerobot"))[0]
    own = open_source(DataConfig(path=str(tmp_path / "out")))[0]
    for source in (direct, own):
        assert [source.load(i).terminated.tolist() for i in range(3)] == [
            [False, False, False, True],
            [False] * 4 + [True],
            [False] * 6,
        ]
