"""Cases: Waymo, nuScenes and packs that lie about themselves."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from driving.converters.tfrecord import masked_checksum
from tests.bombs import Command, case
from tests.bombs.arrays import header, write_npz
from tests.bombs.programs import ROOT, driving_convert, driving_validate, openpi_inspect, train
from tests.driving.converters import test_nuscenes as nuscenes
from tests.driving.converters import waymo_files as waymo
from tests.driving.drives import write_drive
from tests.lerobot_files import record, write_v21

CLIMBS = "../../../climbed"


def record_of(payload: bytes) -> bytes:
    """A record of a TFRecord file, both checksums right."""
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", masked_checksum(head)) + payload + struct.pack("<I", masked_checksum(payload))


def tfrecord(folder: Path, messages: Sequence[bytes], kind: str = "waymo_v1", *more: str) -> Command:
    """Converts a TFRecord file of these messages."""
    (folder / "source").mkdir()
    (folder / "source" / "a.tfrecord").write_bytes(b"".join(record_of(message) for message in messages))
    return [*driving_convert(folder / "source", kind), *more]


def tables(folder: Path, table: str, row: int, **values: Any) -> Command:
    """Converts nuScenes with a row changed."""
    nuscenes.write(folder / "source")
    nuscenes.change(folder / "source", table, row, **values)
    return driving_convert(folder / "source", "nuscenes")


def poses(folder: Path, change: Callable[[dict[str, pa.ChunkedArray]], object]) -> Command:
    """Converts Waymo v2 whose vehicle_pose is changed."""
    waymo.write_v2(folder / "source")
    (path,) = (folder / "source" / "vehicle_pose").glob("*.parquet")
    table = pq.read_table(path)
    columns = {name: table[name] for name in table.column_names}
    change(columns)
    pq.write_table(pa.table(columns), path)
    return driving_convert(folder / "source", "waymo_v2")


def pack(folder: Path, package: str, *more: str) -> Path:
    """A good pack, made by the program."""
    if package == "driving":
        for name in "abcd":
            write_drive(folder / "data", name, frames=12)
    else:
        write_v21(folder / "data", record(), "image")
    out = folder / "packed"
    command = [sys.executable, "-m", "chunkwise", "pack", package, str(folder / "data"), str(out), *more]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


def manifest(folder: Path, **values: Any) -> Path:
    """A pack of LeRobot whose manifest is changed."""
    out = pack(folder, "openpi_ript")
    path = out / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return out


@case
def tfrecord_of_groups(folder: Path) -> Command:
    """Two million groups of protobuf in one another."""
    return tfrecord(folder, [b"\x0b" * 2_000_000 + b"\x0c" * 2_000_000])


@case
def tfrecord_of_nested_messages(folder: Path) -> Command:
    """2,000 messages in one another, all called field 1."""
    message = b""
    for _ in range(2000):
        message = waymo.field(1, message)
    return tfrecord(folder, [message, message])


@case
def tfrecord_of_lengths_beyond(folder: Path) -> Command:
    """A field of 2**64 - 1 bytes."""
    return tfrecord(folder, [b"\x0a" + b"\xff" * 9 + b"\x01" + b"x"])


@case
def tfrecord_of_endless_varint(folder: Path) -> Command:
    """A number of 10 million bytes."""
    return tfrecord(folder, [b"\x10" + b"\x80" * 10_000_000 + b"\x01"])


@case
def tfrecord_of_empty_records(folder: Path) -> Command:
    """A million records of nothing."""
    (folder / "source").mkdir()
    (folder / "source" / "a.tfrecord").write_bytes(record_of(b"") * 1_000_000)
    return driving_convert(folder / "source", "waymo_v1")


@case
def tfrecord_of_negative_length(folder: Path) -> Command:
    """A record of 2**63 + 1 bytes, its checksum right."""
    (folder / "source").mkdir()
    head = struct.pack("<Q", (1 << 63) + 1)
    (folder / "source" / "a.tfrecord").write_bytes(head + struct.pack("<I", masked_checksum(head)) + bytes(200))
    return driving_convert(folder / "source", "waymo_e2e")


@case
def tfrecord_whose_segment_climbs(folder: Path) -> Command:
    """A segment called ../../../climbed."""
    return tfrecord(folder, [waymo.v1_frame(n, segment=CLIMBS) for n in range(3)])


@case
def tfrecord_whose_segment_is_a_novel(folder: Path) -> Command:
    """A segment with a NUL, a line break, and 5,000 letters."""
    return tfrecord(folder, [waymo.v1_frame(n, segment="a\0\n" + "x" * 5000) for n in range(3)])


@case
def tfrecord_whose_segment_climbs_e2e(folder: Path) -> Command:
    """The same in the End-to-End set."""
    return tfrecord(folder, [waymo.e2e_frame(n, segment=CLIMBS) for n in range(3)], "waymo_e2e")


@case(may_read=True)
def tfrecord_of_times_that_overflow(folder: Path) -> Command:
    """Frames at -2**63 and 2**63 - 1 microseconds, of no images."""
    frames = []
    for time in (-(1 << 63), (1 << 63) - 1):
        head = waymo.field(1, waymo.context(waymo.SEGMENT)) + waymo.field(2, time)
        frames.append(head + waymo.field(3, waymo.doubles(1, waymo.transform(0, 0, 0))))
    return tfrecord(folder, frames)


@case
def tfrecord_of_future_beyond(folder: Path) -> Command:
    """A future of 10 million places."""
    return tfrecord(folder, [waymo.e2e_frame(0, future=10_000_000)], "waymo_e2e")


@case
def waymo_v2_whose_segment_climbs(folder: Path) -> Command:
    """A segment called ../../../climbed in all tables."""
    waymo.write_v2(folder / "source")
    for path in (folder / "source").glob("*/*.parquet"):
        table = pq.read_table(path)
        place = table.schema.get_field_index("key.segment_context_name")
        table = table.set_column(place, "key.segment_context_name", pa.array([CLIMBS] * len(table)))
        pq.write_table(table, path)
    return driving_convert(folder / "source", "waymo_v2")


@case
def waymo_v2_poses_of_no_numbers(folder: Path) -> Command:
    """Poses of NaN and of 1e308."""

    def change(columns: dict[str, Any]) -> None:
        name = next(name for name in columns if name.endswith("transform"))
        columns[name] = pa.array([[float("nan")] * 16, *[[1e308] * 16] * (len(columns[name]) - 1)])

    return poses(folder, change)


@case
def waymo_v2_times_that_overflow(folder: Path) -> Command:
    """Frames at 2**63 - 1 and -2**63 microseconds."""

    def change(columns: dict[str, Any]) -> None:
        count = len(columns["key.frame_timestamp_micros"])
        times = [-(1 << 63), *[(1 << 63) - count + n for n in range(count - 1)]]
        columns["key.frame_timestamp_micros"] = pa.array(times, pa.int64())

    return poses(folder, change)


@case
def nuscenes_of_samples_in_a_circle(folder: Path) -> Command:
    """The sample after a sample is itself."""
    return tables(folder, "sample", 1, next="sample_0_1")


@case
def nuscenes_of_samples_that_go_back(folder: Path) -> Command:
    """The last sample is followed by the first."""
    return tables(folder, "sample", nuscenes.SAMPLES - 1, next="sample_0_0")


@case
def nuscenes_of_images_that_climb(folder: Path) -> Command:
    """An image is /etc/passwd."""
    return tables(folder, "sample_data", 0, filename="../../../../../../etc/passwd")


@case
def nuscenes_of_a_scene_that_climbs(folder: Path) -> Command:
    """A scene called ../../../climbed."""
    return tables(folder, "scene", 0, name=CLIMBS)


@case
def nuscenes_of_two_scenes_that_become_one(folder: Path) -> Command:
    """Two scenes whose names differ in letters that no file's name may have."""
    nuscenes.write(folder / "source", scenes=2)
    nuscenes.change(folder / "source", "scene", 0, name="a/b")
    nuscenes.change(folder / "source", "scene", 1, name="a:b")
    return driving_convert(folder / "source", "nuscenes")


@case
def nuscenes_of_a_scene_of_half_a_letter(folder: Path) -> Command:
    """A scene whose name is half a surrogate pair and a NUL."""
    return tables(folder, "scene", 0, name="\ud800\0")


@case
def nuscenes_of_no_rotation(folder: Path) -> Command:
    """A quaternion of zeros."""
    return tables(folder, "ego_pose", 0, rotation=[0, 0, 0, 0])


@case
def nuscenes_of_rotation_beyond(folder: Path) -> Command:
    """A quaternion of 1e300, whose square is infinite."""
    return tables(folder, "ego_pose", 0, rotation=[1e300, 0, 0, 1e300])


@case(may_read=True)
def nuscenes_of_times_beyond(folder: Path) -> Command:
    """A time of 10**400 microseconds."""
    return tables(folder, "sample", 0, timestamp=10**400)


@case
def nuscenes_of_tokens_that_are_lists(folder: Path) -> Command:
    """A token that cannot be a key."""
    return tables(folder, "sample_data", 3, token=["a"], ego_pose_token={"a": 1})


@case
def nuscenes_of_numbers(folder: Path) -> Command:
    """Rows that are numbers."""
    nuscenes.write(folder / "source")
    (folder / "source" / "v1.0-mini" / "sample.json").write_text("[1, 2, null]")
    return driving_convert(folder / "source", "nuscenes")


@case
def pack_of_a_huge_image_size(folder: Path) -> Command:
    """image_size of 10**6 x 10**6."""
    return openpi_inspect(manifest(folder, image_size=[10**6, 10**6]))


@case
def pack_of_shards_that_climb(folder: Path) -> Command:
    """A shard called ../../x."""
    out = pack(folder, "openpi_ript")
    path = out / "manifest.json"
    text = path.read_text()
    shard = next(out.glob("*.arrayrecord")).name
    path.write_text(text.replace(shard, "../../x"))
    return openpi_inspect(out)


@case
def pack_of_odd_numbers(folder: Path) -> Command:
    """fps is 0, the tasks' numbers are no numbers, and cameras are twice the same."""
    return openpi_inspect(manifest(folder, fps=0, tasks={"\u0663": "x", "-1": "y"}, cameras=["a", "a"]))


@case
def pack_of_lists(folder: Path) -> Command:
    """Every value of the manifest but the format is a list of a list."""
    out = pack(folder, "openpi_ript")
    path = out / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value if key == "format" else [[]] for key, value in values.items()}))
    return openpi_inspect(out)


@case
def pack_whose_shard_is_cut(folder: Path) -> Command:
    """The second half of a shard, where its directory is, is not there."""
    out = pack(folder, "openpi_ript")
    path = next(out.glob("*.arrayrecord"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return openpi_inspect(out)


@case
def pack_whose_shard_is_zeros(folder: Path) -> Command:
    """A shard of the right size, and of zeros."""
    out = pack(folder, "openpi_ript")
    path = next(out.glob("*.arrayrecord"))
    path.write_bytes(bytes(path.stat().st_size))
    return openpi_inspect(out)


@case
def pack_whose_shard_lies(folder: Path) -> Command:
    """The last 64 KB of a shard, its directory, are of random bytes."""
    out = pack(folder, "openpi_ript")
    path = next(out.glob("*.arrayrecord"))
    size = path.stat().st_size
    keep = max(0, size - (64 << 10))
    noise = np.random.default_rng(0).integers(0, 256, size - keep, np.uint8).tobytes()
    path.write_bytes(path.read_bytes()[:keep] + noise)
    return openpi_inspect(out)


@case
def driving_pack_whose_shard_is_another(folder: Path) -> Command:
    """A shard of a pack of drives is a copy of its manifest."""
    out = pack(folder, "driving")
    next(out.glob("*.arrayrecord")).write_bytes((out / "manifest.json").read_bytes())
    return driving_validate(out)


@case
def driving_pack_of_lists(folder: Path) -> Command:
    """Every value of the manifest but the format is a list of a list."""
    out = pack(folder, "driving")
    path = out / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value if key == "format" else [[]] for key, value in values.items()}))
    return driving_validate(out)


@case
def driving_pack_of_another_index(folder: Path) -> Command:
    """Numbers of frames and records in the index are -1 and 2**62."""
    out = pack(folder, "driving")
    path = out / "_index.npz"
    with np.load(path) as old:
        arrays = {name: old[name] for name in old.files}
    for name, x in arrays.items():
        if x.dtype == np.int64:
            arrays[name] = np.where(np.arange(x.size).reshape(x.shape) % 2, -1, 1 << 62)
    write_npz(path, {name: header(x.shape, x.dtype.str) + x.tobytes() for name, x in arrays.items()})
    return train("driving", out, "--train.steps", "1")
