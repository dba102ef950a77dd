"""Bytes changed and files cut at random: a reader raises errors of the project, never others."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data import norm_stats
from chunkwise.data.images import decode
from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.packing import write_pack
from chunkwise.data.lerobot.tables import iter_tables, load_table
from chunkwise.data.lerobot.video import LeRobotImages
from chunkwise.data.pack import PackedImages, open_shards, read_manifest, read_pack_table
from chunkwise.data.shards import PackSettings
from chunkwise.files import budget
from chunkwise.files.npz import read_npz
from tests.fuzz import attack, attempt, damaged
from tests.lerobot_files import png, record, write_v21, write_v30

TRIES = 25


@pytest.mark.parametrize("kind", ["npz", "png", "norm_stats"])
def test_a_damaged_file(kind: str, tmp_path: Path) -> None:
    file, rng = tmp_path / "file", random.Random(0)
    stats = norm_stats.NormStats(mean=np.zeros(2), std=np.ones(2), q01=np.zeros(2), q99=np.ones(2))
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(60).reshape(3, 20), y=np.array("text"))
    norm_stats.save(tmp_path / "n.json", {"state": stats})
    (tmp_path / "p.png").write_bytes(png(np.zeros((6, 7, 3), np.uint8)))
    name, read = {
        "npz": ("a.npz", lambda: read_npz(file)),
        "png": ("p.png", lambda: decode(file.read_bytes(), source="a")),
        "norm_stats": ("n.json", lambda: norm_stats.load(file)),
    }[kind]
    good = (tmp_path / name).read_bytes()
    for _ in range(8 * TRIES):
        file.write_bytes(damaged(good, rng))
        attempt(read)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_damaged_file_of_a_lerobot_dataset(version: str, tmp_path: Path) -> None:
    write, storage = (write_v21, "image") if version == "v2.1" else (write_v30, "video")
    root = write(tmp_path / "data", record((5, 4)), storage)

    def read() -> None:
        meta = read_meta(root)
        images = LeRobotImages(meta, meta.cameras)
        for episode in iter_tables(meta, ["action"]):
            images.check(episode.meta.index)
        images.read(0, 0)

    attack(root, read, TRIES)


@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_a_damaged_pack(encoding: Any, tmp_path: Path) -> None:
    meta = read_meta(write_v21(tmp_path / "data", record((3, 2)), "image"))
    table, _ = load_table(meta, ["action"], on_bad="refuse")
    write_pack(tmp_path / "pack", meta, table, meta.cameras, PackSettings(image_size=(8, 10), encoding=encoding))

    def read() -> None:
        table = read_pack_table(tmp_path / "pack")
        images = PackedImages(tmp_path / "pack", table, read_manifest(tmp_path / "pack")["cameras"])
        for episode, length in zip(table.episodes.tolist(), table.lengths.tolist(), strict=True):
            for frame in range(length):
                images.read(episode, frame)

    read()
    attack(tmp_path / "pack", read, 2 * TRIES)


def test_a_record_of_a_pack_has_a_limit(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "a"), "group_size:1,uncompressed")
    for size in (1 << 20, (1 << 20) + 1):
        writer.write(bytes(size))
    writer.close()
    records = open_shards(tmp_path, [{"file": "a", "rows": 2}], 2)
    with budget.using(record_mib=1):
        assert len(records[0]) == 1 << 20
        with pytest.raises(budget.LimitError, match="record 1: expected at most 1 MiB"):
            records[1]
