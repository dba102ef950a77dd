"""Cases: JSON and parquet with odd numbers, texts, names and paths."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bombs import Command, case
from tests.bombs.programs import driving_convert, driving_validate, openpi_inspect, qchunk_convert, train, train_lerobot
from tests.bombs.tables import edit_json
from tests.driving.drives import write_drive
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30


def info(folder: Path, *, v30: bool = False, **values: Any) -> Path:
    """A LeRobot dataset whose info.json says other things."""
    root = (write_v30 if v30 else write_v21)(folder / "data", record(), "image")
    edit_json(root / "meta" / "info.json", **values)
    return root


def info_text(folder: Path, key: str, text: str) -> Path:
    """The same, with any text as the value of a key."""
    root = info(folder)
    edit_json(root / "meta" / "info.json", **{key: "@@"})
    path = root / "meta" / "info.json"
    path.write_text(path.read_text().replace('"@@"', text))
    return root


def column(folder: Path, name: str, values: Callable[[int], pa.Array]) -> Path:
    """A LeRobot dataset, one column of whose first table is another."""
    root = write_v21(folder / "data", record(), "image")
    path = sorted((root / "data").glob("*/*.parquet"))[0]
    table = pq.read_table(path)
    place = table.schema.get_field_index(name)
    pq.write_table(table.set_column(place, name, values(len(table))), path)
    return root


def drive(folder: Path, change: Callable[[dict[str, Any]], object], *, frames: int = 30) -> Path:
    """A drive whose JSON is changed."""
    write_drive(folder, "a", frames=frames, change=change)
    return folder


def drive_text(folder: Path, old: str, new: str) -> Command:
    """A drive in whose JSON a text is replaced."""
    path = write_drive(folder, "a")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return driving_validate(folder)


@case
def info_with_a_format_of_a_gigabyte(folder: Path) -> Command:
    """data_path pads the number of a chunk to two billion digits."""
    return openpi_inspect(info(folder, data_path="data/chunk-{episode_chunk:02000000000d}/{episode_index}.parquet"))


@case
def info_with_a_format_of_precision(folder: Path) -> Command:
    """The same in v3.0, with a float of a billion digits, in training."""
    root = info(folder, v30=True, data_path="data/{chunk_index:.1000000000f}/file-{file_index:03d}.parquet")
    return train_lerobot(root)


@case
def info_with_a_format_of_attributes(folder: Path) -> Command:
    """data_path asks for Python's classes."""
    return openpi_inspect(info(folder, data_path="data/{episode_index.__class__.__mro__}.parquet"))


@case
def info_with_paths_that_lead_out(folder: Path) -> Command:
    """data_path leaves the dataset."""
    return openpi_inspect(info(folder, data_path="../../../../etc/{episode_index}"))


@case
def info_with_a_path_of_nul(folder: Path) -> Command:
    """data_path has a NUL in it, and no place for a number."""
    return openpi_inspect(info(folder, data_path="data/\0.parquet"))


@case
def info_with_chunks_of_nothing(folder: Path) -> Command:
    """chunks_size is 0, by which one divides."""
    return openpi_inspect(info(folder, chunks_size=0))


@case
def info_with_a_billion_frames_a_second(folder: Path) -> Command:
    """fps is 1e9."""
    return openpi_inspect(info(folder, fps=1e9))


@case
def info_with_infinite_fps(folder: Path) -> Command:
    """fps is 1e400."""
    return openpi_inspect(info_text(folder, "fps", "1e400"))


@case
def info_with_counts_beyond_int64(folder: Path) -> Command:
    """total_frames is 10**30, total_episodes 1e308."""
    return openpi_inspect(info(folder, total_frames=10**30, total_episodes=1e308))


@case
def info_with_a_number_of_5000_digits(folder: Path) -> Command:
    """total_frames has more digits than Python turns into a number."""
    return openpi_inspect(info_text(folder, "total_frames", "9" * 5000))


@case
def info_of_utf16(folder: Path) -> Command:
    """info.json in UTF-16."""
    root = info(folder)
    path = root / "meta" / "info.json"
    path.write_bytes(path.read_text().encode("utf-16"))
    return openpi_inspect(root)


@case(may_read=True)
def info_with_a_byte_order_mark(folder: Path) -> Command:
    """info.json as Windows saves it."""
    root = info(folder)
    path = root / "meta" / "info.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    return openpi_inspect(root)


@case
def info_of_features_that_climb(folder: Path) -> Command:
    """A camera's name leads out of the dataset, and is 24 x 32 x 2**62."""
    root = write_v21(folder / "data", record(), "video")
    features = json.loads((root / "meta" / "info.json").read_text())["features"]
    features["../../../x"] = features.pop(CAMERAS[0]) | {"shape": [24, 32, 1 << 62]}
    edit_json(root / "meta" / "info.json", features=features)
    return openpi_inspect(root)


@case
def info_of_wide_features(folder: Path) -> Command:
    """An action of 2**40 numbers."""
    root = write_v21(folder / "data", record(), "image")
    features = json.loads((root / "meta" / "info.json").read_text())["features"]
    edit_json(root / "meta" / "info.json", features=features | {"action": {"dtype": "float32", "shape": [1 << 40]}})
    return openpi_inspect(root)


@case
def info_of_lists(folder: Path) -> Command:
    """Everything in info.json is a list."""
    root = write_v21(folder / "data", record(), "image")
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({key: [] for key in json.loads(path.read_text())}))
    return openpi_inspect(root)


@case
def episodes_of_odd_lengths(folder: Path) -> Command:
    """Lengths below 0, beyond int64, true, and null."""
    root = write_v21(folder / "data", record((7, 7, 7, 7)), "image")
    lines = [{"episode_index": n, "tasks": [], "length": x} for n, x in enumerate((-7, 1 << 70, True, None))]
    (root / "meta" / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return openpi_inspect(root)


@case
def episodes_in_one_line(folder: Path) -> Command:
    """A line of 60 MB that does not end."""
    root = write_v21(folder / "data", record(), "image")
    (root / "meta" / "episodes.jsonl").write_text('{"episode_index": 0, "length": 7, "tasks": ["' + "x" * 60_000_000)
    return openpi_inspect(root)


@case(may_read=True)
def task_of_half_a_letter(folder: Path) -> Command:
    """A task that is half of a surrogate pair, which no encoding can write."""
    root = write_v21(folder / "data", record(), "image")
    lines = ['{"task_index": 0, "task": "\\ud800"}', '{"task_index": 1, "task": "\\u0000\\u001b[2J\\n"}']
    (root / "meta" / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return openpi_inspect(root)


@case(may_read=True)
def task_of_half_a_letter_in_training(folder: Path) -> Command:
    """The same, in training, where tasks are tokenized."""
    task_of_half_a_letter(folder)
    return train_lerobot(folder / "data")


@case
def timestamps_of_no_numbers(folder: Path) -> Command:
    """Times are NaN."""
    return openpi_inspect(column(folder, "timestamp", lambda n: pa.array([float("nan")] * n, pa.float32())))


@case
def timestamps_of_null(folder: Path) -> Command:
    """Times are null."""
    return openpi_inspect(column(folder, "timestamp", lambda n: pa.nulls(n, pa.float32())))


@case
def actions_of_null(folder: Path) -> Command:
    """One action is null, which as a number is what was there before."""

    def make(n: int) -> pa.Array:
        flat = pa.array(np.ones(7 * n, np.float32))
        return pa.FixedSizeListArray.from_arrays(flat, 7, mask=pa.array(np.arange(n) == 2))

    return openpi_inspect(column(folder, "action", make))


@case
def actions_with_a_null_inside(folder: Path) -> Command:
    """One number of an action is null."""

    def make(n: int) -> pa.Array:
        return pa.array([[1.0] * 6 + [None if row == 2 else 1.0] for row in range(n)], pa.list_(pa.float32()))

    return openpi_inspect(column(folder, "action", make))


@case
def actions_beyond_float32(folder: Path) -> Command:
    """Actions that are finite as float64 alone."""
    return openpi_inspect(column(folder, "action", lambda n: pa.array([[1e300] * 7] * n, pa.list_(pa.float64()))))


@case
def actions_of_texts(folder: Path) -> Command:
    """Actions that are numbers in quotes, converted."""
    return qchunk_convert(column(folder, "action", lambda n: pa.array([["1.0"] * 7] * n)))


@case
def actions_nested_deeply(folder: Path) -> Command:
    """Actions in 400 lists of one."""

    def make(n: int) -> pa.Array:
        values: pa.Array = pa.array(np.ones(n, np.float32))
        for _ in range(400):
            values = pa.ListArray.from_arrays(pa.array(np.arange(n + 1), pa.int32()), values)
        return values

    return openpi_inspect(column(folder, "action", make))


@case
def index_of_task_beyond_the_tasks(folder: Path) -> Command:
    """task_index -1, which Python takes for the last, and 2**62."""
    return openpi_inspect(column(folder, "task_index", lambda n: pa.array([-1] + [1 << 62] * (n - 1), pa.int64())))


@case
def parquet_with_a_forged_footer(folder: Path) -> Command:
    """A footer that says that it has 2 GB."""
    root = write_v21(folder / "data", record(), "image")
    path = sorted((root / "data").glob("*/*.parquet"))[0]
    path.write_bytes(path.read_bytes()[:-8] + struct.pack("<I", 2_000_000_000) + b"PAR1")
    return openpi_inspect(root)


@case
def parquet_with_bent_thrift(folder: Path) -> Command:
    """A footer of 8 MB of lists in lists, all of 2 billion elements."""
    root = write_v21(folder / "data", record(), "image")
    path = sorted((root / "data").glob("*/*.parquet"))[0]
    footer = b"\x19\xf9\xff\xff\xff\xff\x07" * 1_200_000
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return openpi_inspect(root)


@case
def parquet_of_many_row_groups(folder: Path) -> Command:
    """200,000 row groups of one row each, in meta/episodes."""
    root = write_v30(folder / "data", record(), "image")
    (path,) = (root / "meta" / "episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    names = [name for name in table.column_names if pa.types.is_integer(table.schema.field(name).type)]
    pq.write_table(
        pa.table({name: pa.nulls(200_000, pa.int64()).fill_null(0) for name in names}), path, row_group_size=1
    )
    return openpi_inspect(root)


@case
def drive_of_two_keys(folder: Path) -> Command:
    """One frame has its time twice."""
    return drive_text(folder, '"t": 0.1', '"t": 0.05, "t": 0.1')


@case
def drive_of_infinite_numbers(folder: Path) -> Command:
    """1e999 is infinite to Python, and no error."""
    return drive_text(folder, '"speed_mps": 8.0', '"speed_mps": 1e999')


@case
def drive_of_a_number_too_long(folder: Path) -> Command:
    """An integer of 5,000 digits."""
    return drive_text(folder, '"speed_mps": 8.0', f'"speed_mps": {"9" * 5000}')


@case
def drive_of_numbers_beyond_float32(folder: Path) -> Command:
    """A speed of 1e300 m/s, as an integer and as a float, in training."""
    drive_text(folder, '"speed_mps": 8.0', f'"speed_mps": {10**300}')
    return train("driving", folder)


@case
def drive_of_utf16(folder: Path) -> Command:
    """A drive in UTF-16."""
    path = write_drive(folder, "a")
    path.write_bytes(path.read_text().encode("utf-16"))
    return driving_validate(folder)


@case
def drive_of_broken_utf8(folder: Path) -> Command:
    """An episode_id that is no UTF-8."""
    path = write_drive(folder, "a")
    path.write_bytes(path.read_bytes().replace(b'"episode_id": "a"', b'"episode_id": "\xff\xfe"'))
    return driving_validate(folder)


@case(may_read=True)
def drive_of_half_a_letter(folder: Path) -> Command:
    """An episode_id that is half of a surrogate pair, and clears the terminal."""
    return drive_text(folder, '"episode_id": "a"', '"episode_id": "\\ud800\\u001b[2J\\n"')


@case(may_read=True)
def drive_of_half_a_letter_in_training(folder: Path) -> Command:
    """The same, in training: splits are named by ids."""
    drive_text(folder, '"episode_id": "a"', '"episode_id": "\\ud800\\n"')
    for name in "bcde":
        write_drive(folder, name)
    return train("driving", folder, "--train.steps", "1")


@case
def drive_of_image_paths(folder: Path) -> Command:
    """Images are called NUL, half a letter, 5,000 letters, a folder, and the JSON itself."""
    odd = ("a\0.jpg", "\ud800.jpg", "x" * 5000, ".", "a.json", "a_images", "/dev/zero", "\n")

    def change(tree: dict[str, Any]) -> None:
        for frame, path in zip(tree["frames"], odd, strict=False):
            frame["observations"]["cameras"]["front"]["image_path"] = path

    return driving_validate(drive(folder, change))


@case(may_read=True)
def drive_of_thirty_million_years(folder: Path) -> Command:
    """The last frame is 1e15 seconds later: nothing may be made for the time between."""
    return driving_validate(drive(folder, lambda tree: tree["frames"][-1].update(t=1e15)))


@case(may_read=True)
def drive_of_thirty_million_years_in_training(folder: Path) -> Command:
    """The same, in training, beside good drives."""
    drive(folder, lambda tree: tree["frames"][-1].update(t=1e15))
    for name in "bcde":
        write_drive(folder, name)
    return train("driving", folder, "--train.steps", "2")


@case(may_read=True)
def drive_of_endless_waypoints(folder: Path) -> Command:
    """waypoint_spec says 2**62 steps of 1e-300 seconds."""
    spec = {"horizon_steps": 1 << 62, "dt": 1e-300, "frame": "ego", "units": "m"}
    return driving_validate(drive(folder, lambda tree: tree.update(waypoint_spec=spec)))


@case
def drive_of_flat_cameras(folder: Path) -> Command:
    """Extrinsics of zeros, and a focal length of 1e-320."""

    def change(tree: dict[str, Any]) -> None:
        front = tree["frames"][0]["observations"]["cameras"]["front"]
        front |= {"extrinsics": [0.0] * 16, "intrinsics": [1e-320, 1e-320, 0, 0]}

    return driving_validate(drive(folder, change))


@case
def drive_of_far_poses(folder: Path) -> Command:
    """Poses at 1e308 m, and at -1e308."""

    def change(tree: dict[str, Any]) -> None:
        for n, frame in enumerate(tree["frames"]):
            frame["observations"]["state"] |= {"x_m": (-1) ** n * 1e308, "y_m": 1e308, "yaw_rad": 1e308}

    return driving_validate(drive(folder, change))


@case
def split_that_is_odd(folder: Path) -> Command:
    """_split.json names drives by numbers, lists and itself, in training."""
    for name in "abcd":
        write_drive(folder, name)
    (folder / "_split.json").write_text('{"train": [[], 1, "a", "a"], "val": {"b": 1}, "test": null, "\\ud800": []}')
    return train("driving", folder)


@case
def lerobot_as_a_drive(folder: Path) -> Command:
    """A LeRobot dataset whose video keys and tasks climb folders is converted to drives."""
    root = write_v21(folder / "data", record(), "image")
    path = root / "meta" / "info.json"
    path.write_text(path.read_text().replace(CAMERAS[0], "observation.images.../../../x"))
    return [*driving_convert(root, "lerobot"), "--state", "speed_mps=observation.state:0"]
