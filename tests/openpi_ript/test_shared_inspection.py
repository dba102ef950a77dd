"""openpi_ript/inspect.py by several processes: the same statistics and the same report as by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.distributed.jobs import Hands
from openpi_ript.inspect import Inspection, inspect, main
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30


def test_statistics_that_workers_count_are_the_same_file(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", record())
    for name, options in (("one", []), ("two", ["--workers", "2"])):
        assert main([str(root), "--horizon", "4", "--write-stats", str(tmp_path / name), *options]) == 0
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "set", "two"]


def test_workers_report_what_one_process_does(tmp_path: Path) -> None:
    episodes = record((7, 5, 9, 6))
    episodes[3].action[2, 1] = np.nan
    root = write_v21(tmp_path / "set", episodes, "image_file")
    image = root / f"images/{CAMERAS[0]}/episode_000001/frame_000002.png"
    image.write_bytes(image.read_bytes()[:80])
    one, two = (inspect(Inspection(path=root, horizon=4), Hands(workers=workers)) for workers in (1, 2))
    assert two == one
    assert [entry["verdict"] for entry in two["episodes"]] == ["good", "bad", "good", "bad"]
    assert [problem[:10] for problem in two["problems"]] == ["episode 1,", "episode 3,"]


def test_an_episode_that_crashes_its_reader_costs_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_v30(tmp_path / "set", record(), "image")
    whole = LeRobotImages.read

    def read(self: LeRobotImages, episode: int, frame: int) -> Any:
        if (episode, frame) == (1, 3):
            raise ZeroDivisionError("no\nframes")
        return whole(self, episode, frame)

    monkeypatch.setattr(LeRobotImages, "read", read)
    report = inspect(Inspection(path=root))
    file = "data/chunk-000/file-000.parquet"
    assert report["problems"] == [
        f"episode 1, {file}: expected a record that its reader survives, found ZeroDivisionError: no frames"
    ]
    assert [entry["verdict"] for entry in report["episodes"]] == ["good", "bad", "good"]
