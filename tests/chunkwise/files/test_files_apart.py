"""Files of a dataset that several processes take in: what each found apart, together in one."""

import hashlib
import os
import pickle
import shutil
from pathlib import Path

import pytest

from chunkwise.files import identity
from chunkwise.files.identity import Files
from chunkwise.files.links import Bounds
from tests.chunkwise.files.test_identity import aged, made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "chunkwise"


def taken(files: Files, *names: str) -> Files:
    """Files apart that went through another process."""
    apart = pickle.loads(pickle.dumps(files)).apart()
    apart.add(names)
    return pickle.loads(pickle.dumps(apart))


def test_files_that_were_taken_in_apart_are_as_if_taken_in_here(tmp_path: Path, home: Path):
    root = aged(made(tmp_path / "a", **{name: name for name in "abcd"}))
    whole, kept = Files(Bounds(root)), []
    whole.add(["d", "b", "gone", "a", "c"])
    kept.append(next((home / "hashes").iterdir()).read_bytes())
    shutil.rmtree(home)
    files = Files(Bounds(root))
    files.require(["d"])
    with files.saved_once():
        assert files.join(taken(files, "b", "gone"))
        assert files.join(taken(files))
        assert files.join(taken(files, "d", "b", "a", "c"))
    kept.append(next((home / "hashes").iterdir()).read_bytes())
    assert files.names == whole.names
    assert list(files.entries().items()) == list(whole.entries().items())
    assert [files.place(name) for name in files.names] == list(range(5))
    assert kept[0] == kept[1]


def test_files_taken_in_apart_read_only_what_the_cache_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, hashed, real = aged(made(tmp_path / "a", a="a", b="b")), [], identity._hash
    Files(Bounds(root)).require(["a"])
    monkeypatch.setattr(identity, "_hash", lambda path, verify: hashed.append(Path(path).name) or real(path, verify))
    assert taken(Files(Bounds(root)), "a", "b").hash("a") == hashlib.sha256(b"a").hexdigest()
    assert hashed == ["b"]
    taken(Files(Bounds(root), remember=False), "a")
    assert hashed == ["b", "a"]


@pytest.mark.parametrize("change", ["other", "gone", "come"])
def test_a_file_that_was_another_apart_is_not_taken_in(tmp_path: Path, change: str):
    root = made(tmp_path / "a", a="a", b="b")
    if change == "come":
        (root / "b").unlink()
    files = Files(Bounds(root))
    files.add(["b"])
    before = files.entries()
    if change == "gone":
        (root / "b").unlink()
    else:
        (root / "b").write_text("c")
    assert not files.join(taken(files, "a", "b"))
    assert files.entries() == before
    assert "a" not in files


def test_what_could_not_be_read_apart_is_told(tmp_path: Path):
    root = made(tmp_path / "a", a="a")
    os.mkfifo(root / "pipe")
    files = Files(Bounds(root), verify="full", remember=False)
    assert files.join(taken(files, "pipe", "a"))
    assert "a pipe" in files.errors["pipe"]
    assert files.hash("pipe") is None


def test_all_bytes_of_large_files_are_known_of_those_taken_in_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("WHOLE_BYTES", "EDGE_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(identity, name, 2)
    root = made(tmp_path / "a", a="a", b="bbbbbbbb")
    files = Files(Bounds(root), verify="full")
    files.add(["a"])
    assert files.join(taken(files, "a", "b"))
    assert [entry.full for entry in files.entries().values()] == ["", hashlib.sha256(b"bbbbbbbb").hexdigest()]
