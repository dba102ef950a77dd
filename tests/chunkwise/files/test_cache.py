"""What is kept to save time: found again, bounded, and never believed when it is damaged."""

import os
from pathlib import Path

import pytest

from chunkwise.files import cache


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "chunkwise"


def test_what_was_written_is_read():
    assert cache.read("kind", "key") is None
    cache.write("kind", "key", b"content")
    assert cache.read("kind", "key") == b"content"
    assert cache.read("other", "key") is None


@pytest.mark.parametrize("place", [0, 20, 40, -1])
def test_a_flipped_bit_reads_as_nothing(place: int, home: Path):
    cache.write("kind", "key", b"content")
    content = bytearray((home / "kind" / "key").read_bytes())
    content[place] ^= 1
    (home / "kind" / "key").write_bytes(content)
    assert cache.read("kind", "key") is None


def test_a_link_is_not_followed(home: Path):
    cache.write("kind", "key", b"content")
    (home / "kind" / "link").symlink_to(home / "kind" / "key")
    assert cache.read("kind", "link") is None


def test_what_was_used_longest_ago_goes(home: Path, monkeypatch: pytest.MonkeyPatch):
    size = len(b"chunkwise-cache-1\n") + 32 + 100
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size)
    monkeypatch.setattr(cache, "MAX_FILE_BYTES", 2 * size)
    for number, name in enumerate("abc"):
        cache.write("kind", name, bytes(100))
        os.utime(home / "kind" / name, ns=(number, number))
    assert cache.read("kind", "a") is not None  # used now
    cache.write("another", "d", bytes(100))
    assert sorted(path.name for path in home.glob("*/*")) == ["a", "c", "d"]
    cache.write("kind", "large", bytes(2 * size))
    assert cache.read("kind", "large") is None


def test_a_home_that_is_no_folder_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.write("kind", "key", b"content")
    assert cache.read("kind", "key") is None


def test_a_key_is_of_the_folder_and_not_of_the_way_to_it(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert cache.key_of(tmp_path / "link") == cache.key_of(tmp_path)
    assert cache.key_of(tmp_path / "x") != cache.key_of(tmp_path)
