"""A pack gives what its episodes give, and what is damaged in it is found."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkwise.data import packing
from chunkwise.data.images import encode_jpeg
from chunkwise.data.shards import PackSettings, write_records
from chunkwise.errors import ConfigError, DataError
from driving.config import CAMERAS, DataConfig
from driving.data import pack as pack_lib
from driving.data.batches import open_data
from driving.data.images import FileImages
from driving.data.index import PRESENT
from driving.validate import validate
from tests.driving.drives import SIZE, write_drive


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "raw"

    def change(tree: dict) -> None:
        tree["frames"][4]["observations"]["cameras"]["side_left"] = None

    for i in range(4):
        write_drive(folder, f"e{i}", frames=8, start_yaw=0.5 * i, change=change)
    return folder


def packed(root: Path, out: Path, size: tuple[int, int], encoding: str) -> DataConfig:
    config = DataConfig(path=str(root), image_size=size)
    settings = PackSettings(image_size=size, encoding=encoding)  # pyright: ignore[reportArgumentType]
    pack_lib.pack(config, pack_lib.open_episodes(config), out, settings)
    return DataConfig(path=str(out), image_size=size)


def as_before(pack: Path) -> None:
    """Takes out of a manifest what tells its files from others, which packs of earlier versions do not have."""
    file = pack / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["tables"]
    manifest["shards"] = [{key: shard[key] for key in ("file", "rows")} for shard in manifest["shards"]]
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("size", "encoding", "mean", "most"),
    [(SIZE, "jpeg", 0, 0), (SIZE, "raw", 0, 0), ((24, 40), "raw", 0, 0), ((24, 40), "jpeg", 1.5, 16)],
)
def test_a_pack_gives_the_same_batches(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    encoding: str,
    mean: float,
    most: int,
):
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 10)
    config = packed(root, tmp_path / "pack", size, encoding)
    assert len(list((tmp_path / "pack").glob("*.arrayrecord"))) == 4
    raw = open_data(DataConfig(path=str(root), image_size=size), "all")
    stored = open_data(config, "all")
    one, other = raw.batch(raw.anchors), stored.batch(stored.anchors)
    for key in one:
        if key != "images":
            np.testing.assert_array_equal(one[key], other[key])
    off = np.abs(one["images"].astype(int) - other["images"])
    assert off.mean() <= mean
    assert off.max() <= most
    assert (other["images"][~other["image_valid"]] == 0).all()
    seen = pack_lib.compare(raw.config, raw.index, tmp_path / "pack")
    assert (seen.frames, seen.images) == (32, 32 * 5 - 4)
    assert seen.largest == off.max()
    assert stored.fingerprint()["manifest"] == raw.fingerprint()["manifest"]
    assert stored.fingerprint()["pictures"] != raw.fingerprint().get("pictures"), "a pack may hold other pixels"


def test_some_cameras_of_a_pack_in_another_order(root: Path, tmp_path: Path):
    packed(root, tmp_path / "pack", SIZE, "jpeg")
    config = DataConfig(path=str(tmp_path / "pack"), image_size=SIZE, cameras=("side_right", "rear", "front"))
    batch = open_data(config, "all").batch(np.arange(3))
    whole = open_data(DataConfig(path=str(root), image_size=SIZE), "all").batch(np.arange(3))
    assert batch["image_valid"][:, 0].tolist() == [[True, False, True]] * 3
    np.testing.assert_array_equal(batch["images"][:, :, 0], whole["images"][:, :, CAMERAS.index("side_right")])
    np.testing.assert_array_equal(batch["images"][:, :, 2], whole["images"][:, :, CAMERAS.index("front")])


def test_a_pack_keeps_the_split(root: Path, tmp_path: Path):
    config = DataConfig(path=str(root), image_size=SIZE, val_fraction=0.25, test_fraction=0.25)
    before = open_data(config)
    packed(root, tmp_path / "pack", SIZE, "jpeg")
    after = open_data(DataConfig(path=str(tmp_path / "pack"), image_size=SIZE))
    np.testing.assert_array_equal(before.anchors, after.anchors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda split: split["val"].update(other="0" * 64), "episode 'other' of val is not in the dataset"),
        (lambda split: split["train"].clear(), "is in no split"),
        (lambda split: split["val"].update(split["train"]), "is in train and in val"),
    ],
)
def test_a_split_that_training_would_refuse_is_not_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None], words: str
):
    for i in range(4):
        write_drive(tmp_path / "raw", f"e{i}", frames=2, start_yaw=0.5 * i)
    open_data(DataConfig(path=str(tmp_path / "raw"), image_size=SIZE), "train")
    file = tmp_path / "raw" / "_split.json"
    split = json.loads(file.read_text())
    change(split)
    file.write_text(json.dumps(split))
    with pytest.raises(DataError, match=words):
        open_data(DataConfig(path=str(tmp_path / "raw"), image_size=SIZE), "train")
    command = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", *map(str, SIZE)]
    assert pack_lib.main(command) == 65
    said = capsys.readouterr().err
    assert "_split.json: expected a split of this dataset without leaks" in said
    assert words in said
    assert not (tmp_path / "pack").exists()
    file.unlink()
    assert pack_lib.main(command) == 0


def test_with_bad_drives_left_out_the_split_must_fit_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for i in range(101):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=1, start_yaw=0.01 * i)
    open_data(DataConfig(path=str(tmp_path / "raw"), image_size=SIZE), "train")
    file = tmp_path / "raw" / "_split.json"
    whole = json.loads(file.read_text())
    command = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", *map(str, SIZE), "--on-bad", "skip"]
    name = next(iter(whole["train"]))
    for wrong, words in (
        ({**whole, "val": {**whole["val"], name: whole["train"][name]}}, f"'{name}' is in train and in val"),
        ({**whole, "train": {**whole["train"], name: "0" * 64}}, f"'{name}' has changed since the split was made"),
    ):
        file.write_text(json.dumps(wrong))
        assert pack_lib.main(command) == 65
        assert words in capsys.readouterr().err
        assert not (tmp_path / "pack").exists()
    file.write_text(json.dumps(whole))
    assert pack_lib.main(command) == 0


def test_what_is_wrong_with_a_pack_is_said(root: Path, tmp_path: Path):
    out = tmp_path / "pack"
    config = packed(root, out, SIZE, "raw")
    with pytest.raises(ConfigError, match=r"packed at \(32, 48\)"):
        open_data(DataConfig(path=str(out), image_size=(64, 96)), "all")
    with pytest.raises(DataError, match="does not exist yet"):
        packed(root, out, SIZE, "raw")
    assert not validate([out])["refused"]
    shard = out / "pictures-00000.arrayrecord"
    whole = bytearray(shard.read_bytes())
    whole[len(whole) // 2] ^= 1
    shard.write_bytes(whole)
    with pytest.raises(DataError, match=r"pictures-00000\.arrayrecord: expected hash .* as manifest\.json says"):
        open_data(config, "all")
    assert validate([out])["refused"]
    as_before(out)
    data = open_data(config, "all")
    with pytest.raises(DataError, match="record"):
        data.batch(data.anchors)
    assert validate([out])["refused"]
    shard.unlink()
    with pytest.raises(DataError, match="pictures-00000"):
        open_data(config, "all")
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"format": "other"}))
    with pytest.raises(DataError, match="expected format"):
        open_data(config, "all")


def test_compare_finds_other_images(root: Path, tmp_path: Path):
    packed(root, tmp_path / "pack", SIZE, "jpeg")
    other = tmp_path / "other"
    for i in range(4):
        write_drive(other, f"e{i}", frames=8, start_yaw=0.5 * i)
    config = DataConfig(path=str(other), image_size=SIZE)
    with pytest.raises(DataError, match="expected the same drive_hashes"):
        pack_lib.compare(config, pack_lib.open_episodes(config), tmp_path / "pack")


@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_check_finds_images_that_differ_by_little(root: Path, tmp_path: Path, encoding: str):
    """Every value of the pack's images is larger by one, of 255, than the dataset's: JPEG loses as much."""
    size = (16, 24)
    packed(root, tmp_path / "pack", size, encoding)
    config = DataConfig(path=str(root), image_size=size)
    index = pack_lib.open_episodes(config)
    settings = PackSettings(image_size=size, encoding=encoding)  # pyright: ignore[reportArgumentType]
    pack_lib.compare(config, index, tmp_path / "pack")
    raw = FileImages(root, index, index.cameras)

    def records() -> Iterator[list[bytes]]:
        for row, there in enumerate(index.image_status == PRESENT):
            shown = np.zeros((len(there), *size, 3), np.uint8)
            raw.read(row, there, shown)
            yield [
                settings.encode(image + (image < 255)) if one else b"" for image, one in zip(shown, there, strict=True)
            ]

    write_records(tmp_path / "pack" / "pictures-00000.arrayrecord", records())
    as_before(tmp_path / "pack")
    with pytest.raises(DataError, match=r"record 0, camera front: expected the image of .*, found another"):
        pack_lib.compare(config, index, tmp_path / "pack")


def test_check_takes_images_that_jpeg_keeps_badly(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_drive(tmp_path / "raw", "e0", frames=3)
    rng = np.random.default_rng(0)
    for file in (tmp_path / "raw").rglob("*.jpg"):
        file.write_bytes(encode_jpeg(rng.integers(0, 256, (*SIZE, 3), np.uint8), quality=95))
    words = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", "30", "46", "--quality", "20", "--check"]
    assert pack_lib.main(words) == 0
    found = re.search(r"mean difference ([0-9.]+) of 255", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 10


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [
        ([], ["--encoding", "raw"], "expected a pack with encoding raw .*, found encoding jpeg"),
        ([], ["--quality", "50"], "expected a pack with quality 50 .*, found quality 95"),
        (
            [],
            ["--image-size", "24", "32"],
            r"expected a pack with image_size \(24, 32\) .*, found image_size \(16, 24\)",
        ),
        (["--encoding", "raw"], ["--encoding", "raw", "--quality", "50"], ""),
    ],
)
def test_check_of_a_pack_with_other_settings(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], made: list[str], asked: list[str], words: str
):
    command = [str(root), str(tmp_path / "pack"), "--image-size", "16", "24"]
    assert pack_lib.main([*command, *made]) == 0
    assert pack_lib.main([*command, *asked, "--check"]) == (64 if words else 0)
    assert re.search(words, capsys.readouterr().err)


def test_a_place_in_the_dataset_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A manifest.json among the episodes would count as one."""
    raw = tmp_path / "raw"
    file = write_drive(raw / "town", "one", frames=2)
    (tmp_path / "link").symlink_to(raw)
    before = sorted(raw.rglob("*"))
    for source, out in (
        (raw, raw / "packed"),
        (raw, raw / "town" / "packed"),
        (raw, tmp_path / "raw" / ".." / "raw" / "packed"),
        (tmp_path / "link", raw / "packed"),
        (raw, tmp_path / "link" / "packed"),
        (file, raw / "town" / "packed"),
    ):
        assert pack_lib.main([str(source), str(out), "--image-size", "16", "24"]) == 64
        assert "expected a folder outside of the dataset, found one in" in capsys.readouterr().err
    config = DataConfig(path=str(raw), image_size=(16, 24))
    with pytest.raises(ConfigError, match="expected a folder outside of the dataset"):
        pack_lib.pack(config, pack_lib.open_episodes(config), raw / "packed", PackSettings(image_size=(16, 24)))
    assert sorted(raw.rglob("*")) == before
    assert pack_lib.main([str(raw), str(tmp_path / "raw packed"), "--image-size", "16", "24"]) == 0, "beside it"


def test_a_pack_is_not_packed_again(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    packed(root, tmp_path / "pack", SIZE, "raw")
    assert pack_lib.main([str(tmp_path / "pack"), str(tmp_path / "again")]) == 65
    assert "this is a pack already" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_flags_that_messages_name_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for i in range(101):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=1, start_yaw=0.01 * i)
    (tmp_path / "raw" / "e003.json").write_text("{}")
    next((tmp_path / "raw" / "e006_images").glob("*.jpg")).unlink()
    words = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", *map(str, SIZE)]
    for flag, value in (("--data.on-bad", "skip"), ("--data.missing-files", "mask")):
        assert pack_lib.main(words) == 65
        assert f"set {flag} {value}" in capsys.readouterr().err
        words += [flag, value]
    assert pack_lib.main(words) == 0


def test_command_line(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = str(tmp_path / "pack")
    assert pack_lib.main([str(root), out, "--image-size", "16", "24", "--check"]) == 0
    said = capsys.readouterr()
    assert "packed 32 frames" in said.out
    assert "32 frames compared, 156 images" in said.out
    assert "images a second from files" in said.out
    assert pack_lib.main([str(root), out, "--image-size", "16", "24", "--check"]) == 0
    assert "packed 32 frames" not in capsys.readouterr().out
    assert pack_lib.main([str(root), out, "--image-size", "16", "24"]) == 65
    assert pack_lib.main([str(tmp_path / "none"), out]) == 65
    for options in (["--image-size", "0", "24"], ["--quality", "101"], ["--workers", "0"]):
        with pytest.raises(SystemExit) as stop:
            pack_lib.main([str(root), out, *options])
        assert stop.value.code == 64


def test_an_index_of_other_drives_is_refused(root: Path, tmp_path: Path):
    for i in range(4):
        write_drive(tmp_path / "other", f"e{i}", frames=8, start_yaw=0.5 * i + 0.1)
    config = packed(root, tmp_path / "pack", SIZE, "raw")
    packed(tmp_path / "other", tmp_path / "second", SIZE, "raw")
    (tmp_path / "pack" / "_index.npz").write_bytes((tmp_path / "second" / "_index.npz").read_bytes())
    with pytest.raises(DataError, match=r"_index\.npz: expected the index of the drives .* as manifest\.json says"):
        open_data(config, "all")
    assert validate([tmp_path / "pack"])["refused"]


def test_a_shard_of_another_pack_is_refused(root: Path, tmp_path: Path):
    """Of raw images of as many frames: it has the size of the pack's own."""
    for i in range(4):
        write_drive(tmp_path / "other", f"e{i}", frames=8, start_yaw=0.5 * i + 0.1)
    config = packed(root, tmp_path / "pack", (16, 24), "raw")
    packed(tmp_path / "other", tmp_path / "second", (16, 24), "raw")
    own = (tmp_path / "pack" / "pictures-00000.arrayrecord").read_bytes()
    (tmp_path / "pack" / "pictures-00000.arrayrecord").write_bytes(
        (tmp_path / "second" / "pictures-00000.arrayrecord").read_bytes()
    )
    with pytest.raises(DataError, match=r"pictures-00000\.arrayrecord: expected .* as manifest\.json says, found"):
        open_data(config, "all")
    assert "pictures-00000.arrayrecord" in str(validate([tmp_path / "pack"])["problems"])
    source = DataConfig(path=str(root), image_size=(16, 24))
    with pytest.raises(DataError, match=r"pictures-00000\.arrayrecord: expected .* as manifest\.json says, found"):
        pack_lib.compare(source, pack_lib.open_episodes(source), tmp_path / "pack")
    (tmp_path / "pack" / "pictures-00000.arrayrecord").write_bytes(own)
    before = open_data(config, "all")
    assert not validate([tmp_path / "pack"])["refused"]
    as_before(tmp_path / "pack")
    after = open_data(config, "all")
    np.testing.assert_array_equal(before.batch(before.anchors)["images"], after.batch(after.anchors)["images"])
    assert not validate([tmp_path / "pack"])["refused"]


def test_a_camera_of_a_drive_that_was_left_out_shifts_no_other(tmp_path: Path):
    """The records have an empty place for `front_left`, which the index does not know any more."""

    def without(*cameras: str) -> Any:
        def change(tree: dict) -> None:
            for frame in tree["frames"]:
                for camera in cameras:
                    del frame["observations"]["cameras"][camera]

        return change

    for i in range(101):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=1, start_yaw=0.01 * i, change=without("front_left"))
    write_drive(tmp_path / "raw", "e006", frames=1, change=without("front_right"))
    damage(next((tmp_path / "raw" / "e006_images").glob("*.jpg")))
    words = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", *map(str, SIZE), "--on-bad", "skip"]
    assert pack_lib.main(words) == 0
    (tmp_path / "raw" / "e006.json").unlink()
    raw, stored = (
        open_data(DataConfig(path=str(tmp_path / name), image_size=SIZE, cameras=("side_left",)), "all")
        for name in ("raw", "pack")
    )
    assert "front_left" not in stored.index.cameras
    np.testing.assert_array_equal(raw.batch(raw.anchors)["images"], stored.batch(stored.anchors)["images"])


def test_a_pack_without_the_bad_episodes_has_the_split_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for i in range(120):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=2, start_yaw=0.01 * i)
    open_data(DataConfig(path=str(tmp_path / "raw"), image_size=SIZE), "train")
    before = json.loads((tmp_path / "raw" / "_split.json").read_text())
    bad = sorted(before["train"])[0]
    (tmp_path / "raw" / f"{bad}.json").write_text("{}")
    arguments = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", *map(str, SIZE), "--on-bad", "skip"]
    assert pack_lib.main(arguments) == 0
    assert "_split.json of the pack leaves out 1 episode(s) that were skipped" in capsys.readouterr().out
    del before["train"][bad]
    assert json.loads((tmp_path / "pack" / "_split.json").read_text()) == before
    assert len(open_data(DataConfig(path=str(tmp_path / "pack"), image_size=SIZE), "val").anchors)


def test_any_number_of_workers_gives_the_same_bytes(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 10)
    for workers in ("1", "3"):
        words = [str(root), str(tmp_path / workers), "--image-size", "16", "24", "--workers", workers]
        assert pack_lib.main(words) == 0
    one, three = ({p.name: p.read_bytes() for p in (tmp_path / workers).iterdir()} for workers in ("1", "3"))
    assert len([name for name in one if name.endswith(".arrayrecord")]) == 4
    assert one == three


def test_a_bad_image_costs_its_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Two drives fill a shard. The header of the image is good, so that it shows only when it is decoded."""
    monkeypatch.setattr(packing, "FRAMES_PER_SHARD", 4)
    for i in range(120):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=2, start_yaw=0.01 * i)
    open_data(DataConfig(path=str(tmp_path / "raw"), image_size=SIZE), "train")
    split = json.loads((tmp_path / "raw" / "_split.json").read_text())
    damage(next((tmp_path / "raw" / "e006_images").glob("*.jpg")))
    arguments = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", "16", "24"]
    assert pack_lib.main(arguments) == 65
    assert not (tmp_path / "pack").exists()
    assert pack_lib.main([*arguments, "--on-bad", "skip"]) == 0
    manifest = json.loads((tmp_path / "pack" / "manifest.json").read_text())
    assert [shard["rows"] for shard in manifest["shards"]] == [4, 4, 4, 2, *([4] * 56)]
    assert manifest["skipped"]["bad"] == 1
    assert manifest["skipped"]["problems"][0].startswith("e006.json: expected images that can be read, found")
    packed_data = open_data(DataConfig(path=str(tmp_path / "pack"), image_size=(16, 24)), "all")
    assert packed_data.index.ids == tuple(f"e{i:03d}" for i in range(120) if i != 6)
    kept = json.loads((tmp_path / "pack" / "_split.json").read_text())
    assert {**kept["train"], **kept["val"], **kept["test"]} == {
        name: drive for part in ("train", "val", "test") for name, drive in split[part].items() if name != "e006"
    }
    raw = open_data(DataConfig(path=str(tmp_path / "raw"), image_size=(16, 24)), "all")
    assert pack_lib.main([*arguments, "--on-bad", "skip", "--check"]) == 0
    assert "238 frames compared, 1190 images" in capsys.readouterr().out
    del manifest["skipped"]
    (tmp_path / "pack" / "manifest.json").write_text(json.dumps(manifest))
    assert pack_lib.main([*arguments, "--on-bad", "skip", "--check"]) == 65
    assert "expected the same ids" in capsys.readouterr().err, "a drive that is missing, and was not left out"
    one, other = (data.batch(anchors_of(data, "e007")) for data in (raw, packed_data))
    assert np.abs(one["images"].astype(int) - other["images"]).mean() < 2


def damage(image: Path) -> None:
    """Leaves head and end of a JPEG as they are."""
    data = image.read_bytes()
    image.write_bytes(data[: len(data) * 3 // 4] + data[-2:])


def anchors_of(data: Any, name: str) -> np.ndarray:
    """The anchors of one drive."""
    return data.anchors[np.array(data.index.ids)[data.index.episode_of(data.anchors)] == name]


def test_drives_left_out_before_count_with_those_whose_images_are_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for i in range(101):
        write_drive(tmp_path / "raw", f"e{i:03d}", frames=1, start_yaw=0.01 * i)
    (tmp_path / "raw" / "e003.json").write_text("{}")
    damage(next((tmp_path / "raw" / "e006_images").glob("*.jpg")))
    arguments = [str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", "16", "24", "--on-bad", "skip"]
    assert pack_lib.main(arguments) == 65
    assert "2 of 100 are bad" in capsys.readouterr().err


def test_all_faults_are_told_where_no_drive_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for i in range(2):
        write_drive(tmp_path / "raw", f"e{i}", frames=2, start_yaw=0.01 * i)
        damage(next((tmp_path / "raw" / f"e{i}_images").glob("*.jpg")))
    assert pack_lib.main([str(tmp_path / "raw"), str(tmp_path / "pack"), "--image-size", "16", "24"]) == 65
    told = capsys.readouterr().err
    assert all(f"e{i}.json: expected images that can be read, found" in told for i in range(2))


def test_one_file_is_packed(tmp_path: Path):
    file = write_drive(tmp_path / "raw", "one drive é", frames=2)
    write_drive(tmp_path / "raw", "another", frames=2)
    assert pack_lib.main([str(file), str(tmp_path / "pack"), "--image-size", "16", "24", "--check"]) == 0
    assert open_data(DataConfig(path=str(tmp_path / "pack"), image_size=(16, 24)), "all").index.ids == ("one drive é",)
