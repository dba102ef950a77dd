"""Bytes changed and files cut at random: a reader raises errors of the project, never others."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from core import norm_stats
from core.errors import RunError
from core.images import decode
from core.lerobot import read_meta
from core.lerobot_tables import iter_tables
from core.lerobot_video import LeRobotPictures
from core.npz import read_npz
from tests.lerobot_files import png, record, write_v21, write_v30

TRIES = 25


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut short, or with up to eight bytes changed, more often at the begin and at the end."""
    if rng.random() < 0.25:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(min(len(data), rng.choice((64, 512, len(data)))))
        place = place if rng.random() < 0.7 else len(data) - 1 - place
        changed[place] = rng.choice((0, 255, changed[place] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    return bytes(changed)


def attempt(read: Callable[[], object]) -> None:
    """Reads; an error of the project is as good as none."""
    with contextlib.suppress(RunError):
        read()


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
    files = sorted(path for path in root.rglob("*") if path.is_file())
    rng = random.Random(0)

    def read() -> None:
        meta = read_meta(root)
        pictures = LeRobotPictures(meta, meta.cameras)
        for episode in iter_tables(meta, ["action"]):
            pictures.check(episode.meta.index)
        pictures.read(0, 0)

    for _ in range(TRIES):
        file = rng.choice(files)
        good = file.read_bytes()
        file.write_bytes(damaged(good, rng))
        attempt(read)
        file.write_bytes(good)
