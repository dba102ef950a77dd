"""gym-aloha's two tasks, transfer cube and insertion (arXiv:2304.13705), with absolute joint positions as actions.

Models and rules are the package gym-aloha's; the steps here agree with its own to rounding, but render only what is
asked for, where gym-aloha renders three cameras of 480 x 640 at every step (0.3 ms a step against 120 ms and more).

Actions are 14 numbers: of the left arm six joints (rad), then its gripper (0 closed to 1 open), then the right arm's.
The reward is the stage that is reached, 0 to 4; an episode succeeds and terminates at stage 4.
"""

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.config.installed import pip_install
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.cameras import rendered
from chunkwise.envs.suites.offscreen import Renderer, import_mujoco
from chunkwise.errors import ConfigError

CAMERAS = ("top", "angle", "front_close", "left_pillar", "right_pillar")
STANDING = {"agentview_image": "top", "robot0_eye_in_hand_image": "angle"}
"""Cameras by the names of robosuite's images; there is none on a wrist, a second one that stands takes its place."""
FPS = 50  # environment steps a second of simulated time
PHYSICS_STEPS = 10  # of 2 ms each in a step
GOAL = 4  # the stage that is success
ARMS = 16  # joint positions of both arms and their four fingers, before those of the objects

# Joints of both arms at the start; of a gripper's two fingers, which mirror each other, position in m.
START = (0, -0.96, 1.16, 0, -0.3, 0, 0.02239, -0.02239) * 2
FINGER_CLOSED, FINGER_OPEN = 0.01844, 0.05800  # m, of gripper values 0 and 1
UPRIGHT = (1, 0, 0, 0)
TABLE, HAND = "table", "vx300s_right/gripper_link"
LEFT_FINGER, RIGHT_FINGER = "vx300s_left/10_left_gripper_finger", "vx300s_right/10_right_gripper_finger"
Touching = Callable[[str, str], bool]
"""Whether two geoms touch: red_box and a finger, say."""

# The stock 4096 and 4 take 118 ms an image in software instead of 35 and change a value of 255 by 0.5 in the mean.
SHADOW_MAP, MULTISAMPLING = 1024, 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One of gym-aloha's tasks."""

    model: str
    """File of its model, without .xml."""
    low: tuple[tuple[float, float, float], ...]
    """Of each object the lowest position (m) at which it starts; it lies anywhere up to `high`, alike."""
    high: tuple[tuple[float, float, float], ...]
    stage: Callable[[Touching], int]
    """How far the task is, 0 to 4: gym-aloha's reward."""

    def draw(self, seed: int) -> Float64[np.ndarray, " p"]:
        """Returns where the objects start, positions and rotations one after another, as gym-aloha draws them."""
        rng = np.random.RandomState(seed)
        return np.concatenate(
            [[*rng.uniform(low, high), *UPRIGHT] for low, high in zip(self.low, self.high, strict=True)]
        )


def transfer_stage(touching: Touching) -> int:
    """1: the right gripper touches the cube, 2: off the table too, 3: the left one touches it, 4: in the air."""
    table, left, right = (touching("red_box", other) for other in (TABLE, LEFT_FINGER, RIGHT_FINGER))
    if left:
        return 3 if table else GOAL
    return 0 if not right else 1 if table else 2


def insertion_stage(touching: Touching) -> int:
    """1: each gripper touches its part, 2: both in the air, 3: the parts touch in the air, 4: the peg is at the pin."""
    sides = [f"socket-{side}" for side in (1, 2, 3, 4)]
    if touching("red_peg", "pin"):
        return GOAL
    in_air = not (touching("red_peg", TABLE) or any(touching(side, TABLE) for side in sides))
    if in_air and any(touching("red_peg", side) for side in sides):
        return 3
    held = touching("red_peg", RIGHT_FINGER) and any(touching(side, LEFT_FINGER) for side in sides)
    return 0 if not held else 2 if in_air else 1


TASKS = {
    "AlohaTransferCube": Task(
        model="bimanual_viperx_transfer_cube",
        low=((0.0, 0.4, 0.05),),
        high=((0.2, 0.6, 0.05),),
        stage=transfer_stage,
    ),
    "AlohaInsertion": Task(
        model="bimanual_viperx_insertion",
        low=((0.1, 0.4, 0.05), (-0.2, 0.4, 0.05)),
        high=((0.2, 0.6, 0.05), (-0.1, 0.6, 0.05)),
        stage=insertion_stage,
    ),
}


def mujoco() -> Any:
    """The package, untyped: its stubs lack most functions.

    Raises:
      ConfigError: If it is not installed, or MUJOCO_GL names nothing that it knows.
    """
    try:
        return import_mujoco()
    except ImportError as error:
        raise _missing(error) from error


def _missing(error: object) -> ConfigError:
    return ConfigError(f"ALOHA's simulation needs the simulator ({error}); install it: {pip_install('sim')}")


@functools.cache
def load_model(name: str, *, actuated: bool = True) -> Any:
    """A model of gym-aloha by the name of its file, without .xml; one a process for all environments, in all threads.

    Nothing may change it. What is computed without actuation has a model of its own: a flag that is switched off in the
    common one and on again lets environments of other threads fall limp, and two of them leave it off for good.

    Raises:
      ConfigError: If gym-aloha is not installed.
    """
    package = importlib.util.find_spec("gym_aloha")  # not imported: that would load dm_control, 3 s
    if package is None or package.origin is None:
        raise _missing("no package gym-aloha")
    model = mujoco().MjModel.from_xml_path(str(Path(package.origin).parent / "assets" / f"{name}.xml"))
    model.vis.quality.shadowsize, model.vis.quality.offsamples = SHADOW_MAP, MULTISAMPLING
    if not actuated:
        model.opt.disableflags |= mujoco().mjtDisableBit.mjDSBL_ACTUATION
    return model


def start(model: Any, data: Any, objects: Float64[np.ndarray, " p"]) -> None:
    """Puts arms and objects where an episode starts; leaves nothing of what `data` held."""
    mujoco().mj_resetData(model, data)
    data.qpos[:ARMS] = START
    data.qpos[ARMS:] = objects


def settle(name: str, data: Any) -> None:
    """Computes what follows from a new state of a model, without actuation, as dm_control does at a reset."""
    mujoco().mj_forward(load_model(name, actuated=False), data)


def advance(model: Any, data: Any) -> None:
    """One environment step; positions, and so contacts, are up to date after it (dm_control's order of things)."""
    mujoco().mj_step2(model, data)
    mujoco().mj_step(model, data, PHYSICS_STEPS - 1)
    mujoco().mj_step1(model, data)


class AlohaEnv:
    """One of gym-aloha's tasks.

    `qpos` and `qvel` are joints as ALOHA records them, `object-state` the poses of what lies on the table; the arrays
    that robosuite has of its one arm are those of the right one.
    """

    fps = FPS
    action_dim = 14
    video_size = (240, 320)

    def __init__(self, spec: EnvSpec) -> None:
        """Loads the model (0.1 s, once a process).

        Raises:
          ConfigError: If gym-aloha is missing, or the task or a camera unknown.
        """
        if spec.task not in TASKS:
            raise ConfigError(f"env.task is {spec.task!r}; gym-aloha has {', '.join(TASKS)}")
        unknown = sorted(set(spec.cameras) - {*STANDING, *CAMERAS})
        if unknown:
            known = ", ".join((*STANDING, *CAMERAS))
            raise ConfigError(f"{spec.task} has no camera {', '.join(map(repr, unknown))}; choose from {known}")
        self.task, self._spec = TASKS[spec.task], spec
        self.model = load_model(self.task.model)
        self.data = mujoco().MjData(self.model)
        self._renderers: dict[tuple[int, int], Renderer] = {}
        limits = self.model.actuator_ctrlrange
        joints = [*range(6), *range(8, 14)]
        self.action_low, self.action_high = (
            np.insert(limits[joints, side], [6, 12], side).astype(np.float32) for side in (0, 1)
        )

    def reset(self, seed: int) -> Observation:
        return self.reset_to(self.task.draw(seed))

    def reset_to(self, objects: Float64[np.ndarray, " p"]) -> Observation:
        """Starts an episode with the objects at these poses, of each position (m) and quaternion."""
        start(self.model, self.data, objects)
        settle(self.task.model, self.data)
        return self._observe()

    def state(self) -> Float64[np.ndarray, " q"]:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, self.action_low, self.action_high).astype(np.float32)

    def step(self, action: Float[np.ndarray, " a"]) -> Step:
        self.data.ctrl[:] = controls(action)
        advance(self.model, self.data)
        stage = self.stage()
        return Step(self._observe(), float(stage), stage == GOAL, terminated=stage == GOAL)

    def stage(self) -> int:
        """How far the task is, 0 to 4."""
        pairs = set(zip(self.data.contact.geom1.tolist(), self.data.contact.geom2.tolist(), strict=True))
        return self.task.stage(lambda one, other: (self._geom(one), self._geom(other)) in pairs)

    def images(self) -> Observation:
        return rendered(self._spec, lambda name, height, width: self.render(height, width, STANDING.get(name, name)))

    def render(self, height: int, width: int, camera: str = "angle") -> UInt8[np.ndarray, "h w 3"]:
        """Renders a camera's image of the scene as it is: 35 ms in software.

        Raises:
          ConfigError: If the machine cannot render.
        """
        if (height, width) not in self._renderers:
            self._renderers[height, width] = Renderer(self.model, height, width)
        return self._renderers[height, width].render(self.data, camera)

    def close(self) -> None:
        """Lets go of its GL contexts; the model is all environments' of the process."""
        while self._renderers:
            self._renderers.popitem()[1].close()

    def _geom(self, name: str) -> int:
        return _geom(self.task.model, name)

    def _observe(self) -> Observation:
        w, *xyz = self.data.body(HAND).xquat
        arrays = {
            "robot0_eef_pos": self.data.body(HAND).xpos,
            "robot0_eef_quat": [*xyz, w],
            "robot0_gripper_qpos": self.data.qpos[ARMS - 2 : ARMS],
            "qpos": joints(self.data.qpos),
            "qvel": joint_velocities(self.data.qvel),
            "object-state": self.data.qpos[ARMS:],
        }
        return {name: np.asarray(value, np.float32) for name, value in arrays.items()}


@functools.cache
def _geom(model: str, name: str) -> int:
    """Number of a geom; looked up once a process."""
    return load_model(model).geom(name).id


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
