"""Samples a second from packed shards, from images and from video, against LeRobot's own DataLoader.

    python benchmarks/lerobot_loader.py --peer .venv-lerobot/bin/python

LeRobot writes the dataset (v3.0, two cameras of 224 x 224, actions of 50 steps), once as video and once as images, and
reads it with torch's DataLoader and 2 workers; then the same files are read here, as they are and packed. It needs an
environment of its own, beside this one, because its pins do not go together with torch 2.13:

    python3.11 -m venv .venv-lerobot
    .venv-lerobot/bin/pip install torch==2.13.0 torchvision
    .venv-lerobot/bin/pip install --no-deps lerobot==0.4.4
    .venv-lerobot/bin/pip install "datasets>=4" "huggingface-hub" "av>=15,<16" pandas pyarrow einops draccus \
        jsonlines packaging fsspec pillow deepdiff termcolor

--without-peer measures this side alone, on a dataset that the tests' writer makes. Ratios count, of one run: both sides
take the same rows in random order, in batches, and the first batches are not counted. LeRobot gives float32 pictures
and absolute actions; this side gives layer 3, resized, normalised and relative.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

FPS, EPISODES, FRAMES, SIZE, HORIZON, STATE, ACTION = 30, 10, 150, 224, 50, 14, 7
CAMERAS = ("observation.images.base", "observation.images.wrist")
WARM_UP = 2


def episode(number: int) -> Iterator[dict[str, Any]]:
    """Frames of moving, textured pictures: neither noise, which no codec can hold, nor a flat colour."""
    rng = np.random.default_rng(number)
    texture = rng.integers(0, 256, (len(CAMERAS), SIZE // 8, SIZE // 8, 3))
    texture = texture.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)
    state = rng.normal(size=(FRAMES, STATE)).cumsum(0).astype(np.float32) * np.float32(0.01)
    for t in range(FRAMES):
        pictures = {key: np.roll(texture[camera], 2 * t, axis=1) for camera, key in enumerate(CAMERAS)}
        yield {**pictures, "observation.state": state[t], "action": state[t, :ACTION] + np.float32(0.01)}


def write_with_lerobot(root: Path, storage: str) -> None:
    """A v3.0 dataset by LeRobot's own writer (runs in the peer's environment)."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    picture = {"dtype": storage, "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]}
    features: dict[str, Any] = dict.fromkeys(CAMERAS, picture)
    features["observation.state"] = {"dtype": "float32", "shape": (STATE,), "names": None}
    features["action"] = {"dtype": "float32", "shape": (ACTION,), "names": None}
    dataset = LeRobotDataset.create("bench/set", FPS, features, root=root, use_videos=storage == "video")
    for number in range(EPISODES):
        for frame in episode(number):
            dataset.add_frame({**frame, "task": "move"})
        dataset.save_episode()
    dataset.finalize()


def lerobot_rate(root: Path, batch: int, seconds: float) -> float:
    """Samples a second of LeRobot's dataset under torch's DataLoader (runs in the peer's environment)."""
    import torch  # pyright: ignore[reportMissingImports]
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    deltas = {"action": [i / FPS for i in range(HORIZON)]}
    dataset = LeRobotDataset("bench/set", root=root, delta_timestamps=deltas)
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=2, drop_last=True)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    return rate(endless(), batch, seconds)


def rate(batches: Iterator[Any], size: int, seconds: float) -> float:
    """Samples a second after the first batches."""
    for _ in range(WARM_UP):
        next(batches)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(batches)
        count += size
    return count / (time.perf_counter() - start)


def our_rate(path: Path, batch: int, seconds: float, threads: int) -> float:
    """Samples a second of `TrainingData.batches`."""
    from openpi_ript.data import open_data
    from openpi_ript.data_config import PANDA, DataConfig

    config = DataConfig(path=str(path), robot=PANDA, horizon=HORIZON, read_threads=threads, action_norm="mean_std")
    return rate(open_data(config).batches(seed=0, batch_size=batch), batch, seconds)


def write_ourselves(root: Path, storage: str) -> None:
    """The same recording by the tests' writer, whose files are LeRobot's but for the codec (H.264 for AV1)."""
    import tests.lerobot_files as files

    recorded = []
    for number in range(EPISODES):
        frames = list(episode(number))
        columns = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
        none = np.zeros(FRAMES, bool)
        recorded.append(
            files.Recorded(
                state=columns["observation.state"],
                action=columns["action"],
                task=np.zeros(FRAMES, np.int64),
                images={key: columns[key] for key in CAMERAS},
                success=none,
                reward=none.astype(np.float32),
                timestamp=(np.arange(FRAMES) / files.FPS).astype(np.float32),
            )
        )
    files.write_v30(root, recorded, storage)  # pyright: ignore[reportArgumentType]


def as_peer(arguments: argparse.Namespace) -> None:
    """Writes and measures with LeRobot; prints one JSON line."""
    rates = {}
    for storage in ("video", "image"):
        root = arguments.as_peer / storage
        write_with_lerobot(root, storage)
        rates[storage] = lerobot_rate(root, arguments.batch, arguments.seconds)
    print(json.dumps(rates))


def run_peer(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Runs this file in the peer's environment; the dataset stays in `folder`."""
    command = [arguments.peer, __file__, "--as-peer", str(folder)]
    command += ["--batch", str(arguments.batch), "--seconds", str(arguments.seconds)]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    ran = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"LeRobot's side failed; its environment is described in the docstring:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    """Prints one row a way of reading, with its ratio to LeRobot's loader on video and on images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment that has lerobot and torch")
    parser.add_argument("--without-peer", action="store_true", help="measure this side alone")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=32, help="samples a batch (32)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of each way (10)")
    parser.add_argument("--threads", type=int, default=2, help="threads of this side (2)")
    arguments = parser.parse_args()
    if arguments.as_peer:
        return as_peer(arguments)
    if not arguments.peer and not arguments.without_peer:
        sys.exit(f"name the peer's python with --peer, or measure alone with --without-peer\n\n{__doc__}")
    from core.pack import PackSettings
    from openpi_ript.pack import pack

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if arguments.without_peer:
            for storage in ("video", "image"):
                write_ourselves(folder / storage, storage)
            theirs = {}
        else:
            theirs = run_peer(arguments, folder)
        for encoding in ("raw", "jpeg"):
            settings = PackSettings(image_size=(SIZE, SIZE), encoding=encoding)  # pyright: ignore[reportArgumentType]
            pack(folder / "video", folder / encoding, settings=settings)
        for storage, value in theirs.items():
            print(f"LeRobot, {storage:8} {value:10.0f} samples/s")
        names = {"raw": "packed, raw", "jpeg": "packed, JPEG", "image": "images", "video": "video"}
        for path, name in names.items():
            ours = our_rate(folder / path, arguments.batch, arguments.seconds, arguments.threads)
            ratios = "".join(f"   {ours / value:6.1f} times {storage}" for storage, value in theirs.items())
            print(f"{name:17} {ours:10.0f} samples/s{ratios}")
    return None


if __name__ == "__main__":
    main()
