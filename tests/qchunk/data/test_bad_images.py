"""Every way in which images on disk can be wrong, each found when the dataset is indexed."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import simplejpeg

from chunkwise.data.problems import SHOWN, Problem
from chunkwise.data.threads import Workers
from chunkwise.errors import DataError
from qchunk.config import DataConfig
from qchunk.data import index
from qchunk.data.readers import aloha, aloha_images
from qchunk.data.readers.report import from_json
from qchunk.data.selection import select
from tests.qchunk.image_recordings import CAMERAS, dataset, scene, write_episode

HIGH = "/observations/images/cam_high"
DEPTH = "/observations/images_depth/cam_high"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def report(root: Path, **data: Any) -> str:
    settings: dict[str, Any] = {"cameras": CAMERAS} | data
    with pytest.raises(DataError) as caught:
        index.open_source(DataConfig(path=str(root), **settings))
    return str(caught.value)


def replace(h5: h5py.File, name: str, data: Any, **options: Any) -> None:
    del h5[name]
    h5.create_dataset(name, data=data, **options)


def cut_frame(h5: h5py.File) -> None:
    """Frame 4 ends early, its length in the table too."""
    rows, table = np.asarray(h5[HIGH]), np.asarray(h5["compress_len"])
    rows[4, int(table[1, 4]) * 9 // 10 :] = 0
    table[1, 4] = len(rows[4].tobytes().rstrip(b"\0"))
    replace(h5, HIGH, rows)
    replace(h5, "compress_len", table)


def cut_frame_alone(h5: h5py.File) -> None:
    rows = np.asarray(h5[HIGH])
    rows[4, 200:] = 0
    replace(h5, HIGH, rows)


def no_jpeg(h5: h5py.File) -> None:
    del h5["compress_len"]
    rows = np.asarray(h5[HIGH])
    rows[2, :4] = list(b"RIFF")
    replace(h5, HIGH, rows)


def empty_frame(h5: h5py.File) -> None:
    del h5["compress_len"]
    rows = np.asarray(h5[HIGH])
    rows[3] = 0
    replace(h5, HIGH, rows)


def other_size(h5: h5py.File) -> None:
    del h5["compress_len"]
    rows = np.asarray(h5[HIGH])
    small = simplejpeg.encode_jpeg(scene(1, 0, 16, 16)[0])
    rows[5] = np.frombuffer(small.ljust(rows.shape[1], b"\0"), np.uint8)[: rows.shape[1]]
    replace(h5, HIGH, rows)


def damaged_frame(h5: h5py.File) -> None:
    """An end marker inside the compressed data, which neither header nor length shows."""
    rows = np.asarray(h5[HIGH])
    length = len(rows[1].tobytes().rstrip(b"\0"))
    rows[1, length - 60 : length - 58] = [0xFF, 0xD9]
    replace(h5, HIGH, rows)


def declares_much(h5: h5py.File) -> None:
    """A header of 60,000 x 60,000 in a file of a few KB."""
    rows = np.asarray(h5[HIGH])
    for row in rows:
        at = row.tobytes().index(b"\xff\xc0") + 5
        row[at : at + 4] = [0xEA, 0x60, 0xEA, 0x60]
    replace(h5, HIGH, rows)


def wrong_table(h5: h5py.File) -> None:
    replace(h5, "compress_len", np.full((3, 6), 17.0, np.float32))


def narrow_table(h5: h5py.File) -> None:
    replace(h5, "compress_len", np.asarray(h5["compress_len"])[:, :4])


def nan_table(h5: h5py.File) -> None:
    replace(h5, "compress_len", np.full((3, 6), np.nan, np.float32))


def short(h5: h5py.File) -> None:
    replace(h5, HIGH, np.asarray(h5[HIGH])[:5])
    del h5["compress_len"]


def pixels_said_to_be_jpeg(h5: h5py.File) -> None:
    replace(h5, HIGH, scene(6, 0))


def gray(h5: h5py.File) -> None:
    replace(h5, HIGH, scene(6, 0)[..., 0])


def floats(h5: h5py.File) -> None:
    replace(h5, HIGH, scene(6, 0).astype(np.float32))


def vlen(h5: h5py.File) -> None:
    del h5[HIGH]
    rows = h5.create_dataset(HIGH, (6,), dtype=h5py.vlen_dtype(np.uint8))
    for i in range(6):
        rows[i] = np.zeros(9, np.uint8)


def png(h5: h5py.File) -> None:
    """Rows of another encoding, the frames' own sizes in their headers."""
    rows = [cv2.imencode(".png", scene(1, t, 24, 32)[0])[1].tobytes() for t in range(6)]
    del h5["compress_len"]
    replace(h5, HIGH, np.stack([np.frombuffer(row.ljust(max(map(len, rows)), b"\0"), np.uint8) for row in rows]))


def huge(h5: h5py.File) -> None:
    del h5[HIGH]
    h5.create_dataset(HIGH, (100_000_000, 480, 640, 3), "u1", chunks=(1, 480, 640, 3))


def never_written(h5: h5py.File) -> None:
    del h5[HIGH]
    h5.create_dataset(HIGH, (6, 480, 640, 3), "u1", chunks=(1, 480, 640, 3))


def external(h5: h5py.File) -> None:
    del h5[HIGH]
    h5.create_dataset(HIGH, (6, 4, 4, 3), "u1", external=[(__file__, 0, h5py.h5f.UNLIMITED)])


def linked(h5: h5py.File) -> None:
    del h5[HIGH]
    h5[HIGH] = h5py.ExternalLink("episode_0.hdf5", HIGH)


def linked_group(h5: h5py.File) -> None:
    h5.move("/observations/images", "/elsewhere")
    h5["/observations/images"] = h5py.SoftLink("/elsewhere")


def virtual(h5: h5py.File) -> None:
    del h5[HIGH]
    layout = h5py.VirtualLayout((6, 4, 4, 3), "u1")
    layout[:] = h5py.VirtualSource("episode_0.hdf5", HIGH, (6, 4, 4, 3))
    h5.create_virtual_dataset(HIGH, layout)


def no_camera(h5: h5py.File) -> None:
    del h5[HIGH]


BAD: dict[Callable[[h5py.File], None], str] = {
    cut_frame: ", row 4: expected a whole JPEG, found damaged data: ",
    cut_frame_alone: ", row 4: expected a JPEG of ",
    no_jpeg: ", row 2: expected a JPEG, found ",
    empty_frame: ", row 3: expected a JPEG, found 0 bytes that begin with b''",
    other_size: ", row 5: expected a JPEG of 24 x 32, as in the first frame, found 16 x 16",
    damaged_frame: ", row 1: expected a whole JPEG, found damaged data: ",
    declares_much: ", row 0: expected a JPEG, found 60000 x 60000",
    wrong_table: ": expected a row of /compress_len with the lengths of these JPEGs, found none that fits half of them",
    narrow_table: ": expected /compress_len of shape [cameras, 6], found shape (3, 4)",
    nan_table: ": expected /compress_len of finite numbers, found NaN or Inf",
    short: ", row 5: expected 6 rows, as many as the episode has frames, found 5 rows",
    pixels_said_to_be_jpeg: ": expected JPEG rows, as the attribute compress=True says, found pixels of shape",
    gray: ": expected uint8 pixels [T, h, w, 3], or one row of JPEG bytes a frame, found uint8 of (6, 24, 32)",
    floats: ": expected uint8 pixels, or bytes of JPEGs, found dtype float32",
    vlen: ": expected rows of one length (images: each JPEG padded with zeros), found rows of their own lengths",
    png: ", row 0: expected a JPEG, as cv2.imencode('.jpg', ...) writes it, found a PNG",
    huge: ": expected at most 8192 MiB (arrays that are read from one file, once they are unpacked), found 878",
    never_written: ": expected an array whose bytes are in the file, found 5529600 bytes declared, 0 stored",
    external: ": expected data stored in this file, found external storage",
    linked: ": expected data stored in this file, found ExternalLink at 'cam_high'",
    virtual: ": expected data stored in this file, found a virtual dataset",
    no_camera: ": expected images, for data.cameras, found cameras /observations/images/cam_left_wrist, ",
}


def test_cameras_that_no_episode_has_are_no_reason_to_remove_files(tmp_path: Path):
    root = dataset(tmp_path, lengths=(6, 7, 8))
    told = report(root, cameras=("cam_high", "front")).splitlines()
    assert told[-1].startswith("It is so in each episode: rather the config than the files is to be changed (data.cam")
    with h5py.File(root / "episode_1.hdf5", "r+") as h5:
        del h5[HIGH]
    assert report(root, cameras=("cam_high", "front")).splitlines()[-1].startswith("Repair or remove these files, or")


def test_every_problem_is_in_one_report(tmp_path: Path):
    dataset(tmp_path, lengths=(6, 6))
    for number, spoil in enumerate(BAD):
        write_episode(tmp_path / f"{spoil.__name__}.hdf5", 6, number, success=True)
        with h5py.File(tmp_path / f"{spoil.__name__}.hdf5", "r+") as h5:
            spoil(h5)
    write_episode(tmp_path / "linked_group.hdf5", 6, 0, success=True)
    with h5py.File(tmp_path / "linked_group.hdf5", "r+") as h5:
        linked_group(h5)
    config = DataConfig(path=str(tmp_path), cameras=CAMERAS)
    problems = select(index.read_index(config), config).problems
    text = "\n".join(str(problem) for problem in problems)
    for spoil, words in BAD.items():
        assert f"{spoil.__name__}.hdf5: {HIGH}{words}" in text, spoil.__name__
    expected = (
        "linked_group.hdf5: /observations/images: expected data stored in this file, at this place of it, found S"
    )
    assert expected in text
    assert "episode_0.hdf5" not in text.replace("found ", "")
    # The cameras beside it are good, except where the table of lengths is everyone's.
    count = len(BAD) + 1 + 3 * 2
    assert len(problems) == count
    told = report(tmp_path).splitlines()
    assert told[0] == f"{count} problem(s):"
    more = f"more; python -m qchunk.inspect {tmp_path} --json lists all"
    assert [line.endswith(more) for line in told[1:-1]] == [False] * SHOWN + [True]


def test_a_run_without_these_cameras_does_not_look(tmp_path: Path):
    dataset(tmp_path, lengths=(6, 6))
    with h5py.File(tmp_path / "episode_1.hdf5", "r+") as h5:
        damaged_frame(h5)
    assert "episode_1.hdf5: /observations/images/cam_high, row 1" in report(tmp_path)
    assert len(index.open_source(DataConfig(path=str(tmp_path)))[0]) == 2
    assert len(index.open_source(DataConfig(path=str(tmp_path), cameras=CAMERAS[1:]))[0]) == 2


def test_images_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset(tmp_path, lengths=(6, 6))
    examined = []
    examine = aloha.examine

    def count(root: Path, path: Path, workers: Workers | None = None, *, digest: str) -> Any:
        examined.append((path.name, workers is not None))
        return examine(root, path, workers, digest=digest)

    monkeypatch.setattr(aloha, "examine", count)
    for cameras in ((), CAMERAS, (), CAMERAS[:1]):
        index.open_source(DataConfig(path=str(tmp_path), cameras=cameras))
    names = ("episode_0.hdf5", "episode_1.hdf5")
    assert examined == [(name, images) for images in (False, True) for name in names]


def test_sizes_must_agree_unless_images_are_resized(tmp_path: Path):
    dataset(tmp_path, lengths=(6, 6, 6))
    write_episode(tmp_path / "other.hdf5", 6, 7, size=(30, 40), success=True)
    text = report(tmp_path)
    words = (
        "expected uint8 of 24 x 32, as of most cameras and episodes (or set data.image_size), found uint8 of 30 x 40"
    )
    assert text.count(words) == 3
    data = DataConfig(path=str(tmp_path), cameras=CAMERAS, image_size=(10, 10))
    assert len(index.open_source(data)[0]) == 4


def test_depth_maps_are_checked(tmp_path: Path):
    dataset(tmp_path, lengths=(6, 6, 6), depth=True)
    nan = np.ones((6, 24, 32), np.float32)
    nan[2, 3, 4] = np.nan
    bad = {"nan": nan, "rows": np.zeros((6, 500), np.uint8), "wide": np.ones((6, 24, 32), np.int64), "other": nan[:2]}
    for name, maps in bad.items():
        write_episode(tmp_path / f"{name}.hdf5", 6, 1, success=True, depth=True)
        with h5py.File(tmp_path / f"{name}.hdf5", "r+") as h5:
            replace(h5, DEPTH, maps)
    text = report(tmp_path, cameras=(), depth_cameras=("cam_high",))
    assert f"nan.hdf5: {DEPTH}, row 2: expected finite numbers, found NaN or Inf" in text
    assert f"rows.hdf5: {DEPTH}: expected depth maps [T, h, w] of uint16, float32 or uint8, found uint8 of (6" in text
    assert f"wide.hdf5: {DEPTH}: expected depth maps [T, h, w] of uint16, float32 or uint8, found int64 of (6" in text
    assert f"other.hdf5: {DEPTH}, row 2: expected 6 rows, as many as the episode has frames, found 2 rows" in text


def test_a_chunk_that_fails_its_checksum_is_named_by_row(tmp_path: Path):
    dataset(tmp_path, lengths=(20, 20), jpeg=False)
    file = tmp_path / "bad.hdf5"
    write_episode(file, 20, 5, jpeg=False, success=True)
    with h5py.File(file, "r+") as h5:
        frames = np.asarray(h5[HIGH])
        replace(h5, HIGH, frames, chunks=(1, 24, 32, 3), fletcher32=True)
        dataset_: Any = h5[HIGH]
        place = dataset_.id.get_chunk_info(18).byte_offset
    with file.open("r+b") as raw:
        raw.seek(place)
        raw.write(bytes(64))
    assert f"bad.hdf5: {HIGH}, row 18: expected readable data, found " in report(tmp_path)


def test_a_silent_change_of_images_in_a_large_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files above 256 MiB are hashed in part; their images are hashed whole."""
    dataset(tmp_path, lengths=(6, 6), jpeg=False)
    monkeypatch.setattr("chunkwise.files.identity.WHOLE_BYTES", 0)
    monkeypatch.setattr("chunkwise.files.identity.EDGE_BYTES", 64)
    monkeypatch.setattr("chunkwise.files.identity.BLOCK_BYTES", 0)
    data = DataConfig(path=str(tmp_path), cameras=CAMERAS)
    index.open_source(data)
    file = tmp_path / "episode_1.hdf5"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with h5py.File(file, "r") as h5:
        dataset_: Any = h5[HIGH]
        place = dataset_.id.get_chunk_info(3).byte_offset
    with file.open("r+b") as raw:
        raw.seek(place)
        raw.write(bytes(64))
    os.utime(file, ns=times)
    for _ in range(2):  # the old hash is kept, so it is found again
        reports = index.read_index(data, reread=True)
        (problem,) = reports[1].problems
        assert str(problem).startswith(f"episode_1.hdf5: {HIGH}: expected content ")
        assert "with size and modification time unchanged" in problem.found
    file.touch()
    assert not index.read_index(data)[1].problems


def test_the_index_survives_its_cache(tmp_path: Path):
    data = DataConfig(path=str(dataset(tmp_path, lengths=(6, 6), depth=True)), cameras=CAMERAS)
    first = index.read_index(data)
    assert index.read_index(data) == first
    images = first[0].images
    assert images is not None
    assert (images[HIGH].encoding, images[HIGH].height, images[HIGH].width) == ("jpeg", 24, 32)
    assert (images[DEPTH].encoding, images[DEPTH].dtype, images[DEPTH].stored) == (
        "raw",
        "uint16",
        6 * 24 * 32 * 2,
    )
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    assert index.read_index(data) == first


def test_an_index_of_an_earlier_version_keeps_what_it_says_of_images(tmp_path: Path):
    data = DataConfig(path=str(dataset(tmp_path, lengths=(6, 6))), cameras=CAMERAS)
    problem = Problem(file="episode_0.hdf5", expected="images", found="none")
    report = dataclasses.replace(index.read_index(data)[0], image_problems=(problem,))
    tree = json.loads(json.dumps(dataclasses.asdict(report)))
    before = {"pictures": tree.pop("images"), "picture_problems": tree.pop("image_problems"), **tree}
    assert from_json(before) == report


def test_lengths_are_those_of_the_table_even_with_bytes_behind(tmp_path: Path):
    found = write_episode(tmp_path / "a.hdf5", 6, 0, success=True)
    with h5py.File(tmp_path / "a.hdf5", "r+") as h5:
        rows = np.asarray(h5[HIGH])
        for row, jpeg in zip(rows, found["cam_high"], strict=True):
            row[len(jpeg) :] = 7  # padded with something else
        replace(h5, HIGH, rows)
        cut = aloha_images.read_jpegs(h5[HIGH])  # pyright: ignore[reportArgumentType]
    assert [bytes(cut[i]) for i in range(6)] == found["cam_high"]


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("False", "expected pixels, as the attribute compress=False says, found JPEG rows of shape"),
        (b"0", "expected pixels, as the attribute compress=False says, found JPEG rows of shape"),
        ("jpeg", "expected the attribute compress as true or false, found 'jpeg'"),
        ("True", None),
        (b"1", None),
    ],
)
def test_a_word_for_compress_is_read_as_one(said: str | bytes, refused: str | None, tmp_path: Path) -> None:
    """Any text is true to Python."""
    root = dataset(tmp_path, lengths=(6, 6))
    for file in root.iterdir():
        with h5py.File(file, "r+") as h5:
            h5.attrs["compress"] = said
    cfg = DataConfig(path=str(root), cameras=CAMERAS)
    text = "\n".join(map(str, select(index.read_index(cfg), cfg).problems))
    assert refused in text if refused else not text
