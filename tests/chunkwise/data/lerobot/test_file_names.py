"""Files that a LeRobot dataset is read from, all of which a run watches."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.video import LeRobotImages, file_names
from tests.lerobot_files import CAMERAS, record, write_v21


def test_images_that_a_table_names_are_files_of_the_dataset(tmp_path: Path) -> None:
    """Else a run would go on after they were replaced."""
    root = write_v21(tmp_path / "set", record(lengths=(3,)), "image")
    (file,) = root.glob("data/*/*.parquet")
    table, key = pq.read_table(file), CAMERAS[0]
    (root / "seen").mkdir()
    values = table[key].to_pylist()
    for frame, value in enumerate(values[:2]):  # the third stays in the table, under a name that is no file's
        (root / f"seen/{frame}.png").write_bytes(value["bytes"])
        values[frame] = {"bytes": None, "path": f"seen/{frame}.png"}
    place = table.schema.get_field_index(key)
    table = table.set_column(place, table.schema.field(key), pa.array(values, table.schema.field(key).type))
    pq.write_table(table, file)
    meta = read_meta(root)
    LeRobotImages(meta, [key]).read(0, 1)
    assert [name for name in file_names(meta, CAMERAS) if name.endswith(".png")] == ["seen/0.png", "seen/1.png"]
