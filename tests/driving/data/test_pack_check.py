"""chunkwise pack driving --check: what a pack no longer has of its dataset."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkwise.errors import DataError
from driving.config import DataConfig
from driving.data import pack as pack_lib
from driving.data.batches import open_data
from tests.driving.data.test_pack import packed
from tests.driving.drives import SIZE, write_drive


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four drives of eight frames."""
    for i in range(4):
        write_drive(tmp_path / "source", f"e{i}", frames=8, start_yaw=0.5 * i)
    return tmp_path / "source"


def _edited(source: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads((source / "e1.json").read_text())
    change(tree)
    (source / "e1.json").write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda tree: tree["frames"][2]["observations"].update(route_command="left"), "route_command"),
        (lambda tree: tree["frames"][2]["observations"]["state"].update(yaw_rate_radps=-3.0), "yaw_rate_radps"),
        (lambda tree: tree.update(source={"split": "test"}), "splits"),
        (lambda tree: tree.update(source={"scene_id": "q"}), "recordings"),
        (lambda tree: tree["frames"][2]["observations"]["cameras"]["front"].update(extrinsics=None), "calibration"),
        (
            lambda tree: tree["frames"][2]["observations"]["cameras"]["front"].update(intrinsics=[9, 9, 9, 9]),
            "intrinsics",
        ),
        (lambda tree: tree["frames"][2]["observations"]["cameras"]["front"].update(t_offset_s=0.04), "t_offset_s"),
    ],
)
def test_check_finds_what_training_would_draw_otherwise(
    source: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], name: str
):
    """None of these is an image, a time, a pose or a speed."""
    packed(source, tmp_path / "pack", SIZE, "raw")
    config = DataConfig(path=str(source), image_size=SIZE)
    pack_lib.compare(config, pack_lib.open_episodes(config), tmp_path / "pack")
    _edited(source, change)
    with pytest.raises(DataError, match=f"expected the same {name} as in"):
        pack_lib.compare(config, pack_lib.open_episodes(config), tmp_path / "pack")


def test_check_finds_another_split(source: Path, tmp_path: Path):
    config = DataConfig(path=str(source), image_size=SIZE, val_fraction=0.25, test_fraction=0.25)
    open_data(config)
    packed(source, tmp_path / "pack", SIZE, "raw")
    pack_lib.compare(config, pack_lib.open_episodes(config), tmp_path / "pack")
    (source / "_split.json").unlink()
    open_data(dataclasses.replace(config, val_fraction=0.5))
    with pytest.raises(DataError, match=r"_split.json: expected the parts of .*_split.json, found others"):
        pack_lib.compare(config, pack_lib.open_episodes(config), tmp_path / "pack")
