"""Inputs of the policies that record_openpi_policies.py records and test_openpi_policies.py repeats: numpy alone.

Everything is drawn by RandomState, whose numbers are the same in every version of numpy, so that the fixture holds
nothing but what openpi answered.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

CASES = 40
SAMPLES = 10
"""Of training."""
GEMMA = {"depth": 2, "mlp_dim": 24, "num_heads": 4, "num_kv_heads": 1, "head_dim": 6}
SIZES: dict[str, Any] = {
    "vision": {"width": 12, "depth": 1, "mlp_dim": 20, "num_heads": 2},
    "language": {"width": 16, **GEMMA},
    "expert": {"width": 12, **GEMMA, "mlp_dim": 20},
    "image_size": 28,
    "action_dim": 32,
    "action_horizon": 6,
}
PROMPTS = ("pick up the_cube", "fold the towel", " open the drawer\nand wait ", "put the bowl on the plate")
SENTENCES = [*PROMPTS, "Transfer cube", "Task: fold, State: -0123456789;"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One config of openpi."""

    name: str
    robot: Literal["aloha", "droid", "libero"]
    kind: Literal["pi0", "pi05"]
    default_prompt: str | None = None


POLICIES = (
    Case(name="pi0_aloha", robot="aloha", kind="pi0"),
    Case(name="pi05_aloha", robot="aloha", kind="pi05"),
    Case(name="pi0_aloha_sim", robot="aloha", kind="pi0", default_prompt="Transfer cube"),
    Case(name="pi0_droid", robot="droid", kind="pi0"),
    Case(name="pi05_droid", robot="droid", kind="pi05"),
    Case(name="pi05_full_droid_finetune", robot="droid", kind="pi05"),
    Case(name="pi0_libero", robot="libero", kind="pi0"),
    Case(name="pi05_libero", robot="libero", kind="pi05"),
)
WIDTHS = {"aloha": (14, 14), "droid": (8, 8), "libero": (8, 7)}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the weights of a path: none 0 or 1, so that no term of the model is switched off."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    fan_in = shape[-2] if len(shape) > 1 else 10
    return (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def statistics(case: Case) -> dict[str, dict[str, np.ndarray]]:
    """Returns mean, std, q01 and q99 of state and actions; the second dimension never moves."""
    rng = np.random.RandomState(zlib.crc32(case.name.encode()))
    stats = {}
    for name, width in zip(("state", "actions"), WIDTHS[case.robot], strict=True):
        mean, std = rng.uniform(-0.5, 0.5, width), rng.uniform(0.2, 1.5, width)
        low, high = mean - 2 * std, mean + 2 * std
        mean[1] = low[1] = high[1] = np.float32(0.3) * (-1 if case.robot == "aloha" and name == "state" else 1)
        std[1] = 0.0
        stats[name] = {"mean": mean, "std": std, "q01": low, "q99": high}
    return stats


def observation(case: Case, number: int) -> tuple[dict[str, Any], np.ndarray]:
    """Returns what openpi's client sends, and the noise from which its policy samples.

    Images are bytes or floats, channels first or last, of the model's size or another; cameras of ALOHA may be missing,
    DROID's gripper may be a single number, and a prompt may be bytes, or missing where there is a default.
    """
    rng = np.random.RandomState(1000 + number)
    state = rng.uniform(-1, 1, WIDTHS[case.robot][0]).astype(np.float32)
    state[1] = 0.3
    noise = rng.standard_normal((SIZES["action_horizon"], SIZES["action_dim"])).astype(np.float32)
    prompt: Any = PROMPTS[number % len(PROMPTS)]
    size = (28, 28) if number % 2 else (20, 33)

    def image(first: bool) -> np.ndarray:
        pixels = rng.randint(0, 256, (*size, 3)).astype(np.uint8)
        if first:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return (pixels / 255).astype(np.float32) if number % 3 == 0 else pixels

    sent: dict[str, Any]
    if case.robot == "aloha":
        state[[6, 13]] = rng.uniform(-0.1, 1.1, 2)
        names = ["cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"]
        if number % 4 == 1:
            names.remove("cam_right_wrist")
        if number % 5 == 2:
            names = ["cam_high"]
        sent = {"state": state, "images": {name: image(True) for name in names}}
    elif case.robot == "droid":
        gripper: Any = abs(state[7:]) if number % 2 else np.abs(state[7])
        sent = {
            "observation/exterior_image_1_left": image(number % 4 == 0),
            "observation/wrist_image_left": image(number % 4 == 0),
            "observation/joint_position": state[:7],
            "observation/gripper_position": gripper,
        }
        prompt = prompt.encode() if number % 6 == 5 else prompt
    else:
        sent = {
            "observation/image": image(number % 4 == 0),
            "observation/wrist_image": image(number % 4 == 0),
            "observation/state": state,
        }
    if case.default_prompt is None or number % 3:
        sent["prompt"] = prompt
    return sent, noise


def actions(case: Case, number: int) -> np.ndarray:
    """Returns a window of actions as a dataset has it."""
    chunk = np.random.RandomState(2000 + number).uniform(-1, 1, (SIZES["action_horizon"], WIDTHS[case.robot][1]))
    chunk[:, 1] = 0.3
    return chunk.astype(np.float32)


def copy(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries in dicts of their own."""
    return {key: copy(value) if isinstance(value, Mapping) else value for key, value in sent.items()}


def pytorch_inputs() -> dict[str, np.ndarray]:
    """Returns what record_pytorch.py shows to openpi's PyTorch model: two rows, in one of which a camera is off."""
    rng = np.random.RandomState(0)
    return {
        "images": rng.randint(0, 256, (2, 3, 42, 42, 3)).astype(np.uint8),
        "image_mask": np.array([[True, True, False], [True, True, True]]),
        "state": rng.normal(size=(2, 7)).astype(np.float32),
        "tokens": rng.randint(0, 48, (2, 9)).astype(np.int32),
        "token_mask": np.arange(9)[None] < np.array([[6], [9]]),
        "noise": rng.normal(size=(2, 6, 7)).astype(np.float32),
    }
