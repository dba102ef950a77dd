"""Good artefacts, and what an attacker makes of them.

Each attack gets a `Place`: a copy of a good artefact to change, a folder outside that must not be touched, and Python
code that leaves a marker where it runs.
"""

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests import lerobot_files
from tests.driving import drives
from tests.qchunk import recordings

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the-content-of-another-file"


class Bomb:
    """Runs a shell command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one attack takes place."""

    folder: Path
    """The artefact."""
    outside: Path
    """Files that nobody has business with."""
    marker: Path
    """Is there if code has run."""

    @property
    def code(self) -> str:
        """A module that leaves the marker, whatever is asked of it."""
        return (
            f"open({str(self.marker)!r}, 'a').close()\n"
            "def get_config(*_, **__): raise SystemExit\n"
            "Env = make = factory = get_config\n"
        )

    @property
    def pickled(self) -> bytes:
        """A pickle that leaves the marker."""
        return pickle.dumps(Bomb(f"touch {self.marker}"))

    def change_json(self, file: str, **changes: Any) -> None:
        """Replaces keys of a JSON object; "__" in a name stands for a dot."""
        path = self.folder / file
        tree = json.loads(path.read_text())
        path.write_text(json.dumps(tree | {name.replace("__", "."): value for name, value in changes.items()}))

    def link(self, name: str, target: str) -> None:
        """Puts a link to something outside in place of a file or folder."""
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.outside / target)

    def scatter_modules(self) -> None:
        """Modules that Python, pytest or matplotlib might take."""
        for name in ("config", "sitecustomize", "usercustomize", "numpy", "jax", "evil", "qchunk", "core", "conftest"):
            (self.folder / f"{name}.py").write_text(self.code)
        (self.folder / "matplotlibrc").write_text("backend: module://evil\n")


def run(*command: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A command of this project in the repository, for making what is good."""
    found = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, **settings
    )
    if found.returncode:
        raise AssertionError(f"{command} ended with {found.returncode}:\n{found.stdout[-1500:]}{found.stderr[-1500:]}")
    return found


CONFIG = """import dataclasses
from configs.openpi_ript import debug_ript

def get_config():
    config = debug_ript.get_config()
    model = dataclasses.replace(config.model, optimality=False)
    return dataclasses.replace(config, rollout=None, guidance=None, model=model)
"""


def ript_run(folder: Path) -> None:
    """A run of openpi_ript with an environment, of four updates; its config and dataset beside it."""
    data = folder.with_name("ript_data")
    folder.with_name("ript_config.py").write_text(CONFIG)
    run(
        *("launch.py", "--config", folder.with_name("ript_config.py"), "--run.dir", folder, "--data.path", data),
        *("--tokenizer", data / "tokenizer.model", "--train.steps", 4, "--train.updates-per-call", 1),
        *("--checkpoint.every", 2, "--eval.final-episodes", 2, "--eval.episodes", 2, "--train.log-every", 2),
        *("--train.eval-every", 0),
    )


def driving_run(folder: Path) -> None:
    """A run of driving of four updates; its drives beside it."""
    run(
        *("launch.py", "--config", "configs/driving/debug.py", "--run.dir", folder),
        *("--data.path", folder.with_name("drives"), "--train.steps", 4, "--train.updates-per-call", 1),
        *("--train.log-every", 2, "--train.eval-every", 0, "--checkpoint.every", 2, "--eval.plotted-moments", 0),
        *("--eval.blind-updates", 2),
    )


def export(folder: Path) -> None:
    """openpi's form of the run's weights, with its statistics."""
    script = (
        "import sys; from pathlib import Path\n"
        "from openpi_ript import weights; from openpi_ript.policies import saved\n"
        "run, out = map(Path, sys.argv[1:]); _, params = saved.read_run_weights(run, saved.read_config(run))\n"
        "weights.save_openpi(params, out / 'params')"
    )
    ript = folder.with_name("ript")
    run("-c", script, ript, folder)
    (folder / "assets/robot").mkdir(parents=True)
    shutil.copy(ript / "norm_stats.json", folder / "assets/robot/norm_stats.json")


def lerobot(folder: Path) -> None:
    lerobot_files.write_v21(folder, lerobot_files.record())


def lerobot_images(folder: Path) -> None:
    lerobot_files.write_v21(folder, lerobot_files.record(), "image_file")


def aloha(folder: Path) -> None:
    recordings.dataset(folder)


def episodes(folder: Path) -> None:
    drives.write_drive(folder, "a")


GOOD: dict[str, Callable[[Path], None]] = {
    "lerobot": lerobot,
    "lerobot_images": lerobot_images,
    "aloha": aloha,
    "episodes": episodes,
    "ript": ript_run,
    "driving": driving_run,
    "export": export,
    "nothing": lambda folder: folder.mkdir(),
}
"""In an order in which they can be made."""


def pickled_npz(place: Place, name: str, *keys: str) -> None:
    """An .npz whose arrays are pickled objects."""
    objects = np.array([Bomb(f"touch {place.marker}")], object)
    np.savez(place.folder / name, **dict.fromkeys(keys, objects))  # pyright: ignore[reportArgumentType]


def external_hdf5(place: Place) -> None:
    """Episodes whose arrays lie in other files: a link, raw storage, a virtual dataset."""
    secret = place.outside / "secret.bin"
    for number, file in enumerate(sorted(place.folder.glob("*.hdf5"))[:3]):
        with h5py.File(file, "a") as h5:
            shape = h5["action"].shape  # pyright: ignore[reportAttributeAccessIssue]
            del h5["action"]
            if number == 0:
                h5["action"] = h5py.ExternalLink(str(place.outside / "other.hdf5"), "/action")
            elif number == 1:
                h5.create_dataset("action", shape, "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
            else:
                layout = h5py.VirtualLayout(shape, "f4")
                layout[:] = h5py.VirtualSource(str(place.outside / "other.hdf5"), "action", shape)
                h5.create_virtual_dataset("action", layout)


def playlist(place: Place, text: str) -> None:
    """A playlist in place of each video."""
    for video in place.folder.rglob("*.mp4"):
        video.write_text(text.format(other=place.outside / "other.mp4"))


def pickled_parquet(place: Place) -> None:
    """A table whose metadata holds an extension type of pickled Python, as old versions of Arrow unpickled it."""
    file = next(place.folder.rglob("*.parquet"))
    table = pq.read_table(file)
    fields = []
    for field in table.schema:
        extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": place.pickled}
        fields.append(field.with_metadata(extension))
    pq.write_table(pa.Table.from_arrays(table.columns, schema=pa.schema(fields)), file)


def orbax_metadata(place: Place) -> None:
    """A checkpoint whose metadata name other classes."""
    for file in place.folder.rglob("_CHECKPOINT_METADATA"):
        text = file.read_text()
        tree = json.loads(text)
        tree["item_handlers"] = dict.fromkeys(tree.get("item_handlers") or ["state"], "evil.Handler")
        file.write_text(json.dumps(tree))
    for file in place.folder.rglob("_METADATA"):
        text = file.read_text().replace("jax.Array", "evil.Env").replace("np.ndarray", "os.system")
        file.write_text(text.replace('"DICT"', '"evil.factory"'))
