"""Small datasets on disk for the tests, and a plain reading of the specification to compare the pool with."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from chunkwise.config.experiment import RunConfig, TrainConfig
from qchunk.config import AgentConfig, DataConfig, QChunkConfig

QPOS, STATE, ACTION = 6, 9, 4


def arrays(length: int, seed: int, *, reward: bool = True, terminated: bool = False) -> dict[str, np.ndarray]:
    """Random arrays of one episode, by their HDF5 names."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {
        "/observations/qpos": rng.normal(size=(length, QPOS)).astype(np.float32),
        "/observations/state": rng.normal(size=(length, STATE)).astype(np.float32),
        "/action": rng.normal(size=(length, ACTION)).astype(np.float32),
    }
    if reward:
        found["/reward"] = rng.normal(size=length)
    if terminated:
        found["/terminated"] = rng.random(length) < 0.1
    return found


def write(file: Path, content: dict[str, np.ndarray], **attrs: Any) -> Path:
    """Writes one HDF5 episode."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as h5:
        for name, x in content.items():
            h5[name] = x
        h5.attrs.update(attrs)
    return file


def dataset(root: Path, lengths: tuple[int, ...] = (7, 12, 5, 9, 20, 3), **options: Any) -> Path:
    """A folder of episodes of these lengths, alternately positive and negative by the attribute success."""
    for number, length in enumerate(lengths):
        write(root / f"episode_{number}.hdf5", arrays(length, number, **options), success=number % 2 == 0)
    return root


def config(path: Path, *, batch: int = 8, horizon: int = 5, seed: int = 0, discount: float = 0.9, **data: Any):
    """A config for a small dataset."""
    settings: dict[str, Any] = {"episodes_per_epoch": 4, "steps_per_epoch": 10, "positive_ratio": 0.5}
    return QChunkConfig(
        run=RunConfig(seed=seed),
        train=TrainConfig(steps=100, batch_size=batch),
        data=DataConfig(path=str(path), **(settings | data)),
        agent=AgentConfig(horizon=horizon, discount=discount),
    )


def plain_transition(file: Path, start: int, *, horizon: int, discount: float) -> dict[str, Any]:
    """The specification's transition, read from the file one step at a time and without any code of the loader."""
    with h5py.File(file, "r") as h5:
        qpos, state, action = (np.asarray(h5[n]) for n in ("/observations/qpos", "/observations/state", "/action"))
        positive = bool(h5.attrs["success"])
        length = len(action)
        if "reward" in h5:
            reward, end = np.asarray(h5["reward"]), np.zeros(length, bool)
        else:
            reward, end = np.zeros(length), np.zeros(length, bool)
            reward[-1], end[-1] = float(positive), True
        if "terminated" in h5:
            end = np.asarray(h5["terminated"])
    actions, rewards, masks, valid, terminals = [], [], [], [], []
    total, over = 0.0, False
    for i in range(horizon):
        t = start + i
        actions.append(action[min(t, length - 1)])
        valid.append(1.0 if t < length else 0.0)
        if t < length and not over:
            total += discount**i * float(reward[t])
            over = bool(end[t])
        rewards.append(total)
        masks.append(0.0 if over else 1.0)
        terminals.append(t >= length - 1 or over)

    def observations(frame: int) -> dict[str, Any]:
        return {"qpos": qpos[frame], "state": state[frame], "images": None, "depth_images": None}

    return {
        "observations": observations(start),
        "next_observations": observations(min(start + horizon, length - 1)),
        "actions": np.array(actions, np.float32),
        "rewards": np.array(rewards, np.float32),
        "masks": np.array(masks, np.float32),
        "valid": np.array(valid, np.float32),
        "terminals": np.array(terminals, bool),
        "is_positive": np.bool_(positive),
        "final_reward": np.float32(rewards[-1]),
    }


def assert_same(one: Any, other: Any) -> None:
    """Equal keys, dtypes, shapes and bits, through nested dicts."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif one is None or other is None:
        assert one is other
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)
