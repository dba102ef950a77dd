"""Any environment of Gymnasium with continuous actions, by its id, or `module:id` where a module registers it.

A Box of observations is shown as `state`; of a Dict each entry under its own name, and those that are uint8 [h, w, 3]
as cameras; images of other shapes are left out, with a warning. `render` is a camera too: what `render()` gives with
render_mode rgb_array. An episode has succeeded when its info says so, in `is_success` or `success`, as
Gymnasium-Robotics and Meta-World do.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from chunkwise.config.installed import pip_install
from chunkwise.data.images import resize_into
from chunkwise.envs.environment import EnvSpec, Observation, Step
from chunkwise.envs.suites.cameras import rendered
from chunkwise.errors import ConfigError
from chunkwise.files import trust

FPS = 30  # where an environment does not say how many steps a second it is shown with
RENDER = "render"
SUCCESS = ("is_success", "success")
_WRAPPED = (
    "gymnasium.wrappers change what is observed: register what they make under an id, with gymnasium.register in a "
    "module of your own, and name it module:id"
)


class GymnasiumEnv:
    """One of Gymnasium's environments."""

    def __init__(self, spec: EnvSpec) -> None:
        """Makes it.

        Raises:
          ConfigError: Gymnasium is not installed, there is no such id, its module is named by somebody else than the
            user, actions are not continuous, what is observed is neither a Box nor a Dict of them, or one image of
            another shape than (h, w, 3), or a camera is unknown.
        """
        gymnasium = _package()
        if ":" in spec.task and not spec.allow_code:
            trust.refuse_code(f"env.task is {spec.task!r}, which would import Python code")
        renders = spec.video or RENDER in spec.cameras
        if sys.platform == "linux" and "DISPLAY" not in os.environ:  # also unasked: an observation may be an image
            os.environ.setdefault("MUJOCO_GL", "egl")  # Gymnasium tries GLFW first, which without a screen shows black
        # Gymnasium hands on what it is given, and a constructor without the parameter refuses even None.
        options = {"render_mode": "rgb_array"} if renders else {}
        try:
            self._env: Any = gymnasium.make(spec.task, disable_env_checker=True, **options)
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise ConfigError(f"Gymnasium has no environment {spec.task!r} that it can make: {error}") from error
        except TypeError as error:
            if not renders or "render_mode" not in str(error):
                raise
            raise ConfigError(
                f"{spec.task} cannot render: its constructor takes no render_mode; add one, or leave out videos and "
                f"camera {RENDER!r}"
            ) from error
        actions, spaces = self._env.action_space, gymnasium.spaces
        continuous = isinstance(actions, spaces.Box) and np.issubdtype(actions.dtype, np.floating)
        if not continuous or len(actions.shape) != 1:
            raise ConfigError(f"{spec.task} takes actions of {actions}; expected a Box of one axis, continuous numbers")
        shown = self._env.observation_space
        parts: Mapping[str, Any] = shown.spaces if isinstance(shown, spaces.Dict) else {"state": shown}
        odd = [name for name, part in parts.items() if not isinstance(part, spaces.Box)]
        if odd:
            raise ConfigError(
                f"{spec.task} observes {shown}; expected a Box, or a Dict of them, found {', '.join(odd)}; " + _WRAPPED
            )
        self._named = isinstance(shown, spaces.Dict)
        self._images = {
            name: part.shape for name, part in parts.items() if len(part.shape) == 3 and part.dtype == np.uint8
        }
        self._cameras = {name for name, shape in self._images.items() if shape[2] == 3}
        lost = {name: shape for name, shape in self._images.items() if name not in self._cameras}
        if lost and not self._named and RENDER not in spec.cameras:
            raise ConfigError(
                f"{spec.task} observes uint8 numbers of shape {shown.shape}; expected an image (h, w, 3), or a Box of "
                f"another type or number of axes; {_WRAPPED}"
            )
        unknown = [name for name in spec.cameras if name not in (*self._cameras, RENDER)]
        if unknown:
            known = ", ".join(sorted((*self._cameras, RENDER)))
            others = [
                f"; {name} is {self._images[name]}, expected (h, w, 3)" for name in unknown if name in self._images
            ]
            raise ConfigError(f"{spec.task} has no camera {', '.join(unknown)}; choose from {known}{''.join(others)}")
        if lost:
            warnings.warn(
                f"{spec.task}: left out of what is observed, {', '.join(f'{name} {lost[name]}' for name in lost)}; "
                f"expected images (h, w, 3); {_WRAPPED}",
                stacklevel=2,
            )
        self._spec, self._latest = spec, dict[str, np.ndarray]()
        self._told = False

    @property
    def fps(self) -> float:
        return float(self._env.metadata.get("render_fps") or FPS)

    @property
    def action_dim(self) -> int:
        return self._env.action_space.shape[0]

    @property
    def expert(self) -> Callable[[], Any]:
        """The environment's own `expert()`, for demonstrations. Raises AttributeError where it has none."""
        return self._env.get_wrapper_attr("expert")

    def reset(self, seed: int) -> Observation:
        self._told = False
        return self._observation(self._env.reset(seed=seed)[0])

    def state(self) -> Float64[np.ndarray, " q"]:
        """Returns what is observed, and a MuJoCo model's positions and velocities where there is one.

        Images only where there is nothing else: two renderers, or two models with textures drawn at random, show one
        state otherwise.
        """
        data = getattr(self._env.unwrapped, "data", None)
        moving = [getattr(data, name) for name in ("qpos", "qvel") if isinstance(getattr(data, name, None), np.ndarray)]
        numbers = [*(part for name, part in self._latest.items() if name not in self._images), *moving]
        return np.concatenate([np.ravel(part) for part in numbers or self._latest.values()], dtype=np.float64)

    def clip(self, action: Float[np.ndarray, " a"]) -> Float32[np.ndarray, " a"]:
        space = self._env.action_space
        return np.clip(action, space.low, space.high).astype(np.float32)

    def step(self, action: Float32[np.ndarray, " a"]) -> Step:
        space = self._env.action_space
        # Again, in its own type: 0.1 in 32 bits is above a bound of 0.1 in 64.
        taken = np.clip(action.astype(space.dtype), space.low, space.high)
        observed, reward, terminated, truncated, info = self._env.step(taken)
        told = [bool(info[name]) for name in SUCCESS if name in info]
        self._told = self._told or bool(told)
        if (terminated or truncated) and not self._told:
            warnings.warn(
                f"{self._spec.task} never says whether an episode succeeded, so each counts as failed; expected "
                f"{' or '.join(SUCCESS)} in the info of its steps: docs/extend.md has a wrapper that adds it",
                stacklevel=2,
            )
        return Step(self._observation(observed), float(reward), any(told), bool(terminated), bool(truncated))

    def images(self) -> Observation:
        def image(name: str, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
            return self.render(height, width) if name == RENDER else self._latest[name]

        return rendered(self._spec, image)

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
        full = np.asarray(self._env.render(), np.uint8)
        if full.shape[:2] == (height, width):
            return full
        resized = np.empty((height, width, 3), np.uint8)
        resize_into(full, resized)
        return resized

    def close(self) -> None:
        self._env.close()

    def _observation(self, observed: Any) -> Observation:
        self._latest = {
            name: np.asarray(part) for name, part in (observed if self._named else {"state": observed}).items()
        }
        vectors = {name: part for name, part in self._latest.items() if name not in self._images}
        return {name: part.astype(np.float32).ravel() for name, part in vectors.items()}


def _package() -> Any:
    """Gymnasium, untyped. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("gymnasium")
    except ImportError as error:
        raise ConfigError(
            f"suite gymnasium needs Gymnasium ({error}): {pip_install('sim')}, or gymnasium alone"
        ) from error
