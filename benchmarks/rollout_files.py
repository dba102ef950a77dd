"""Rollouts as files: bytes, seconds to write, and what a process holds and reads of them to train.

    python benchmarks/rollout_files.py [--steps 220] [--size 224] [--rollouts 4] [--rows 64] [--images noise]

Of rollouts with two cameras, as numpy's compressed files, which chunkwise wrote before, and packed by frame: written
one after another by the thread that plays, or handed to one that writes; then batches of random frames. Images are
Lift's, rendered by robosuite (some minutes without a graphics card), or noise, or smooth.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import numpy as np

from chunkwise.data.threads import Behind
from chunkwise.envs.rollout import Rollout, load, save

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")


def lift(steps: int, size: int) -> dict[str, np.ndarray]:
    """Frames of Lift under random actions."""
    from chunkwise.envs.environment import EnvSpec, make

    env = make(EnvSpec(suite="robosuite", task="Lift", cameras=CAMERAS, image_size=(size, size)))
    env.reset(0)
    rng, frames = np.random.default_rng(0), [env.images()]
    for _ in range(steps):
        env.step(env.clip(rng.uniform(-1, 1, env.action_dim).astype(np.float32)))
        frames.append(env.images())
    env.close()
    return {name: np.stack([frame[name] for frame in frames]) for name in CAMERAS}


def made(kind: str, steps: int, size: int) -> dict[str, np.ndarray]:
    """Images of the two cameras."""
    if kind == "lift":
        return lift(steps, size)
    rng = np.random.default_rng(0)
    if kind == "noise":
        return {name: rng.integers(0, 256, (steps + 1, size, size, 3), np.uint8) for name in CAMERAS}
    waves = np.sin(np.arange(size) / 20)[:, None] * np.sin(np.arange(size) / 15) * 100 + 128
    shifted = np.stack([np.roll(waves, step, axis=0) for step in range(steps + 1)])
    return {name: np.repeat(shifted[..., None], 3, axis=-1).astype(np.uint8) for name in CAMERAS}


def rollout(images: dict[str, np.ndarray], steps: int) -> Rollout:
    """One with these images."""
    state = np.random.default_rng(0).normal(size=(steps + 1, 9)).astype(np.float32)
    return Rollout(
        observations=images | {"state": state},
        actions=np.zeros((steps, 7), np.float32),
        rewards=np.zeros(steps, np.float32),
        success=True,
        seed=0,
        draw=(0,),
        init_hash="0",
        prompt="",
        step=0,
        weights="",
    )


def save_before(path: Path, one: Rollout) -> None:
    """As files were written before."""
    arrays: dict[str, Any] = {f"observation/{name}": value for name, value in one.observations.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, actions=one.actions, rewards=one.rewards, **arrays)
        os.fsync(file.fileno())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64, help="of a batch, each of two images")
    parser.add_argument("--images", choices=["lift", "noise", "smooth"], default="lift")
    arguments = parser.parse_args()
    images = made(arguments.images, arguments.steps, arguments.size)
    one = rollout(images, arguments.steps)
    raw = sum(value.nbytes for value in images.values())
    numbers = range(arguments.rollouts)
    print(f"{arguments.images}: {raw / 1e6:.1f} MB of images a rollout", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: [Path(folder) / f"{kind}_{n}.npz" for n in numbers] for kind in ("before", "frames", "thread")}
        began, burned = time.perf_counter(), time.process_time()
        for path in paths["before"]:
            save_before(path, one)
        tell("before", paths["before"], time.perf_counter() - began, time.process_time() - burned)
        began, burned = time.perf_counter(), time.process_time()
        for path in paths["frames"]:
            save(path, one)
        tell("by frame", paths["frames"], time.perf_counter() - began, time.process_time() - burned)
        began = time.perf_counter()
        with Behind("rollouts", waiting=4) as writing:
            for path in paths["thread"]:
                writing.do(save, path, dataclasses.replace(one))
            handed = time.perf_counter() - began
        print(f"  handed to the thread in {handed / len(numbers):.3f} s each", flush=True)
        began = time.perf_counter()
        whole = [load(path) for path in paths["frames"]]
        print(f"  read whole: {(time.perf_counter() - began) / len(whole):.3f} s each, {raw / 1e6:.1f} MB held of each")
        del whole
        began = time.perf_counter()
        mapped = [load(path, by_frame=True) for path in paths["frames"]]
        opened = (time.perf_counter() - began) / len(mapped)
        rng = np.random.default_rng(0)
        rows = [(rng.integers(len(mapped)), rng.integers(arguments.steps + 1)) for _ in range(arguments.rows)]
        began = time.perf_counter()
        for number, frame in rows:
            for name in CAMERAS:
                _ = mapped[number].observations[name][frame]
        seconds = time.perf_counter() - began
        print(f"  by frame: opened in {opened:.4f} s each; {arguments.rows} rows of two images in {seconds:.3f} s")


def tell(name: str, paths: list[Path], wall: float, cpu: float) -> None:
    """Prints bytes and seconds of a rollout."""
    size = sum(path.stat().st_size for path in paths) / len(paths)
    print(
        f"  {name}: {size / 1e6:.2f} MB, written in {wall / len(paths):.2f} s each ({cpu / len(paths):.2f} s of a core)"
    )


if __name__ == "__main__":
    main()
