"""Writing that outlives a power cut: by the order of the calls that reach the kernel.

Each test names the change it is there for.
"""

import errno
import os
import stat
from pathlib import Path
from unittest import mock

import pytest

from chunkwise.files import durable
from tests.chunkwise.calls import Calls


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, monkeypatch)


@pytest.mark.parametrize("content", [b"abc", "abc", lambda file: file.write(b"abc")])
def test_a_file_is_forced_out_before_its_name_and_the_name_before_the_return(tmp_path: Path, calls: Calls, content):
    """Kills: no fsync of the file, none of the folder, either of them before its time; flush left out (0 bytes)."""
    durable.write_durably(tmp_path / "a", content)
    assert calls.seen == ["fsync a.SCRATCH.part 3 bytes", "replace a.SCRATCH.part a", "fsync ."]
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["a"]


def test_a_writer_by_name_is_forced_out_as_well(tmp_path: Path, calls: Calls):
    """Kills: `sync_file` left out of `scratch_file`."""
    with durable.scratch_file(tmp_path / "a") as scratch:
        scratch.write_text("abcd")
    assert calls.seen == ["fsync a.SCRATCH.part 4 bytes", "replace a.SCRATCH.part a", "fsync ."]
    assert (tmp_path / "a").read_text() == "abcd"


@pytest.mark.parametrize("advice", [True, False])
def test_a_file_that_goes_ahead_is_whole_and_its_bytes_are_on_their_way_when_advice_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advice: bool
):
    """Kills: flush left out (0 bytes at the advice); no advice; no way without it."""
    given: list[tuple[int, ...]] = []

    def advise(descriptor: int, offset: int, length: int, what: int) -> None:
        given.append((os.fstat(descriptor).st_size, offset, length, what))

    if advice:
        monkeypatch.setattr("os.posix_fadvise", advise)
    else:
        monkeypatch.delattr("os.posix_fadvise")
    durable.write_ahead(tmp_path / "a", memoryview(b"abc"))
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert given == [(3, 0, 0, os.POSIX_FADV_DONTNEED)] * advice


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    """Kills: the scratch file is not removed; it is written under its own name."""
    (tmp_path / "a").write_text("old")

    def fail(file) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "full")

    def fail_at(path: Path) -> None:
        with path.open("wb") as file:
            fail(file)

    with pytest.raises(OSError, match="full"):
        durable.write_durably(tmp_path / "a", fail)
    with pytest.raises(OSError, match="full"), durable.scratch_file(tmp_path / "a") as scratch:
        fail_at(scratch)
    with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "device")), pytest.raises(OSError, match="device"):
        durable.write_durably(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_is_forced_out_from_its_files_up_before_it_gets_its_name(tmp_path: Path, calls: Calls):
    """Kills: names before bytes; top down; a rename before the tree; no fsync of the parent; links followed."""
    scratch = tmp_path / "out.part"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "x").write_text("1")
    (scratch / "deep" / "y").write_text("22")
    (scratch / "deep" / "z").write_text("333")
    (scratch / "link").symlink_to("/dev/full")
    calls.seen.clear()
    durable.publish(scratch, tmp_path / "out")
    files = ["fsync out.part/deep/y 2 bytes", "fsync out.part/deep/z 3 bytes", "fsync out.part/x 1 bytes"]
    assert sorted(calls.seen[:3]) == files
    assert calls.seen[3:] == ["fsync out.part/deep", "fsync out.part", "rename out.part out", "fsync ."]


def test_a_file_that_cannot_be_forced_out_keeps_the_folder_from_its_name(tmp_path: Path):
    """Kills: errors of the threads are dropped."""
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "x").write_text("1")

    def fail_for_files(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "device")

    with mock.patch("os.fsync", fail_for_files), pytest.raises(OSError, match="device"):
        durable.publish(tmp_path / "out.part", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out.part"]


def test_each_new_folder_is_forced_into_its_parent(tmp_path: Path, calls: Calls):
    """Kills: the fsync of the parent; bottom up; folders that were there forced again."""
    (tmp_path / "a").mkdir()
    calls.seen.clear()
    durable.make_folders(tmp_path / "a" / "b" / "c")
    assert calls.seen == ["mkdir a/b", "fsync a", "mkdir a/b/c", "fsync a/b"]
    durable.make_folders(tmp_path / "a" / "b" / "c")
    assert len(calls.seen) == 4


def test_sync_up_ends_with_the_parent_of_the_top(tmp_path: Path, calls: Calls):
    """Kills: the loop ends one folder early or late."""
    (tmp_path / "runs" / "run" / "checkpoints").mkdir(parents=True)
    calls.seen.clear()
    durable.sync_up(tmp_path / "runs" / "run" / "checkpoints", tmp_path / "runs" / "run")
    assert calls.seen == ["fsync runs/run/checkpoints", "fsync runs/run", "fsync runs"]


def test_a_removal_takes_the_name_first(tmp_path: Path, calls: Calls):
    """Kills: rmtree under the old name; the new name not forced out before the content goes."""
    (tmp_path / "100").mkdir()
    (tmp_path / "100" / "x").write_text("1")
    calls.seen.clear()
    with mock.patch("shutil.rmtree", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        durable.remove_tree(tmp_path / "100")
    assert calls.seen == ["rename 100 100.SCRATCH.removed", "fsync ."]
    assert not (tmp_path / "100").exists()
    durable.sweep(tmp_path)
    assert not os.listdir(tmp_path)


def test_sweep_takes_scratch_alone(tmp_path: Path):
    """Kills: sweep removes more, or less, than what writers leave."""
    for path in (tmp_path / "a", tmp_path / "b"):
        durable.scratch_name(path).write_text("half")
    durable.scratch_name(tmp_path / "folder").mkdir()
    (tmp_path / "a").write_text("whole")
    (tmp_path / "b.part").write_text("of somebody else")
    durable.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b.part"]


def test_scratch_names_differ(tmp_path: Path):
    """Kills: a scratch name that two threads share."""
    assert durable.scratch_name(tmp_path / "a") != durable.scratch_name(tmp_path / "a")


@pytest.mark.parametrize(("code", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_without_fsync_of_folders_is_no_error_but_a_broken_device_is(tmp_path: Path, code, raised):
    """Kills: every error, or none, of a folder's fsync passed over."""
    with mock.patch("os.fsync", side_effect=OSError(code, "no")):
        if raised:
            with pytest.raises(OSError, match="no"):
                durable.sync_folder(tmp_path)
        else:
            durable.sync_folder(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path):
    """Kills: `onerror` left out, with which os.walk passes over it."""
    for sync in (durable.sync_tree, durable.sync_names):
        with pytest.raises(FileNotFoundError):
            sync(tmp_path / "missing")
