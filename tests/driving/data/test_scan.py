"""Drives that are opened by several processes: the same index, files, messages and cache as by one."""

import dataclasses
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from chunkwise.data.problems import Problem
from chunkwise.distributed.jobs import Hands
from chunkwise.errors import DataError
from chunkwise.files import identity
from chunkwise.files.budget import LimitError
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from driving.config import DataConfig
from driving.data import batches, scan
from driving.data import pack as pack_lib
from driving.data.index import pack
from tests.driving.drives import write_drive


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(scan, "WORKER_BYTES", 1)
    return tmp_path / "home"


def dataset(root: Path) -> Path:
    """Drives of which one names images of another, one has none of its own, and two are bad."""

    def others(tree: dict[str, Any]) -> None:
        for frame in tree["frames"]:
            for camera in frame["observations"]["cameras"].values():
                camera["image_path"] = camera["image_path"].replace("c_images", "b_images")

    write_drive(root, "a", frames=25)  # the first to begin, and not the first to be done
    write_drive(root, "b", frames=3)
    write_drive(root, "c", frames=3, change=others, images=False)
    write_drive(root, "d", frames=3, change=lambda tree: tree["frames"][1].pop("t"))
    write_drive(root, "e", frames=3, images=False)
    (write_drive(root, "f", frames=3).parent / "f_images" / "0001_front.jpg").write_bytes(b"no image")
    write_drive(root, "g", frames=3)
    newest = max(path.stat().st_ctime_ns for path in root.rglob("*"))
    while identity.time.time_ns() <= newest + identity.RACY_NS:  # the cache takes hashes of files of this age
        identity.time.sleep(0.005)
    return root


def opened(root: Path, workers: int) -> tuple[bytes, list[Problem], Files]:
    files = Files(Bounds(root))
    index, problems = scan.scan(root, files, Hands(workers=workers))
    assert index is not None
    return pack(index), problems, files


def kept(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_any_number_of_processes_gives_the_same(tmp_path: Path, home: Path) -> None:
    root, found = dataset(tmp_path / "set"), []
    for workers in (1, 2, 4):
        shutil.rmtree(home, ignore_errors=True)
        index, problems, files = opened(root, workers)
        found.append((index, problems, list(files.entries().items()), files.digest(), kept(home)))
        again = opened(root, workers)
        assert (again[0], again[2].digest()) == (index, files.digest())
    assert found[0] == found[1] == found[2]
    assert [Path(problem.file).name for problem in found[0][1]] == ["d.json", "f.json"]
    assert len(found[0][4]) == 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadly(scan._Drives):
    """The drive d kills the process that reads it: the first one, or each."""

    once: Path | None = None

    def _look_at(self, number: int) -> Any:
        if self.names[number] == "d.json" and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._look_at(number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeadlyOnce(Deadly):
    once: Path | None = dataclasses.field(default_factory=lambda: Path(os.environ["XDG_CACHE_HOME"]) / "died")


@pytest.mark.parametrize("drives", [DeadlyOnce, Deadly])
def test_a_process_that_dies_costs_no_more_than_its_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drives: type[Deadly]
) -> None:
    root = tmp_path / "set"
    for name in "abde":
        write_drive(root, name, frames=2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    whole = opened(root, 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scan, "_Drives", drives)
    index, problems, files = opened(root, 2)
    assert "a worker died (killed by SIGKILL)" in capsys.readouterr().err
    if drives is DeadlyOnce:
        assert (index, problems, files.entries()) == (whole[0], whole[1], whole[2].entries())
        return
    assert [(Path(one.file).name, one.expected, one.found) for one in problems] == [
        ("d.json", "a record that its reader survives", "the death of 3 processes that read it")
    ]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert opened(root, 1)[0] == whole[0]  # the bad drive was not kept as such


def test_an_opening_that_is_broken_off_keeps_the_hashes_so_far(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, join, joined = dataset(tmp_path / "set"), Files.join, []

    def broken_off(files: Files, apart: Files) -> bool:
        joined.append(apart)
        if len(joined) == 3:
            raise KeyboardInterrupt
        return join(files, apart)

    monkeypatch.setattr(Files, "join", broken_off)
    with pytest.raises(KeyboardInterrupt):
        opened(root, 2)
    assert not multiprocessing.active_children()
    monkeypatch.setattr(Files, "join", join)
    hashed: list[str] = []
    real = identity._hash
    monkeypatch.setattr(identity, "_hash", lambda path, verify: hashed.append(path) or real(path, verify))
    opened(root, 1)
    assert {Path(path).parent.name for path in hashed} == {"f_images", "g_images"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stale(scan._Drives):
    """Finds other images of c than those of b, which are the same files; and cannot tell what is in g."""

    def _look_at(self, number: int) -> Any:
        part, problems, files = super()._look_at(number)
        if self.names[number] == "c.json":
            assert files is not None
            files._hashes[1] += 1
            part = None
        return (None, [], None) if self.names[number] == "g.json" else (part, problems, files)


def test_what_does_not_go_together_is_looked_at_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dataset(tmp_path / "set")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    whole = opened(root, 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(scan, "_Drives", Stale)
    index, problems, files = opened(root, 1)
    assert (index, problems, files.entries()) == (whole[0], whole[1], whole[2].entries())


def test_an_error_that_ends_the_opening_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, real = dataset(tmp_path / "set"), identity._hash

    def hashed(path: str, verify: identity.Verify) -> Any:
        if path.endswith("b_images/0000_front.jpg"):
            raise LimitError(path, "hole_mib", "5000.0 MiB")
        return real(path, verify)

    monkeypatch.setattr(identity, "_hash", hashed)
    with pytest.raises(LimitError, match=r"b_images/0000_front\.jpg: expected at most 4096 MiB"):
        opened(root, 1)


@pytest.mark.parametrize(
    ("asked", "size", "workers"),
    [(1, 10**9, 1), (8, 15_999_999, 1), (8, 16_000_000, 2), (3, 10**9, 3), (None, 10**9, 1)],
)
def test_processes_are_started_where_they_have_enough_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, size: int, workers: int
) -> None:
    monkeypatch.setattr(scan, "WORKER_BYTES", 8_000_000)
    monkeypatch.setattr(Files, "size", lambda self, name: size // 2)
    drives = scan._Drives(names=["a", "b"], files=Files(Bounds(tmp_path)))
    assert (drives.shared_by(Hands(workers=asked)).workers or 1) == workers


@pytest.mark.parametrize(("processes", "workers"), [(0, 5), (1, 1), (3, 3)])
def test_the_config_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, workers: int
) -> None:
    given: list[Hands] = []
    monkeypatch.setattr(batches, "cores", lambda: list(range(5)))
    monkeypatch.setattr(batches, "scan", lambda path, files, hands: given.append(hands) or (None, [wrong]))
    wrong = Problem(file="a", expected="b", found="c")
    with pytest.raises(DataError):
        batches.open_data(DataConfig(path=str(dataset(tmp_path / "set")), index_processes=processes))
    assert [hands.workers for hands in given] == [workers]


def test_packing_opens_by_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Hands] = []
    wrong = Problem(file="a", expected="b", found="c")
    monkeypatch.setattr(pack_lib, "scan", lambda path, files, hands: given.append(hands) or (None, [wrong]))
    root = dataset(tmp_path / "set")
    assert pack_lib.main([str(root), str(tmp_path / "out"), "--workers", "3"]) == 65
    assert [hands.workers for hands in given] == [3]
