"""gym-aloha's two tasks: its physics and rules, without the three pictures of 480 x 640 that it renders at every step.

Actions are 14 absolute joint positions: of each arm six joints (rad), then the gripper (0 closed to 1 open). Layer 4
names the parts of one arm with two fingers; they are those of the right one. All joints are in `qpos`, their
velocities in `qvel`, the pose of what lies on the table in `object-state`.
"""

import importlib
import os
import sys
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.errors import ConfigError
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.protocol import IMAGES, Observation, Step

TASKS = {"AlohaTransferCube": "transfer_cube", "AlohaInsertion": "insertion"}
CAMERAS: dict[str, str] = dict(zip(IMAGES, ("top", "angle"), strict=True))
"""ALOHA's simulation has no camera on a wrist; a second one that stands takes its place."""
GOAL = 4
"""The reward, which counts stages, at which a task is done."""
ARMS = 16  # joint positions of both arms and their four fingers, before those of the objects
SHADOW_MAP, MULTISAMPLING = 1024, 0  # the stock 4096 and 4 take three times as long in software


class AlohaEnv:
    """One of gym-aloha's tasks."""

    fps = 50
    action_dim = 14

    def __init__(self, config: EnvConfig) -> None:
        """Raises ConfigError if gym-aloha is missing, or the task or a camera unknown."""
        if config.task not in TASKS:
            raise ConfigError(f"env.task is {config.task!r}; gym-aloha has {', '.join(TASKS)}")
        unknown = sorted(set(config.cameras.values()) - set(CAMERAS))
        if unknown:
            raise ConfigError(f"env.cameras names {unknown}; expected images of layer 4, {' or '.join(CAMERAS)}")
        if sys.platform == "linux" and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported first
        try:
            gym: Any = importlib.import_module("gym_aloha.env")
            self._rules: Any = importlib.import_module("gym_aloha.tasks.sim")
            self._utils: Any = importlib.import_module("gym_aloha.utils")
        except ImportError as error:
            raise ConfigError(
                f"suite aloha needs the simulator ({error}); install it: pip install 'chunkwise[sim]'"
            ) from error
        self._insertion = TASKS[config.task] == "insertion"
        file = gym.ASSETS_DIR / f"bimanual_viperx_{TASKS[config.task]}.xml"
        self._physics = gym.mujoco.Physics.from_xml_path(str(file))
        quality = self._physics.model.vis.quality
        quality.shadowsize, quality.offsamples = SHADOW_MAP, MULTISAMPLING
        task = self._rules.InsertionTask() if self._insertion else self._rules.TransferCubeTask()
        task.get_observation = lambda physics: {}  # the stock one renders
        self._env = gym.control.Environment(self._physics, task, control_timestep=1 / self.fps)
        self._task = task
        self._size, self._cameras = config.image_size, sorted(set(config.cameras.values()))
        limits = self._physics.model.actuator_ctrlrange
        joints = [*range(6), *range(8, 14)]
        self._low, self._high = (np.insert(limits[joints, side], [6, 12], side) for side in (0, 1))

    def reset(self, seed: int) -> Observation:
        if self._insertion:
            pose = np.concatenate(self._utils.sample_insertion_pose(seed))
        else:
            pose = self._utils.sample_box_pose(seed)
        self._rules.BOX_POSE[0] = pose  # how the package wants to be told
        self._env.reset()
        return self._observe()

    def state(self) -> Float64[np.ndarray, " q"]:
        return np.concatenate([self._physics.data.qpos, self._physics.data.qvel])

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, self._low, self._high).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        shown = self._env.step(action.astype(np.float64))
        return Step(self._observe(), float(shown.reward), shown.reward == GOAL)

    def picture(self, height: int, width: int, camera: str = "angle") -> UInt8[np.ndarray, "h w 3"]:
        try:
            return self._physics.render(height=height, width=width, camera_id=camera)
        except Exception as error:  # whatever the GL driver raises
            raise ConfigError(
                f"this machine cannot render (MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {error}); set MUJOCO_GL to egl, "
                "osmesa or glfw, whichever works here, or env.cameras to {}"
            ) from error

    def close(self) -> None:
        self._env.close()
        self._physics.free()

    def _observe(self) -> Observation:
        data = self._physics.named.data
        hand = "vx300s_right/gripper_link"
        w, *xyz = data.xquat[hand]
        arrays = {
            "robot0_eef_pos": data.xpos[hand],
            "robot0_eef_quat": [*xyz, w],
            "robot0_gripper_qpos": self._physics.data.qpos[ARMS - 2 : ARMS],
            "qpos": self._task.get_qpos(self._physics),
            "qvel": self._task.get_qvel(self._physics),
            "object-state": self._physics.data.qpos[ARMS:],
        }
        observed = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
        for name in self._cameras:
            observed[name] = self.picture(*self._size, camera=CAMERAS[name])
        return observed
