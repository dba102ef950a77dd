"""Files that a LeRobot dataset is read from, all of which a run watches."""

from pathlib import Path

from chunkwise.data.lerobot.meta import read_meta
from chunkwise.data.lerobot.video import file_names
from tests.lerobot_files import CAMERAS, Storage, record, write_v21, write_v30


def images(root: Path, storage: Storage) -> list[str]:
    meta = read_meta(write_v21(root, record(lengths=(2,)), storage))
    return [name for name in file_names(meta, CAMERAS) if name.endswith(".png")]


def test_images_that_a_table_names_are_files_of_the_dataset(tmp_path: Path) -> None:
    """Else a run would go on after they were replaced."""
    expected = [f"images/{camera}/episode_000000/frame_{frame:06d}.png" for camera in CAMERAS for frame in (0, 1)]
    assert images(tmp_path / "beside", "image_file") == expected
    assert images(tmp_path / "inside", "image") == [], "names that are no file's"


def test_hidden_files_are_no_tables_of_episodes(tmp_path: Path) -> None:
    """macOS puts one beside each file that it copies onto a disk of another format."""
    root = write_v30(tmp_path / "set", record(lengths=(2, 3)), "image")
    for table in list((root / "meta/episodes").glob("*/*.parquet")):
        table.with_name(f"._{table.name}").write_bytes(b"\0\5\x16\7")
    meta = read_meta(root)
    assert [episode.length for episode in meta.episodes] == [2, 3]
    assert not [name for name in file_names(meta, CAMERAS) if "/." in name]
