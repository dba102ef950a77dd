"""Images a second from JPEG episodes and from packed shards, against a Pillow loader and torch's DataLoader.

    python benchmarks/driving_loader.py --peer .venv-torch/bin/python

The peers read the same episodes as their authors usually write it: the JSON parsed once, then a frame at a time, five
JPEG files opened with Pillow, resized, turned into an array. Once in this process, sample by sample; once as a Dataset
under torch's DataLoader with 2 workers, which needs an environment of its own:

    python3.11 -m venv .venv-torch
    .venv-torch/bin/pip install torch==2.13.0 numpy pillow

Without --peer the DataLoader is left out. The limit is the decoder alone: JPEG bytes of the training size in memory,
decoded by as many threads as the loader has.

Ratios count, of one run: every way is measured once a round, one after another, and the table has the median of the
rounds. All give batches of uint8 images, 5 cameras a frame, frames in random order; the first batches are not
counted. This side's batches hold poses, waypoints, masks and calibration as well.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

EPISODES, FRAMES = 8, 100
WARM_UP = 3
Peer = Callable[[], Iterator[Any]]


def write_episodes(root: Path, size: tuple[int, int], cameras: tuple[str, ...]) -> None:
    """Moving, textured images: neither noise, which no codec can hold, nor a flat colour."""
    from chunkwise.data.images import encode_jpeg
    from driving.data.episodes import write_episode

    height, width = size
    for number in range(EPISODES):
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (len(cameras), height // 8, width // 8, 3)).astype(np.uint8)
        texture = coarse.repeat(8, axis=1).repeat(8, axis=2)
        grain = rng.integers(-6, 7, texture.shape)
        texture = np.clip(texture + grain, 0, 255).astype(np.uint8)
        folder = root / f"{number:03d}"
        folder.mkdir(parents=True)
        frames = []
        for i in range(FRAMES):
            seen = {}
            for k, camera in enumerate(cameras):
                name = f"{folder.name}/{i:04d}_{camera}.jpg"
                (root / name).write_bytes(encode_jpeg(np.roll(texture[k], 2 * i, axis=1), quality=92))
                seen[camera] = {"image_path": name}
            state = {"speed_mps": 10.0, "x_m": float(i), "y_m": 0.0, "yaw_rad": 0.0}
            frames.append({"t": i / 10, "observations": {"cameras": seen, "state": state}})
        write_episode(root / f"{number:03d}.json", {"episode_id": str(number), "domain": "driving", "frames": frames})


def frame_paths(root: Path) -> list[list[str]]:
    """Images of every frame, as the peers list them."""
    frames = []
    for file in sorted(root.glob("*.json")):
        for frame in json.loads(file.read_text())["frames"]:
            cameras = frame["observations"]["cameras"].values()
            frames += [[str(root / camera["image_path"]) for camera in cameras]]
    return frames


def load_frame(paths: list[str], size: tuple[int, int]) -> np.ndarray:
    """A frame with Pillow."""
    from PIL import Image

    images = []
    for path in paths:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            height, width = size
            if rgb.size != (width, height):
                rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
            images.append(np.asarray(rgb))
    return np.stack(images)


def pillow_batches(root: Path, size: tuple[int, int], batch: int) -> Iterator[np.ndarray]:
    """Batches of a loader that goes sample by sample."""
    frames, rng = frame_paths(root), np.random.default_rng(0)
    while True:
        yield np.stack([load_frame(frames[i], size) for i in rng.integers(0, len(frames), batch)])


def torch_batches(root: Path, size: tuple[int, int], batch: int) -> Iterator[Any]:
    """Batches of torch's DataLoader with 2 workers (runs in the peer's environment)."""
    import torch  # pyright: ignore[reportMissingImports]

    class Frames(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.frames = frame_paths(root)

        def __len__(self) -> int:
            return len(self.frames)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(load_frame(self.frames[index], size))

    # Workers that stay, and frames drawn with replacement for as long as it takes: no pause between epochs.
    data = Frames()
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=1 << 30)
    yield from torch.utils.data.DataLoader(data, batch_size=batch, sampler=sampler, num_workers=2)


def our_batches(path: Path, size: tuple[int, int], batch: int, threads: int) -> Iterator[Any]:
    """Batches of `driving.data`."""
    from driving.config import DataConfig
    from driving.data.batches import open_data

    config = DataConfig(path=str(path), image_size=size, read_threads=threads)
    return open_data(config, "all").batches(seed=0, batch_size=batch)


def limit_batches(root: Path, size: tuple[int, int], batch: int, threads: int) -> Iterator[Any]:
    """The decoder alone, on images of the training size that are in memory."""
    import concurrent.futures

    import simplejpeg

    from chunkwise.data.images import encode_jpeg

    frames = frame_paths(root)
    data = [encode_jpeg(image, quality=92) for paths in frames for image in load_frame(paths, size)]
    rng = np.random.default_rng(0)

    def decode(picks: np.ndarray) -> np.ndarray:
        out = np.empty((len(picks), *size, 3), np.uint8)
        for i, pick in enumerate(picks.tolist()):
            simplejpeg.decode_jpeg(data[pick], buffer=out[i])
        return out

    images = batch * len(frames[0])
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(decode, rng.integers(0, len(data), images)) for _ in range(threads + 1)]
        while True:
            yield waiting.pop(0).result()
            waiting.append(pool.submit(decode, rng.integers(0, len(data), images)))


def rate(batches: Iterator[Any], images: int, seconds: float) -> float:
    """Images a second after the first batches."""
    for _ in range(WARM_UP):
        next(batches)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(batches)
        count += images
    return count / (time.perf_counter() - start)


def run_peer(arguments: argparse.Namespace, root: Path) -> float:
    """Runs this file in the peer's environment."""
    command = [arguments.peer, __file__, "--as-peer", str(root), "--batch", str(arguments.batch)]
    command += ["--seconds", str(arguments.seconds), "--image-size", *map(str, arguments.image_size)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"torch's side failed; its environment is described in the docstring:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Rounds of all ways, then one row a way."""
    from chunkwise.data.shards import PackSettings
    from driving.config import CAMERAS, DataConfig
    from driving.data.pack import open_episodes, pack

    size, batch, threads = arguments.image_size, arguments.batch, arguments.threads
    root = folder / "episodes"
    write_episodes(root, arguments.source_size, CAMERAS)
    config = DataConfig(path=str(root), image_size=size)
    index = open_episodes(config)
    for encoding in ("jpeg", "raw"):
        pack(config, index, folder / encoding, PackSettings(image_size=size, encoding=encoding))  # pyright: ignore[reportArgumentType]
    ways: dict[str, Peer] = {
        "Pillow, sample by sample": lambda: pillow_batches(root, size, batch),
        "JPEG episodes": lambda: our_batches(root, size, batch, threads),
        "packed, JPEG": lambda: our_batches(folder / "jpeg", size, batch, threads),
        "packed, raw": lambda: our_batches(folder / "raw", size, batch, threads),
        "the decoder's limit": lambda: limit_batches(root, size, batch, threads),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways} | ({"DataLoader": []} if arguments.peer else {})
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            rates[name].append(rate(way(), batch * len(CAMERAS), arguments.seconds))
        if arguments.peer:
            rates["DataLoader"].append(run_peer(arguments, root))
    _table(arguments, rates)


def _table(arguments: argparse.Namespace, rates: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(values) for name, values in rates.items()}
    source, size = ("{} x {}".format(*pair) for pair in (arguments.source_size, arguments.image_size))
    print(f"{EPISODES * FRAMES} frames of 5 cameras, files of {source}, batches of {arguments.batch} frames at {size}")
    against = ["Pillow, sample by sample", *(["DataLoader"] if arguments.peer else [])]
    limit = middle["the decoder's limit"]
    for name, value in sorted(middle.items(), key=lambda item: item[1]):
        spread = f"({min(rates[name]):.0f} to {max(rates[name]):.0f})"
        ratios = "".join(f"   {value / middle[peer]:5.1f} x {peer.split(',')[0]}" for peer in against)
        print(f"{name:26}{value:8.0f} images/s {spread:18}{ratios}   {value / limit:5.0%} of the limit")


def main() -> None:
    """Prints one row a way of reading, with its ratio to both peers and to the decoder's limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment that has torch")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--source-size", nargs=2, type=int, default=(64, 96), help="height and width of the files (64 96)"
    )
    parser.add_argument("--image-size", nargs=2, type=int, default=(64, 96), help="of the batches (64 96)")
    parser.add_argument("--batch", type=int, default=32, help="frames a batch (32)")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured time of each way in a round (4)")
    parser.add_argument("--rounds", type=int, default=3, help="times that every way is measured (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of this side (2)")
    arguments = parser.parse_args()
    arguments.image_size, arguments.source_size = tuple(arguments.image_size), tuple(arguments.source_size)
    if arguments.as_peer:
        batches = torch_batches(arguments.as_peer, arguments.image_size, arguments.batch)
        print(json.dumps(rate(batches, 5 * arguments.batch, arguments.seconds)))
        return
    if not arguments.peer:
        print("without torch's DataLoader: --peer names the python of an environment that has torch, see --help")
    with tempfile.TemporaryDirectory() as scratch:
        measure(arguments, Path(scratch))


if __name__ == "__main__":
    main()
