"""Drives, packs and the sources of conversions, damaged at random: only errors of the project come out."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from chunkwise.data.shards import PackSettings
from chunkwise.errors import RunError
from driving.config import DataConfig
from driving.convert import ConvertSettings, Format, convert
from driving.converters.tfrecord import read_records
from driving.data import pack
from driving.data.batches import open_data
from driving.data.episodes import examine
from tests.driving.converters import test_nuscenes, waymo_files
from tests.driving.drives import SIZE, write_drive
from tests.fuzz import attack, attempt, damaged, exchanged


def converting(source: Path, format: Format | None = None) -> Callable[[], None]:
    """Reads a source to its end."""

    def read() -> None:
        out = source.parent / "out"
        shutil.rmtree(out, ignore_errors=True)
        convert(source, out, format=format, settings=ConvertSettings(), report=lambda _: None)

    return read


def test_a_damaged_drive(tmp_path: Path) -> None:
    write_drive(tmp_path, "a", frames=4)
    tree, rng = json.loads((tmp_path / "a.json").read_text()), random.Random(0)
    for _ in range(50):
        (tmp_path / "a.json").write_text(json.dumps(exchanged(tree, rng)))
        attempt(lambda: examine(tmp_path / "a.json"))


def test_a_damaged_folder_of_drives(tmp_path: Path) -> None:
    for i in range(2):
        write_drive(tmp_path / "data", f"e{i}", frames=4, start_yaw=0.5 * i)

    def read() -> None:
        data = open_data(DataConfig(path=str(tmp_path / "data"), image_size=SIZE), "all")
        data.batch(data.anchors)

    read()
    attack(tmp_path / "data", read, 10)


def test_a_damaged_pack(tmp_path: Path) -> None:
    write_drive(tmp_path / "data", "a", frames=4)
    config = DataConfig(path=str(tmp_path / "data"), image_size=SIZE)
    settings = PackSettings(image_size=SIZE, encoding="raw")
    pack.pack(config, pack.open_episodes(config), tmp_path / "pack", settings)

    def read() -> None:
        data = open_data(DataConfig(path=str(tmp_path / "pack"), image_size=SIZE), "all")
        data.batch(data.anchors)

    read()
    attack(tmp_path / "pack", read, 12)


def test_damaged_nuscenes(tmp_path: Path) -> None:
    source = test_nuscenes.write(tmp_path / "nuscenes")
    converting(source)()
    attack(source / "v1.0-mini", converting(source), 15)


def test_damaged_waymo_v2(tmp_path: Path) -> None:
    waymo_files.write_v2(tmp_path / "v2")
    converting(tmp_path / "v2")()
    attack(tmp_path / "v2", converting(tmp_path / "v2"), 15)


def test_damaged_records(tmp_path: Path) -> None:
    file, rng = waymo_files.write_v1(tmp_path / "a.tfrecord"), random.Random(0)
    good = file.read_bytes()
    for _ in range(40):
        file.write_bytes(damaged(good, rng))
        attempt(lambda: list(read_records(file)))


def test_damaged_messages_in_whole_records(tmp_path: Path) -> None:
    frames, rng = [waymo_files.v1_frame(frame) for frame in range(2)], random.Random(0)
    file = waymo_files.write_v1(tmp_path / "a.tfrecord", frames=frames)
    converting(file, "waymo_v1")()
    for _ in range(10):
        waymo_files.write_v1(file, frames=[damaged(frames[0], rng), frames[1]])
        attempt(converting(file, "waymo_v1"))


def test_what_is_attacked_is_read(tmp_path: Path) -> None:
    """Of many changes some must be refused, and some are none."""
    write_drive(tmp_path, "a", frames=4)
    tree, rng, refused = json.loads((tmp_path / "a.json").read_text()), random.Random(1), 0
    for _ in range(30):
        (tmp_path / "a.json").write_text(json.dumps(exchanged(tree, rng)))
        try:
            refused += bool(examine(tmp_path / "a.json")[1])
        except RunError:
            refused += 1
    assert 10 < refused < 30
