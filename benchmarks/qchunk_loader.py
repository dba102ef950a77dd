"""Transitions a second of the pool loader, state only, against a loader written to the letter of its specification.

    python benchmarks/qchunk_loader.py

The peer draws a global start, finds its episode by a linear scan, makes one transition a `__getitem__` from float32
arrays in memory (with numpy slices, as a careful author would write it), and stacks `batch` of them; it needs no
torch, whose DataLoader would only add to it. Both read the same pool of 32 episodes x 400 frames (14 joints, 14
actions, chunk 50), take turns in one process, and the best of several rounds of each counts, since other programs can
only slow a round down.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

from chunkwise.config.experiment import TrainConfig
from qchunk.config import AgentConfig, DataConfig, QChunkConfig
from qchunk.data import make_batches, open_dataset

EPISODES, FRAMES, WIDTH, CHUNK, DISCOUNT = 32, 400, 14, 50, 0.99


class SpecifiedLoader:
    """The specification's dataset: every transition is made when it is drawn, one sample at a time."""

    def __init__(self, config: QChunkConfig, seed: int = 0) -> None:
        source = open_dataset(config).source
        self._episodes = [source.load(index) for index in range(len(source))]
        self._lengths = [episode.length for episode in self._episodes]
        self._total = sum(self._lengths)
        self._discounts = DISCOUNT ** np.arange(CHUNK)
        self._rng = np.random.default_rng(seed)

    def __getitem__(self, _: int) -> dict[str, Any]:
        drawn = int(self._rng.integers(0, self._total))
        before = 0
        for episode, length in zip(self._episodes, self._lengths, strict=True):
            if drawn < before + length:
                return self._transition(episode, drawn - before)
            before += length
        raise AssertionError("unreachable")

    def _transition(self, episode: Any, start: int) -> dict[str, Any]:
        length = episode.length
        end = min(start + CHUNK, length)
        real = end - start
        actions = np.empty((CHUNK, WIDTH), np.float32)
        actions[:real] = episode.action[start:end]
        actions[real:] = episode.action[end - 1]
        ended = np.flatnonzero(episode.terminated[start:end])
        counted = int(ended[0]) + 1 if len(ended) else real
        rewards = np.zeros(CHUNK, np.float32)
        rewards[:counted] = np.cumsum(self._discounts[:counted] * episode.reward[start : start + counted])
        rewards[counted:] = rewards[counted - 1]
        valid = np.zeros(CHUNK, np.float32)
        valid[:real] = 1.0
        masks = np.ones(CHUNK, np.float32)
        terminals = np.zeros(CHUNK, bool)
        terminals[length - 1 - start :] = True
        if len(ended):
            masks[ended[0] :] = 0.0
            terminals[ended[0] :] = True
        after = min(start + CHUNK, length - 1)
        return {
            "observations": {"qpos": episode.states["qpos"][start]},
            "next_observations": {"qpos": episode.states["qpos"][after]},
            "actions": actions,
            "rewards": rewards,
            "masks": masks,
            "valid": valid,
            "terminals": terminals,
            "is_positive": episode.positive,
            "final_reward": rewards[-1],
        }

    def batch(self, size: int) -> dict[str, Any]:
        """`size` samples, collated."""
        return _collate([self[i] for i in range(size)])


def _collate(samples: list[Any]) -> Any:
    if isinstance(samples[0], dict):
        return {key: _collate([sample[key] for sample in samples]) for key in samples[0]}
    return np.stack(samples)


def write_episodes(folder: Path) -> None:
    """Episodes of random numbers in the ALOHA layout; half of them positive."""
    rng = np.random.default_rng(0)
    for number in range(EPISODES):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["/observations/qpos"] = rng.normal(size=(FRAMES, WIDTH)).astype(np.float32)
            file["/action"] = rng.normal(size=(FRAMES, WIDTH)).astype(np.float32)
            file.attrs["success"] = number % 2 == 0


def rate(make: Callable[[], Any], size: int, seconds: float) -> float:
    """Transitions a second over one round."""
    make()
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        for _ in range(4):
            make()
        count += 4
    return count * size / (time.perf_counter() - start)


def main() -> None:
    """Prints one row a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128], help="batch sizes (32 128)")
    parser.add_argument("--rounds", type=int, default=80, help="rounds of each loader (80)")
    parser.add_argument("--seconds", type=float, default=0.05, help="length of a round (0.05)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the index of a dataset that is gone afterwards
        write_episodes(Path(folder))
        print(f"{'batch':>6}{'specified/s':>14}{'chunkwise/s':>14}{'ratio':>8}")
        for size in arguments.batch:
            config = QChunkConfig(
                train=TrainConfig(steps=1, batch_size=size),
                data=DataConfig(path=folder, episodes_per_epoch=EPISODES, positive_ratio=0.5, steps_per_epoch=10**9),
                agent=AgentConfig(horizon=CHUNK, discount=DISCOUNT),
            )
            peer, batches = SpecifiedLoader(config), make_batches(config)
            theirs, ours = [], []
            for _ in range(arguments.rounds):
                theirs.append(rate(lambda: peer.batch(size), size, arguments.seconds))  # noqa: B023
                ours.append(rate(lambda: next(batches), size, arguments.seconds))  # noqa: B023
            print(f"{size:>6}{max(theirs):>14,.0f}{max(ours):>14,.0f}{max(ours) / max(theirs):>8.1f}")


if __name__ == "__main__":
    main()
