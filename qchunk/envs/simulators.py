"""The simulators, made, reset and observed in one way for recording and for evaluation: OGBench's, and ALOHA's.

The packages of the extra `sim` are imported only when an environment is made.
"""

import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, UInt8

from chunkwise.data.images import resize_into
from chunkwise.errors import ConfigError
from chunkwise.files import trust
from qchunk.envs.aloha_sim import FPS as ALOHA_FPS
from qchunk.envs.aloha_sim import NAME as ALOHA
from qchunk.envs.aloha_sim import TransferCube

Observation = dict[str, np.ndarray]
"""One frame, float32: `qpos` and `state`. OGBench: joint angles of the arm in rad, then the gripper's opening, 0 open
to 1 closed; its observation vector, as its single-task datasets hold it. ALOHA: 14 joints; joints and the cube's pose
(aloha_sim). Where cameras are asked for also `images`, uint8 (k, h, w, 3)."""

FPS = 20  # environment steps a second of simulated time, in every manipulation environment of OGBench


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What a policy sees of the scene."""

    cameras: tuple[str, ...]
    """In the order in which the policy was trained on them."""
    render_size: tuple[int, int]
    """Height and width at which they are rendered; those of the recordings, so that the picture is the same."""
    image_size: tuple[int, int]
    """Height and width to which they are then resized, as the pool does."""


def make_task(name: str) -> Any:
    """Environment of one task, with its reward, time limit and success.

    Args:
      name: Gymnasium id, e.g. cube-single-singletask-task2-v0, or OGBench's name of the dataset for it, which has
        `play` or `noisy` before `singletask`; or aloha-transfer-cube.

    Raises:
      ConfigError: If the packages are missing, the name is unknown, or it is not a single-task one with state
        observations.
    """
    if name == ALOHA:
        return TransferCube()
    parts = name.split("-")
    if "singletask" not in parts or parts[0] == "visual":
        raise ConfigError(
            f"environment {name!r} has no single task with state observations; "
            "choose one such as cube-single-play-singletask-task2-v0"
        )
    at = parts.index("singletask")
    if parts[at - 1] in ("play", "noisy"):
        del parts[at - 1]
    return _make("-".join(parts))


def make_play(name: str, episode_length: int) -> Any:
    """Environment without a task, whose scene and targets are random: the one OGBench's data were recorded in.

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
    return _make(name, mode="data_collection", terminate_at_goal=False, max_episode_steps=episode_length)


def reset(env: Any, seed: int) -> tuple[Observation, dict[str, Any]]:
    """Starts an episode that is a function of `seed` alone, whatever the environment did before.

    OGBench's reset takes steps with unseeded random actions on its way to the initial state. They change nothing that
    is set afterwards, but leave a trace in the solver's warm start, the controls, the contact forces and the clock;
    here that trace is cleared, so that two resets agree to the bit.

    Returns:
      The first observation, and the environment's info of that frame.
    """
    if isinstance(env, TransferCube):
        state, info = env.reset(seed)
        return observation(state, info), info
    mujoco: Any = importlib.import_module("mujoco")  # its stubs lack the functions
    with _quiet():
        env.reset(seed=seed)
    scene = env.unwrapped
    data = scene.data
    kept = {name: getattr(data, name).copy() for name in ("qpos", "qvel", "mocap_pos", "mocap_quat")}
    mujoco.mj_resetData(scene.model, data)
    for name, value in kept.items():
        getattr(data, name)[:] = value
    mujoco.mj_forward(scene.model, data)
    info = scene.get_reset_info()
    return observation(scene.compute_observation(), info), info


def observation(state: Float[np.ndarray, " s"], info: dict[str, Any]) -> Observation:
    """The observation as it is recorded, from what `step` returns."""
    parts = ("joints",) if "joints" in info else ("proprio/joint_pos", "proprio/gripper_opening")
    joints: Float32[np.ndarray, " a"] = np.concatenate(
        [info[part] for part in parts], dtype=np.float32, casting="same_kind"
    )
    return {"qpos": joints, "state": state.astype(np.float32)}


def require_widths(field: str, name: str, path: str, *, observation: tuple[str, int], action: int) -> None:
    """Makes the environment and compares its widths with those of the dataset that a policy for it learns from.

    Args:
      field: Of the config, that names it.
      name: As `make_task`.
      path: The dataset's, for the message.
      observation: Name and width of the array that the policy sees.
      action: Width of its actions.

    Raises:
      ConfigError: They differ; or as `make_task`.
    """
    env = make_task(name)
    (key, width), (observed, _) = observation, reset(env, 0)
    shown, taken = observed[key].size, action_width(env)
    if (shown, taken) != (width, action):
        raise ConfigError(
            f"{field} is {name!r}, which shows {key} of width {shown} and takes actions of width {taken}; expected the "
            f"widths of the dataset in data.path {path}, found {key} {width} and action {action} there. Set {field} to "
            f"the environment of that dataset{', or to None' if field == 'eval.env' else ''}, or data.path to "
            f"recordings of {name}"
        )


def require_pictures(name: str, view: View) -> None:
    """Raises ConfigError if the environment of that name shows no pictures."""
    if name != ALOHA:
        raise ConfigError(f"data.cameras is {view.cameras}; of the environments only {ALOHA} shows pictures")


def look(env: Any, view: View) -> UInt8[np.ndarray, "k h w 3"]:
    """The cameras' pictures of the scene as it is.

    Raises:
      ConfigError: If the environment has no such camera, or the machine cannot render.
    """
    require_pictures(ALOHA if isinstance(env, TransferCube) else "", view)
    pictures = np.empty((len(view.cameras), *view.image_size, 3), np.uint8)
    for camera, picture in zip(view.cameras, pictures, strict=True):
        resize_into(env.render(camera, *view.render_size), picture)
    return pictures


def clip(env: Any, actions: Float[np.ndarray, "t a"]) -> Float32[np.ndarray, "t a"]:
    """Actions within what the environment takes: its joints' limits, or -1 to 1 in OGBench."""
    low, high = (env.action_low, env.action_high) if isinstance(env, TransferCube) else (-1, 1)
    return np.clip(actions, low, high).astype(np.float32)


def action_width(env: Any) -> int:
    """Numbers of one action."""
    return len((env if isinstance(env, TransferCube) else env.unwrapped).action_low)  # its action_space warns


def fps(name: str) -> int:
    """Environment steps a second of simulated time."""
    return ALOHA_FPS if name == ALOHA else FPS


def _make(name: str, **settings: Any) -> Any:
    trust.require_plain_name(name, where="environment", what="one of OGBench")
    with _quiet():
        try:
            import gymnasium
            import ogbench.manipspace  # noqa: F401  (registers the environments)
        except ImportError as error:
            raise ConfigError(
                f"environment {name} needs the simulator ({error}); install it: pip install 'chunkwise[sim]'"
            ) from error
        try:
            return gymnasium.make(name, disable_env_checker=True, **settings)
        except gymnasium.error.UnregisteredEnv as error:
            raise ConfigError(f"OGBench has no environment {name}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences two remarks on every import: OGBench's float64 action bounds, and (655xx), GLFW without a display."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*precision lowered by casting to float32|\(655\d\d\)")
        yield
