"""Whether a policy sees: an image policy beside its twin that is trained and evaluated on black images.

    python benchmarks/seeing.py [--data datasets/qchunk/aloha-transfer-cube-60] [--out runs/seeing] [--episodes 100]

Trains configs/qchunk/aloha_sim_images_small.py, whose networks see the joints and one small image: where the cube lies
is in the image alone. The twin's recordings are copies in which every JPEG is black, and so is every image that its
evaluation shows. Both have the same seed, updates, sizes and scenes, and are trained at once. Recordings that are
missing are made first; a run that is done is not trained again, one that was stopped goes on. Printed are the commands,
and success with Wilson's 95 % interval.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.data.images import encode_jpeg
from chunkwise.envs.environment import Observation
from chunkwise.files.aloha_hdf5 import write_jpegs
from chunkwise.reports.intervals import wilson
from configs.qchunk import aloha_sim_images_small
from qchunk.envs.aloha import TransferCube
from qchunk.record import record

CONFIG = aloha_sim_images_small.get_config()
COPIED = ("action", "reward", "terminated", "observations/qpos", "observations/qvel", "observations/state")


class Blank(TransferCube):
    """The task as a policy meets it that sees nothing."""

    def images(self) -> Observation:
        return {name: np.zeros_like(image) for name, image in super().images().items()}


def blacken(recorded: Path, out: Path) -> None:
    """Copies a dataset with a black JPEG in the place of each."""
    assert CONFIG.record is not None
    black = encode_jpeg(np.zeros((*CONFIG.record.aloha.image_size, 3), np.uint8), quality=95)
    for file in sorted(recorded.rglob("*.hdf5")):
        target = out / file.relative_to(recorded)
        target.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(file) as old, h5py.File(target, "w") as new:
            new.attrs.update(old.attrs)
            for name in COPIED:
                old.copy(name, new, name)
            frames: Any = old["/action"]
            write_jpegs(new, {camera: [black] * len(frames) for camera in CONFIG.record.aloha.cameras})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(CONFIG.data.path), help="recordings, made where missing")
    parser.add_argument("--out", type=Path, default=Path("runs/seeing"))
    parser.add_argument("--episodes", type=int, default=100)
    given = parser.parse_args()
    assert CONFIG.record is not None
    out, data = given.out.resolve(), given.data.resolve()
    record(CONFIG.record, data)
    pairs = {"seeing": (data, "aloha-transfer-cube"), "blank": (out / "black_episodes", "benchmarks.seeing:Blank")}
    if not (out / "blank/config.json").exists():
        blacken(data, pairs["blank"][0])
    started = []
    for name, (path, _) in pairs.items():
        if not (out / name / "done.json").exists():
            told = ["--data.path", str(path), "--record", "None", "--eval.env", "None", "--run.dir", str(out / name)]
            resume = ["--run.resume"] if (out / name / "config.json").exists() else []
            started.append(chunkwise("train", "qchunk/aloha_sim_images_small", *told, *resume))
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("training failed; see above")
    for name, (_, env) in pairs.items():
        told = ["--env", env, "--episodes", str(given.episodes), "--num-envs", "10", "--seed", "1"]
        if chunkwise("evaluate", str(out / name), *told, "--out", str(out / f"{name}.json")).wait():
            raise SystemExit("evaluation failed; see above")
        outcomes = json.loads((out / f"{name}.json").read_text())["outcomes"]
        successes = sum(outcome["success"] for outcome in outcomes)
        low, high = wilson(successes, len(outcomes))
        print(f"{name}: {successes} of {len(outcomes)}, 95 % interval {low:.0%} to {high:.0%}", flush=True)


def chunkwise(*told: str) -> subprocess.Popen[bytes]:
    """Starts a command of the project, and prints it."""
    print("chunkwise", *told, flush=True)
    return subprocess.Popen([sys.executable, "-m", "chunkwise", *told], cwd=Path(__file__).parents[1])


if __name__ == "__main__":
    main()
