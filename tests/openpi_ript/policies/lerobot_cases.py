"""Inputs that record_lerobot.py shows to LeRobot's policies and test_lerobot_policies.py to ours: numpy alone.

Everything is drawn by RandomState, whose numbers are the same in every version of numpy.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

KINDS = ("pi0", "pi05")
GEMMA = {"depth": 3, "mlp_dim": 20, "num_heads": 4, "num_kv_heads": 1, "head_dim": 6}
SIZES: dict[str, Any] = {
    "vision": {"width": 12, "depth": 2, "mlp_dim": 20, "num_heads": 2},
    "language": {"width": 24, **GEMMA},
    "expert": {"width": 12, **GEMMA},
    "vocab_size": 320,
    "image_size": 42,
    "action_dim": 7,
    "action_horizon": 6,
}
"""The vocabulary is that of openpi_policies.model."""
TOKENS = {"pi0": 24, "pi05": 80}
"""Prompts are padded to this."""
STATE, ACTION = 5, 4
"""Of the robot; both are padded to SIZES["action_dim"]."""
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
PROMPTS = ("fold the towel", "pick up the cube", "open the drawer", "put the bowl on the plate")
CASES = 9
"""In three of them one of the cameras is missing."""
STEPS = 10
"""Of sampling, LeRobot's default and openpi's."""


def statistics() -> dict[str, dict[str, np.ndarray]]:
    """Returns mean, std, q01 and q99 of state and actions."""
    rng = np.random.RandomState(5)
    stats = {}
    for name, width in (("state", STATE), ("actions", ACTION)):
        mean, std = rng.uniform(-0.5, 0.5, width), rng.uniform(0.2, 1.5, width)
        drawn = {"mean": mean, "std": std, "q01": mean - 2 * std, "q99": mean + 2 * std}
        stats[name] = {key: value.astype(np.float32) for key, value in drawn.items()}
    return stats


def observation(number: int) -> tuple[dict[str, Any], np.ndarray]:
    """Returns what the robot sees, and the noise from which a chunk is sampled; a camera that is missing is None."""
    rng = np.random.RandomState(1000 + number)
    size = SIZES["image_size"]
    images: dict[str, Any] = {name: rng.randint(0, 256, (size, size, 3)).astype(np.uint8) for name in CAMERAS}
    if number % 3 == 2:
        images[CAMERAS[number // 3 % 3]] = None
    stats = statistics()["state"]
    # Up to 2.2 deviations from the mean: some values lie outside the quantiles.
    state = stats["mean"] + stats["std"] * rng.uniform(-2.2, 2.2, STATE)
    noise = rng.standard_normal((SIZES["action_horizon"], SIZES["action_dim"])).astype(np.float32)
    return {"image": images, "state": state.astype(np.float32), "prompt": PROMPTS[number % 4]}, noise


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of tensors with their names, dtypes and shapes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode() + tensors[name].tobytes())
    return found.hexdigest()
