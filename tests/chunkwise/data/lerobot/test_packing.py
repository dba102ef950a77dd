"""A pack is the same whoever makes it, goes on after a kill, and leaves out what is bad, if it is asked to."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data import packing
from chunkwise.data.convert import Jobs
from chunkwise.data.pack import PackedImages, read_manifest, read_pack_table
from chunkwise.data.shards import PackSettings
from chunkwise.errors import DataError
from openpi_ript.data.pack import main, pack
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30

SETTINGS = PackSettings(image_size=(12, 16))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 12)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def images(count: int) -> list[Any]:
    """Episodes of three frames."""
    return record((3,) * count)


def program(root: Path, out: Path, *options: str) -> str:
    """Lines that pack with the shards of these tests, in a process of its own."""
    words = [str(root), str(out), "--image-size", "12", "16", *options]
    return f"""
from chunkwise.data import packing
from openpi_ript.data.pack import main
packing.FRAMES_PER_SHARD = 12
raise SystemExit(main({words!r}))
"""


def damage(root: Path, *episodes: int) -> None:
    """Makes the image in the middle unreadable, which shows only when it is decoded."""
    for episode in episodes:
        (root / f"images/{CAMERAS[1]}/episode_{episode:06d}/frame_000001.png").write_bytes(b"no image")


def test_whole_episodes_go_into_a_shard_until_it_is_full():
    assert packing.whole_episodes([7, 5, 1, 30, 2]) == [[0, 1], [2], [3], [4]]
    assert packing.whole_episodes([]) == []


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path):
    root = write_v30(tmp_path / "set", record((5, 6, 7, 8)))
    for name, jobs in {"one": Jobs(), "three": Jobs(workers=3)}.items():
        assert pack(root, tmp_path / name, settings=SETTINGS, jobs=jobs) == 26
    found = contents(tmp_path / "one")
    assert found == contents(tmp_path / "three")
    assert sorted(found) == ["manifest.json", *(f"pictures-0000{n}.arrayrecord" for n in range(3)), "tables.npz"]
    assert [shard["rows"] for shard in read_manifest(tmp_path / "one")["shards"]] == [11, 7, 8]


@pytest.mark.long
def test_a_cluster_gives_the_same_bytes(tmp_path: Path):
    root = write_v30(tmp_path / "set", record((5, 6, 7, 8)))
    pack(root, tmp_path / "one", settings=SETTINGS)
    ended = subprocess.run([sys.executable, "-c", program(root, tmp_path / "ray", "--fleet", "local")], check=False)
    assert ended.returncode == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "ray")


@pytest.mark.parametrize("in_a_shard", [pytest.param(1, marks=pytest.mark.long), 4])
def test_what_is_bad_is_left_out_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_shard: int
):
    """A shard of which nothing is left is no file."""
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 3 * in_a_shard)
    root = write_v21(tmp_path / "set", images(100), "image_file")
    damage(root, 4)
    with pytest.raises(DataError, match="1 problem") as refused:
        pack(root, tmp_path / "pack", settings=SETTINGS)
    assert "--on-bad skip" in str(refused.value)
    assert not (tmp_path / "pack").exists()
    said: list[str] = []
    assert pack(root, tmp_path / "pack", settings=SETTINGS, jobs=Jobs(on_bad="skip"), report=said.append) == 3 * 99
    assert f"{100 // in_a_shard - 1} of {100 // in_a_shard} are there already" in said
    manifest, table = read_manifest(tmp_path / "pack"), read_pack_table(tmp_path / "pack")
    assert len(manifest["shards"]) == (99 if in_a_shard == 1 else 25)
    assert len(list((tmp_path / "pack").glob("*.arrayrecord"))) == len(manifest["shards"])
    assert (manifest["skipped"]["bad"], manifest["skipped"]["of"]) == (1, 100)
    assert (
        "episode 4, data/chunk-000/episode_000004.parquet: expected whole images" in manifest["skipped"]["problems"][0]
    )
    assert f"episode 4, {CAMERAS[1]}, row 1" in manifest["skipped"]["problems"][0]
    assert any(line.startswith("skipped episode 4, ") for line in said)
    assert {*range(100)} - {*table.episodes.tolist()} == {4}
    good = images(100)
    shown = PackedImages(tmp_path / "pack", table, CAMERAS[:1]).read(5, 2)[CAMERAS[0]]
    assert abs(float(shown.mean()) - float(good[5].images[CAMERAS[0]][2].mean())) < 3
    np.testing.assert_array_equal(table.columns["action"][-1], good[-1].action[-1])


@pytest.mark.long
def test_more_than_one_in_a_hundred_is_refused_however_it_is_found(tmp_path: Path):
    """One episode has a bad table and one a bad image, which is seen later."""
    episodes = images(101)
    episodes[7].state[1] = np.nan
    root = write_v21(tmp_path / "set", episodes, "image_file")
    assert pack(root, tmp_path / "one", settings=SETTINGS, jobs=Jobs(on_bad="skip")) == 3 * 100
    assert json.loads((tmp_path / "one/manifest.json").read_text())["skipped"]["bad"] == 1
    damage(root, 70)
    with pytest.raises(DataError, match="2 of 100 are bad"):
        pack(root, tmp_path / "two", settings=SETTINGS, jobs=Jobs(on_bad="skip"))


def test_a_killed_pack_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The process is killed when it begins the third shard; what was there is not made again, and the bytes agree."""
    root = write_v21(tmp_path / "set", record((9, 9, 9, 9)), "image_file")
    pack(root, tmp_path / "whole", settings=SETTINGS)
    lines = """
import os, signal
from chunkwise.data.packing import Packing
write = Packing.write
def killed(self, unit, *rest):
    return os.kill(os.getpid(), signal.SIGKILL) if unit == 2 else write(self, unit, *rest)
Packing.write = killed
"""
    ended = subprocess.run([sys.executable, "-c", lines + program(root, tmp_path / "pack")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "pack").exists()
    assert main([str(root), str(tmp_path / "pack"), "--image-size", "12", "16"]) == 0
    said = capsys.readouterr().out
    assert "2 of 4 are there already" in said
    assert "packed 36 frames into " in said
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_images_that_were_replaced_meanwhile_are_packed_anew(tmp_path: Path):
    """The first start finds episode 2 bad; before the second, episode 0 gets other images under the same names."""
    root = write_v21(tmp_path / "set", record((9, 9, 9)), "image_file")
    damage(root, 2)
    with pytest.raises(DataError, match="1 problem"):
        pack(root, tmp_path / "pack", settings=SETTINGS)
    for frame in range(9):
        names = [root / f"images/{CAMERAS[0]}/episode_{e:06d}/frame_{frame:06d}.png" for e in (1, 0)]
        names[1].write_bytes(names[0].read_bytes())
    damaged = root / f"images/{CAMERAS[1]}/episode_000002/frame_000001.png"
    damaged.write_bytes(damaged.with_name("frame_000002.png").read_bytes())
    pack(root, tmp_path / "pack", settings=SETTINGS)
    reader = PackedImages(tmp_path / "pack", read_pack_table(tmp_path / "pack"), CAMERAS[:1])
    np.testing.assert_array_equal(reader.read(0, 4)[CAMERAS[0]], reader.read(1, 4)[CAMERAS[0]])
