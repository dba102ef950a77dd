"""200 Waymo records by any number of processes, killed, and with damage in one of them."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chunkwise.data.convert import Jobs
from chunkwise.errors import DataError
from chunkwise.files import budget
from driving.convert import convert
from driving.converters.tfrecord import masked_checksum
from driving.data.episodes import load_episode
from tests.driving.converters import waymo_files

FILES, FRAMES = 10, 20
ROOT = Path(__file__).parents[3]


def record(payload: bytes) -> bytes:
    """A record, its checksums by the library: those of waymo_files take 5 ms each."""
    length = struct.pack("<Q", len(payload))
    return b"".join(part for data in (length, payload) for part in (data, struct.pack("<I", masked_checksum(data))))


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten segments of 20 frames, a file each."""
    folder = tmp_path_factory.mktemp("waymo") / "training"
    folder.mkdir()
    for number in range(FILES):
        frames = [waymo_files.v1_frame(frame, segment=f"1{number}_000_20_000") for frame in range(FRAMES)]
        (folder / f"segment-{number}.tfrecord").write_bytes(b"".join(record(frame) for frame in frames))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes of it."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert(source, out, format="waymo_v1", report=lambda _: None)
    assert len(list(out.glob("1*.json"))) == FILES
    assert len(list(out.glob("images/*/*"))) == FILES * FRAMES * 5
    return contents(out)


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_any_number_of_workers_gives_the_same_bytes(
    source: Path, whole: dict[str, bytes], tmp_path: Path, workers: int
):
    convert(source, tmp_path / "out", format="waymo_v1", jobs=Jobs(workers=workers), report=lambda _: None)
    assert contents(tmp_path / "out") == whole


def test_killed_in_the_middle_it_goes_on(source: Path, whole: dict[str, bytes], tmp_path: Path):
    out = tmp_path / "out"
    words = [sys.executable, "-m", "driving.convert", str(source), str(out), "--format", "waymo_v1"]
    killed = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob(".out.part/.jobs/parts/00000[2-9]/part.json")):
        assert killed.poll() is None
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not out.exists()
    said: list[str] = []
    convert(source, out, format="waymo_v1", report=said.append)
    assert int(said[0].split()[0]) >= 3, said
    assert "of 10 are there already" in said[0]
    assert contents(out) == whole
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_a_flipped_bit_in_the_last_record_costs_that_record(source: Path, whole: dict[str, bytes], tmp_path: Path):
    shutil.copytree(source, tmp_path / "training")
    last = tmp_path / "training" / f"segment-{FILES - 1}.tfrecord"
    data = bytearray(last.read_bytes())
    data[-2000] ^= 8
    last.write_bytes(data)
    out, said = tmp_path / "out", list[str]()
    with pytest.raises(DataError, match=r"1 problem\(s\):\n  segment-9.tfrecord: record 19 at byte [0-9]+: expected"):
        convert(tmp_path / "training", out, format="waymo_v1", report=said.append)
    assert not out.exists()
    convert(tmp_path / "training", out, format="waymo_v1", jobs=Jobs(on_bad="skip"), report=said.append)
    assert f"{FILES - 1} of {FILES} are there already" in said
    assert [line for line in said if line.startswith("skipped segment-9.tfrecord: record 19 at byte")]
    found = contents(out)
    lost = {name for name in whole if name not in found}
    assert len(lost) == 5
    assert {name.split("/")[1] for name in lost} == {"19_000_20_000"}, "the images of one frame"
    assert {name for name in found if found[name] != whole[name]} == {"19_000_20_000.json", "_dataset.json"}
    assert len(load_episode(out / "19_000_20_000.json").t) == FRAMES - 1


def test_a_refused_record_leaves_no_image_of_those_before_its_fault(
    source: Path, whole: dict[str, bytes], tmp_path: Path
):
    shutil.copytree(source, tmp_path / "training")
    last = tmp_path / "training" / f"segment-{FILES - 1}.tfrecord"
    frames = [waymo_files.v1_frame(frame, segment="19_000_20_000") for frame in range(FRAMES)]
    frames[-1] += waymo_files.field(4, waymo_files.field(1, 99))  # a sixth image, of no camera
    last.write_bytes(b"".join(record(frame) for frame in frames))
    out, said = tmp_path / "out", list[str]()
    convert(tmp_path / "training", out, format="waymo_v1", jobs=Jobs(on_bad="skip"), report=said.append)
    assert [line for line in said if "images[].name: expected 1 to 8, found 99" in line]
    lost = set(whole) - set(contents(out))
    assert len(lost) == 5
    assert {name.split("/")[1] for name in lost} == {"19_000_20_000"}


def test_a_file_that_cannot_be_read_at_all_costs_that_file(source: Path, whole: dict[str, bytes], tmp_path: Path):
    shutil.copytree(source, tmp_path / "training")
    (tmp_path / "training/segment-x.tfrecord").write_bytes(record(b"\x10\x01" * 3_000))  # as many numbers
    out, said = tmp_path / "out", list[str]()
    with budget.using(metadata_values=2_000):
        with pytest.raises(DataError, match=r"1 problem\(s\):\n  segment-x.tfrecord.*found more fields.*metadata-val"):
            convert(tmp_path / "training", out, format="waymo_v1", report=said.append)
        assert not out.exists()
        convert(tmp_path / "training", out, format="waymo_v1", jobs=Jobs(on_bad="skip"), report=said.append)
    found = contents(out)
    assert {name for name in found if found[name] != whole.get(name)} == {"_dataset.json"}
    assert set(found) == set(whole)


def test_a_segment_that_is_spread_over_files_is_joined_by_any_number_of_workers(tmp_path: Path):
    folder = tmp_path / "set"
    folder.mkdir()
    rated = [(8.0, [(2.0 * i, 0.0) for i in range(1, 21)])]
    for number in range(3):
        frames = [waymo_files.e2e_frame(3 * i + number, rated=rated if i == 1 else ()) for i in range(3)]
        frames.append(waymo_files.e2e_frame(number, segment=f"of{number}"))
        (folder / f"val_{number}.tfrecord-00000-of-00001").write_bytes(b"".join(record(frame) for frame in frames))
    for workers in (1, 2):
        out = tmp_path / str(workers)
        convert(folder, out, format="waymo_e2e", jobs=Jobs(workers=workers), report=lambda _: None)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    episode = load_episode(tmp_path / "2/a0b1c2.json")
    assert len(episode.t) == 9
    assert sum(len(rated) for rated in episode.rated) == 3
    names = ["_dataset.json", "a0b1c2.json", "of0.json", "of1.json", "of2.json"]
    assert sorted(path.name for path in (tmp_path / "2").glob("*.json")) == names


def test_a_segment_that_two_files_have_costs_the_second_of_them(source: Path, whole: dict[str, bytes], tmp_path: Path):
    shutil.copytree(source, tmp_path / "training")
    frames = [waymo_files.v1_frame(frame, segment="19_000_20_000") for frame in (30, 31)]
    (tmp_path / "training/segment-x.tfrecord").write_bytes(b"".join(record(frame) for frame in frames))
    out = tmp_path / "out"
    convert(tmp_path / "training", out, format="waymo_v1", jobs=Jobs(on_bad="skip"), report=lambda _: None)
    found = contents(out)
    assert set(found) == set(whole)
    assert {name for name in found if found[name] != whole[name]} == {"_dataset.json"}
    assert b"it is also in segment-9.tfrecord" in found["_dataset.json"]
    assert b'"images": 1000' in found["_dataset.json"]
