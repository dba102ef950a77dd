"""Cases: LeRobot datasets' tables and descriptions, Waymo v2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bombs import Command, case
from tests.bombs.programs import driving_convert, openpi_inspect, qchunk_convert, train
from tests.lerobot_files import record, write_v21, write_v30


def edit_json(path: Path, **values: Any) -> None:
    """Replaces keys of a JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def repeated(path: Path, columns: dict[str, pa.Scalar], rows: int, step: int = 1 << 20) -> None:
    """A table of one row again and again, which costs a few bytes."""
    schema = pa.schema([(name, value.type) for name, value in columns.items()])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, rows, step):
            count = min(step, rows - first)
            arrays = [pa.repeat(value, count) for value in columns.values()]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


@case
def lerobot_v30_endless_episodes(folder: Path) -> Command:
    """0.6 MB of meta/episodes that are 40 million rows."""
    root = write_v30(folder / "data", record(), "image")
    (path,) = (root / "meta" / "episodes").glob("*/*.parquet")
    names = [name for name in pq.read_schema(path).names if pa.types.is_integer(pq.read_schema(path).field(name).type)]
    repeated(path, {name: pa.scalar(0, pa.int64()) for name in names}, 40_000_000)
    return openpi_inspect(root)


@case
def lerobot_v21_long_rows(folder: Path) -> Command:
    """1.2 MB of a table whose lists are 3.9 GB."""
    root = write_v21(folder / "data", record((500,)), "image_file")
    (path,) = (root / "data").glob("*/*.parquet")
    table = pq.read_table(path).drop_columns("observation.state")
    values = pa.array([np.zeros(2_000_000, np.float32)], pa.list_(pa.float32()))
    schema = table.schema.append(pa.field("observation.state", values.type))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in range(len(table)):
            arrays = [column.combine_chunks() for column in table.slice(row, 1).columns]
            writer.write_table(pa.Table.from_arrays([*arrays, values], schema=schema))
    return openpi_inspect(root)


@case
def lerobot_v21_long_episode(folder: Path) -> Command:
    """An episode of 200 million frames, as meta/ says too."""
    root = write_v21(folder / "data", record((5,)), "image_file")
    (path,) = (root / "data").glob("*/*.parquet")
    types = {field.name: field.type for field in pq.read_schema(path)}
    frames = 200_000_000
    columns = {
        name: pa.scalar([0.0] * kind.list_size, kind) if pa.types.is_fixed_size_list(kind) else pa.scalar(0, kind)
        for name, kind in types.items()
        if not pa.types.is_boolean(kind) and not pa.types.is_struct(kind)
    }
    small = {name: value for name, value in columns.items() if not pa.types.is_fixed_size_list(value.type)}
    repeated(path, small, frames)
    edit_json(root / "meta" / "info.json", total_frames=frames)
    (root / "meta" / "episodes.jsonl").write_text(
        json.dumps({"episode_index": 0, "tasks": ["pick the cube"], "length": frames}) + "\n"
    )
    return openpi_inspect(root)


@case
def lerobot_one_image_a_million_times(folder: Path) -> Command:
    """A column of images: one of 1 MB, repeated by its dictionary, in training."""
    root = write_v21(folder / "data", record((3000,)), "image")
    (path,) = (root / "data").glob("*/*.parquet")
    table = pq.read_table(path)
    for key in [field.name for field in table.schema if pa.types.is_struct(field.type)]:
        image = {"bytes": bytes(1_000_000), "path": "x.png"}
        place = table.schema.get_field_index(key)
        kind = table.schema.field(key).type
        index = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array([image["bytes"]]))
        column = pa.StructArray.from_arrays([index, pa.array(["x.png"] * len(table))], names=["bytes", "path"])
        del kind
        table = table.set_column(place, key, column)
    pq.write_table(table, path, compression="zstd", store_schema=False)
    return openpi_inspect(root)


@case
def lerobot_task_of_one_megabyte(folder: Path) -> Command:
    """3,000 tasks whose text is one of 1 MB, repeated by its dictionary."""
    root = write_v30(folder / "data", record(), "image_file")
    count = 3000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 1_000_000]))
    table = pa.table({"task_index": pa.array(range(count), pa.int64()), "task": texts})
    pq.write_table(table, root / "meta" / "tasks.parquet", compression="zstd", store_schema=False)
    return openpi_inspect(root)


@case
def lerobot_wide_table(folder: Path) -> Command:
    """A table of 30,000 columns."""
    root = write_v30(folder / "data", record(), "image_file")
    (path,) = (root / "meta" / "episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    for n in range(30_000):
        table = table.append_column(f"c{n}", pa.array([0] * len(table), pa.int8())) if n < 1 else table
    columns = {name: table[name] for name in table.column_names} | {f"c{n}": table["c0"] for n in range(30_000)}
    pq.write_table(pa.table(columns), path)
    return qchunk_convert(root)


@case
def lerobot_in_training(folder: Path) -> Command:
    """40 million rows of meta/episodes, in training."""
    root = write_v30(folder / "data", record(), "image")
    (path,) = (root / "meta" / "episodes").glob("*/*.parquet")
    names = [name for name in pq.read_schema(path).names if pa.types.is_integer(pq.read_schema(path).field(name).type)]
    repeated(path, {name: pa.scalar(0, pa.int64()) for name in names}, 40_000_000)
    return train("openpi_ript", root)


@case
def waymo_v2_endless_poses(folder: Path) -> Command:
    """40 million vehicle poses of nothing."""
    from tests.driving.converters.waymo_files import write_v2

    source = folder / "source"
    write_v2(source)
    (path,) = source.glob("**/vehicle_pose/*.parquet")
    columns = {
        field.name: pa.scalar([0.0] * 16, field.type) if pa.types.is_list(field.type) else pa.scalar(None, field.type)
        for field in pq.read_schema(path)
    }
    repeated(path, columns, 10_000_000, 1 << 17)
    return driving_convert(source, "waymo_v2")
