"""qchunk/inspect.py by several processes: the same statistics and the same report as by one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data import norm_stats
from chunkwise.data.norm_stats import NormStats
from chunkwise.distributed.jobs import Hands
from qchunk import inspect
from qchunk.config import DataConfig
from qchunk.data import index
from qchunk.data.readers import aloha, lerobot
from tests import lerobot_files
from tests.qchunk import image_recordings
from tests.qchunk.recordings import arrays, dataset


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def written(root: Path, file: Path, *options: str) -> bytes:
    assert inspect.main([str(root), "--json", "--write-stats", str(file), *options]) == 0
    return file.read_bytes()


def test_written_statistics_are_of_all_frames_and_the_same_by_any_number_of_workers(tmp_path: Path):
    lengths = (7, 1, 12, 5, 30)
    root = dataset(tmp_path / "data", lengths=lengths)
    one = written(root, tmp_path / "new/one.json")
    assert written(root, tmp_path / "three.json", "--workers", "3") == one
    found: dict[str, NormStats] = norm_stats.load(tmp_path / "three.json")
    for name, key in (("actions", "/action"), ("state", "/observations/qpos")):
        x = np.concatenate([arrays(length, seed)[key] for seed, length in enumerate(lengths)]).astype(np.float64)
        np.testing.assert_allclose(found[name].mean, x.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found[name].std, x.std(0), rtol=1e-12)
        np.testing.assert_array_equal(found[name].min, x.min(0))
        np.testing.assert_array_equal(found[name].max, x.max(0))


def test_written_statistics_are_those_of_a_config(tmp_path: Path):
    root = dataset(tmp_path / "data", lengths=(7, 9, 12, 5))
    options = ["--config", "qchunk/own_data", "--data.observation", "state", "--data.norm-stats", str(tmp_path / "x")]
    options += ["--data.holdout", "0"]
    norm_stats.save(tmp_path / "x", {"state": example(9), "actions": example(4)})
    written(root, tmp_path / "stats.json", *options)
    found = norm_stats.load(tmp_path / "stats.json")["state"]
    x = np.concatenate([arrays(n, seed)["/observations/state"] for seed, n in enumerate((7, 9, 12, 5))])
    np.testing.assert_allclose(found.mean, x.astype(np.float64).mean(0), rtol=1e-12)


def example(width: int) -> NormStats:
    zeros = np.zeros(width)
    return NormStats(mean=zeros, std=zeros + 1, q01=zeros - 1, q99=zeros + 1, min=zeros - 2, max=zeros + 2)


def test_a_refused_dataset_has_no_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = dataset(tmp_path / "data")
    (root / "episode_3.hdf5").write_bytes(b"no file")
    assert inspect.main([str(root), "--json", "--write-stats", str(tmp_path / "stats.json")]) == 65
    assert not (tmp_path / "stats.json").exists()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["problems"][0]["file"] == "episode_3.hdf5"


def test_no_workers_are_a_wrong_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert inspect.main([str(dataset(tmp_path)), "--workers", "0"]) == 64
    assert "--workers is 0; expected at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["hdf5", "npz", "lerobot"])
def test_workers_report_what_one_process_does(tmp_path: Path, kind: str):
    if kind == "hdf5":
        root = image_recordings.dataset(tmp_path / "data", lengths=(6, 7, 5), depth=True)
        for number in (0, 2):
            (root / f"broken_{number}.hdf5").write_bytes(b"no file")
    elif kind == "lerobot":
        root = tmp_path / "data"
        lerobot_files.write_v21(root, lerobot_files.record((6, 7, 5, 8)), storage="image")
        for number in (0, 2):
            (root / f"data/chunk-000/episode_{number:06d}.parquet").write_bytes(b"no table")
    else:
        root = tmp_path / "data"
        root.mkdir()
        rows = np.array([0, 0, 0, 1, 0, 0, 1], np.float32)
        for number in range(3):
            values = np.full((7, 3), np.inf if number == 1 else 1.0, np.float32)
            np.savez(root / f"{number}.npz", observations=values, actions=values[:, :2], terminals=rows)
    one, two = (inspect.describe(inspect.read(str(root), hands=Hands(workers=n)), str(root)) for n in (1, 2))
    assert two == one
    bad = {
        "hdf5": ["broken_0.hdf5", "broken_2.hdf5"],
        "npz": ["1.npz#0", "1.npz#0", "1.npz#1", "1.npz#1"],
        "lerobot": [f"data/chunk-000/episode_{number:06d}.parquet" for number in (0, 2)],
    }
    assert [problem["file"] for problem in two["problems"]] == bad[kind]


def test_a_file_that_crashes_its_reader_costs_its_line_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root, whole = dataset(tmp_path, lengths=(7, 5, 9)), aloha.examine

    def examine(folder: Path, file: Path, *more: Any, **options: Any) -> Any:
        if file.name == "episode_1.hdf5":
            raise ZeroDivisionError("no rows")
        return whole(folder, file, *more, **options)

    monkeypatch.setattr(aloha, "examine", examine)
    found = inspect.inspect(str(root))
    assert (found["episodes"], found["refused"]) == (2, True)
    assert [(problem["file"], problem["found"]) for problem in found["problems"]] == [
        ("episode_1.hdf5", "ZeroDivisionError: no rows")
    ]
    monkeypatch.setattr(aloha, "examine", whole)
    assert len(index.open_source(DataConfig(path=str(root)))[0]) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_labels_by_rewards_are_those_of_all_tables(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch):
    """Rewards of 0 and 1 say who succeeded, as long as no file has another one. Files go to as many as were asked."""
    walk, asked = lerobot.walk, list[tuple[int, int | None]]()

    def watched(records: Any, hands: Hands) -> Any:
        asked.append((len(records), hands.workers))
        return walk(records, hands)

    monkeypatch.setattr(lerobot, "walk", watched)
    episodes = lerobot_files.record((6, 7, 5))
    for number, episode in enumerate(episodes):
        episode.reward = np.zeros(len(episode.reward), np.float32)
        episode.reward[-1] = number == 1
    labels = []
    for last in (0.0, 0.5):
        episodes[2].reward[-1] = last
        root = tmp_path / f"{last}"
        lerobot_files.write_v21(root, episodes, storage="image")
        info = json.loads((root / "meta/info.json").read_text())
        del info["features"]["next.success"]
        (root / "meta/info.json").write_text(json.dumps(info))
        found = index.read_index(DataConfig(path=str(root), format="lerobot"), hands=Hands(workers=workers))
        labels.append([report.success for report in found])
    assert labels == [[False, True, False], [None, None, None]]
    assert asked == [(3, workers)] * 2


def test_a_table_that_crashes_its_reader_costs_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lerobot_files.write_v21(tmp_path, lerobot_files.record((6, 7, 5)), storage="image")
    whole = lerobot.arrays_of

    def arrays_of(columns: Any, **settings: Any) -> Any:
        if len(columns["action"]) == 7:
            raise ZeroDivisionError("no rows")
        return whole(columns, **settings)

    monkeypatch.setattr(lerobot, "arrays_of", arrays_of)
    found = inspect.inspect(str(tmp_path))
    assert (found["episodes"], found["refused"]) == (2, True)
    assert [(problem["file"], problem["found"]) for problem in found["problems"]] == [
        ("data/chunk-000/episode_000001.parquet", "ZeroDivisionError: no rows")
    ]
