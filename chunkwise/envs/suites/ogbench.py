"""OGBench's manipulation environments with state observations (arXiv:2410.20092).

An observation has two arrays: `qpos`, joint angles of the arm in rad, then the gripper's opening, 0 open to 1 closed;
and `state`, OGBench's observation vector, as its single-task datasets hold it. Actions are 5 numbers in [-1, 1].
"""

import contextlib
import importlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.config.installed import pip_install
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.offscreen import naming_mujoco_gl
from chunkwise.errors import ConfigError
from chunkwise.files import trust

FPS = 20  # environment steps a second of simulated time, in every manipulation environment of OGBench
CAMERA = "front"
# Without multisampling and with small shadow maps an image takes 48 ms in software instead of 122, at 64 x 64 pixels.
SHADOW_MAP, MULTISAMPLING = 512, 0
_FILTERS = threading.Lock()  # Python's filters of warnings belong to the process


def make(spec: EnvSpec) -> "OgbenchEnv":
    """Makes the environment of one task, with its reward, time limit and success.

    Args:
      spec: The task by its Gymnasium id, e.g. cube-single-singletask-task2-v0, or by OGBench's name of the dataset for
        it, which has `play` or `noisy` before `singletask`.

    Raises:
      ConfigError: If the packages are missing, the name is unknown or not that of a single task with state
        observations, or cameras are asked for.
    """
    if spec.cameras:
        raise ConfigError(f"OGBench's environments show no images here, and {', '.join(spec.cameras)} are asked for")
    parts = spec.task.split("-")
    if "singletask" not in parts or parts[0] == "visual":
        raise ConfigError(
            f"environment {spec.task!r} has no single task with state observations; "
            "choose one such as cube-single-play-singletask-task2-v0"
        )
    at = parts.index("singletask")
    if parts[at - 1] in ("play", "noisy"):
        del parts[at - 1]
    return OgbenchEnv(_make("-".join(parts), success_timing=spec.success_timing), sparse=spec.sparse)


def make_play(name: str, episode_length: int) -> "OgbenchEnv":
    """Makes an environment without a task, whose scene and targets are random: the one OGBench's data were recorded in.

    Args:
      name: Gymnasium id, e.g. cube-single-v0.
      episode_length: Steps until an episode is cut.

    Raises:
      ConfigError: If the packages are missing, or the name is not a manipulation environment with state observations.
    """
    if name.split("-")[0] not in ("cube", "scene", "puzzle") or "singletask" in name:
        raise ConfigError(
            f"no play episodes can be recorded in {name!r}; choose a manipulation environment without a task, "
            "such as cube-single-v0, scene-v0 or puzzle-3x3-v0"
        )
    return OgbenchEnv(_make(name, mode="data_collection", terminate_at_goal=False, max_episode_steps=episode_length))


def sparse_reward(reward: Float[np.ndarray, "*T"] | float) -> Any:
    """Returns 0 where the reward, minus the objects that are not at their goals, is 0, and -1 elsewhere."""
    return np.where(np.asarray(reward) == 0, 0.0, -1.0)


class OgbenchEnv:
    """One of OGBench's manipulation environments."""

    fps = FPS

    def __init__(self, gym: Any, *, sparse: bool = False) -> None:
        """Wraps an environment of Gymnasium.

        Args:
          gym: OGBench's.
          sparse: As in EnvSpec.
        """
        self.gym, self._sparse = gym, sparse
        self.info: dict[str, Any] = {}
        """What the environment said beside the newest observation."""
        self._renderer: Any = None

    @property
    def action_dim(self) -> int:
        return len(self.gym.unwrapped.action_low)  # its action_space warns

    def reset(self, seed: int) -> Observation:
        """Starts an episode.

        OGBench's reset takes steps with unseeded random actions on its way to the initial state. They change nothing
        that is set afterwards, but leave a trace in the solver's warm start, the controls, the contact forces and the
        clock; here that trace is cleared, so that two resets agree to the bit.
        """
        mujoco: Any = importlib.import_module("mujoco")  # its stubs lack the functions
        with _quiet():
            self.gym.reset(seed=seed)
        scene = self.gym.unwrapped
        data = scene.data
        kept = {name: getattr(data, name).copy() for name in ("qpos", "qvel", "mocap_pos", "mocap_quat")}
        mujoco.mj_resetData(scene.model, data)
        for name, value in kept.items():
            getattr(data, name)[:] = value
        mujoco.mj_forward(scene.model, data)
        self.info = scene.get_reset_info()
        return self._observation(scene.compute_observation())

    def state(self) -> Float64[np.ndarray, " q"]:
        scene = self.gym.unwrapped
        buttons = getattr(scene, "_cur_button_states", np.zeros(0))
        return np.concatenate([scene.data.qpos, scene.data.qvel, buttons], dtype=np.float64)

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, -1, 1).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        state, reward, terminated, truncated, self.info = self.gym.step(action)
        success = bool(self.info["success"])
        if self._sparse:
            reward = sparse_reward(reward)
        return Step(self._observation(state), float(reward), success, bool(terminated), bool(truncated))

    def images(self) -> Observation:
        return {}

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        mujoco: Any = importlib.import_module("mujoco")
        model = self.gym.unwrapped.model
        if self._renderer is None or self._renderer.model is not model or self._size != (height, width):
            if self._renderer is not None:
                self._renderer.close()
            model.vis.quality.shadowsize, model.vis.quality.offsamples = SHADOW_MAP, MULTISAMPLING
            model.vis.global_.offheight, model.vis.global_.offwidth = height, width
            self._renderer, self._size = mujoco.Renderer(model, height, width), (height, width)
        self._renderer.update_scene(self.gym.unwrapped.data, camera=CAMERA)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self.gym.close()

    def _observation(self, state: Float[np.ndarray, " s"]) -> Observation:
        """The observation as it is recorded."""
        joints = [self.info[part] for part in ("proprio/joint_pos", "proprio/gripper_opening")]
        return {
            "qpos": np.concatenate(joints, dtype=np.float32, casting="same_kind"),
            "state": state.astype(np.float32),
        }


def _make(name: str, **settings: Any) -> Any:
    trust.require_plain_name(name, where="environment", what="one of OGBench")
    with _quiet():
        try:
            import gymnasium
            import ogbench.manipspace  # noqa: F401  (registers the environments)
        except ImportError as error:
            raise ConfigError(
                f"environment {name} needs the simulator ({error}); install it: {pip_install('sim')}"
            ) from error
        try:
            with naming_mujoco_gl():  # imported here
                return gymnasium.make(name, disable_env_checker=True, **settings)
        except gymnasium.error.UnregisteredEnv as error:
            raise ConfigError(f"OGBench has no environment {name}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences two remarks on every import: OGBench's float64 action bounds, and (655xx), GLFW without a display."""
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*precision lowered by casting to float32|\(655\d\d\)")
        yield
