"""robosuite's tasks, and LIBERO's, which are built on it: a Panda moved by OSC_POSE.

Actions are 7 numbers in [-1, 1]: displacement of the gripper (1 is 5 cm), rotation (1 is 0.5 rad), fingers (-1 open, 1
closed). robosuite 1.5 draws its initial states from numpy's global generator, so a reset seeds that; the simulation is
then reset as a whole, warm start included, and the controllers with their goals are made anew, and a rollout repeats to
the bit. Success ends an episode for whoever steps the environment; the environment itself goes on.

In LIBERO's scenes objects fall onto the table at first. So a reset there ends with ten steps in which the arm rests
with open fingers, as openpi's client for LIBERO waits for them; they count as none of the episode's.
"""

import importlib
import importlib.util
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.config.installed import pip_install
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.cameras import rendered
from chunkwise.envs.suites.offscreen import naming_mujoco_gl
from chunkwise.errors import ConfigError

FPS = 20
"""Control frequency of robosuite's and LIBERO's own demonstrations."""
IMAGES = ("agentview_image", "robot0_eye_in_hand_image")
"""Images that are asked for by these names: of a camera that stands before the table, and of one in the hand."""
HAND = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
"""Arrays that every observation has, and their widths: position (m), rotation (x, y, z, w), fingers."""
_GENERATOR = threading.Lock()
"""Held while numpy's global generator is seeded and drawn from: Q-chunking's environments live in threads."""
PLACED_IN_MODEL = {"Door": "door stands"}
"""Tasks of robosuite whose resets change the model itself, which is no part of a state."""
NEVER = 1_000_000  # steps; whoever steps the environment ends the episode
SETTLING = 10
"""Steps of LIBERO's scenes before an episode begins: num_steps_wait of openpi's examples/libero/main.py."""
RESTING = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
"""The action in those: nothing moves, the fingers are open."""
TASK_SETS = {
    name: tuple(f"{name}/{number}" for number in range(size))
    for name, size in {
        "libero_spatial": 10,
        "libero_object": 10,
        "libero_goal": 10,
        "libero_10": 10,
        "libero_90": 90,
    }.items()
}
"""LIBERO's sets of tasks."""
SKIPPED = ("proprio-state", "_sin", "_cos", "_site", "_image")
"""Ends of names that are not recorded: what is in other arrays already, and robosuite's own images (upside down)."""


def prompt_of(task: str) -> str | None:
    """Returns a task of LIBERO's in its own words; None for robosuite's, which have none.

    Raises:
      ConfigError: LIBERO is not installed, or has no such task.
    """
    return _libero_task(task).language if task.startswith("libero_") else None


class RobosuiteEnv:
    """A task of robosuite or LIBERO."""

    fps = FPS

    def __init__(self, spec: EnvSpec) -> None:
        """Loads the task: about 5 s for the first environment of a process, numba's compiled code included.

        Raises:
          ConfigError: If a package or its assets are missing, the task is unknown, or the machine cannot render.
        """
        if sys.platform == "linux" and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported first
        self._spec = spec
        self._cameras = spec.cameras
        unknown = [name for name in self._cameras if name not in IMAGES]
        if unknown:
            raise ConfigError(f"env.cameras names {unknown}; expected {' or '.join(IMAGES)}")
        renders = bool(self._cameras) or spec.video
        with _GENERATOR:
            np.random.seed(0)  # noqa: NPY002  (Lift draws the size of its cube when it is made: the same everywhere)
            self._env = _libero(spec.task, renders) if spec.suite == "libero" else _robosuite(spec.task, renders)
        self._fast = renders and spec.rendering == "fast"
        self._simplified: Any = None

    @property
    def action_dim(self) -> int:
        return len(self._env.action_spec[0])

    def reset(self, seed: int) -> Observation:
        return self._settled(self._placed(seed))

    def reset_to(self, state: Float64[np.ndarray, " d"]) -> Observation:
        """Starts an episode in a state as `sim.get_state().flatten()` gives it: time, positions, velocities.

        What such a state does not tell, as where LIBERO's furniture stands, is that of seed 0.

        Raises:
          ConfigError: It has another number of values than the simulation, or tells too little of the task.
        """
        if self._spec.task in PLACED_IN_MODEL:
            raise ConfigError(
                f"{self._spec.task}: an initial state cannot say where its {PLACED_IN_MODEL[self._spec.task]}, which "
                "robosuite places in the model; leave initial_states empty"
            )
        self._placed(0)
        sim = self._env.sim
        parts = 1, len(sim.data.qpos), len(sim.data.qvel)
        if state.shape != (sum(parts),):
            raise ConfigError(
                f"{self._spec.task}: expected an initial state of {sum(parts)} numbers (time, {parts[1]} positions, "
                f"{parts[2]} velocities), found {list(state.shape)}; are they of this task, and of the same version?"
            )
        sim.set_state_from_flattened(state)
        sim.forward()
        for robot in self._env.robots:  # whose joints are pulled back to where they began
            whole = getattr(robot, "composite_controller", None)
            for part in [robot.controller] if whole is None else whole.part_controllers.values():  # the former in 1.4
                part.update(force=True)
                part.update_initial_joints(part.joint_pos)
        return self._settled(self._env._get_observations(force_update=True))

    def _placed(self, seed: int) -> dict[str, Any]:
        """Resets the simulation by a seed; returns what it shows."""
        with _GENERATOR:
            np.random.seed(seed)  # noqa: NPY002  (the generator that robosuite draws from)
            seeded = getattr(self._env, "seed", None)
            if callable(seeded):  # LIBERO's; in robosuite 1.5 it is a number
                seeded(seed)
            self._env.deterministic_reset = False
            shown = self._env.reset()
        if self._fast and self._simplified is not self._env.sim:  # LIBERO makes a new one at every reset
            self._simplified = self._env.sim
            _simplify(self._simplified)
        return shown

    def _settled(self, shown: dict[str, Any]) -> Observation:
        """What is seen once everything lies where it falls."""
        for _ in range(SETTLING if self._spec.suite == "libero" else 0):
            shown = self._env.step(RESTING.astype(np.float64))[0]
        return self._observe(shown)

    def state(self) -> Float64[np.ndarray, " q"]:
        data = self._env.sim.data
        return np.concatenate([data.qpos, data.qvel])

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, *self._env.action_spec).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        shown, reward, _, _ = self._env.step(action.astype(np.float64))
        return Step(self._observe(shown), float(reward), bool(self._env._check_success()))

    def images(self) -> Observation:
        return rendered(self._spec, lambda name, height, width: self.render(height, width, name.removesuffix("_image")))

    def render(self, height: int, width: int, camera: str = "agentview") -> UInt8[np.ndarray, "h w 3"]:
        upside_down = self._env.sim.render(camera_name=camera, height=height, width=width)
        return np.ascontiguousarray(upside_down[::-1])

    def close(self) -> None:
        self._env.close()

    def _observe(self, shown: dict[str, Any]) -> Observation:
        observed = {
            name: np.asarray(value, np.float32).ravel() for name, value in shown.items() if not name.endswith(SKIPPED)
        }
        for name, width in HAND.items():
            if name not in observed or observed[name].shape != (width,):
                raise ConfigError(f"{name}: expected {width} numbers in the observation; is the robot no Panda?")
        return observed


def _simplify(sim: Any) -> None:
    """Renders without multisampling and reflections, and with small shadow maps (env.rendering = "fast")."""
    mujoco: Any = importlib.import_module("mujoco")  # after MUJOCO_GL is set
    quality = sim.model._model.vis.quality
    quality.offsamples, quality.shadowsize = 0, 1024
    context = sim._render_context_offscreen
    context.scn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    context.con.free()
    context._set_mujoco_context_and_buffers()


def _robosuite(task: str, renders: bool) -> Any:
    suite = _import_robosuite()
    if task not in suite.ALL_ENVIRONMENTS:
        raise ConfigError(f"env.task is {task!r}; robosuite has {', '.join(sorted(suite.ALL_ENVIRONMENTS))}")
    basic: Any = importlib.import_module("robosuite.controllers")
    controller = basic.load_composite_controller_config(controller="BASIC", robot="Panda")
    try:
        return suite.make(
            task,
            robots="Panda",
            controller_configs=controller,
            has_renderer=False,
            has_offscreen_renderer=renders,
            use_camera_obs=False,
            control_freq=FPS,
            hard_reset=False,
            ignore_done=True,
            horizon=NEVER,
            reward_shaping=False,
        )
    except (ImportError, RuntimeError, AttributeError) as error:
        if renders:
            gl = os.environ.get("MUJOCO_GL")
            raise ConfigError(
                f"{task}: this machine cannot render (MUJOCO_GL={gl}: {error}); set MUJOCO_GL to egl, osmesa or glfw, "
                "whichever works here, or env.cameras to {}"
            ) from error
        raise


def _import_robosuite() -> Any:
    """robosuite, without its remarks about files and packages that are not needed."""
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    try:
        with naming_mujoco_gl():
            return importlib.import_module("robosuite")
    except ImportError as error:
        raise ConfigError(
            f"suite robosuite needs its simulator ({error}): {pip_install('robosuite', locked=True)}"
        ) from error


def _libero_task(task: str) -> Any:
    """LIBERO's description of a task, by suite and number. Raises ConfigError if there is none, or no LIBERO."""
    package = importlib.util.find_spec("libero")
    install = (
        "LIBERO is not on PyPI as a whole: git clone https://github.com/Lifelong-Robot-Learning/LIBERO, pip install -e "
        "it (with robosuite 1.4, in an environment of its own), and `import libero.libero` once, which asks where its "
        "files are to lie"
    )
    if package is None or not package.submodule_search_locations:
        raise ConfigError(f"suite libero: the package libero is missing. {install}")
    settings = Path(os.environ.get("LIBERO_CONFIG_PATH", "~/.libero")).expanduser() / "config.yaml"
    if not settings.is_file():
        raise ConfigError(f"suite libero: expected its settings in {settings}, found none. {install}")
    libero: Any = importlib.import_module("libero.libero")
    for name in ("assets", "bddl_files"):
        folder = Path(libero.get_libero_path(name))
        if not folder.is_dir():
            raise ConfigError(f"suite libero: expected its {name} in {folder}, found no such folder. {install}")
    suites = importlib.import_module("libero.libero.benchmark").get_benchmark_dict()
    suite, _, number = task.partition("/")
    if suite not in suites or not number.isdecimal() or int(number) >= suites[suite]().n_tasks:
        raise ConfigError(f"env.task is {task!r}; expected a suite and a task's number, such as libero_spatial/0")
    return suites[suite]().get_task(int(number))


def published_file(task: str) -> Path:
    """Returns the file of a LIBERO task's published initial states, by suite and number.

    Raises:
      ConfigError: LIBERO is not installed, or has no such task.
    """
    if not task.startswith("libero_"):
        raise ConfigError(f"{task}: expected TASK=FILE; only LIBERO's package brings initial states of its tasks")
    chosen = _libero_task(task)
    libero: Any = importlib.import_module("libero.libero")
    return Path(libero.get_libero_path("init_states")) / chosen.problem_folder / chosen.init_states_file


def _libero(task: str, renders: bool) -> Any:
    """A LIBERO task by suite and number, its initial states drawn from the task's own regions, or given."""
    chosen = _libero_task(task)
    libero: Any = importlib.import_module("libero.libero")
    bddl = Path(libero.get_libero_path("bddl_files")) / chosen.problem_folder / chosen.bddl_file
    wrappers: Any = importlib.import_module("libero.libero.envs.env_wrapper")
    wrapped = wrappers.ControlEnv(
        bddl_file_name=str(bddl),
        use_camera_obs=False,
        has_offscreen_renderer=renders,
        control_freq=FPS,
        ignore_done=True,
        horizon=NEVER,
    )
    return wrapped.env
