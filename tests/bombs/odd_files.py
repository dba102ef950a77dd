"""Cases: odd names, links, sizes and numbers of files, and .npz files that lie."""

import io
import os
import struct
import threading
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np

from tests.bombs import Command, case
from tests.bombs.arrays import good_arrays, header, write_npz
from tests.bombs.hdf5 import good_episode
from tests.bombs.programs import driving_validate, openpi_inspect, qchunk_convert, qchunk_inspect, train, train_lerobot
from tests.driving.drives import write_drive
from tests.lerobot_files import record, write_v21

TERABYTE = 1 << 40
ONE = ("--train.steps", "1", "--eval.env", "None")
"""One update of Q-chunking on recordings that no simulator made."""


def sparse(path: Path, size: int = TERABYTE) -> Path:
    """A file of so many bytes, of which the file system stores what is there already."""
    with path.open("ab") as file:
        file.truncate(size)
    return path


def npz(folder: Path, *, head: bytes | None = None, content: bytes = b"", **arrays: np.ndarray) -> Path:
    """A good OGBench file but for these arrays, and for the member `observations` if `head` is given."""
    good = good_arrays() | arrays
    members = {name: header(x.shape, x.dtype.str) + x.tobytes() for name, x in good.items()}
    if head is not None:
        members["observations"] = head + content
    return write_npz(folder / "play.npz", members)


def numpy_header(text: str) -> bytes:
    """A header of numpy's format with any text."""
    data = text.encode().ljust(63) + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(data)) + data


@case
def sparse_hdf5_of_a_terabyte(folder: Path) -> Command:
    """Nothing, a terabyte of it."""
    return qchunk_inspect(sparse(folder / "episode_0.hdf5").parent)


@case(may_read=True)
def hdf5_with_a_terabyte_behind(folder: Path) -> Command:
    """A good episode, and a terabyte of nothing behind it."""
    good_episode(folder / "episode_0.hdf5").close()
    return qchunk_inspect(sparse(folder / "episode_0.hdf5").parent)


@case(may_read=True)
def hdf5_with_a_terabyte_behind_in_training(folder: Path) -> Command:
    """The same, in training, whose index hashes files."""
    good_episode(folder / "episode_0.hdf5").close()
    return train("qchunk", sparse(folder / "episode_0.hdf5").parent, *ONE)


@case
def sparse_npz_of_a_terabyte(folder: Path) -> Command:
    """An .npz file of a terabyte."""
    return qchunk_inspect(sparse(folder / "play.npz"))


@case
def sparse_demo_of_a_terabyte(folder: Path) -> Command:
    """A file to be converted of a terabyte."""
    return qchunk_convert(sparse(folder / "demo.hdf5"))


@case
def sparse_parquet_of_a_terabyte(folder: Path) -> Command:
    """A table of a terabyte."""
    root = write_v21(folder / "data", record(), "image")
    sparse(sorted((root / "data").glob("*/*.parquet"))[0])
    return openpi_inspect(root)


@case(may_read=True)
def sparse_video_of_a_terabyte(folder: Path) -> Command:
    """A good video with a terabyte of nothing behind it, in training."""
    root = write_v21(folder / "data", record(), "video")
    sparse(sorted((root / "videos").glob("*/*/*.mp4"))[0])
    return train_lerobot(root)


@case
def sparse_image_of_a_terabyte(folder: Path) -> Command:
    """A good image with a terabyte of nothing behind it."""
    write_drive(folder, "a", frames=4)
    sparse(sorted((folder / "a_images").glob("*.jpg"))[0])
    return driving_validate(folder)


@case
def sparse_split_of_a_terabyte(folder: Path) -> Command:
    """_split.json of a terabyte, in training."""
    write_drive(folder, "a")
    sparse(folder / "_split.json")
    return train("driving", folder)


@case
def hundred_thousand_empty_episodes(folder: Path) -> Command:
    """100,000 empty files."""
    for n in range(100_000):
        (folder / f"episode_{n}.hdf5").touch()
    return qchunk_inspect(folder)


@case
def hundred_thousand_empty_drives(folder: Path) -> Command:
    """100,000 empty files, in training."""
    for n in range(100_000):
        (folder / f"{n}.json").touch()
    return train("driving", folder)


@case
def names_that_are_no_text(folder: Path) -> Command:
    """Broken episodes whose names break lines, are no UTF-8, turn a terminal's colours, and have 255 bytes."""
    for name in (b"a\nb.hdf5", b"\xff\xfe.hdf5", b"\x1b[31m.hdf5", b"x" * 250 + b".hdf5"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"no HDF5")
    return qchunk_inspect(folder)


@case(may_read=True)
def good_episode_whose_name_is_no_text(folder: Path) -> Command:
    """A good episode whose name is no UTF-8, in training: the run keeps a list of files."""
    for n in range(4):
        path = Path(os.fsdecode(os.fsencode(folder) + b"/\xff\n%d.hdf5" % n))
        good_episode(folder / "e").close()
        (folder / "e").rename(path)
    return train("qchunk", folder, *ONE)


@case(may_read=True)
def good_episode_whose_name_is_no_text_as_json(folder: Path) -> Command:
    """The same, as JSON."""
    good_episode(folder / "e").close()
    (folder / "e").rename(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.hdf5")))
    return [*qchunk_inspect(folder), "--json"]


@case(may_read=True)
def drive_whose_name_is_no_text(folder: Path) -> Command:
    """A good drive in a folder whose name is no UTF-8."""
    inner = Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe\n"))
    inner.mkdir()
    write_drive(inner, "a")
    return driving_validate(inner)


@case(may_read=True)
def drive_whose_name_is_no_text_in_training(folder: Path) -> Command:
    """The same, in training: index and split keep names."""
    inner = Path(os.fsdecode(os.fsencode(folder) + b"/data/\xff\xfe\n"))
    inner.mkdir(parents=True)
    for name in "abcd":
        write_drive(inner, name)
    return train("driving", folder / "data", "--train.steps", "1")


@case
def dataset_whose_name_is_no_text(folder: Path) -> Command:
    """No dataset, below a name that is no UTF-8 and has 4,000 bytes."""
    return qchunk_inspect(Path(os.fsdecode(os.fsencode(folder) + b"/\xff" + b"/a" * 1900)))


@case(may_read=True)
def folders_named_as_files(folder: Path) -> Command:
    """Folders called episode_1.hdf5 and a.json beside a good drive."""
    write_drive(folder, "a")
    (folder / "b.json").mkdir()
    (folder / "episode_1.hdf5").mkdir()
    return driving_validate(folder)


@case
def folder_as_info(folder: Path) -> Command:
    """meta/info.json is a folder."""
    (folder / "data" / "meta" / "info.json").mkdir(parents=True)
    return openpi_inspect(folder / "data")


@case
def links_in_a_circle(folder: Path) -> Command:
    """Links to themselves, to the folder above, and to nothing."""
    (folder / "a.hdf5").symlink_to("a.hdf5")
    (folder / "b.hdf5").symlink_to("nothing.hdf5")
    (folder / "above").symlink_to("..")
    return qchunk_inspect(folder)


@case
def link_to_standard_input(folder: Path) -> Command:
    """A drive that is a link to /dev/stdin, and a split that is one to /proc/self/mem."""
    write_drive(folder, "a")
    (folder / "b.json").symlink_to("/dev/stdin")
    (folder / "_split.json").symlink_to("/proc/self/mem")
    return driving_validate(folder)


@case(may_read=True)
def jsonl_that_grows(folder: Path) -> Command:
    """episodes.jsonl gets 4,000 lines a second while it is read."""
    root = write_v21(folder / "data", record(), "image")
    path = root / "meta" / "episodes.jsonl"

    def grow() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and path.exists():
            with path.open("a") as file:
                file.write('{"episode_index": 0, "tasks": ["pick the cube"], "length": 7}\n' * 40)
            time.sleep(0.01)

    threading.Thread(target=grow, daemon=True).start()
    return openpi_inspect(root)


@case
def npz_of_objects(folder: Path) -> Command:
    """Pickled objects."""
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}] * 1000, dtype=object))
    return qchunk_inspect(npz(folder, head=out.getvalue()))


@case
def npz_of_wide_texts(folder: Path) -> Command:
    """One text of 400 million letters of none of which is there."""
    return qchunk_inspect(npz(folder, head=header((1000, 5), "<U400000000")))


@case
def npz_of_no_rows_and_many_columns(folder: Path) -> Command:
    """Shapes of no elements, and of 2**62 columns."""
    return qchunk_inspect(npz(folder, head=header((0, 1 << 62))))


@case
def npz_of_many_rows_without_width(folder: Path) -> Command:
    """2**60 rows of nothing."""
    return qchunk_inspect(npz(folder, head=header((1 << 60, 0))))


@case
def npz_of_a_shape_that_overflows(folder: Path) -> Command:
    """2**32 x 2**32, whose product is 0 in 64 bits."""
    return qchunk_inspect(npz(folder, head=header((1 << 32, 1 << 32))))


@case
def npz_of_negative_shape(folder: Path) -> Command:
    """-1000 x -5, whose product is right."""
    x = np.zeros((1000, 5), np.float32)
    return qchunk_inspect(npz(folder, head=header((-1000, -5)), content=x.tobytes()))


@case
def npz_of_a_number_too_long(folder: Path) -> Command:
    """A shape of 5,000 digits, more than Python turns into a number."""
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ", 5), }"
    return qchunk_inspect(npz(folder, head=numpy_header(text)))


@case
def npz_of_many_fields(folder: Path) -> Command:
    """A record of 200 fields, each an array of 2**28 columns."""
    fields = [(f"f{n}", "<f4", (1 << 28,)) for n in range(200)]
    text = repr({"descr": fields, "fortran_order": False, "shape": (1000,)})
    return qchunk_inspect(npz(folder, head=numpy_header(text)))


@case
def npz_of_an_expression(folder: Path) -> Command:
    """A header that Python would have to compute: 9**9**9."""
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (9**9**9, 5), }"
    return qchunk_inspect(npz(folder, head=numpy_header(text)))


@case(may_read=True)
def npz_in_fortran_order(folder: Path) -> Command:
    """Columns first."""
    x = np.zeros((1000, 5), np.float32)
    text = repr({"descr": "<f4", "fortran_order": True, "shape": (1000, 5)})
    return qchunk_inspect(npz(folder, head=numpy_header(text), content=x.tobytes()))


@case
def npz_beyond_float32(folder: Path) -> Command:
    """Observations that are finite as float64 alone."""
    return qchunk_inspect(npz(folder, observations=np.full((1000, 5), -1e300)))


@case
def npz_of_complex_numbers(folder: Path) -> Command:
    """Observations with an imaginary part."""
    return qchunk_inspect(npz(folder, observations=np.full((1000, 5), 1 + 2j)))


@case
def npz_of_dates(folder: Path) -> Command:
    """Actions that are dates."""
    return qchunk_inspect(npz(folder, actions=np.zeros((1000, 3), "M8[s]")))


@case
def npz_with_ends_that_are_not_numbers(folder: Path) -> Command:
    """Terminals of NaN."""
    return qchunk_inspect(npz(folder, terminals=np.full(1000, np.nan, np.float32)))


@case
def npz_that_ends_everywhere(folder: Path) -> Command:
    """Every row ends an episode: none has a step."""
    return qchunk_inspect(npz(folder, terminals=np.ones(1000, np.float32)))


@case
def npz_of_one_name_twice(folder: Path) -> Command:
    """Two members called actions.npy, of which zipfile takes the last."""
    path = npz(folder)
    x = np.ones((1000, 3), np.float32)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("actions.npy", header(x.shape) + x.tobytes())
    return qchunk_inspect(path)


@case
def npz_of_a_million_members(folder: Path) -> Command:
    """A directory of 300,000 empty members."""
    path = npz(folder)
    with zipfile.ZipFile(path, "a") as archive:
        for n in range(300_000):
            archive.writestr(f"{n}.npy", b"")
    return qchunk_inspect(path)


@case
def npz_with_a_wrong_checksum(folder: Path) -> Command:
    """One bit of the last row is another."""
    path = folder / "play.npz"
    members = {name: header(x.shape, x.dtype.str) + x.tobytes() for name, x in good_arrays().items()}
    write_npz(path, members, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.find(members["observations"]) + len(members["observations"]) - 1
    data[at] ^= 1
    path.write_bytes(data)
    return qchunk_inspect(path)


@case
def npz_that_is_encrypted(folder: Path) -> Command:
    """Members whose flag says that they have a password."""
    path = npz(folder)
    data = path.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")
    path.write_bytes(data.replace(b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00"))
    return qchunk_inspect(path)
