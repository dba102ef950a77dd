"""Changes datasets in every way, between two starts of a run and while it reads, and sees whether it is noticed.

    python -m tests.changed_data              # every kind of dataset, then three runs of launch.py
    python -m tests.changed_data --no-runs    # the datasets alone, in this process; seconds

Each kind of dataset is opened, changed, and opened again as a resume does: the change must be refused with the file
named. Opened and changed while it is open, it must be refused when the file is next read. A copy elsewhere, with other
times, must be the same. The runs are of the debug configs: one that was stopped goes on with a copied dataset and must
end with the digest of an untouched run; with a changed one it must exit with 78 and name the file.
"""

import argparse
import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chunkwise.config.experiment import RunConfig, TrainConfig
from chunkwise.data.shards import PackSettings
from chunkwise.errors import DataError, MismatchError
from chunkwise.files import dataset_files
from chunkwise.files.identity import Files
from driving.config import DataConfig as DrivingConfig
from driving.data import batches as driving_data
from driving.data import pack as driving_pack
from openpi_ript.config.data import UR5E
from openpi_ript.config.data import DataConfig as OpenpiConfig
from openpi_ript.data import dataset as openpi_data
from openpi_ript.data.pack import pack as pack_lerobot
from qchunk import data as qchunk_data
from qchunk.config import AgentConfig, QChunkConfig
from qchunk.config import DataConfig as QChunkData
from tests import kill
from tests.driving.drives import SIZE, write_drive
from tests.lerobot_files import CAMERAS, record, write_v21, write_v30
from tests.qchunk.recordings import arrays, write

Change = Callable[[Path], str]
"""Changes a dataset and returns a part of the name that must be in the message."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of dataset."""

    make: Callable[[Path], object]
    open: Callable[[Path, Callable[[Files], None]], Callable[[], object]]
    """Opens it with a check; what it returns reads everything again."""
    changes: dict[str, Change]
    in_memory: tuple[str, ...] = ()
    """Changes of what is read once, when the dataset is opened: a running run does not meet them."""


def flip(pattern: str) -> Change:
    """One bit in the middle of the first file, with its size and its modification time as before."""

    def change(root: Path) -> str:
        file = sorted(root.rglob(pattern))[0]
        status = file.stat()
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        with file.open("r+b") as handle:
            handle.write(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        return file.name

    return change


def remove(pattern: str) -> Change:
    """The first file is gone."""

    def change(root: Path) -> str:
        file = sorted(root.rglob(pattern))[0]
        file.unlink()
        return file.name

    return change


def swap(pattern: str) -> Change:
    """The first two files change their names: the same contents under other names."""

    def change(root: Path) -> str:
        one, other = sorted(root.rglob(pattern))[:2]
        third = one.with_name("third")
        one.rename(third)
        other.rename(one)
        third.rename(other)
        return one.name

    return change


def add(pattern: str, name: str) -> Change:
    """One more file, which is a copy."""

    def change(root: Path) -> str:
        file = sorted(root.rglob(pattern))[0]
        shutil.copyfile(file, file.with_name(name))
        return name

    return change


def turn_actions(root: Path) -> str:
    """The signs of an episode's actions."""
    with h5py.File(root / "episode_0.hdf5", "r+") as h5:
        h5["/action"][...] *= -1  # pyright: ignore
    return "episode_0.hdf5"


def turn_label(root: Path) -> str:
    """An episode that succeeded failed."""
    with h5py.File(root / "episode_0.hdf5", "r+") as h5:
        h5.attrs["success"] = not h5.attrs["success"]
    return "episode_0.hdf5"


def edit_statistics(root: Path) -> str:
    """A number of the statistics that data.norm_stats names, beside the dataset."""
    file = root.with_name(f"{root.name}.norm_stats.json")
    file.write_text(file.read_text().replace("0.5", "0.6"))
    return "data.norm_stats"


def edit_cell(root: Path) -> str:
    """One number of a table."""
    file = sorted(root.rglob("data/**/*.parquet"))[0]
    table = pq.read_table(file)
    place = table.column_names.index("next.reward")
    values = table["next.reward"].to_pylist()
    values[0] += 0.25
    table = table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
    pq.write_table(table, file)
    return file.name


def _statistics(root: Path, state: int, action: int) -> Path:
    file = root.with_name(f"{root.name}.norm_stats.json")
    if not file.exists():
        entries = [
            f'"{name}": {{"mean": {[0.0] * n}, "std": {[0.5] * n}, "q01": {[-1.0] * n}, "q99": {[1.0] * n}}}'
            for name, n in (("state", state), ("actions", action))
        ]
        file.write_text(f'{{"norm_stats": {{{", ".join(entries)}}}}}')
    return file


def make_episodes(root: Path) -> None:
    """HDF5 episodes."""
    for number in range(4):
        write(root / f"episode_{number}.hdf5", arrays(40, number), success=number % 2 == 0)


def open_episodes(root: Path, check: Callable[[Files], None]) -> Callable[[], object]:
    """A qchunk dataset of episodes."""
    config = QChunkConfig(
        run=RunConfig(seed=0),
        train=TrainConfig(steps=100, batch_size=8),
        data=QChunkData(path=str(root), action_norm="mean_std", norm_stats=str(_statistics(root, 6, 4))),
        agent=AgentConfig(horizon=5),
    )
    source = qchunk_data.open_dataset(config, check=check).source
    return lambda: [source.load(index) for index in range(len(source))]


def make_npz(root: Path) -> None:
    """An OGBench file."""
    root.mkdir(parents=True)
    ends = np.zeros(60, np.float32)
    ends[[29, 59]] = 1
    rng = np.random.default_rng(0)
    np.savez(root / "a.npz", observations=rng.normal(size=(60, 3)), actions=rng.normal(size=(60, 2)), terminals=ends)


def open_npz(root: Path, check: Callable[[Files], None]) -> Callable[[], object]:
    """A qchunk dataset of one file, which stays in memory."""
    config = QChunkConfig(
        train=TrainConfig(steps=100, batch_size=8),
        data=QChunkData(path=str(root / "a.npz"), format="ogbench_npz"),
        agent=AgentConfig(horizon=5),
    )
    source = qchunk_data.open_dataset(config, check=check).source
    return lambda: [source.load(index) for index in range(len(source))]


def open_lerobot(root: Path, check: Callable[[Files], None]) -> Callable[[], object]:
    """A LeRobot dataset, or a pack of one."""
    cameras = {"base_0_rgb": CAMERAS[0], "left_wrist_0_rgb": CAMERAS[1]}
    config = OpenpiConfig(
        path=str(root),
        robot=UR5E,
        cameras=cameras,
        horizon=4,
        image_size=(28, 28),
        norm_stats=str(_statistics(root, 6, 7)),
    )
    data = openpi_data.open_data(config, check=check)
    return lambda: [data.raw(int(row)) for row in data.rows]


def make_lerobot_pack(root: Path) -> None:
    """A pack of a LeRobot dataset."""
    write_v21(root.with_name("unpacked"), record(), "image")
    pack_lerobot(root.with_name("unpacked"), root, settings=PackSettings(image_size=(28, 28)))
    shutil.rmtree(root.with_name("unpacked"))


def make_drives(root: Path) -> None:
    """Two drives."""
    for number in range(2):
        write_drive(root, f"d{number}", frames=5, start_yaw=0.3 * number)


def open_drives(root: Path, check: Callable[[Files], None]) -> Callable[[], object]:
    """A driving dataset, or a pack of one."""
    config = DrivingConfig(path=str(root), image_size=SIZE)
    data = driving_data.open_data(config, "all", check=check)
    return lambda: data.batch(data.anchors)


def make_drives_pack(root: Path) -> None:
    """A pack of drives."""
    make_drives(root.with_name("unpacked"))
    config = DrivingConfig(path=str(root.with_name("unpacked")), image_size=SIZE)
    settings = PackSettings(image_size=SIZE)
    driving_pack.pack(config, driving_pack.open_episodes(config), root, settings)
    shutil.rmtree(root.with_name("unpacked"))


STATISTICS: dict[str, Change] = {"a norm statistic": edit_statistics}
TABLES: dict[str, Change] = {
    "a table cell": edit_cell,
    "a table's bit": flip("data/**/*.parquet"),
    "an instruction": flip("tasks.*"),
} | STATISTICS
KINDS = {
    "qchunk, HDF5": Kind(
        make=make_episodes,
        open=open_episodes,
        changes={
            "signs of actions": turn_actions,
            "a label": turn_label,
            "a bit": flip("*.hdf5"),
            "two episodes swapped": swap("*.hdf5"),
            "an episode gone": remove("*.hdf5"),
            "an episode added": add("*.hdf5", "episode_9.hdf5"),
        }
        | STATISTICS,
        in_memory=("an episode added", *STATISTICS),
    ),
    "qchunk, OGBench": Kind(make=make_npz, open=open_npz, changes={"a bit": flip("*.npz")}, in_memory=("a bit",)),
    "openpi_ript, v2.1 with videos": Kind(
        make=lambda root: write_v21(root, record(), "video"),
        open=open_lerobot,
        changes={"a video": flip("*.mp4"), "two videos swapped": swap("*.mp4"), "a video gone": remove("*.mp4")}
        | TABLES,
        in_memory=tuple(TABLES),
    ),
    "openpi_ript, v3.0 with videos": Kind(
        make=lambda root: write_v30(root, record(), "video"),
        open=open_lerobot,
        changes={"a video": flip("*.mp4"), "the table of episodes": flip("meta/episodes/**/*.parquet")} | TABLES,
        in_memory=("the table of episodes", *TABLES),
    ),
    "openpi_ript, images in tables": Kind(
        make=lambda root: write_v21(root, record(), "image"),
        open=open_lerobot,
        changes={"a table's bit": flip("data/**/*.parquet")},
        in_memory=("a table's bit",),  # so few images are kept when the dataset is opened
    ),
    "openpi_ript, images that tables name": Kind(
        make=lambda root: write_v21(root, record(), "image_file"),
        open=open_lerobot,
        changes={"an image": flip("*.png"), "two images swapped": swap("*.png"), "an image gone": remove("*.png")},
    ),
    "openpi_ript, pack": Kind(
        make=make_lerobot_pack,
        open=open_lerobot,
        changes={"a shard": flip("*.arrayrecord"), "the tables": flip("tables.npz")},
        in_memory=("the tables",),
    ),
    "driving, files": Kind(
        make=make_drives,
        open=open_drives,
        changes={
            "an image": flip("*_front.jpg"),
            "two images swapped": swap("*_front.jpg"),
            "an image gone": remove("*_front.jpg"),
            "an episode": flip("d0.json"),
        },
        in_memory=("an episode",),
    ),
    "driving, pack": Kind(
        make=make_drives_pack,
        open=open_drives,
        changes={"a shard": flip("*.arrayrecord"), "the index": flip("_index.npz")},
        in_memory=("the index",),
    ),
}


@contextlib.contextmanager
def named(kind: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[list[str]]:
    """AssertionError unless the block raises an error of this kind whose message holds the name put into the list."""
    names: list[str] = []
    try:
        yield names
    except kind as error:
        if names and names[0] in str(error):
            return
        raise AssertionError(f"{what}: expected {names} in: {error}") from error
    raise AssertionError(f"{what}: {names} was not noticed")


def try_kind(name: str, folder: Path) -> int:
    """Every change of one kind of dataset; how many there were.

    Raises:
      AssertionError: A change was not noticed, or its file not named, or a copy was refused.
    """
    kind, run, root = KINDS[name], folder / "run", folder / "set"
    run.mkdir(parents=True)
    kind.make(root)

    def first(files: Files) -> None:
        listed = dataset_files.require_same(run, files, resume=False)
        assert listed is not None
        dataset_files.write(run, listed)

    def again(files: Files) -> None:
        dataset_files.require_same(run, files, resume=True)

    kind.open(root, first)()
    kind.open(root, again)()
    for number, (what, change) in enumerate(kind.changes.items()):
        copy = folder / f"copy{number}"
        shutil.copytree(root, copy, copy_function=shutil.copyfile)  # other times, too
        if (statistics := root.with_name(f"{root.name}.norm_stats.json")).exists():
            shutil.copyfile(statistics, copy.with_name(f"{copy.name}.norm_stats.json"))
        read = kind.open(copy, again)
        read()
        # What cannot be parsed any more is refused as that.
        with named((MismatchError, DataError), f"{name}, {what}, before a resume") as names:
            names.append(change(copy))
            kind.open(copy, again)
        if what not in kind.in_memory:
            with named(DataError, f"{name}, {what}, while it is read") as during:
                during.append(names[0])
                read()
    return len(kind.changes)


RUNS: dict[str, tuple[list[str], dict[str, Change]]] = {
    "configs/qchunk/debug.py": (["--eval.env", "None"], {"a bit": flip("episode_*.hdf5")}),
    "configs/openpi_ript/debug.py": ([], {"a table cell": edit_cell}),
    "configs/driving/debug.py": (
        ["--train.eval-every", "0", "--eval.blind-updates", "20", "--eval.plotted-moments", "0"],
        {"an image": flip("*_front.jpg")},
    ),
}


def try_run(config: str, folder: Path) -> None:
    """One config: its run stopped, gone on with a copy of its dataset, and with changed ones."""
    options, changes = RUNS[config]

    def of(root: Path, steps: int) -> list[str]:
        where = ["--data.path", str(root)]
        where += ["--tokenizer", str(root / "tokenizer.model")] if "openpi" in config else []
        return [*options, "--train.steps", str(steps), "--checkpoint.every", "10", *where]

    root, run = folder / "set", folder / "run"
    kill.finish(config, run, of(root, 20))
    whole = kill.finish(config, folder / "whole", of(root, 40))
    for number, (what, change) in enumerate(changes.items()):
        shutil.copytree(root, copy := folder / f"changed{number}", copy_function=shutil.copyfile)
        shutil.copytree(run, other := folder / f"run{number}")
        name = change(copy)
        process = kill.launch(config, other, of(copy, 40))
        output, _ = process.communicate()
        if process.returncode != 78 or name not in output:
            raise AssertionError(f"{config}, {what}: exit {process.returncode}, expected 78 and {name}:\n{output}")
    shutil.copytree(root, elsewhere := folder / "elsewhere", copy_function=shutil.copyfile)
    shutil.rmtree(root)
    found = kill.finish(config, run, of(elsewhere, 40))
    if found != whole:
        raise AssertionError(f"{config}: with a copy of its dataset it ended with {found}, untouched with {whole}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--no-runs", action="store_true", help="datasets alone")
    parser.add_argument("--config", choices=sorted(RUNS), action="append", help="which runs; all by default")
    arguments = parser.parse_args()
    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {try_kind(name, Path(folder))} changes, each refused with its file named", flush=True)
    if arguments.no_runs:
        return
    configs: Any = arguments.config or sorted(RUNS)
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            try_run(config, Path(folder))
            print(f"{config}: copied, it ends with the same digest; changed, it is refused with 78", flush=True)


if __name__ == "__main__":
    main()
