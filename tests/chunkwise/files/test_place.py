"""The place of a file is looked at before the work that ends in it."""

from pathlib import Path

import pytest

from chunkwise.errors import ConfigError, StorageError
from chunkwise.files.place import prepare_place, told_place


def test_a_folder_is_made_and_nothing_is_left_in_it(tmp_path: Path):
    prepare_place(tmp_path / "a/b/file.json")
    assert list((tmp_path / "a/b").iterdir()) == []
    (tmp_path / "a/b/file.json").write_text("before")
    prepare_place(tmp_path / "a/b/file.json")
    assert (tmp_path / "a/b/file.json").read_text() == "before"


def test_a_folder_is_no_file_and_below_a_file_there_is_no_place(tmp_path: Path):
    with pytest.raises(ConfigError, match=r" is a folder; expected the name of a file, as --write-stats"):
        prepare_place(tmp_path, "--write-stats")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/stats\.json: .*Choose another with --figure"):
        prepare_place(tmp_path / "file/stats.json", "--figure")


def test_what_the_system_says_is_told(tmp_path: Path):
    words = r"cannot write a\.json: No space left on device\. Choose another with --out"
    with pytest.raises(StorageError, match=words), told_place(Path("a.json")):
        raise OSError(28, "No space left on device")
