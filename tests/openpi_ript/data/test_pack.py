"""openpi_ript/pack.py: the command, and training from a pack."""

import dataclasses
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunkwise.data import packing
from chunkwise.data.pack import read_manifest, read_pack_table
from chunkwise.data.shards import PackSettings
from chunkwise.errors import ConfigError, DataError
from openpi_ript import inspect
from openpi_ript.config.data import UR5E, AdvantageConfig, DataConfig
from openpi_ript.data.dataset import open_data
from openpi_ript.data.pack import main, pack
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30

CAMERA_MAP = {"base_0_rgb": CAMERAS[0], "left_wrist_0_rgb": CAMERAS[1]}


def config(path: Path) -> DataConfig:
    advantage = AdvantageConfig(group_by="dataset")
    return DataConfig(
        path=str(path), robot=UR5E, cameras=CAMERA_MAP, horizon=4, image_size=(28, 28), advantage=advantage
    )


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_training_from_a_pack_is_training_from_the_videos(tmp_path: Path, encoding: str) -> None:
    root, out = write_v30(tmp_path / "set", record()), tmp_path / "pack"
    assert main([str(root), str(out), "--image-size", "28", "28", "--encoding", encoding]) == 0
    plain, packed = open_data(config(root)), open_data(config(out))
    assert packed.stats_source == plain.stats_source
    assert packed.notes == plain.notes
    streams = [itertools.islice(data.batches(seed=0, batch_size=5), 4) for data in (plain, packed)]
    for a, b in zip(*streams, strict=True):
        for key in ("state", "action", "action_is_pad", "prompt", "advantages", "optimality"):
            np.testing.assert_array_equal(a[key], b[key])
        for name in CAMERA_MAP:
            error = np.abs(a["image"][name].astype(int) - b["image"][name])
            assert error.max() == 0 if encoding == "raw" else error.mean() < 3  # black bars ring at this size


def test_the_pack_keeps_every_numeric_column_and_only_the_cameras_asked_for(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    settings = PackSettings(image_size=(28, 28))
    assert pack(root, tmp_path / "pack", cameras=CAMERAS[:1], settings=settings) == 21
    data = open_data(dataclasses.replace(config(tmp_path / "pack"), cameras={"base_0_rgb": CAMERAS[0]}))
    assert set(data.table.columns) == {
        *("observation.state", "action", "next.success", "next.reward"),
        *("timestamp", "frame_index", "episode_index", "index", "task_index"),
    }
    with pytest.raises(DataError, match="expected cameras"):
        open_data(config(tmp_path / "pack"))


def test_depth_is_neither_packed_nor_proposed(tmp_path: Path) -> None:
    """Kills: depth maps trained on as a camera."""
    root = write_v21(tmp_path / "set", record(), "image")
    file = root / "meta/info.json"
    info = json.loads(file.read_text())
    info["features"][CAMERAS[0]]["info"] = {"is_depth_map": True}
    info["features"][CAMERAS[1]]["shape"] = [24, 32, 1]  # a grey camera is one
    file.write_text(json.dumps(info))
    settings = PackSettings(image_size=(28, 28))
    told: list[str] = []
    pack(root, tmp_path / "pack", settings=settings, report=told.append)
    assert read_manifest(tmp_path / "pack")["cameras"] == [CAMERAS[1]]
    assert f"calls them depth maps: {CAMERAS[0]}; --cameras takes them" in "\n".join(told)
    pack(root, tmp_path / "asked", cameras=CAMERAS[:1], settings=settings)
    assert read_manifest(tmp_path / "asked")["cameras"] == [CAMERAS[0]]
    report: dict[str, Any] = {"notes": [], "episodes": [], "problems": []}
    proposed = inspect._walk_lerobot(inspect.Inspection(path=root), report, inspect.Hands())
    assert (report["cameras"], proposed) == (list(CAMERAS), {"camera_0": CAMERAS[1]})
    assert report["notes"] == [f"depth maps, which are no cameras of training by default: {[CAMERAS[0]]}"]


def test_a_column_with_faults_that_nobody_reads_can_be_left_out(tmp_path: Path) -> None:
    episodes, settings = record(), PackSettings(image_size=(28, 28))
    for episode in episodes:
        episode.reward[1] = np.nan
    root = write_v21(tmp_path / "set", episodes, "image")
    with pytest.raises(DataError, match=r"next\.reward"):
        pack(root, tmp_path / "pack", settings=settings)
    with pytest.raises(DataError, match=r"expected columns of numbers to leave out, found no \['force'\] among"):
        pack(root, tmp_path / "pack", settings=settings, without=["force"])
    assert main([str(root), str(tmp_path / "pack"), "--image-size", "28", "28", "--without", "next.reward"]) == 0
    assert "next.reward" not in open_data(config(tmp_path / "pack")).table.columns


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    """numpy's savez has parameters called file and allow_pickle."""
    root, names = write_v21(tmp_path / "set", record((5, 4)), "image"), ("file", "allow_pickle", "args", "größe", "a/b")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= {name: {"dtype": "int64", "shape": [1], "names": None} for name in names}
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in root.rglob("*.parquet"):
        table = pq.read_table(path)
        for place, name in enumerate(names):
            table = table.append_column(name, pa.array([100 * place + row for row in range(len(table))]))
        pq.write_table(table, path)
    assert main([str(root), str(tmp_path / "pack"), "--image-size", "28", "28"]) == 0
    columns = read_pack_table(tmp_path / "pack").columns
    for place, name in enumerate(names):
        assert columns[name].reshape(-1).tolist() == [100 * place + row for row in (*range(5), *range(4))]


def test_a_camera_that_is_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    assert main([str(root), str(tmp_path / "pack"), "--cameras", CAMERAS[0], CAMERAS[1], CAMERAS[0]]) == 64
    assert f"{CAMERAS[0]}: expected each camera once" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()


def test_a_place_that_is_no_utf8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, odd = write_v21(tmp_path / "set", record(), "image"), tmp_path / os.fsdecode(b"p\xff")
    for out in (odd, odd / "pack"):
        assert main([str(root), str(out), "--image-size", "28", "28"]) == 64
        assert "expected a path in UTF-8, found other bytes" in capsys.readouterr().err
        assert not odd.exists()
    assert main([str(root), str(tmp_path / "pack"), "--image-size", "28", "28"]) == 0
    (tmp_path / "pack").rename(odd)
    with pytest.raises(DataError, match="expected a path in UTF-8"):
        open_data(config(odd))


def test_a_size_that_nothing_opens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    assert main([str(root), str(tmp_path / "pack"), "--image-size", "20000", "20000"]) == 65
    assert "20000 x 20000" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()


def test_another_image_size_is_refused(tmp_path: Path) -> None:
    pack(write_v21(tmp_path / "set", record(), "image"), tmp_path / "pack", settings=PackSettings(image_size=(16, 16)))
    with pytest.raises(ConfigError, match=r"image_size is \(28, 28\), and .* was packed at \(16, 16\)"):
        open_data(config(tmp_path / "pack"))


def test_a_bad_dataset_ends_with_65_and_leaves_no_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = record()
    episodes[1].state[2] = np.nan
    root = write_v21(tmp_path / "set", episodes, "image")
    assert main([str(root), str(tmp_path / "pack")]) == 65
    assert "episode 1" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()
    assert main([str(tmp_path / "nothing"), str(tmp_path / "pack")]) == 65
    assert "expected a LeRobot dataset with meta/info.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "--workers is 0; expected at least 1"),
        (["--image-size", "0", "28"], r"image size \(0, 28\), quality 95; expected height and width of 1 to 65500"),
        (
            ["--image-size", "20", "70000"],
            r"image size \(20, 70000\), quality 95; expected height and width of 1 to 65500",
        ),
        (["--quality", "500"], "quality 500; expected .* a quality of 1 to 100"),
    ],
)
def test_settings_that_cannot_be_end_with_64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path), str(tmp_path / "pack"), *options])
    assert end.value.code == 64
    assert re.search(words, capsys.readouterr().err)


def test_a_place_in_the_dataset_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    assert main([str(root), str(root / "packed"), "--image-size", "28", "28"]) == 64
    assert "expected a folder outside of the dataset" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected a folder outside of the dataset"):
        pack(root, root / "packed", settings=PackSettings(image_size=(28, 28)))
    assert not list(root.glob("*packed*"))
    assert main([str(root), str(tmp_path / "packed"), "--image-size", "28", "28"]) == 0
    assert main([str(tmp_path / "packed"), str(tmp_path / "again")]) == 65
    assert "this is a pack already" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_ends_with_74(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v21(tmp_path / "set", record(), "image")
    (tmp_path / "file").write_text("in the way")
    assert main([str(root), str(tmp_path / "file/pack")]) == 74
    assert "file/pack could not be written: " in capsys.readouterr().err


def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pack(write_v21(tmp_path / "set", record(), "image"), tmp_path / "pack", settings=PackSettings(image_size=(28, 28)))
    file = tmp_path / "pack/manifest.json"
    manifest = json.loads(file.read_text())

    def opened(**changes: Any) -> Any:
        file.write_text(json.dumps({key: value for key, value in (manifest | changes).items() if value is not None}))
        return open_data(config(tmp_path / "pack"))

    with pytest.raises(DataError, match=r"manifest\.json: expected the keys \['fps', 'tasks'\], found"):
        opened(fps=None, tasks=None)
    with pytest.raises(DataError, match=r"expected shards inside the pack, .* found \[\{'file': '\.\./pictures"):
        opened(shards=[{"file": "../pictures-00000.arrayrecord", "rows": 21}])
    with pytest.raises(DataError, match=r"expected tables inside the pack, .* found \[\{'file': '\.\./tables"):
        opened(tables=[{"file": "../tables.npz"}])
    with pytest.raises(DataError, match=r"episode 0, row 3.*: expected images as manifest\.json says"):
        opened(encoding="raw").sample(3)
    with pytest.raises(DataError, match=r"episode 0, row 3.*: expected images as manifest\.json says"):
        opened(cameras=["top", *manifest["cameras"]]).sample(3)


def test_tables_and_shards_of_another_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both shards have as many frames, and raw images of one size: they differ by their content alone."""
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 6)
    settings = PackSettings(image_size=(28, 28), encoding="raw")
    for name, seed in (("pack", 0), ("other", 5)):
        pack(
            write_v21(tmp_path / f"set {name}", record((6, 6), seed=seed), "image"), tmp_path / name, settings=settings
        )
    shards = [tmp_path / f"pack/pictures-0000{n}.arrayrecord" for n in range(2)]
    kept = [file.read_bytes() for file in shards]
    for file, content in zip(shards, reversed(kept), strict=True):
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"pictures-00000\.arrayrecord: expected hash .* as manifest\.json says"):
        open_data(config(tmp_path / "pack"))
    report = inspect.inspect(inspect.Inspection(path=tmp_path / "pack"))
    assert report["refused"]
    assert "pictures-00000.arrayrecord: expected hash" in report["problems"][0]
    for file, content in zip(shards, kept, strict=True):
        file.write_bytes(content)
    open_data(config(tmp_path / "pack"))
    (tmp_path / "pack/tables.npz").write_bytes((tmp_path / "other/tables.npz").read_bytes())
    with pytest.raises(DataError, match=r"tables\.npz: expected hash .* as manifest\.json says"):
        open_data(config(tmp_path / "pack"))
    file = tmp_path / "pack/manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["tables"]
    manifest["shards"] = [{key: shard[key] for key in ("file", "rows")} for shard in manifest["shards"]]
    file.write_text(json.dumps(manifest))
    assert open_data(config(tmp_path / "pack")).table.frames == 12, "a pack of before says nothing of its files"
