"""The simulated point of record.py as an environment: no simulator, no rendering driver, microseconds a step."""

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.data.images import resize_into
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.errors import ConfigError
from openpi_ript.data import point
from openpi_ript.envs.layer_4 import IMAGES


class PointEnv:
    """A point is to move to one of two discs. Actions: [x, y] to go to, and at least 0.5 once it is on the disc."""

    fps = point.FPS
    action_dim = 3

    def __init__(self, spec: EnvSpec) -> None:
        """Raises ConfigError if the task is neither red nor blue."""
        if spec.task not in point.DISCS:
            raise ConfigError(f"env.task is {spec.task!r}; expected one of {', '.join(point.DISCS)}")
        self._disc = np.array(point.DISCS[spec.task])
        self._image_size = spec.image_size if spec.cameras else None
        self._position = np.zeros(2)

    def reset(self, seed: int) -> Observation:
        self._position = point.initial_state(seed, 0).astype(np.float64)
        return self._observe()

    def state(self) -> Float64[np.ndarray, " q"]:
        return self._position

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, 0, 1).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        self._position = point.move(self._position, action[:2].astype(np.float64))
        there = np.linalg.norm(self._position - self._disc) < point.ON_DISC
        success = bool(there and action[2] >= 0.5)
        return Step(self._observe(), float(success), success)

    def images(self) -> Observation:
        """Renders both cameras, where one is asked for."""
        if self._image_size is None:
            return {}
        cameras = zip(IMAGES, point.CAMERAS, strict=True)
        return {name: self._rendered(camera, *self._image_size) for name, camera in cameras}

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        return self._rendered(next(iter(point.CAMERAS)), height, width)

    def close(self) -> None:
        """Nothing is held."""

    def _observe(self) -> Observation:
        position = self._position.astype(np.float32)
        return {
            "robot0_eef_pos": np.append(position, np.float32(0)),
            "robot0_eef_quat": np.array([0, 0, 0, 1], np.float32),
            "robot0_gripper_qpos": np.zeros(2, np.float32),
            "position": position,
        }

    def _rendered(self, camera: str, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        out = np.empty((height, width, 3), np.uint8)
        resize_into(point.render(self._position, camera), out)
        return out
