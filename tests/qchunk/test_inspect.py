import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest

from chunkwise.errors import DataError
from qchunk import inspect
from qchunk.config import DataConfig
from qchunk.data import index
from qchunk.data.readers import aloha
from tests.qchunk import image_recordings
from tests.qchunk.recordings import ACTION, QPOS, STATE, arrays, dataset, write


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def test_describes_a_good_dataset(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = dataset(tmp_path, lengths=(7, 12, 5))
    assert inspect.main([str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["frames"], found["files"]) == (3, 24, 3)
    assert found["labels"] == {"positive": 2, "negative": 1}
    assert found["lengths"] == {"min": 5, "mean": 8, "max": 12}
    assert found["dims"] == {"action": ACTION, "qpos": QPOS, "state": STATE}
    assert (found["refused"], found["problems"]) == (False, [])
    contents = [arrays(length, seed) for seed, length in enumerate((7, 12, 5))]
    returns = [content["/reward"].sum() for content in contents]
    np.testing.assert_allclose(found["return"]["mean"], np.mean(returns))
    np.testing.assert_allclose(found["return_positive"]["mean"], np.mean([returns[0], returns[2]]))
    actions = np.concatenate([content["/action"] for content in contents])
    np.testing.assert_allclose(found["action_low"], actions.min(0))
    np.testing.assert_allclose(found["action_high"], actions.max(0))
    assert found["fingerprint"] == index.open_source(DataConfig(path=str(root)))[0].manifest_hash()
    assert inspect.main([str(root)]) == 0
    text = capsys.readouterr().out
    for line in ("episodes   3, 24 frames; 0 bad, 0 left out", "labels     2 positive, 1 negative", "action 0"):
        assert line in text


def test_a_bad_dataset_is_described_and_exits_65(tmp_path: Path, capsys: pytest.CaptureFixture):
    bad = arrays(4, 9)
    bad["/action"][2] = np.nan
    write(dataset(tmp_path) / "bad.hdf5", bad, success=True)
    assert inspect.main([str(tmp_path)]) == 65
    assert "bad.hdf5: /action, row 2: expected finite numbers" in capsys.readouterr().out
    assert inspect.main([str(tmp_path), "--json"]) == 65
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["bad_episodes"], found["refused"]) == (6, 1, True)
    assert found["problems"] == [
        {
            "file": "bad.hdf5",
            "key": "/action",
            "row": 2,
            "episode": None,
            "expected": "finite numbers",
            "found": "nan in column 0 (1 such row(s))",
        }
    ]


def test_cameras_are_described_and_every_image_is_decoded(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = image_recordings.dataset(tmp_path, lengths=(6, 7), depth=True)
    assert inspect.main([str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cameras"]
    assert list(found) == [
        *(f"/observations/images/{name}" for name in image_recordings.CAMERAS),
        "/observations/images_depth/cam_high",
    ]
    depth = found["/observations/images_depth/cam_high"]
    assert depth == {
        "encodings": ["raw"],
        "sizes": [[24, 32]],
        "dtypes": ["uint16"],
        "bytes": 13 * 24 * 32 * 2,
        "episodes": 2,
    }
    assert found["/observations/images/cam_high"]["encodings"] == ["jpeg"]
    inspect.main([str(root)])
    assert "camera     /observations/images_depth/cam_high: raw uint16 24 x 32, 0.0 MB, 2" in capsys.readouterr().out
    with h5py.File(root / "episode_1.hdf5", "r+") as h5:
        rows = np.asarray(h5["/observations/images/cam_high"])
        rows[3, 100:] = 0
        del h5["/observations/images/cam_high"], h5["compress_len"]
        h5["/observations/images/cam_high"] = rows
    assert inspect.main([str(root)]) == 65
    assert "episode_1.hdf5: /observations/images/cam_high, row 3: expected a" in capsys.readouterr().out


def test_actions_of_different_widths_are_described_where_training_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With data.action qpos nobody reads /action; no range is one of all episodes then."""
    for number, width in enumerate((3, 4, 3)):
        content = arrays(12, number) | {"/action": np.full((12, width), 0.5, np.float32)}
        write(tmp_path / f"episode_{number}.hdf5", content, success=True)
    words = [str(tmp_path), "--config", "qchunk/own_data", "--data.action", "qpos"]
    assert inspect.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["action_low"], found["action_high"]) == (3, [], [])
    assert inspect.main(words) == 0
    assert "training with this config takes this dataset" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["jpeg", "raw", "state", "npz"])
def test_the_figure(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture):
    from PIL import Image

    path, out = tmp_path / "data", tmp_path / "overview.png"
    if kind == "npz":
        path = tmp_path / "a.npz"
        terminals = np.array([0, 0, 0, 1, 0, 0, 1], np.float32)
        np.savez(path, observations=np.ones((7, 3)), actions=np.ones((7, 2)), terminals=terminals)
    elif kind == "state":
        dataset(path, lengths=(5, 9, 7))
    else:
        image_recordings.dataset(path, lengths=(5, 9, 7), jpeg=kind == "jpeg", depth=kind == "raw")
    assert inspect.main([str(path), "--figure", str(out), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    drawn = np.asarray(Image.open(out).convert("RGB"))
    assert drawn.shape[1] == 1320
    assert drawn.shape[0] > (600 if kind in ("jpeg", "raw") else 300)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 50
    if kind == "state":
        for file in path.rglob("*.hdf5"):
            file.write_bytes(b"no HDF5")
        out.unlink()
        assert inspect.main([str(path), "--figure", str(out)]) == 65
        said = capsys.readouterr()
        assert "figure: none, since no episode is good" in said.err
        assert "the last episode_2.hdf5" in said.out, "what is wrong is listed all the same"
        assert not out.exists()
    for flag in ("--figure", "--picture"):  # as it was called before
        with pytest.raises(SystemExit) as caught:
            inspect.main([str(path), flag, "overview.jpg"])
        assert caught.value.code == 64
        assert "--figure is overview.jpg" in capsys.readouterr().err


def test_no_dataset_exits_65_without_a_traceback(tmp_path: Path):
    command = [sys.executable, "-m", "qchunk.inspect"]
    run = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert run.returncode == 65
    assert "does not exist" in run.stderr
    assert "Traceback" not in run.stderr
    run = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert "DIR" in run.stdout


def test_wrong_usage_exits_64(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as caught:
        inspect.main(["a", "--jsn"])
    assert caught.value.code == 64
    assert "--jsn" in capsys.readouterr().err


def test_an_npz_file_is_inspected(tmp_path: Path):
    terminals = np.zeros(10, np.float32)
    terminals[[3, 9]] = 1
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "a.npz",
        observations=rng.normal(size=(10, 3)),
        actions=rng.normal(size=(10, 2)),
        terminals=terminals,
    )
    found = inspect.inspect(str(tmp_path / "a.npz"))
    assert (found["format"], found["episodes"], found["frames"]) == ("ogbench_npz", 2, 8)
    assert not found["refused"]
    assert found["notes"][0].startswith("no labels")


def test_the_index_reads_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = DataConfig(path=str(dataset(tmp_path, lengths=(3, 4))))
    first = index.read_index(data)
    examined = []
    examine = aloha.examine
    monkeypatch.setattr(
        aloha, "examine", lambda root, path, *, digest: examined.append(path.name) or examine(root, path, digest=digest)
    )
    assert index.read_index(data) == first
    assert examined == []
    write(tmp_path / "episode_2.hdf5", arrays(5, 2), success=True)
    assert len(index.read_index(data)) == 3
    assert examined == ["episode_2.hdf5"]
    (tmp_path / "episode_0.hdf5").unlink()
    assert [report.id for report in index.read_index(data)] == ["episode_1.hdf5", "episode_2.hdf5"]


def test_a_cache_that_is_damaged_or_can_not_be_written_only_costs_time(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    data = DataConfig(path=str(dataset(tmp_path, lengths=(3, 4))))
    first = index.read_index(data)
    (file,) = (cache / "chunkwise" / "qchunk").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert index.read_index(data) == first
    (tmp_path / "no_folder").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no_folder"))
    assert index.read_index(data) == first


def test_content_that_changed_under_the_same_size_and_time_is_refused(tmp_path: Path):
    root = dataset(tmp_path, lengths=(300, 300))
    assert not inspect.inspect(str(root))["refused"]
    file = root / "episode_1.hdf5"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as raw:
        raw.seek(file.stat().st_size // 2)
        raw.write(bytes(4096))
    os.utime(file, ns=times)
    found = inspect.inspect(str(root))
    assert found["refused"]
    assert "size and modification time unchanged" in found["problems"][0]["found"]
    with pytest.raises(DataError, match="touch the file to accept"):
        index.open_source(DataConfig(path=str(root)))
    file.touch()
    assert not inspect.inspect(str(root))["refused"]


def test_skip_drops_up_to_one_percent_and_says_which(tmp_path: Path):
    root = dataset(tmp_path, lengths=(2,) * 99)
    whole = index.open_source(DataConfig(path=str(root)))[0].manifest_hash()
    bad = arrays(4, 0)
    bad["/action"][0] = np.inf
    write(root / "bad_0.hdf5", bad, success=True)
    source, notes = index.open_source(DataConfig(path=str(root), on_bad="skip"))
    assert len(source) == 99
    assert "bad_0.hdf5" not in source.ids
    assert notes[0] == "skipped 1 bad episode(s) of 100 (data.on_bad=skip):"
    assert "bad_0.hdf5: /action, row 0" in notes[1]
    assert source.manifest_hash() == whole
    write(root / "episode_0.hdf5", bad, success=True)
    with pytest.raises(DataError, match=r"2 of 100 episodes are bad; data\.on_bad=skip leaves out at most 1 %"):
        index.open_source(DataConfig(path=str(root), on_bad="skip"))


def own_data(root: Path, *fields: str) -> list[str]:
    return [str(root), "--config", "qchunk/own_data", "--data.episodes-per-epoch", "4", "--data.holdout", "0", *fields]


def test_with_a_config_it_says_what_training_would(tmp_path: Path, capsys: pytest.CaptureFixture):
    """The same notes and refusals as of the run, of fields that the default settings know nothing of."""
    root = dataset(tmp_path, lengths=(300, 400, 200))
    assert inspect.main(own_data(root)) == 0
    assert "training with this config takes this dataset" in capsys.readouterr().out
    assert inspect.main([*own_data(root), "--data.action-norm", "quantile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["refused"]
    assert "of 900 frames have an action that the policy cannot give out" in found["notes"][0]
    for fields, words in (
        (("--data.action-norm", "none"), "--data.action-norm min_max reaches them all"),
        (("--data.base-action",), "/base_action: expected this array, for data.base_action"),
        (("--data.depth-cameras", "cam_high"), "/observations/images_depth/cam_high: expected images"),
        (("--data.norm-stats", str(tmp_path / "none.json")), "none.json"),
    ):
        assert inspect.main(own_data(root, *fields)) == 65
        assert words in capsys.readouterr().out


def test_a_camera_that_the_config_does_not_name_is_no_reason_to_refuse(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = image_recordings.dataset(tmp_path, lengths=(30, 40))
    with h5py.File(root / "episode_1.hdf5", "r+") as h5:
        rows = np.asarray(h5["/observations/images/cam_high"])
        rows[3, 100:] = 0
        del h5["/observations/images/cam_high"], h5["compress_len"]
        h5["/observations/images/cam_high"] = rows
    assert inspect.main([str(root)]) == 65
    capsys.readouterr()
    assert inspect.main(own_data(root)) == 0
    assert inspect.main(own_data(root, "--data.depth-cameras", "cam_high")) == 65


def test_fields_without_a_config_or_of_another_package_are_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture):
    root = str(dataset(tmp_path, lengths=(3, 4)))
    with pytest.raises(SystemExit) as caught:
        inspect.main([root, "--data.action-norm", "none"])
    assert caught.value.code == 64
    assert inspect.main([root, "--config", "driving/debug"]) == 64
    assert inspect.main([root, "--config", "qchunk/own_data", "--data.action-nrm", "none"]) == 64
    assert "action-norm" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--write-stats", "--figure"])
@pytest.mark.parametrize(("place", "code"), [("folder.png", 64), ("file/stats.png", 74)])
def test_a_place_that_nothing_can_be_written_to_is_refused_before_anything_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    place: str,
    code: int,
):
    """Kills: a traceback after all of a dataset was read."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(inspect, "read", mock.Mock(side_effect=AssertionError))
    assert inspect.main([str(tmp_path), option, str(tmp_path / place)]) == code
    assert str(tmp_path / place) in capsys.readouterr().err
