"""Meta-World's 50 tasks: a Sawyer arm whose hand is moved through space and whose fingers open and close.

Actions are 4 numbers in [-1, 1]: displacement of the hand (1 is 1 cm), and the fingers' effort (-1 open, 1 closed).
`state` of an observation is Meta-World's own, 39 numbers with the goal visible: hand (m), fingers, two objects with
their rotations, the same of the step before, the goal (m). The others are parts of it: `hand`, its first four numbers;
`object`, place and quaternion of the first object; `other_object`, those of the second, or zeros; `before`, all these
at the step before; `goal`.

Meta-World places objects and goal in the model itself, and so leaves a trace of one episode in the next; here model and
environment are put back as they were made before each reset, so that two resets agree to the bit.
"""

import copy
import dataclasses
import importlib
import os
import sys
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.config.installed import pip, pip_install
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.cameras import rendered
from chunkwise.envs.suites.offscreen import Renderer, naming_mujoco_gl
from chunkwise.errors import ConfigError

FPS = 80  # environment steps a second of simulated time
CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
PARTS = {
    "hand": slice(4),
    "object": slice(4, 11),
    "other_object": slice(11, 18),
    "before": slice(18, 36),
    "goal": slice(36, 39),
}
"""Parts of the state that an observation shows by themselves."""
UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""Cameras that hang head down in Meta-World's model; their images are turned by 180 degrees."""
# Without multisampling and with small shadow maps an image of 84 x 84 takes 10 ms in software.
SHADOW_MAP, MULTISAMPLING = 512, 0
_CHANGED = ("actuator_", "body_", "cam_", "dof_", "eq_", "geom_", "jnt_", "light_", "mat_", "qpos", "site_")
"""Beginnings of the names of those arrays of a model that an episode may change; meshes and textures are not."""

PROMPTS = {
    "assembly-v3": "pick up the ring by its handle and put it over the peg",
    "basketball-v3": "put the ball into the basket",
    "bin-picking-v3": "move the cube from one bin to the other",
    "box-close-v3": "put the lid onto the box",
    "button-press-topdown-v3": "press the button down from above",
    "button-press-topdown-wall-v3": "reach over the wall and press the button down from above",
    "button-press-v3": "push the button in",
    "button-press-wall-v3": "reach around the wall and push the button in",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial by half a turn",
    "disassemble-v3": "lift the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door by turning its lock",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door by turning its lock",
    "drawer-close-v3": "push the drawer shut",
    "drawer-open-v3": "pull the drawer open",
    "faucet-close-v3": "turn the faucet off",
    "faucet-open-v3": "turn the faucet on",
    "hammer-v3": "drive the screw into the wall with the hammer",
    "hand-insert-v3": "put the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "put the peg into the hole at the side of the box",
    "peg-unplug-side-v3": "pull the peg out of the hole at the side of the box",
    "pick-out-of-hole-v3": "take the puck out of the hole",
    "pick-place-v3": "pick up the puck and hold it at the goal",
    "pick-place-wall-v3": "carry the puck over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate sideways out of the net",
    "plate-slide-back-v3": "slide the plate back out of the net",
    "plate-slide-side-v3": "slide the plate sideways into the net",
    "plate-slide-v3": "slide the plate into the net",
    "push-back-v3": "pull the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "move the hand to the goal",
    "reach-wall-v3": "move the hand over the wall to the goal",
    "shelf-place-v3": "put the puck onto the shelf",
    "soccer-v3": "kick the ball into the net",
    "stick-pull-v3": "pull the bottle with the stick",
    "stick-push-v3": "push the bottle with the stick",
    "sweep-into-v3": "sweep the puck into the hole",
    "sweep-v3": "sweep the puck off the table",
    "window-close-v3": "slide the window shut",
    "window-open-v3": "slide the window open",
}
"""Every task, and what it asks for in words."""
MT10 = (
    "reach-v3",
    "push-v3",
    "pick-place-v3",
    "door-open-v3",
    "drawer-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "peg-insert-side-v3",
    "window-open-v3",
    "window-close-v3",
)
"""Tasks of Meta-World's benchmark of ten; that of fifty, MT50, is all of PROMPTS."""
MEDIUM = (
    "basketball-v3",
    "bin-picking-v3",
    "box-close-v3",
    "coffee-pull-v3",
    "coffee-push-v3",
    "hammer-v3",
    "peg-insert-side-v3",
    "push-wall-v3",
    "soccer-v3",
    "sweep-v3",
    "sweep-into-v3",
)
HARD = ("assembly-v3", "hand-insert-v3", "pick-out-of-hole-v3", "pick-place-v3", "push-v3", "push-back-v3")
VERY_HARD = ("shelf-place-v3", "disassemble-v3", "stick-pull-v3", "stick-push-v3", "pick-place-wall-v3")
EASY = tuple(task for task in PROMPTS if task not in {*MEDIUM, *HARD, *VERY_HARD})
"""The fifty by difficulty, as Masked World Models (arXiv:2206.14244) group them and published tables of MT50 do."""
TASK_SETS = {
    "MT10": MT10,
    "MT50": tuple(PROMPTS),
    "easy": EASY,
    "medium": MEDIUM,
    "hard": HARD,
    "very_hard": VERY_HARD,
}


def prompt_of(task: str) -> str | None:
    """Returns a task in words; None if Meta-World has no such task."""
    return PROMPTS.get(task)


class MetaworldEnv:
    """One of Meta-World's tasks."""

    fps = FPS
    action_dim = 4

    def __init__(self, spec: EnvSpec) -> None:
        """Loads the model.

        Raises:
          ConfigError: If Meta-World is missing, or the task or a camera unknown.
        """
        if spec.task not in PROMPTS:
            raise ConfigError(f"env.task is {spec.task!r}; Meta-World has {', '.join(PROMPTS)}")
        unknown = [name for name in spec.cameras if name not in CAMERAS]
        if unknown:
            raise ConfigError(f"{spec.task} has no camera {', '.join(unknown)}; choose from {', '.join(CAMERAS)}")
        if sys.platform == "linux" and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported first
        self._spec = spec
        self._env = _package("metaworld.env_dict").ALL_V3_ENVIRONMENTS[spec.task]()
        self._env._set_task_called = True
        self._env._partially_observable = False
        del self._env.sawyer_observation_space  # a cached property, made while the goal was hidden
        self._env._freeze_rand_vec, self._env.seeded_rand_vec = False, True
        self._model_made = {
            name: array.copy()
            for name in dir(self._env.model)
            if name.startswith(_CHANGED) and isinstance(array := getattr(self._env.model, name), np.ndarray)
        }
        kept = ("model", "data", "mujoco_renderer", "sawyer_observation_space")
        self._made = {name: copy.deepcopy(value) for name, value in vars(self._env).items() if name not in kept}
        self._renderer: Any = None
        self._size = (0, 0)

    def reset(self, seed: int) -> Observation:
        self._restore()
        self._env.seed(seed)
        return self._observation(self._env.reset()[0])

    def reset_to(self, state: Float64[np.ndarray, " d"]) -> Observation:
        """Starts an episode with objects and goal where `state` says, in the task's own order: what Meta-World draws
        for a reset, and what a Task of its benchmarks holds as rand_vec.

        Raises:
          ConfigError: It has another number of values, or the task never puts them there.
        """
        self._restore()
        space = self._env._random_reset_space
        low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
        within = state.shape == low.shape and bool(((state >= low) & (state <= high)).all())
        if not within:
            raise ConfigError(
                f"{self._spec.task}: expected an initial state of {len(low)} numbers from {low.tolist()} to "
                f"{high.tolist()}, where objects and goal lie, found {state.tolist()}"
            )
        calls = 0

        def drawn() -> Float64[np.ndarray, " d"]:
            nonlocal calls
            calls += 1
            if calls > 2:  # a reset asks twice; some tasks ask on where object and goal are too near one another
                raise ConfigError(f"{self._spec.task}: objects and goal are too near one another in {state.tolist()}")
            self._env._last_rand_vec = state.copy()
            return self._env._last_rand_vec

        self._env._get_state_rand_vec = drawn
        try:
            return self._observation(self._env.reset()[0])
        finally:
            del self._env._get_state_rand_vec

    def _restore(self) -> None:
        """Puts model, data and environment back as they were made."""
        for name, array in self._model_made.items():
            getattr(self._env.model, name)[...] = array
        vars(self._env).update(copy.deepcopy(self._made))
        _package("mujoco").mj_resetData(self._env.model, self._env.data)

    def state(self) -> Float64[np.ndarray, " q"]:
        data = self._env.data
        drawn = self._env._last_rand_vec  # where objects and goal lie in the model
        return np.concatenate([data.qpos, data.qvel, data.mocap_pos.ravel(), drawn], dtype=np.float64)

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        return np.clip(action, -1, 1).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        state, reward, terminated, truncated, info = self._env.step(action.astype(np.float64))
        success = bool(info["success"])
        return Step(self._observation(state), float(reward), success, bool(terminated), bool(truncated))

    def images(self) -> Observation:
        return rendered(self._spec, lambda name, height, width: self.render(height, width, name))

    def render(self, height: int, width: int, camera: str = "corner2") -> UInt8[np.ndarray, "h w 3"]:
        model = self._env.model
        if self._renderer is None or self._size != (height, width):
            self._close_renderer()
            model.vis.quality.shadowsize, model.vis.quality.offsamples = SHADOW_MAP, MULTISAMPLING
            model.vis.global_.offheight, model.vis.global_.offwidth = height, width
            self._renderer, self._size = Renderer(model, height, width), (height, width)
        image = self._renderer.render(self._env.data, camera)
        return np.ascontiguousarray(image[::-1, ::-1]) if camera in UPSIDE_DOWN else image

    def expert(self) -> "Expert":
        """Returns Meta-World's scripted policy of the task, for one episode."""
        return Expert(policy=_package("metaworld.policies").ENV_POLICY_MAP[self._spec.task]())

    def close(self) -> None:
        self._close_renderer()
        self._env.close()

    def _close_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observation(self, state: Float[np.ndarray, " 39"]) -> Observation:
        shown = state.astype(np.float32)
        return {"state": shown} | {name: shown[part].copy() for name, part in PARTS.items()}


@dataclasses.dataclass(frozen=True)
class Expert:
    """A scripted policy of Meta-World."""

    policy: Any

    def __call__(self, observation: Observation) -> Float64[np.ndarray, "4"]:
        """Returns the next action, which may leave [-1, 1]."""
        return np.asarray(self.policy.get_action(observation["state"].astype(np.float64)), np.float64)


def _package(name: str) -> Any:
    """A package, untyped. Raises ConfigError if it is not installed."""
    try:
        with naming_mujoco_gl():
            return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"suite metaworld needs its simulator ({error}): {pip_install('sim', locked=True)} and then "
            f"{pip()} install --no-deps metaworld==3.1.1"
        ) from error
