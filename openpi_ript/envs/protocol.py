"""What a simulator must offer to rollouts. No jax here: environments live in worker processes."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.errors import ConfigError

Observation = dict[str, np.ndarray]
"""One frame of layer 4, arrays by name: `robot0_eef_pos` [3], `robot0_eef_quat` [4] (x, y, z, w), `robot0_gripper_qpos`
[2], float32; where cameras are asked for `agentview_image` and `robot0_eye_in_hand_image`, uint8 [h, w, 3], upright;
and what else the simulator shows, float32 vectors, such as robosuite's `object-state`."""

LAYER_4 = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
"""Arrays that every observation has, and their widths."""
IMAGES = ("agentview_image", "robot0_eye_in_hand_image")


@dataclasses.dataclass(frozen=True)
class Step:
    """What an action led to."""

    observation: Observation
    reward: float
    success: bool
    """Whether the task is done now."""


@runtime_checkable
class Environment(Protocol):
    """One simulated task."""

    @property
    def fps(self) -> int:
        """Steps a second of simulated time."""
        ...

    @property
    def action_dim(self) -> int: ...

    def reset(self, seed: int) -> Observation:
        """Starts an episode that is a function of `seed` alone, to the bit, whatever happened before."""
        ...

    def state(self) -> Float64[np.ndarray, " q"]:
        """Positions and velocities of everything that moves: what makes two initial states the same."""
        ...

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        """The action as it is executed."""
        ...

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        """Executes one action."""
        ...

    def picture(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        """The scene for a person to look at.

        Raises:
          ConfigError: If the machine cannot render.
        """
        ...

    def close(self) -> None: ...


def state_hash(state: Float64[np.ndarray, " q"]) -> str:
    """16 hex digits of the SHA-256 of a state's bytes: the `init_hash` of the rollouts that begin there."""
    return hashlib.sha256(np.ascontiguousarray(state, np.float64).tobytes()).hexdigest()[:16]


def policy_state(observation: Mapping[str, np.ndarray], names: Sequence[str]) -> Float32[np.ndarray, "*T s"]:
    """The arrays `names` one after another, of one frame or of many.

    Raises:
      ConfigError: If an observation lacks one.
    """
    missing = [name for name in names if name not in observation]
    if missing:
        raise ConfigError(
            f"env.state: expected arrays of an observation, which has {sorted(observation)}; not {missing}"
        )
    return np.concatenate([observation[name] for name in names], axis=-1)
