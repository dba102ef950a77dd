"""Samples a second from packed shards, from images and from video, against LeRobot's own DataLoader.

    python benchmarks/lerobot_loader.py --peer .venv-lerobot/bin/python

LeRobot writes the dataset (v3.0, two cameras of 224 x 224, actions of 50 steps), once as video and once as images, and
reads it with torch's DataLoader and 2 workers; the same files are read here, as they are and packed. LeRobot needs an
environment of its own, because its pins exclude torch 2.11 and later (about 6 GB: PyPI's torch brings CUDA along):

    python3.11 -m venv .venv-lerobot
    .venv-lerobot/bin/pip install torch==2.10.0 torchvision==0.25.0 torchcodec==0.10.0
    .venv-lerobot/bin/pip install --no-deps lerobot==0.4.4 "accelerate<2" psutil safetensors pyyaml
    .venv-lerobot/bin/pip install "datasets>=4,<5" "huggingface-hub<0.36" "av>=15,<16" einops draccus==0.10.0 \
        "jsonlines<5" "packaging<26" "deepdiff<9" termcolor

--backend torchcodec, LeRobot's default, needs FFmpeg's shared libraries (4 to 8) where the loader finds them; --backend
pyav needs no more than the above. --without-peer measures this side alone, on a dataset that the tests' writer makes.

Ratios count, of one run: every way is measured once a round, one after another, and the table has the median of the
rounds. Both sides take rows of one dataset in random order, in batches, and the first batches are not counted. LeRobot
gives float32 images and absolute actions; this side gives layer 3, resized, normalised and relative.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

FPS, EPISODES, FRAMES, SIZE, HORIZON, STATE, ACTION = 30, 10, 100, 224, 50, 14, 7
CAMERAS = ("observation.images.base", "observation.images.wrist")
WARM_UP = 2
STORAGES = ("video", "image")
WAYS = {"raw": "packed, raw", "jpeg": "packed, JPEG", "image": "images", "video": "video"}


def episode(number: int) -> Iterator[dict[str, Any]]:
    """Frames of moving, textured images: neither noise, which no codec can hold, nor a flat colour."""
    rng = np.random.default_rng(number)
    texture = rng.integers(0, 256, (len(CAMERAS), SIZE // 8, SIZE // 8, 3))
    texture = texture.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)
    state = rng.normal(size=(FRAMES, STATE)).cumsum(0).astype(np.float32) * np.float32(0.01)
    for t in range(FRAMES):
        images = {key: np.roll(texture[camera], 2 * t, axis=1) for camera, key in enumerate(CAMERAS)}
        yield {**images, "observation.state": state[t], "action": state[t, :ACTION] + np.float32(0.01)}


def write_with_lerobot(root: Path, storage: str) -> None:
    """A v3.0 dataset by LeRobot's own writer (runs in the peer's environment)."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    feature = {"dtype": storage, "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]}
    features: dict[str, Any] = dict.fromkeys(CAMERAS, feature)
    features["observation.state"] = {"dtype": "float32", "shape": (STATE,), "names": None}
    features["action"] = {"dtype": "float32", "shape": (ACTION,), "names": None}
    dataset = LeRobotDataset.create("bench/set", FPS, features, root=root, use_videos=storage == "video")
    for number in range(EPISODES):
        for frame in episode(number):
            dataset.add_frame({**frame, "task": "move"})
        dataset.save_episode()
    dataset.finalize()


def lerobot_rate(root: Path, batch: int, seconds: float, backend: str) -> float:
    """Samples a second of LeRobot's dataset under torch's DataLoader (runs in the peer's environment)."""
    import torch  # pyright: ignore[reportMissingImports]
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    deltas = {"action": [i / FPS for i in range(HORIZON)]}
    dataset = LeRobotDataset("bench/set", root=root, delta_timestamps=deltas, video_backend=backend)
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
    from openpi_ript.config.data import PANDA, DataConfig
    from openpi_ript.data.dataset import open_data

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
    """Writes both datasets with LeRobot if there are none, else measures both; prints one JSON line."""
    rates = {}
    for storage in STORAGES:
        root = arguments.as_peer / storage
        if not root.exists():
            write_with_lerobot(root, storage)
        else:
            rates[storage] = lerobot_rate(root, arguments.batch, arguments.seconds, arguments.backend)
    print(json.dumps(rates))


def run_peer(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Runs this file in the peer's environment; the dataset stays in `folder`."""
    command = [arguments.peer, __file__, "--as-peer", str(folder), "--backend", arguments.backend]
    command += ["--batch", str(arguments.batch), "--seconds", str(arguments.seconds)]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    ran = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"LeRobot's side failed; its environment is described in the docstring:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def prepare(arguments: argparse.Namespace, folder: Path) -> None:
    """Both datasets, and two packs of the one in videos."""
    from chunkwise.data.shards import PackSettings
    from openpi_ript.data.pack import pack

    if arguments.peer:
        run_peer(arguments, folder)
    else:
        for storage in STORAGES:
            write_ourselves(folder / storage, storage)
    for encoding in ("raw", "jpeg"):
        settings = PackSettings(image_size=(SIZE, SIZE), encoding=encoding)  # pyright: ignore[reportArgumentType]
        pack(folder / "video", folder / encoding, settings=settings)


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Rounds of all ways, then one row a way with its ratio to LeRobot's loader on video and on images."""
    ours: dict[str, list[float]] = {path: [] for path in WAYS}
    theirs: dict[str, list[float]] = {storage: [] for storage in STORAGES} if arguments.peer else {}
    for _ in range(arguments.rounds):
        for path, rates in ours.items():
            rates.append(our_rate(folder / path, arguments.batch, arguments.seconds, arguments.threads))
        for storage, value in (run_peer(arguments, folder) if arguments.peer else {}).items():
            theirs[storage].append(value)
    peer = {storage: statistics.median(rates) for storage, rates in theirs.items()}
    for storage, rates in theirs.items():
        print(f"LeRobot, {storage:8} {peer[storage]:8.0f} samples/s ({min(rates):.0f} to {max(rates):.0f})")
    for path, rates in ours.items():
        middle = statistics.median(rates)
        ratios = "".join(f"   {middle / value:6.1f} times {storage}" for storage, value in peer.items())
        print(f"{WAYS[path]:17} {middle:8.0f} samples/s ({min(rates):.0f} to {max(rates):.0f}){ratios}")


def main() -> None:
    """Prints one row a way of reading, with its ratio to LeRobot's loader on video and on images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment that has lerobot and torch")
    parser.add_argument("--without-peer", action="store_true", help="measure this side alone")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--backend", choices=("torchcodec", "pyav"), default="torchcodec", help="of LeRobot's videos")
    parser.add_argument("--batch", type=int, default=16, help="samples a batch (16)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each way in a round (5)")
    parser.add_argument("--rounds", type=int, default=3, help="times that every way is measured (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of this side (2)")
    arguments = parser.parse_args()
    if arguments.as_peer:
        return as_peer(arguments)
    if not arguments.peer and not arguments.without_peer:
        sys.exit(f"name the peer's python with --peer, or measure alone with --without-peer\n\n{__doc__}")
    with tempfile.TemporaryDirectory() as scratch:
        prepare(arguments, Path(scratch))
        measure(arguments, Path(scratch))
    return None


if __name__ == "__main__":
    main()
