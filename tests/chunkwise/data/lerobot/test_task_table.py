"""The table of tasks of a LeRobot dataset: which number is which instruction."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.errors import DataError
from tests.chunkwise.data.lerobot.test_lerobot import rewrite, set_column
from tests.lerobot_files import TASKS, record, write_v21, write_v30


def test_an_index_of_two_tasks_is_refused(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "a", record(), "image_file")
    lines = root / "meta/tasks.jsonl"
    lines.write_text(lines.read_text() + '{"task_index": 1, "task": "close it"}\n')
    words = r"task_index 1: expected one task, found \['open the drawer', 'close it'\]"
    with pytest.raises(DataError, match=rf"meta/tasks\.jsonl: {words}"):
        read_meta(root)
    root = write_v30(tmp_path / "b", record(), "image_file")
    rewrite(root / "meta/tasks.parquet", set_column("task_index", [0, 0]))
    with pytest.raises(DataError, match=r"meta/tasks\.parquet: task_index 0: expected one task"):
        read_meta(root)


@pytest.mark.parametrize("number", [-1, True])
def test_a_task_whose_number_is_none_is_refused(tmp_path: Path, number: object) -> None:
    """A pack of -1 was written and then opened by nothing."""
    root = write_v21(tmp_path / "set", record(), "image_file")
    with (root / "meta/tasks.jsonl").open("a") as lines:
        lines.write(json.dumps({"task_index": number, "task": "wave"}) + "\n")
    expected = rf"tasks\.jsonl: expected a number task_index of 0 or above, and a text task, .*task_index': {number}"
    with pytest.raises(DataError, match=expected):
        read_meta(root)


def test_instructions_are_text_however_parquet_holds_it(tmp_path: Path) -> None:
    """A pandas categorical is written as a dictionary; a number or bytes are no instruction."""
    root = write_v30(tmp_path / "set", record(), "image_file")

    def as_(kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
        def changed(table: pa.Table) -> pa.Table:
            (place,) = (i for i, name in enumerate(table.column_names) if name != "task_index")
            return table.set_column(place, "task", table.column(place).cast(kind))

        return changed

    for kind in (pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        rewrite(root / "meta/tasks.parquet", as_(kind))
        assert read_meta(root).tasks == dict(enumerate(TASKS)), kind
    rewrite(root / "meta/tasks.parquet", as_(pa.binary()))
    with pytest.raises(DataError, match=r"one text column with the instruction, found .*task \(binary\)"):
        read_meta(root)


@pytest.mark.parametrize("name", ["task", "__index_level_0__"])
def test_instructions_are_found_under_the_names_that_pandas_gives_them(tmp_path: Path, name: str) -> None:
    root = write_v30(tmp_path / "set", record(), "image_file")
    rewrite(root / "meta/tasks.parquet", lambda table: table.rename_columns(["task_index", name]))
    assert read_meta(root).tasks == dict(enumerate(TASKS))
