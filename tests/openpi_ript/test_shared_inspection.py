"""openpi_ript/inspect.py by several processes: the same statistics and the same report as by one."""

from pathlib import Path

from openpi_ript.inspect import main
from tests.lerobot_files import record, write_v30


def test_statistics_that_workers_count_are_the_same_file(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", record())
    for name, options in (("one", []), ("two", ["--workers", "2"])):
        assert main([str(root), "--horizon", "4", "--write-stats", str(tmp_path / name), *options]) == 0
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "set", "two"]
