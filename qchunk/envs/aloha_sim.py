"""Transfer cube of ALOHA's simulation: the right arm picks up a cube and hands it to the left arm (arXiv:2304.13705).

Models and rules are the package gym-aloha's; the steps here agree with its own to rounding, but render only what is
asked for, where gym-aloha renders three cameras of 480 x 640 at every step (0.3 ms a step against 120 ms and more).
"""

import atexit
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from chunkwise.errors import ConfigError

NAME = "aloha-transfer-cube"
CAMERAS = ("top", "angle", "front_close", "left_pillar", "right_pillar")
FPS = 50  # environment steps a second of simulated time
PHYSICS_STEPS = 10  # of 2 ms each in a step
EPISODE_LENGTH = 400  # steps until an episode is cut, ALOHA's own
GOAL = 4  # the stage that is success

# Joints of both arms at the start; of a gripper's two fingers, which mirror each other, position in m.
START = (0, -0.96, 1.16, 0, -0.3, 0, 0.02239, -0.02239) * 2
FINGER_CLOSED, FINGER_OPEN = 0.01844, 0.05800  # m, of gripper values 0 and 1
BOX_LOW, BOX_HIGH = (0.0, 0.4, 0.05), (0.2, 0.6, 0.05)  # m; the cube starts anywhere between, 3 cm above the table
BOX, TABLE = "red_box", "table"
LEFT_FINGER, RIGHT_FINGER = "vx300s_left/10_left_gripper_finger", "vx300s_right/10_right_gripper_finger"

# The stock 4096 and 4 take 118 ms a picture in software instead of 35 and change a value of 255 by 0.5 in the mean.
SHADOW_MAP, MULTISAMPLING = 1024, 0


def mujoco() -> Any:
    """The package, untyped: its stubs lack most functions.

    Raises:
      ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module("mujoco")
    except ImportError as error:
        raise _missing(error) from error


def _missing(error: object) -> ConfigError:
    return ConfigError(f"environment {NAME} needs the simulator ({error}); install it: pip install 'chunkwise[sim]'")


@functools.cache
def load_model(name: str) -> Any:
    """A model of gym-aloha by the name of its file, without .xml; one a process, since nothing changes it.

    Raises:
      ConfigError: If gym-aloha is not installed.
    """
    package = importlib.util.find_spec("gym_aloha")  # not imported: that would load dm_control, 3 s
    if package is None or package.origin is None:
        raise _missing("no package gym-aloha")
    model = mujoco().MjModel.from_xml_path(str(Path(package.origin).parent / "assets" / f"{name}.xml"))
    model.vis.quality.shadowsize, model.vis.quality.offsamples = SHADOW_MAP, MULTISAMPLING
    return model


def start(model: Any, data: Any, box: Float64[np.ndarray, "3"]) -> None:
    """Puts arms and cube where an episode starts; leaves nothing of what `data` held."""
    mujoco().mj_resetData(model, data)
    data.qpos[:16] = START
    data.qpos[16:] = [*box, 1, 0, 0, 0]


def settle(model: Any, data: Any) -> None:
    """Computes what follows from a new state, without actuation, as dm_control does at a reset."""
    disabled = model.opt.disableflags
    model.opt.disableflags = disabled | mujoco().mjtDisableBit.mjDSBL_ACTUATION
    mujoco().mj_forward(model, data)
    model.opt.disableflags = disabled


def advance(model: Any, data: Any) -> None:
    """One environment step; positions, and so contacts, are up to date after it (dm_control's order of things)."""
    mujoco().mj_step2(model, data)
    mujoco().mj_step(model, data, PHYSICS_STEPS - 1)
    mujoco().mj_step1(model, data)


def draw_box(rng: np.random.Generator) -> Float64[np.ndarray, "3"]:
    """Where the cube starts, uniform over ALOHA's 20 x 20 cm."""
    return rng.uniform(BOX_LOW, BOX_HIGH)


class TransferCube:
    """The task with absolute joint positions as actions: of each arm six joints (rad), then the gripper (0 to 1).

    An episode succeeds and terminates at stage 4. Stages are gym-aloha's rewards: 1 the right gripper touches the
    cube, 2 and the cube has left the table, 3 the left gripper touches it, 4 in the air. The reward is stage / 4 - 1,
    within -1 .. 0, so that nothing is gained by staying at a lower one.
    """

    def __init__(self) -> None:
        """Loads the model (0.1 s, once a process)."""
        self.model = load_model("bimanual_viperx_transfer_cube")
        self.data = mujoco().MjData(self.model)
        self._steps = 0
        limits = self.model.actuator_ctrlrange
        joints = [*range(6), *range(8, 14)]
        self.action_low, self.action_high = (
            np.insert(limits[joints, side], [6, 12], gripper).astype(np.float32)
            for side, gripper in ((0, 0.0), (1, 1.0))
        )
        ids = {name: self.model.geom(name).id for name in (BOX, TABLE, LEFT_FINGER, RIGHT_FINGER)}
        self._pairs = {name: (ids[BOX], ids[name]) for name in (TABLE, LEFT_FINGER, RIGHT_FINGER)}

    def reset(self, seed: int) -> tuple[Float64[np.ndarray, " s"], dict[str, Any]]:
        """Starts an episode, a function of `seed` alone; its state and info as `step` gives them."""
        return self.reset_to(draw_box(np.random.default_rng(seed)))

    def reset_to(self, box: Float64[np.ndarray, "3"]) -> tuple[Float64[np.ndarray, " s"], dict[str, Any]]:
        """Starts an episode with the cube at a position (m)."""
        start(self.model, self.data, box)
        self.data.ctrl[:] = START
        settle(self.model, self.data)
        self._steps = 0
        return self._state(), self._info()

    def step(
        self, action: Float64[np.ndarray, " a"] | Any
    ) -> tuple[Float64[np.ndarray, " s"], float, bool, bool, dict[str, Any]]:
        """State, reward, terminated, truncated and info (joints, joint_velocities, stage, success) after 20 ms."""
        self.data.ctrl[:] = controls(action)
        advance(self.model, self.data)
        self._steps += 1
        info = self._info()
        return self._state(), info["stage"] / GOAL - 1, info["success"], self._steps >= EPISODE_LENGTH, info

    def stage(self) -> int:
        """How far the task is, 0 to 4."""
        touching = set(zip(self.data.contact.geom1.tolist(), self.data.contact.geom2.tolist(), strict=True))
        table, left, right = (self._pairs[name] in touching for name in (TABLE, LEFT_FINGER, RIGHT_FINGER))
        if left:
            return 3 if table else GOAL
        return 0 if not right else 1 if table else 2

    def render(self, camera: str, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        """A picture of the scene as it is: 35 ms in software.

        Raises:
          ConfigError: If the scene has no such camera, or the machine cannot render.
        """
        if camera not in CAMERAS:
            raise ConfigError(f"{NAME} has no camera {camera!r}; choose from {', '.join(CAMERAS)}")
        return _renderer(height, width).picture(self.data, camera)

    def _state(self) -> Float64[np.ndarray, " s"]:
        """Joints, and the cube's position (m) and quaternion: 14 + 7 numbers.

        No velocities, as in ALOHA's own policies: those that a policy's unsteady commands cause are none of the data's.
        """
        return np.concatenate([joints(self.data.qpos), self.data.qpos[16:]])

    def _info(self) -> dict[str, Any]:
        stage = self.stage()
        velocities = joint_velocities(self.data.qvel)
        return {
            "joints": joints(self.data.qpos),
            "joint_velocities": velocities,
            "stage": stage,
            "success": stage == GOAL,
        }


def controls(action: Any) -> Float64[np.ndarray, " u"]:
    """The 16 positions that the actuators take, from 14: a gripper value moves two fingers."""
    left, right = FINGER_CLOSED + np.asarray(action, np.float64)[[6, 13]] * (FINGER_OPEN - FINGER_CLOSED)
    return np.concatenate([action[:6], [left, -left], action[7:13], [right, -right]])


def joints(qpos: Float64[np.ndarray, " q"]) -> Float64[np.ndarray, "14"]:
    """Joint positions as ALOHA records them, from MuJoCo's."""
    left, right = (qpos[[6, 14]] - FINGER_CLOSED) / (FINGER_OPEN - FINGER_CLOSED)
    return np.concatenate([qpos[:6], [left], qpos[8:14], [right]])


def joint_velocities(qvel: Float64[np.ndarray, " v"]) -> Float64[np.ndarray, "14"]:
    """Joint velocities as ALOHA records them, per second."""
    left, right = qvel[[6, 14]] / (FINGER_OPEN - FINGER_CLOSED)
    return np.concatenate([qvel[:6], [left], qvel[8:14], [right]])


class Renderer:
    """Takes pictures of one size. Unlike MuJoCo's own it does not depend on what MUJOCO_GL was at mujoco's import."""

    def __init__(self, height: int, width: int) -> None:
        """Opens a GL context.

        Raises:
          ConfigError: If the machine cannot render.
        """
        backend = os.environ.get("MUJOCO_GL") or ("egl" if sys.platform == "linux" else "glfw")
        model, lib = load_model("bimanual_viperx_transfer_cube"), mujoco()
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        try:
            self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
            self._gl.make_current()
            self._context = lib.MjrContext(model, lib.mjtFontScale.mjFONTSCALE_100)
        except Exception as error:  # whatever the GL driver raises
            raise ConfigError(
                f"this machine cannot render (MUJOCO_GL={backend}: {error}); set MUJOCO_GL to egl, osmesa or glfw, "
                "whichever works here"
            ) from error
        lib.mjr_setBuffer(lib.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._model, self._scene = model, lib.MjvScene(model, maxgeom=1000)
        self._size, self._rect = (height, width), lib.MjrRect(0, 0, width, height)
        atexit.register(self._close)  # or EGL complains when the process ends

    def picture(self, data: Any, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        """The scene as it is."""
        lib = mujoco()
        self._gl.make_current()
        view = lib.MjvCamera()
        view.type, view.fixedcamid = lib.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera).id
        everything = lib.mjtCatBit.mjCAT_ALL
        lib.mjv_updateScene(self._model, data, lib.MjvOption(), None, view, everything, self._scene)
        lib.mjr_render(self._rect, self._scene, self._context)
        pixels = np.empty((*self._size, 3), np.uint8)
        lib.mjr_readPixels(pixels, None, self._rect, self._context)
        return np.ascontiguousarray(pixels[::-1])  # GL's rows go upwards

    def _close(self) -> None:
        self._context.free()
        self._gl.free()


_renderer = functools.lru_cache(maxsize=4)(Renderer)  # one a size for all scenes of the process
