"""LeRobot datasets that are written here are read here, however many episodes they have."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunkwise.data.lerobot.meta import read_meta
from openpi_ript.data import lerobot_writer
from openpi_ript.data.lerobot_writer import Recorded, write_lerobot


def test_more_episodes_than_a_chunk_holds_lie_where_a_reader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lerobot_writer, "EPISODES_A_CHUNK", 2)
    columns = {"observation.state": np.zeros((3, 2), np.float32), "action": np.zeros((3, 1), np.float32)}
    episodes = [Recorded(columns=columns, images={}, task="push") for _ in range(5)]
    names = {"observation.state": ["x", "y"], "action": ["x"]}
    write_lerobot(tmp_path, episodes, fps=10, robot="point", provenance={}, names=names)
    there = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("data/*/*"))
    assert there == [f"data/chunk-{e // 2:03d}/episode_{e:06d}.parquet" for e in range(5)]
    info = json.loads((tmp_path / "meta/info.json").read_text())
    assert (info["total_chunks"], info["chunks_size"]) == (3, 2)
    read = read_meta(tmp_path)
    assert all((tmp_path / episode.file).exists() for episode in read.episodes)
