"""Cases: HDF5 files whose structure, types, numbers or labels are odd."""

import atexit
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.bombs import Command, case
from tests.bombs.hdf5 import T, good_episode
from tests.bombs.programs import qchunk_convert, qchunk_inspect, train

Change = Callable[[h5py.File], object]


def broken(folder: Path, *, without: tuple[str, ...], change: Change) -> Command:
    """An episode that lacks some arrays, and gets them, or others, from `change`."""
    with good_episode(folder / "episode_0.hdf5", without=without) as h5:
        change(h5)
    return qchunk_inspect(folder)


def robomimic(path: Path, change: Change, demos: int = 2) -> Path:
    """A robomimic file, changed."""
    with h5py.File(path, "w") as h5:
        for n in range(demos):
            for name, width in (("actions", 3), ("obs/object", 4)):
                h5[f"data/demo_{n}/{name}"] = np.full((T, width), 0.5, np.float32)
            for name in ("rewards", "dones"):
                h5[f"data/demo_{n}/{name}"] = np.zeros(T, np.float32)
        change(h5)
    return path


@case(may_read=True)
def hdf5_of_a_million_chunks(folder: Path) -> Command:
    """A million frames in chunks of one number."""
    count = 1_000_000
    with h5py.File(folder / "episode_0.hdf5", "w", libver="latest") as h5:
        h5["/observations/qpos"] = np.zeros((count, 2), np.float32)
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((1, 1))
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        space = h5py.h5s.create_simple((count, 1))
        h5py.h5d.create(h5.id, b"action", h5py.h5t.IEEE_F32LE, space, settings)
    return qchunk_inspect(folder)


@case(may_read=True)
def hdf5_groups_in_a_circle(folder: Path) -> Command:
    """A group that is in itself, twice."""

    def change(h5: h5py.File) -> None:
        h5["/observations/images/top"] = np.zeros((T, 8, 8, 3), np.uint8)
        h5["/observations/again"] = h5["/observations"]
        h5["/observations/images/again"] = h5["/"]

    return broken(folder, without=(), change=change)


@case(may_read=True)
def hdf5_of_deep_groups(folder: Path) -> Command:
    """30,000 groups in one another, under images/."""

    def change(h5: h5py.File) -> None:
        group = h5py.h5g.create(h5.id, b"observations/images", lcpl=None)
        for _ in range(30_000):
            group = h5py.h5g.create(group, b"g")

    return broken(folder, without=(), change=change)


@case
def hdf5_action_of_texts(folder: Path) -> Command:
    """Actions that are texts of any length."""
    return broken(
        folder,
        without=("/action",),
        change=lambda h5: h5.create_dataset(
            "/action", (T, 3), h5py.string_dtype(), data=np.full((T, 3), "1.0", object)
        ),
    )


@case
def hdf5_action_of_sequences(folder: Path) -> Command:
    """Actions that are sequences of numbers of any length."""

    def change(h5: h5py.File) -> None:
        rows = h5.create_dataset("/action", (T,), h5py.vlen_dtype(np.float32))
        for n in range(T):
            rows[n] = np.zeros(n + 1, np.float32)

    return broken(folder, without=("/action",), change=change)


@case
def hdf5_action_of_records(folder: Path) -> Command:
    """Actions of a compound type."""
    kind = np.dtype([("x", "f4"), ("y", "f4")])
    return broken(
        folder, without=("/action",), change=lambda h5: h5.create_dataset("/action", data=np.zeros((T, 3), kind))
    )


@case
def hdf5_action_of_complex_numbers(folder: Path) -> Command:
    """Actions with an imaginary part, which a cast drops."""
    return broken(
        folder, without=("/action",), change=lambda h5: h5.create_dataset("/action", data=np.full((T, 3), 1 + 2j))
    )


@case
def hdf5_action_of_references(folder: Path) -> Command:
    """Actions that point to themselves."""

    def change(h5: h5py.File) -> None:
        rows = h5.create_dataset("/action", (T, 3), h5py.ref_dtype)
        rows[:] = np.full((T, 3), rows.ref, h5py.ref_dtype)

    return broken(folder, without=("/action",), change=change)


@case
def hdf5_action_beyond_float32(folder: Path) -> Command:
    """Float64 that are finite, and infinite as float32."""
    return broken(
        folder, without=("/action",), change=lambda h5: h5.create_dataset("/action", data=np.full((T, 3), 1e300))
    )


@case
def hdf5_reward_beyond_float32(folder: Path) -> Command:
    """The same in /reward."""
    return broken(folder, without=(), change=lambda h5: h5.create_dataset("/reward", data=np.full(T, -1e39)))


@case
def hdf5_action_of_no_space(folder: Path) -> Command:
    """An array of the null data space."""
    return broken(folder, without=("/action",), change=lambda h5: h5.create_dataset("/action", dtype="f4"))


@case
def hdf5_action_of_one_number(folder: Path) -> Command:
    """A scalar where rows should be."""
    return broken(folder, without=("/action",), change=lambda h5: h5.create_dataset("/action", data=1.0))


@case
def hdf5_action_of_no_rows_and_many_columns(folder: Path) -> Command:
    """Shape 0 x 2**61."""
    return broken(
        folder,
        without=("/action",),
        change=lambda h5: h5.create_dataset("/action", (0, 1 << 61), "f4", chunks=(1, 4), maxshape=(None, None)),
    )


@case
def hdf5_action_without_width(folder: Path) -> Command:
    """Actions and positions of width 0."""

    def change(h5: h5py.File) -> None:
        h5["/action"] = np.zeros((T, 0), np.float32)
        h5["/observations/qpos"] = np.zeros((T, 0), np.float32)

    return broken(folder, without=("/action", "/observations/qpos"), change=change)


@case
def hdf5_action_is_a_group(folder: Path) -> Command:
    """A group where an array should be, and an array where a group should be."""

    def change(h5: h5py.File) -> None:
        h5.create_group("/action/action")
        h5["/observations/images"] = np.zeros((T, 3), np.uint8)

    return broken(folder, without=("/action",), change=change)


@case
def hdf5_success_is_a_text(folder: Path) -> Command:
    """The attribute success is the text "False", which is true to Python."""

    def change(h5: h5py.File) -> None:
        h5.attrs["success"] = "False"

    return broken(folder, without=(), change=change)


@case
def hdf5_success_is_many(folder: Path) -> Command:
    """The attribute success is an array of 8,000 truths."""

    def change(h5: h5py.File) -> None:
        h5.attrs["success"] = np.ones(8000, bool)

    return broken(folder, without=(), change=change)


@case
def hdf5_success_is_not_a_number(folder: Path) -> Command:
    """The attribute success is NaN, which is true to Python."""

    def change(h5: h5py.File) -> None:
        h5.attrs["success"] = np.nan

    return broken(folder, without=(), change=change)


@case
def hdf5_success_is_nothing(folder: Path) -> Command:
    """The attribute success has the null data space."""

    def change(h5: h5py.File) -> None:
        h5.attrs["success"] = h5py.Empty("f4")

    return broken(folder, without=(), change=change)


@case
def hdf5_attribute_of_400_mb(folder: Path) -> Command:
    """The attribute success is stored densely, and has 400 million elements."""
    with h5py.File(folder / "episode_0.hdf5", "w", libver="latest") as h5:
        h5["/observations/qpos"] = np.zeros((T, 5), np.float32)
        h5["/action"] = np.zeros((T, 3), np.float32)
        h5.attrs["success"] = np.ones(400_000_000, np.uint8)
    return qchunk_inspect(folder)


@case
def hdf5_terminated_is_a_half(folder: Path) -> Command:
    """Flags that are neither 0 nor 1."""
    return broken(folder, without=(), change=lambda h5: h5.create_dataset("/terminated", data=np.full(T, 0.5)))


@case
def hdf5_lengths_beyond_the_rows(folder: Path) -> Command:
    """Lengths of JPEGs: 2**63 - 1, and below 0."""

    def change(h5: h5py.File) -> None:
        h5["/observations/images/top"] = np.zeros((T, 100), np.uint8)
        h5["/compress_len"] = np.where(np.arange(T) % 2, -5, (1 << 63) - 1)[None].astype(np.int64)

    return broken(folder, without=(), change=change)


@case
def hdf5_filter_of_another(folder: Path) -> Command:
    """A filter that nobody has, and that may be left out."""

    def change(h5: h5py.File) -> None:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((T, 3))
        settings.set_filter(h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FLAG_OPTIONAL, (2, 0))
        space = h5py.h5s.create_simple((T, 3))
        dataset = h5py.h5d.create(h5.id, b"action", h5py.h5t.STD_I32LE, space, settings)
        h5py.Dataset(dataset)[:] = 7

    return broken(folder, without=("/action",), change=change)


_open: list[h5py.File] = []
atexit.register(lambda: [h5.close() for h5 in _open])


@case
def hdf5_that_another_writes(folder: Path) -> Command:
    """An episode that a recorder has open, and has locked."""
    h5 = good_episode(folder / "episode_0.hdf5")
    h5.flush()
    _open.append(h5)
    return qchunk_inspect(folder)


@case(may_read=True)
def hdf5_behind_a_user_block(folder: Path) -> Command:
    """512 bytes of another format in front of the HDF5."""
    with h5py.File(folder / "episode_0.hdf5", "w", userblock_size=512) as h5:
        h5["/observations/qpos"] = np.zeros((T, 5), np.float32)
        h5["/action"] = np.zeros((T, 3), np.float32)
    with (folder / "episode_0.hdf5").open("r+b") as file:
        file.write(b"PK\x03\x04")
    return qchunk_inspect(folder)


@case
def hdf5_cameras_with_odd_names(folder: Path) -> Command:
    """Cameras whose names are no UTF-8, break lines, climb folders, and have 60,000 letters; all broken."""

    def change(h5: h5py.File) -> None:
        images = h5.create_group("/observations/images")
        space = h5py.h5s.create_simple((T, 100))
        for name in (b"\xff\xfe", b"a\nb\x1b[2J", b"..", b"x" * 60_000):
            h5py.h5d.create(images.id, name, h5py.h5t.STD_U8LE, space)

    return broken(folder, without=(), change=change)


@case
def hdf5_cameras_with_odd_names_in_training(folder: Path) -> Command:
    """A camera whose name is no UTF-8 and breaks lines, and an array of NaN, in training."""
    with good_episode(folder / "episode_0.hdf5", without=("/action",)) as h5:
        images = h5.create_group("/observations/images")
        h5py.h5d.create(images.id, b"\xff\n", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((T, 100)))
        h5["/action"] = np.full((T, 3), np.nan, np.float32)
    return train("qchunk", folder)


@case
def robomimic_length_is_a_lie(folder: Path) -> Command:
    """num_samples is 2**63 - 1, NaN, and a text."""

    def change(h5: h5py.File) -> None:
        h5["data/demo_0"].attrs["num_samples"] = np.nan
        h5["data/demo_1"].attrs["num_samples"] = "twenty"

    return [*qchunk_convert(robomimic(folder / "demo.hdf5", change)), "--observation-keys", "object"]


@case
def robomimic_environment_nests_deeply(folder: Path) -> Command:
    """env_args are 30,000 open brackets of JSON."""

    def change(h5: h5py.File) -> None:
        h5["data"].attrs["env_args"] = "[" * 30_000

    return [*qchunk_convert(robomimic(folder / "demo.hdf5", change)), "--observation-keys", "object"]


@case(may_read=True)
def robomimic_odd_names(folder: Path) -> Command:
    """Demonstrations that are called by no number, by one of 5,000 digits, by Arabic digits and by a line break."""

    def change(h5: h5py.File) -> None:
        for name in ("demo_", "demo_" + "9" * 5000, "demo_\u0663", "demo_\n", "demo_-1", "demo_1e3"):
            h5.copy("data/demo_0", f"data/{name}")

    return [*qchunk_convert(robomimic(folder / "demo.hdf5", change)), "--observation-keys", "object"]


@case
def robomimic_demos_are_arrays(folder: Path) -> Command:
    """data/ is an array; and in the mask are numbers."""
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as h5:
        h5["data"] = np.zeros((T, 3))
        h5["mask/train"] = np.arange(3)
    return [*qchunk_convert(path), "--format", "robomimic", "--filter-key", "train"]


@case
def d4rl_beyond_float32(folder: Path) -> Command:
    """Observations that are finite as float64 alone."""
    path = folder / "d4rl.hdf5"
    with h5py.File(path, "w") as h5:
        h5["observations"], h5["actions"] = np.full((T, 4), 1e200), np.zeros((T, 2))
        for name in ("rewards", "terminals", "timeouts"):
            h5[name] = np.eye(1, T, T - 1)[0] if name == "timeouts" else np.zeros(T)
    return qchunk_convert(path)
