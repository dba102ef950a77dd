"""A dataset is its names, sizes and contents: what is hashed, what is remembered, and what is noticed."""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkwise.errors import DataError, MismatchError, StorageError
from chunkwise.files import budget, dataset_files, identity
from chunkwise.files.dataset_files import NAME
from chunkwise.files.identity import Files, content_hash
from chunkwise.files.links import Bounds


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "chunkwise"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, as they are read."""
    names: list[str] = []
    real = identity._hash
    monkeypatch.setattr(identity, "_hash", lambda path, verify: names.append(Path(path).name) or real(path, verify))
    return names


def made(root: Path, **contents: str) -> Path:
    root.mkdir(exist_ok=True, parents=True)
    for name, text in contents.items():
        (root / name).write_text(text)
    return root


def aged(root: Path) -> Path:
    """Waits until the files' ctime is old enough for the cache."""
    newest = max(path.stat().st_ctime_ns for path in root.iterdir())
    while identity.time.time_ns() <= newest + identity.RACY_NS:
        identity.time.sleep(0.005)
    return root


def files_of(root: Path, verify: identity.Verify = "sample") -> Files:
    files = Files(Bounds(root), verify=verify)
    files.require(sorted(path.name for path in root.iterdir()))
    return files


def edit_keeping_times(file: Path, text: str) -> None:
    status = file.stat()
    assert len(text) == status.st_size
    with file.open("r+") as handle:
        handle.write(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_small_file_is_hashed_whole(tmp_path: Path):
    assert content_hash(made(tmp_path / "set", a="abc") / "a") == hashlib.sha256(b"abc").hexdigest()


def test_of_a_large_file_size_ends_and_a_fixed_sample_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(identity, "WHOLE_BYTES", 8)
    monkeypatch.setattr(identity, "EDGE_BYTES", 2)
    monkeypatch.setattr(identity, "BLOCKS", 3)
    monkeypatch.setattr(identity, "BLOCK_BYTES", 1)
    file = tmp_path / "a"
    #         ends ..                   ..
    #         blocks ^        ^        ^     room 22 - 4 - 1 = 17: at 2, 2 + 8, 2 + 17
    text = "ab0123456789abcdefghyz"
    assert len(text) == 22
    file.write_text(text)
    same = content_hash(file)
    assert same == hashlib.sha256(b"22" + b"ab" + b"0" + b"8" + b"h" + b"yz").hexdigest()
    seen = []
    for place in range(len(text)):
        file.write_text(text[:place] + "#" + text[place + 1 :])
        seen += [place] if content_hash(file) != same else []
        assert content_hash(file, "full") != content_hash(file)
    assert seen == [0, 1, 2, 10, 19, 20, 21]
    file.write_text(text + "z")
    assert content_hash(file) != same
    file.write_text(text)
    assert content_hash(file, "full") == hashlib.sha256(text.encode()).hexdigest()


def test_the_sizes_that_the_docs_state():
    assert (identity.WHOLE_BYTES, identity.EDGE_BYTES, identity.BLOCKS, identity.BLOCK_BYTES) == (
        256 * 2**20,
        2**20,
        64,
        2**20,
    )
    pieces = list(identity._sample(10 * 2**30))
    assert len(pieces) == 66
    assert sum(count for _, count in pieces) == 66 * 2**20
    assert pieces[0] == (0, 2**20)
    assert pieces[-1] == (10 * 2**30 - 2**20, 2**20)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(pieces))


def test_a_copy_is_the_same_dataset(tmp_path: Path):
    one = made(tmp_path / "one", a="1", b="22")
    shutil.copytree(one, tmp_path / "two", copy_function=shutil.copyfile)
    os.utime(tmp_path / "two" / "a", ns=(0, 0))
    same = files_of(one).digest()
    assert files_of(tmp_path / "two").digest() == same
    changes: list[Callable[[Path], object]] = [
        lambda root: (root / "a").write_text("2"),
        lambda root: (root / "a").rename(root / "c"),
        lambda root: (root / "a").unlink(),
        lambda root: (root / "c").write_text(""),
        lambda root: ((root / "a").write_text("22"), (root / "b").write_text("1")),
    ]
    digests = set()
    for number, change in enumerate(changes):
        shutil.copytree(one, tmp_path / f"changed{number}")
        change(tmp_path / f"changed{number}")
        digests.add(files_of(tmp_path / f"changed{number}").digest())
    assert len(digests | {same}) == len(changes) + 1


def test_a_link_has_its_own_name_and_the_content_that_it_leads_to(tmp_path: Path):
    plain = made(tmp_path / "plain", a="1")
    linked = made(tmp_path / "repo" / "snapshots" / "x")
    made(tmp_path / "repo" / "blobs", f00="1")
    (linked / "a").symlink_to("../../blobs/f00")
    assert files_of(linked).digest() == files_of(plain).digest()
    (tmp_path / "repo" / "blobs" / "f00").write_text("2")
    assert files_of(linked).digest() != files_of(plain).digest()


def test_names_that_lead_out_are_not_taken_in(tmp_path: Path):
    root = made(tmp_path / "set", a="1")
    made(tmp_path, secret="s")
    files = Files(Bounds(root))
    assert set(files.add(["a", "../secret", "/etc/passwd"])) == {"../secret", "/etc/passwd"}
    assert files.names == ["a"]
    with pytest.raises(DataError, match=r"'\.\./secret': a path that leads out"):
        files.require(["../secret"])


def test_a_second_start_reads_nothing_that_was_not_touched(tmp_path: Path, hashed: list[str]):
    root = aged(made(tmp_path / "set", a="1", b="22"))
    first = files_of(root).entries()
    assert sorted(hashed) == ["a", "b"]
    assert files_of(root).entries() == first
    assert len(hashed) == 2
    (root / "a").touch()
    aged(root)
    assert files_of(root).entries() == first
    assert hashed[2:] == ["a"]
    files_of(root, "full")
    assert sorted(hashed[3:]) == ["a", "b"]  # full believes no cache


def test_an_edit_that_keeps_size_and_mtime_is_seen(tmp_path: Path):
    root = aged(made(tmp_path / "set", a="1111"))
    before = files_of(root).digest()
    edit_keeping_times(root / "a", "2222")
    assert files_of(root).digest() != before


def test_a_file_that_was_changed_a_moment_ago_is_not_cached(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(identity, "RACY_NS", 10**18)
    root = made(tmp_path / "set", a="1")
    files_of(root)
    files_of(root)
    assert hashed == ["a", "a"]


def test_a_cache_of_another_form_is_not_believed(tmp_path: Path, hashed: list[str]):
    root = aged(made(tmp_path / "set", a="1"))
    files_of(root)
    identity.cache.write("hashes", identity.cache.key_of(root), bytes(71))
    files_of(root)
    assert hashed == ["a", "a"]


@pytest.mark.parametrize("ends", [True, False])
def test_files_that_come_one_by_one_are_saved_once(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, ends: bool
):
    names = [f"f{number}" for number in range(20)]
    root = aged(made(tmp_path / "set", **{name: name for name in names}))
    saved: list[str] = []
    write = identity.cache.write
    monkeypatch.setattr(identity.cache, "write", lambda kind, *rest: saved.append(kind) or write(kind, *rest))
    files = Files(Bounds(root))
    with contextlib.suppress(KeyError), files.saved_once():
        for name in names:
            files.add([name])
        assert saved == []
        if not ends:
            raise KeyError
    assert saved == ["hashes"]
    assert files.entries() == files_of(root).entries()
    assert {name: entry.hash for name, entry in files.entries().items()} == {
        name: hashlib.sha256(name.encode()).hexdigest() for name in names
    }
    assert hashed == names  # the second time all of them were known
    assert saved == ["hashes"]


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    files = files_of(tmp_path)
    assert "expected a regular file" in files.errors["pipe"]
    assert files.hash("pipe") is None


def test_a_missing_file_is_remembered_as_such(tmp_path: Path):
    root = made(tmp_path / "set")
    files = Files(Bounds(root))
    files.require(["a"])
    assert (files.hash("a"), files.size("a"), files.errors) == (None, -1, {})
    files.require_unchanged(files.place("a"))
    made(root, a="1")
    with pytest.raises(DataError, match="expected no file, found content 6b86b273ff34"):
        files.require_unchanged(files.place("a"))


class TestWhileARunReads:
    def test_touched_is_fine_and_read_once(self, tmp_path: Path, hashed: list[str]):
        root = made(tmp_path / "set", a="1")
        files = files_of(root)
        files.require_unchanged(0)
        assert hashed == ["a"]
        (root / "a").touch()
        files.require_unchanged(0)
        files.require_unchanged(0)
        assert hashed == ["a", "a"]

    def test_replaced_by_the_same_is_fine(self, tmp_path: Path):
        root = made(tmp_path / "set", a="1")
        files = files_of(root)
        (root / "new").write_text("1")
        (root / "new").replace(root / "a")
        files.require_unchanged(0)

    @pytest.mark.parametrize("verify", ["sample", "full"])
    def test_other_content_is_named(self, verify: identity.Verify, tmp_path: Path):
        root = aged(made(tmp_path / "set", a="1111"))
        files = files_of(root, verify)
        edit_keeping_times(root / "a", "2222")
        with pytest.raises(DataError, match=r"set/a: changed since the dataset was opened: .* of 4 bytes, found con"):
            files.require_unchanged(0)
        edit_keeping_times(root / "a", "1111")
        files.require_unchanged(0)

    def test_gone_is_named(self, tmp_path: Path):
        root = made(tmp_path / "set", a="1")
        files = files_of(root)
        (root / "a").unlink()
        with pytest.raises(DataError, match=r"set/a: changed since .* found no file"):
            files.require_unchanged(0)

    def test_a_link_put_in_its_place_is_not_followed_out(self, tmp_path: Path):
        root = made(tmp_path / "set", a="1")
        files = files_of(root)
        made(tmp_path, secret="1")
        (root / "a").unlink()
        (root / "a").symlink_to(tmp_path / "secret")
        with pytest.raises(DataError, match="leads out of the dataset"):
            files.require_unchanged(0)

    def test_full_sees_what_a_sample_does_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        for name, value in (("WHOLE_BYTES", 4), ("EDGE_BYTES", 1), ("BLOCKS", 2), ("BLOCK_BYTES", 1)):
            monkeypatch.setattr(identity, name, value)
        root = made(tmp_path / "set", a="123456789")
        sample, full = files_of(root), files_of(root, "full")
        (root / "a").write_text("1234#6789")
        sample.require_unchanged(0)
        with pytest.raises(DataError, match="changed"):
            full.require_unchanged(0)


def require_same(run: Path, files: Files, *, resume: bool) -> None:
    """Compares, and goes on: what is to be listed is written."""
    listed = dataset_files.require_same(run, files, resume=resume)
    if listed is not None:
        dataset_files.write(run, listed)


class TestTheRunsList:
    def test_differences_are_named(self, tmp_path: Path):
        run = made(tmp_path / "run")
        root = made(tmp_path / "set", a="1", b="2", c="3")
        require_same(run, files_of(root), resume=False)
        require_same(run, files_of(root), resume=True)
        made(root, a="!", d="4")
        (root / "b").unlink()
        with pytest.raises(MismatchError) as error:
            require_same(run, files_of(root), resume=True)
        lines = str(error.value).splitlines()
        assert lines[1:4] == ["  changed: a", "  missing: b", "  added: d"]
        require_same(run, files_of(root), resume=False)  # started anew
        require_same(run, files_of(root), resume=True)

    def test_many_are_counted(self, tmp_path: Path):
        run = made(tmp_path / "run")
        root = made(tmp_path / "set", **{f"f{n:03d}": "1" for n in range(50)})
        require_same(run, files_of(root), resume=False)
        for file in root.iterdir():
            file.write_text("2")
        with pytest.raises(MismatchError, match="f019\n  and 30 more changed\n"):
            require_same(run, files_of(root), resume=True)

    def test_a_file_that_the_user_named_goes_by_its_field(self, tmp_path: Path):
        run, root = made(tmp_path / "run"), made(tmp_path / "set", a="1")
        made(tmp_path, stats="s")

        def with_stats() -> Files:
            files = files_of(root)
            files.add_other("data.norm_stats", tmp_path / "stats")
            return files

        assert with_stats().own == ["a"]
        require_same(run, with_stats(), resume=False)
        require_same(run, with_stats(), resume=True)
        made(tmp_path, stats="t")
        with pytest.raises(MismatchError, match=r"changed: data\.norm_stats \(.*stats\)"):
            require_same(run, with_stats(), resume=True)

    def test_a_damaged_list_is_written_anew(self, tmp_path: Path):
        run, root = made(tmp_path / "run"), made(tmp_path / "set", a="1")
        require_same(run, files_of(root), resume=False)
        whole = (run / NAME).read_bytes()
        (run / NAME).write_bytes(whole[:-9])
        made(root, a="2")
        require_same(run, files_of(root), resume=True)  # the checkpoint's fingerprint has the digest still
        made(root, a="1")
        with pytest.raises(MismatchError):
            require_same(run, files_of(root), resume=True)

    def test_all_bytes_are_compared_where_both_starts_read_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        for name, value in (("WHOLE_BYTES", 4), ("EDGE_BYTES", 1), ("BLOCKS", 2), ("BLOCK_BYTES", 1)):
            monkeypatch.setattr(identity, name, value)
        run, root = made(tmp_path / "run"), made(tmp_path / "set", a="123456789")
        require_same(run, files_of(root), resume=False)
        require_same(run, files_of(root, "full"), resume=True)  # the first that read all
        made(root, a="1234#6789")
        require_same(run, files_of(root), resume=True)
        with pytest.raises(MismatchError, match="changed: a"):
            require_same(run, files_of(root, "full"), resume=True)

    def test_names_of_any_kind_survive(self, tmp_path: Path):
        run, root = made(tmp_path / "run"), made(tmp_path / "set", **{"a b": "1", "ä\nö": "2", "-": ""})
        require_same(run, files_of(root), resume=False)
        require_same(run, files_of(root), resume=True)


def test_a_list_that_cannot_be_read_is_not_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, run = made(tmp_path / "data", a="1"), made(tmp_path / "run")
    require_same(run, Files(Bounds(root)), resume=False)
    files = Files(Bounds(root))
    files.add(["a"])
    before = (run / NAME).read_bytes()

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("chunkwise.files.budget.read_bytes", fail)
        patch.setattr("time.sleep", lambda _: None)
        with pytest.raises(StorageError, match=NAME):
            require_same(run, files, resume=True)
    assert (run / NAME).read_bytes() == before


def test_holes_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"x")
        file.truncate((4096 << 20) + 8192)
    with pytest.raises(budget.LimitError, match=r"a: .*holes of a file") as error:
        content_hash(tmp_path / "a", "full")
    assert error.value.limit == "hole_mib"
    files = Files(Bounds(tmp_path), verify="full", remember=False)
    with pytest.raises(budget.LimitError):
        files.add(["a"])
    content_hash(tmp_path / "a")


def test_the_order_in_which_files_are_listed_does_not_count():
    a, b = identity.Entry("00", 1, ""), identity.Entry("11", 2, "")
    assert identity.digest({"a": a, "b": b}) == identity.digest({"b": b, "a": a})
    assert identity.digest({"a": a, "b": b}) != identity.digest({"a": b, "b": a})


def test_a_file_that_grows_while_it_is_hashed_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It grows after the first reading, before the file's state is looked at a second time."""
    file, stat_of, looks = tmp_path / "a", identity.stat_of, itertools.count()
    file.write_bytes(b"one")

    def looked(status: os.stat_result) -> identity.Stat:
        if next(looks) != 1:
            return stat_of(status)
        with file.open("ab") as more:
            more.write(b" two")
        return stat_of(os.stat(file))

    monkeypatch.setattr(identity, "stat_of", looked)
    assert content_hash(file) == hashlib.sha256(b"one two").hexdigest()


@pytest.mark.parametrize("size", [0, 1, identity.EDGE_BYTES - 1, identity.EDGE_BYTES, identity.EDGE_BYTES + 1])
def test_every_byte_counts_whether_a_file_is_read_at_once_or_by_pieces(tmp_path: Path, size: int):
    (tmp_path / "a").write_bytes(content := os.urandom(size))
    assert content_hash(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_break_is_heeded_before_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, begun, real = [f"{number:03d}" for number in range(60)], [], identity._hash

    def hashed(path: str, verify: identity.Verify) -> tuple[identity.Stat, bytes]:
        begun.append(path)
        if path.endswith("003"):
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        identity.time.sleep(0.05)
        return real(path, verify)

    monkeypatch.setattr(identity, "_hash", hashed)
    with pytest.raises(KeyboardInterrupt):
        Files(Bounds(made(tmp_path / "a", **dict.fromkeys(names, "x")))).require(names)
    assert len(begun) < len(names)


def test_of_files_above_a_limit_the_first_by_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, real = [f"{number:03d}" for number in range(20)], identity._hash

    def hashed(path: str, verify: identity.Verify) -> tuple[identity.Stat, bytes]:
        if path.endswith("003"):
            identity.time.sleep(0.1)
        if path.endswith(("003", "005")):
            raise budget.LimitError(path[-3:], "hole_mib", "more")
        return real(path, verify)

    monkeypatch.setattr(identity, "_hash", hashed)
    files = Files(Bounds(made(tmp_path / "a", **dict.fromkeys(names, "x"))))
    with pytest.raises(budget.LimitError, match="003: expected"):
        files.require(names)
    assert files.hash("002") == hashlib.sha256(b"x").hexdigest()
