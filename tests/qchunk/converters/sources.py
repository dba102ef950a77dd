"""Writes small datasets in the formats that are converted, and reads back what came of them."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chunkwise.errors import DataError
from qchunk.convert import convert
from qchunk.converters.recording import ConvertSettings

KEYS = {"object": 3, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
WIDTH = sum(KEYS.values())
ACTION = 7


def settings(**changes: Any) -> ConvertSettings:
    return ConvertSettings(**changes)


def demo(length: int, seed: int, *, solved: bool = True, images: bool = False) -> dict[str, np.ndarray]:
    """One robomimic episode by dataset name; `dones` as done_mode 2 writes it."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {f"obs/{key}": rng.normal(size=(length, width)) for key, width in KEYS.items()}
    found |= {f"next_obs/{key}": rng.normal(size=(length, width)) for key, width in KEYS.items()}
    found["obs/robot0_joint_pos"] = rng.normal(size=(length, 7))
    found["actions"] = rng.uniform(-1, 1, (length, ACTION))
    found["states"] = rng.normal(size=(length, 30))
    found["rewards"], found["dones"] = np.zeros(length), np.zeros(length, np.int64)
    found["rewards"][-1], found["dones"][-1] = float(solved), 1
    if images:
        y, x = np.mgrid[:16, :24]
        plane = np.stack([8 * y, 8 * x, 4 * (x + y)], -1)
        found["obs/agentview_image"] = np.stack([plane + t for t in range(length)]).astype(np.uint8)
        found["obs/robot0_eye_in_hand_image"] = found["obs/agentview_image"][:, ::-1]
        found["obs/agentview_depth"] = rng.random((length, 16, 24, 1)).astype(np.float32)
    return found


def write_robomimic(path: Path, demos: dict[str, dict[str, np.ndarray]], **masks: list[str]) -> Path:
    with h5py.File(path, "w") as h5:
        data = h5.create_group("data")
        data.attrs["total"] = sum(len(x["actions"]) for x in demos.values())
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"reward_shaping": False}})
        for name, content in demos.items():
            group = data.create_group(name)
            group.attrs["num_samples"] = len(content["actions"])
            for key, x in content.items():
                group.create_dataset(key, data=x)
        for name, members in masks.items():
            h5[f"mask/{name}"] = np.array(members, dtype="S")
    return path


def robomimic(path: Path) -> Path:
    demos = {f"demo_{i}": demo(6 + i, i, solved=i != 1) for i in (0, 1, 2, 10)}
    return write_robomimic(path, demos, train=["demo_10", "demo_0"], valid=["demo_1", "demo_2"])


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def walk(group: h5py.Group, prefix: str) -> None:  # visititems shows a dataset with two names only once
        for name, x in group.items():
            if isinstance(x, h5py.Group):
                walk(x, f"{prefix}{name}/")
            else:
                found[f"{prefix}{name}"] = x[()]

    with h5py.File(path, "r") as h5:
        walk(h5, "")
    return found


def attributes_of(path: Path) -> dict[str, Any]:
    with h5py.File(path, "r") as h5:
        return dict(h5.attrs)


def refused(source: Path, out: Path, *, kind: Any = None, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        convert(source, out, format=kind, settings=settings(**options))
    assert not out.exists()
    assert [p.name for p in out.parent.iterdir() if p.name.endswith(".part")] == []
    return str(caught.value)


def d4rl_arrays(rows: int = 12) -> dict[str, np.ndarray]:
    """Three episodes: terminated after row 3, cut by time after row 8, unfinished."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {
        "observations": rng.normal(size=(rows, 5)).astype(np.float32),
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "rewards": np.arange(rows, dtype=np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.zeros(rows, bool),
    }
    found["terminals"][3], found["timeouts"][8] = True, True
    return found


def write_d4rl(path: Path, content: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as h5:
        for name, x in content.items():
            h5[name] = x
        h5["infos/qpos"] = np.zeros((len(content["actions"]), 3))
        h5["metadata/algorithm"] = "SAC"
    return path
