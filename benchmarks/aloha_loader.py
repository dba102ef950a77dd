"""Transitions a second and memory of the pool with images, against the specification's loader in torch.

    python benchmarks/aloha_loader.py --peer .venv-torch/bin/python

Data: 16 synthetic ALOHA episodes of 200 frames, three cameras of 480 x 640, JPEG rows of about 50 KB as ALOHA's tools
write them, drawn here (moving shapes, texture, sensor noise; nothing recorded). Both sides read the same files: batch
32, chunk 50, the next observation too. The peer is written to the letter of the specification: cv2 decodes each sample
as it is drawn, images become float32 in 0 to 1, CHW, and torch.utils.data.DataLoader collates them, with 0 and with
2 workers; the better counts. Its pool is loaded the same way, and its memory is what its processes hold. It needs an
environment of its own:

    python3.11 -m venv .venv-torch
    .venv-torch/bin/pip install torch opencv-python-headless h5py numpy

Ways of the peer: jpeg (kept compressed, as compressed files are), 224 (the same, resized with cv2 to 224 x 224), raw
(images in memory as uint8), state (no images). Each row of the table is ours against the peer's way of the same
content. Memory for the specification's pool is extrapolated: the images grow with the frames, the rest of the
measured peak (interpreter, indexing, batches under way) does not. --only NAME... measures some rows; every row is a
process of its own on both sides, so that memory is its own.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

EPISODES, FRAMES, HEIGHT, WIDTH, JOINTS = 16, 200, 480, 640, 14
CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
BATCH, CHUNK, DISCOUNT, SMALL = 32, 50, 0.99, 224
RAW_EPISODES = 6  # what fits beside the peer's copy of it
SPECIFIED = "32 episodes x 400 frames"
WAYS = {
    # name: (peer's way, ours, what the row is)
    "jpeg": ("jpeg", "JPEG kept, decoded when drawn, uint8"),
    "float": ("jpeg", "the same as float32 CHW"),
    "224": ("224", "decoded once to 224 x 224, uint8"),
    "raw": ("raw", "raw frames, uint8"),
    "raw-copied": ("raw", "the same, copied through the cache"),
    "state": ("state", "state only"),
}


# The data ------------------------------------------------------------------------------------------------------------


def camera_frames(rng: np.random.Generator) -> np.ndarray:
    """One camera's episode, uint8 [FRAMES, h, w, 3]: a textured table, moving boxes, and noise as of a sensor."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    table = np.stack([120 + 50 * np.sin(x / 90 + c) + 45 * np.cos(y / 70 - 2 * c) for c in range(3)], -1)
    table += rng.normal(0, 10, (HEIGHT // 4, WIDTH // 4, 3)).repeat(4, 0).repeat(4, 1)
    noise = rng.normal(0, 4.5, (HEIGHT + 64, WIDTH + 64, 3)).astype(np.float32)
    sizes, colours = rng.integers(15, 90, (12, 2)), rng.integers(0, 256, (12, 3))
    at, speed = rng.uniform(0, 300, (12, 2)), rng.normal(0, 1.5, (12, 2))
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    for t in range(FRAMES):
        frame = table.copy()
        for size, colour, (top, left) in zip(sizes, colours, (at + speed * t) % 380, strict=True):
            frame[int(top) : int(top) + size[0], int(left) : int(left) + size[1]] = colour
        dy, dx = rng.integers(0, 64, 2)
        frames[t] = (frame + noise[dy : dy + HEIGHT, dx : dx + WIDTH]).clip(0, 255)
    return frames


def write_dataset(folder: Path, *, jpeg: bool, episodes: int) -> float:
    """Writes the episodes; returns the mean size of a JPEG in KB."""
    import simplejpeg

    folder.mkdir(parents=True)
    total = count = 0
    variety = [camera_frames(np.random.default_rng(seed)) for seed in range(2)]
    for number in range(episodes):
        rng = np.random.default_rng(number)
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as h5:
            h5.attrs.update(sim=True, compress=jpeg, success=number % 2 == 0)
            for name in ("/observations/qpos", "/action"):
                h5[name] = rng.normal(size=(FRAMES, JOINTS)).astype(np.float32)
            lengths = []
            for k, camera in enumerate(CAMERAS):
                frames = np.roll(variety[(number + k) % 2], (40 * number, 70 * k), (1, 2))
                place = f"/observations/images/{camera}"
                if not jpeg:
                    h5.create_dataset(place, data=frames, chunks=(1, HEIGHT, WIDTH, 3))
                    continue
                rows = [simplejpeg.encode_jpeg(frame, quality=80, colorsubsampling="420") for frame in frames]
                lengths.append([len(row) for row in rows])
                width = max(lengths[-1])
                padded = np.stack([np.frombuffer(row.ljust(width, b"\0"), np.uint8) for row in rows])
                h5.create_dataset(place, data=padded, chunks=(1, width))
            if jpeg:
                h5["/compress_len"] = np.array(lengths, np.float32)
                total, count = total + int(np.sum(lengths)), count + 3 * FRAMES
    return total / max(count, 1) / 1000


# Measuring -----------------------------------------------------------------------------------------------------------


def memory() -> dict[str, float]:
    """Resident memory of this process and its peak, and of its children now (GB)."""
    status = Path("/proc/self/status").read_text()
    now, peak = (float(status.split(f"{key}:")[1].split()[0]) / 1e6 for key in ("VmRSS", "VmHWM"))
    children = 0.0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            rollup = Path(f"/proc/{child}/smaps_rollup").read_text()  # its own part of shared pages
            children += float(rollup.split("Pss:")[1].split()[0]) / 1e6
    return {"resident": now, "peak": peak, "children": children}


def rate(make: Callable[[], Any], rows: int, seconds: float) -> tuple[float, float]:
    """Transitions a second over `seconds`, the first batches not counted, and the process's CPU seconds a second."""
    for _ in range(3):
        make()
    count, start, used = 0, time.perf_counter(), time.process_time()
    while (now := time.perf_counter() - start) < seconds:
        make()
        count += rows
    return count / now, (time.process_time() - used) / now


# The peer, in its own environment -------------------------------------------------------------------------------------


def peer(way: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Measures the specification's loader with 0 and with 2 workers."""
    cv2: Any = importlib.import_module("cv2")  # of the peer's environment
    torch: Any = importlib.import_module("torch")

    class Specified(torch.utils.data.Dataset):
        """The specification's dataset: whole episodes in memory, a random start a call, made into floats there."""

        def __init__(self) -> None:
            self.episodes = []
            for file in sorted(folder.iterdir()):
                with h5py.File(file, "r") as h5:
                    episode: dict[str, Any] = {name: np.asarray(h5[name]) for name in ("/observations/qpos", "/action")}
                    episode["images"] = {
                        camera: np.asarray(h5[f"/observations/images/{camera}"]) for camera in CAMERAS if way != "state"
                    }
                    positive = bool(h5.attrs["success"])
                    reward, done = np.zeros(FRAMES, np.float32), np.zeros(FRAMES, bool)
                    reward[-1], done[-1] = float(positive), True
                    self.episodes.append(episode | {"reward": reward, "done": done, "positive": positive})
            self.lengths = [len(episode["/action"]) for episode in self.episodes]
            self.total_starts = sum(self.lengths)

        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, _: int) -> dict[str, Any]:
            drawn = torch.randint(0, self.total_starts, (1,)).item()
            before = 0
            for episode, length in zip(self.episodes, self.lengths):  # noqa: B905
                if drawn < before + length:
                    return self.transition(episode, int(drawn) - before, length)
                before += length
            raise AssertionError("unreachable")

        def observation(self, episode: Any, frame: int) -> dict[str, Any]:
            found = {"qpos": episode["/observations/qpos"][frame]}
            images = []
            for frames in episode["images"].values():
                image = frames[frame] if way == "raw" else cv2.imdecode(frames[frame], cv2.IMREAD_COLOR)
                if way != "raw":
                    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
                if way == "224":
                    image = cv2.resize(image, (SMALL, SMALL), interpolation=cv2.INTER_AREA)
                images.append(image)
            if images:
                floats = np.stack(images).astype(np.float32) / 255.0
                found["images"] = np.ascontiguousarray(np.transpose(floats, (0, 3, 1, 2)))
            return found

        def transition(self, episode: Any, start: int, length: int) -> dict[str, Any]:
            end = min(start + CHUNK, length)
            real = end - start
            actions = np.zeros((CHUNK, JOINTS), np.float32)
            actions[:real] = episode["/action"][start:end]
            actions[real:] = episode["/action"][length - 1]
            rewards, masks = np.zeros(CHUNK, np.float32), np.ones(CHUNK, np.float32)
            valid, terminals = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, bool)
            valid[:real] = 1.0
            discounts = DISCOUNT ** np.arange(real)
            rewards[:real] = np.cumsum(discounts * episode["reward"][start:end])
            rewards[real:] = rewards[real - 1]
            terminals[length - 1 - start :] = True
            masks[length - 1 - start :] = 0.0
            return {
                "observations": self.observation(episode, start),
                "next_observations": self.observation(episode, min(start + CHUNK, length - 1)),
                "actions": actions,
                "rewards": rewards,
                "masks": masks,
                "valid": valid,
                "terminals": terminals,
                "is_positive": episode["positive"],
                "final_reward": rewards[-1],
            }

    dataset = Specified()
    results = []
    cv2.setNumThreads(1)  # its loader's parallelism is the workers
    torch.set_num_threads(1)
    for workers in (0, 2):
        batches = iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, drop_last=True))
        found, cpu = rate(lambda: next(batches), BATCH, seconds)  # noqa: B023
        results.append({"rate": found, "workers": workers, "cpu": cpu, **memory()})
        del batches
    return max(results, key=lambda result: result["rate"])


# Ours ----------------------------------------------------------------------------------------------------------------


def ours(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Measures one way of ours."""
    from chunkwise.config.experiment import TrainConfig
    from qchunk.config import AgentConfig, DataConfig, QChunkConfig
    from qchunk.data import image_store, make_batches, specification_batches

    if name == "raw-copied":
        image_store.LARGE_IMAGE = sys.maxsize
    more: dict[str, Any] = {} if name == "state" else {"cameras": CAMERAS}
    more |= {"frames": {"jpeg": "recorded", "float": "recorded", "224": "decoded"}.get(name, "auto")}
    more |= {"image_size": (SMALL, SMALL)} if name == "224" else {}
    episodes = RAW_EPISODES if name.startswith("raw") else EPISODES
    config = QChunkConfig(
        train=TrainConfig(steps=1, batch_size=BATCH),
        data=DataConfig(
            path=str(folder), episodes_per_epoch=episodes, positive_ratio=0.5, steps_per_epoch=10**9, **more
        ),
        agent=AgentConfig(horizon=CHUNK, discount=DISCOUNT),
    )
    began = time.perf_counter()
    batches: Any = make_batches(config)
    next(batches)
    loaded = time.perf_counter() - began
    (pool,) = batches._batches._pools.get(0, go_on=False).values()
    images = pool.stats()["image_bytes"]
    if name == "float":
        batches = specification_batches(batches)
    found, cpu = rate(lambda: next(batches), BATCH, seconds)
    return {"rate": found, "loading": loaded, "cpu": cpu, "images": images, "episodes": episodes, **memory()}


def decoder_limit(name: str, folder: Path, seconds: float) -> float:
    """Transitions a second (six images each) of nothing but the decoder, all cores, into memory that is there.

    For "float" each thread also fills the memory of the floats of each image that it decoded with one number: what the
    decoder and the memory's bandwidth allow. The memory is that of a whole batch, so that no cache holds it.
    """
    import threading

    import simplejpeg

    from chunkwise.distributed.cores import cores
    from qchunk.data.readers.aloha_images import read_jpegs

    with h5py.File(folder / "episode_0.hdf5", "r") as h5:
        dataset = h5["/observations/images/cam_high"]
        assert isinstance(dataset, h5py.Dataset)
        rows = read_jpegs(dataset)
    counts = [0] * len(cores())
    stop = threading.Event()
    images = 2 * BATCH * len(CAMERAS)
    floats = np.zeros((images, 3, HEIGHT, WIDTH), np.float32) if name == "float" else None
    if floats is not None:
        floats.fill(1)  # its pages are there

    def decode(worker: int) -> None:
        out = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        while not stop.is_set():
            simplejpeg.decode_jpeg(rows[counts[worker] % len(rows)], buffer=out)
            if floats is not None:
                floats[(counts[worker] * len(counts) + worker) % images].fill(0.5)
            counts[worker] += 1

    threads = [threading.Thread(target=decode, args=(i,)) for i in range(len(counts))]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start) / (2 * len(CAMERAS))


# The table -----------------------------------------------------------------------------------------------------------


def child(python: str, side: str, name: str, folder: Path, seconds: float, cache: Path) -> Any:
    """Runs one measurement in a process of its own."""
    command = [python, __file__, "--as", side, name, str(folder), "--seconds", str(seconds)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{side} {name} failed:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def measure(arguments: argparse.Namespace, scratch: Path) -> None:
    """One row a way: interleaved rounds, the best of each side, since other programs can only slow one down."""
    names = arguments.only or list(WAYS)
    if {"jpeg", "float", "224", "state"} & set(names) and not (scratch / "jpeg").exists():
        size = write_dataset(scratch / "jpeg", jpeg=True, episodes=EPISODES)
        print(f"synthetic JPEGs of {size:.1f} KB, {EPISODES} x {FRAMES} x {len(CAMERAS)} of {HEIGHT} x {WIDTH}")
    if {"raw", "raw-copied"} & set(names) and not (scratch / "raw").exists():
        write_dataset(scratch / "raw", jpeg=False, episodes=RAW_EPISODES)
    for name in names:
        way, words = WAYS[name]
        folder = scratch / ("raw" if way == "raw" else "jpeg")
        best: dict[str, Any] = {}
        limits: dict[str, float] = {}
        for _ in range(arguments.rounds):
            sides = [("ours", sys.executable, name)] + ([("peer", arguments.peer, way)] if arguments.peer else [])
            for side, python, what in sides:
                found = child(python, side, what, folder, arguments.seconds, scratch / "cache")
                if side not in best or found["rate"] > best[side]["rate"]:
                    best[side] = found
            for limit in {"jpeg": ("jpeg",), "float": ("jpeg", "float")}.get(name, ()):
                found = child(sys.executable, "limit", limit, folder, arguments.seconds, scratch / "cache")
                limits[limit] = max(found, limits.get(limit, 0.0))
        show(words, best, limits)


def show(words: str, best: dict[str, Any], limits: dict[str, float]) -> None:
    """Prints one row."""
    mine = best["ours"]
    line = f"{words:42} {mine['rate']:>11,.0f}/s, peak {mine['peak']:.2f} GB, loaded in {mine['loading']:.1f} s"
    if "peer" in best:
        theirs = best["peer"]
        line += (
            f"; peer {theirs['rate']:,.0f}/s ({theirs['workers']} workers, {theirs['resident']:.2f} GB and "
            f"{theirs['children']:.2f} GB in workers): {mine['rate'] / theirs['rate']:.1f} times"
        )
    if mine["images"]:
        # The pool of the specification's estimate, 32 episodes of 400 frames, and the next one that loads behind it.
        scale = 32 * 400 / (FRAMES * mine["episodes"])
        rest, pool = mine["peak"] - mine["images"] / 1e9, scale * mine["images"] / 1e9
        line += f"; extrapolated to {SPECIFIED}: {rest + pool:.1f} GB, while the next pool loads {rest + 2 * pool:.1f}"
        line += f", rolling in 8 parts {rest + 9 / 8 * pool:.1f} (the specification says 140)"
    for name, limit in limits.items():
        alone = {"jpeg": "decoder alone", "float": "decoder and filling the floats' memory"}[name]
        line += f"; {alone} {limit:,.0f}/s: {100 * mine['rate'] / limit:.0f} %"
    print(line, flush=True)


def main() -> None:
    """Prints one row a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment that has torch and cv2; without it ours alone")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), help="rows to measure (all)")
    parser.add_argument("--data", type=Path, help="folder that keeps the synthetic data from one run to the next")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of a side in a round (5)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the best of each side counts (2)")
    parser.add_argument("--as", dest="role", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        side, name, folder = arguments.role
        run: dict[str, Callable[[], Any]] = {
            "ours": lambda: ours(name, Path(folder), arguments.seconds),
            "peer": lambda: peer(name, Path(folder), arguments.seconds),
            "limit": lambda: decoder_limit(name, Path(folder), arguments.seconds),
        }
        print(json.dumps(run[side]()))
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(arguments, arguments.data or Path(scratch))


if __name__ == "__main__":
    main()
