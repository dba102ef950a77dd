"""Links of a dataset: those of hub snapshots are followed, what leads out is refused by name, circles end."""

import os
from pathlib import Path

import pytest

from chunkwise.errors import DataError
from chunkwise.files.links import Bounds


def file(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def snapshot(hub: Path) -> Path:
    """A dataset as huggingface_hub keeps it: snapshots/<revision>/name -> ../../blobs/<hash>."""
    repo = hub / "datasets--someone--drives"
    for number, name in enumerate(("a.json", "images/0.jpg")):
        file(repo / "blobs" / f"{number:040x}", name)
        link = repo / "snapshots" / "0123abc" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(repo / "blobs" / f"{number:040x}", link.parent))
    return repo / "snapshots" / "0123abc"


def test_a_hub_snapshot_is_read_by_the_names_of_its_links(tmp_path: Path):
    root = snapshot(tmp_path)
    bounds = Bounds(root)
    assert list(bounds.walk((".json", ".jpg"))) == ["a.json", "images/0.jpg"]
    assert bounds.require("images/0.jpg").read_text() == "images/0.jpg"
    assert Bounds(root / "images").refusal("0.jpg") is None
    linked = tmp_path / "mine"
    linked.symlink_to(root)
    assert list(Bounds(linked).walk((".json",))) == ["a.json"]
    assert Bounds(linked).require("a.json") == linked / "a.json"


def test_a_snapshot_leads_to_its_own_blobs_alone(tmp_path: Path):
    root = snapshot(tmp_path)
    secret = file(tmp_path / "secret.json")
    (root / "out.json").symlink_to(secret)
    (root / "refs.json").symlink_to(file(root.parent.parent / "refs" / "main"))
    deeper = file(root.parent.parent / "blobs" / "folder" / "x")
    (root / "deeper.json").symlink_to(deeper)
    bounds = Bounds(root)
    for name in ("out.json", "refs.json", "deeper.json"):
        assert "leads out of the dataset" in str(bounds.refusal(name))
    with pytest.raises(DataError) as error:
        list(bounds.walk((".json",)))
    text = str(error.value)
    assert "out.json: a path that leads out of the dataset, to" in text
    assert f"--data.allow-links-to {tmp_path}" in text
    assert text.count("\n") == 3


def test_blobs_that_are_a_link_are_no_hubs(tmp_path: Path):
    outside = file(tmp_path / "private" / "key").parent
    root = tmp_path / "evil" / "snapshots" / "x"
    root.mkdir(parents=True)
    (tmp_path / "evil" / "blobs").symlink_to(outside)
    (root / "a.json").symlink_to("../../blobs/key")
    assert "leads out" in str(Bounds(root).refusal("a.json"))


def test_a_folder_that_the_user_names_may_be_led_to(tmp_path: Path):
    shelf = file(tmp_path / "shelf" / "drives" / "a.json").parent
    root = tmp_path / "set"
    root.mkdir()
    (root / "more").symlink_to(shelf)
    with pytest.raises(DataError, match=f"more: .*--data.allow-links-to {shelf}"):
        list(Bounds(root).walk((".json",)))
    allowed = Bounds(root, (str(tmp_path / "shelf"),))
    assert list(allowed.walk((".json",))) == ["more/a.json"]
    assert allowed.require("more/a.json") == root / "more" / "a.json"
    with pytest.raises(DataError, match=r"allow-links-to .*nowhere: expected a folder"):
        Bounds(root, (str(tmp_path / "nowhere"),))


def test_a_neighbour_whose_name_begins_alike_is_outside(tmp_path: Path):
    file(tmp_path / "set-2" / "a.json")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.json").symlink_to(tmp_path / "set-2" / "a.json")
    assert "leads out" in str(Bounds(tmp_path / "set").refusal("a.json"))


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "https://host/a", "", "a\0b", "x/.."])
def test_names_that_are_no_names_inside(name: str, tmp_path: Path):
    with pytest.raises(DataError, match="expected a path inside the dataset"):
        Bounds(tmp_path).require(name)


def test_circles_end_and_a_folder_counts_once(tmp_path: Path):
    file(tmp_path / "a" / "b" / "x.json")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    with pytest.raises(DataError) as error:
        list(Bounds(tmp_path).walk((".json",)))
    assert "a/b/up: leads to the folder a again" in str(error.value)
    assert "again: leads to the folder a again" in str(error.value)


def test_a_million_ways_through_links_are_not_walked(tmp_path: Path):
    for level in range(20):
        folder = tmp_path / f"level{level:02d}"
        folder.mkdir()
        for link in ("one", "two"):
            (folder / link).symlink_to(tmp_path / f"level{level + 1:02d}")
    (tmp_path / "level20").mkdir()
    with pytest.raises(DataError, match="and 20 more"):
        list(Bounds(tmp_path).walk((".json",)))


def test_what_is_no_file_is_named(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing.json")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")  # of no interest
    with pytest.raises(DataError) as error:
        list(Bounds(tmp_path).walk((".json",)))
    assert "pipe.json: a pipe, socket or device" in str(error.value)
    assert "gone.json: a link to" in str(error.value)
    assert "gone.txt" not in str(error.value)


def test_a_single_file_is_a_dataset_in_its_folder(tmp_path: Path):
    blob = file(tmp_path / "elsewhere" / "b")
    root = tmp_path / "set"
    root.mkdir()
    (root / "a.npz").symlink_to(blob)
    bounds = Bounds(root / "a.npz")
    assert bounds.root == root
    assert bounds.require("a.npz").read_text() == "x"  # the user named it
    (root / "b.npz").symlink_to(file(tmp_path / "elsewhere" / "c"))
    assert "leads out" in str(bounds.refusal("b.npz"))


def test_folders_are_looked_at_anew_when_asked(tmp_path: Path):
    file(tmp_path / "set" / "images" / "a.jpg")
    bounds = Bounds(tmp_path / "set")
    assert bounds.refusal("images/a.jpg") is None
    (tmp_path / "set" / "images").rename(tmp_path / "moved")
    (tmp_path / "set" / "images").symlink_to(tmp_path / "moved")
    bounds.forget()
    assert "leads out" in str(bounds.refusal("images/a.jpg"))


def test_names_that_are_not_utf8_are_refused_and_others_are_not_looked_at(tmp_path: Path):
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("")
    assert list(Bounds(tmp_path).walk((".json",))) == ["b.json"]
    (tmp_path / os.fsdecode(b"\xfe.json")).write_text("{}")
    (tmp_path / os.fsdecode(b"\xfd")).mkdir()
    with pytest.raises(DataError) as error:
        list(Bounds(tmp_path).walk((".json",)))
    assert [line.split(":")[0] for line in str(error.value).splitlines()[1:]] == [r"  '\udcfd'", r"  '\udcfe.json'"]


@pytest.mark.parametrize("suffixes", [(".json",), None])
def test_what_begins_with_a_dot_is_no_data_but_the_root_may(suffixes: tuple[str, ...] | None, tmp_path: Path):
    """Kills: episodes of a conversion under way (`.OUT.part`) that count as the folder's own."""
    root = tmp_path / ".hidden" / ".set"
    for name in ("a.json", "b/c.json", ".d.json", ".out.part/parts/000000.x/e.json", "b/.cache/f.json"):
        file(root / name)
    (root / ".gone.json").symlink_to(root / "nothing")
    (root / ".up").symlink_to(root)
    assert list(Bounds(root).walk(suffixes)) == ["a.json", "b/c.json"]


def test_names_in_capitals_are_of_the_same_kind(tmp_path: Path):
    for name in ("a.json", "b.JSON", "c.Json", "d.HDF5", "json"):
        file(tmp_path / name)
    assert list(Bounds(tmp_path).walk((".json",))) == ["a.json", "b.JSON", "c.Json"]
