"""The environments of evaluation and of the online phase, by the names that a config has for them."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, UInt8

from chunkwise.envs import environment, names
from chunkwise.envs.environment import Environment, EnvSpec
from chunkwise.envs.failures import Shapes, close_anyway, require_cameras, require_observed
from chunkwise.envs.suites.gymnasium import RENDER
from chunkwise.envs.workers import told
from chunkwise.errors import ConfigError
from qchunk.config import QChunkConfig
from qchunk.envs import aloha

OWN = {aloha.NAME: "qchunk.envs.aloha:TransferCube"}
"""Environments of this package."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """How OGBench's tasks judge what is done; of other environments they must be the defaults."""

    sparse: bool = False
    """As data.sparse."""
    success_timing: Literal["pre", "post"] = "pre"
    """As data.success_timing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What a policy sees of the scene."""

    cameras: tuple[str, ...]
    """In the order in which the policy was trained on them."""
    render_size: tuple[int, int]
    """Height and width at which they are rendered; those of the recordings, so that the image is the same."""
    image_size: tuple[int, int]
    """Height and width to which they are then resized, as the pool does."""
    shrunk: tuple[str, ...] = ()
    """Cameras whose recorded images were JPEGs that the pool shrinks."""


USUAL = Rules()


def rules_of(config: QChunkConfig) -> Rules:
    """Returns the rules that the environments of a run have in common with its recordings."""
    return Rules(sparse=config.data.sparse, success_timing=config.data.success_timing)


def make(name: str, view: View | None = None, rules: Rules = USUAL, *, video: bool = False) -> Environment:
    """Makes the environment of one task, with its reward, time limit and success.

    Args:
      name: aloha-transfer-cube, or any of chunkwise/envs/names.py: OGBench's single task, also by the name of a dataset
        for it, `suite/task`, a Gymnasium id, `module:factory` of the user's own. It comes from the user's config: what
        a folder brought is not to come here.
      view: What a policy sees of the scene; None: no images.
      rules: Of the run.
      video: Whether it is going to be rendered for people.

    Raises:
      ConfigError: If the packages are missing, the name is unknown, it is not a single task with state observations,
        or it shows no such images.
    """
    if view is not None:
        require_images(name, view)
    spec = EnvSpec(suite=OWN[name], allow_code=True) if name in OWN else names.spec_named(name)
    spec = dataclasses.replace(spec, cameras=() if view is None else view.cameras, video=video)
    spec = dataclasses.replace(spec, sparse=rules.sparse, success_timing=rules.success_timing)
    if view is not None:
        spec = dataclasses.replace(spec, image_size=view.image_size, render_size=view.render_size, shrunk=view.shrunk)
    return environment.make(spec)


def renders_at_a_size(name: str, cameras: Collection[str]) -> bool:
    """Whether an environment's cameras depend on the size that is asked for: not where all are images that a
    Gymnasium environment observes; its camera `render` is resized."""
    if name in OWN or RENDER in cameras:
        return True
    try:
        return names.split_name(name)[0] != "gymnasium"
    except ConfigError:  # which whoever makes it says
        return True


def require_widths(
    field: str,
    name: str,
    path: str,
    *,
    observation: tuple[str, int],
    action: int,
    kept: Mapping[str, int] = MappingProxyType({}),
    view: View | None = None,
    keeps_images: bool = False,
    rules: Rules = USUAL,
) -> None:
    """Makes the environment and compares its widths with those of the dataset that a policy for it learns from.

    Of an environment of the user's own, or Gymnasium's, an image of each camera is looked at, too.

    Args:
      field: Of the config, that names it.
      name: As `make`.
      path: The dataset's, for the message.
      observation: Name and width of the array that the policy sees.
      action: Width of its actions.
      kept: Names and widths of all arrays that the online phase keeps, since the dataset has them; none otherwise.
      view: What the policy sees of the scene; None: no images.
      keeps_images: Whether they are kept as they are shown, so that their size has to be the view's.
      rules: Of the run.

    Raises:
      ConfigError: They differ, or images have another size; or as `make`.
      DataError: It does not show a camera.
      RunError: The environment failed.
    """
    key, width = observation
    looked = view if name not in OWN else None  # this package's own renders, which takes a second, what it is asked for
    with told(f"the environment {name} could not be made"):
        env = make(name, looked, rules)
    try:
        with told(f"the environment {name} (reset with seed 0, step 0) failed"):
            observed, taken = env.reset(0), env.action_dim
        if looked is not None:
            with told(f"the environment {name} (reset with seed 0, step 0) failed to show images"):
                images = env.images()
            _require_shown(field, name, images, looked, exact=keeps_images)
    finally:
        close_anyway(f"the environment {name}", env.close)
    require_observed(f"{field} {name!r}: reset()", observed)
    if key not in observed:
        hint = (
            "; of Gymnasium's a Box is `state`, and a Dict of Boxes names what it shows" if "state" in observed else ""
        )
        raise ConfigError(
            f"{field} is {name!r}, which shows {sorted(observed)}; expected {key}, as data.observation{hint}"
        )
    if odd := {array: np.shape(observed[array]) for array in (key, *kept) if np.ndim(observed.get(array, [0])) != 1}:
        raise ConfigError(
            f"{field} is {name!r}, which shows arrays of shape {odd}; expected one axis of each, as in data.path {path}"
        )
    shown = np.size(observed[key])
    if (shown, taken) != (width, action):
        there = {name: np.size(observed[name]) for name in ("state", "qpos") if name in observed}
        others = [name for name, size in there.items() if size == width]
        if others and taken == action:
            raise ConfigError(
                f"{field} is {name!r}, which shows {key} of width {shown}; expected {width}, as data.observation {key} "
                f"has in data.path {path}. Its {others[0]} has that: set --data.observation {others[0]}"
            )
        raise ConfigError(
            f"{field} is {name!r}, which shows {key} of width {shown} and takes actions of width {taken}; expected the "
            f"widths of the dataset in data.path {path}, found {key} {width} and action {action} there. Set {field} to "
            f"the environment of that dataset{', or to None' if field == 'eval.env' else ''}, or data.path to "
            f"recordings of {name}"
        )
    there = {array: np.size(observed[array]) for array in kept if array in observed}
    if there != dict(kept):
        raise ConfigError(
            f"{field} is {name!r}, which shows {there or 'neither'} beside {key}; expected the widths {dict(kept)} "
            f"of the dataset in data.path {path}, since online transitions are kept and drawn with the same arrays"
        )


def _require_shown(field: str, name: str, images: Mapping[str, np.ndarray], view: View, *, exact: bool) -> None:
    """Raises what is wrong with images of an environment, before anything learns to act in it."""
    require_cameras(f"{field} is {name!r}, which", images, view.cameras)
    shown = {camera: images[camera] for camera in view.cameras}
    Shapes().require_images(f"{field} {name!r}: images()", shown)
    shapes = {camera: np.shape(image) for camera, image in shown.items()}
    if any(len(shape) != 3 or shape[-1] != 3 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ConfigError(
            f"{field} is {name!r}, whose images are {shapes}; expected [h, w, 3], the same of all cameras"
        )
    wanted = (*view.image_size, 3)
    if other := {camera: shape for camera, shape in shapes.items() if exact and shape != wanted}:
        raise ConfigError(
            f"{field} is {name!r}, whose images are {other}; expected {wanted}, as data.image_size, since the online "
            "phase keeps them as they are shown: the spec that the factory is given says the size (docs/qchunk.md)"
        )


def require_task(field: str, name: str, task: str | None) -> None:
    """Raises ConfigError where an environment is a single task of OGBench's, and rewards are those of another one.

    Args:
      field: Of the config, that names the environment.
      name: As `make`.
      task: data.task.
    """
    if task is None or "singletask" not in name:
        return
    (scene, number), (other, of_data) = _task_of(name), _task_of(task)
    if scene != other or (number != of_data and number and of_data):
        raise ConfigError(
            f"data.task is {task!r}, whose rewards are learnt from, and {field} {name!r}; expected the same task "
            "(chunkwise evaluate RUN --env measures a policy on another one)"
        )


def _task_of(name: str) -> tuple[list[str], list[str]]:
    """The words of OGBench's name of a single task but for its number, and that; none: the scene's own choice of it.

    The name of its dataset, with play or noisy, means the same.
    """
    words = [word for word in name.removeprefix("ogbench/").split("-") if word not in ("play", "noisy")]
    numbers = [word for word in words if re.fullmatch("task[0-9]+", word)]
    return [word for word in words if word not in numbers], numbers


def require_images(name: str, view: View) -> None:
    """Raises ConfigError if the environment of that name shows no images. The user's own says so itself."""
    if name != aloha.NAME and ":" not in name and names.split_name(name)[0] != "gymnasium":
        raise ConfigError(
            f"data.cameras is {view.cameras}, and {name} shows no images; {aloha.NAME}, Gymnasium's environments and "
            "module:factory of your own do"
        )


def stacked_images(images: Mapping[str, np.ndarray], view: View) -> UInt8[np.ndarray, "*b k h w 3"]:
    """Stacks cameras' images as a policy takes them, of one frame or of many. Raises DataError if one is missing."""
    require_cameras("the environment", images, view.cameras)
    return np.stack([images[camera] for camera in view.cameras], axis=-4)


def clip(env: Environment, actions: Float[np.ndarray, "t a"]) -> Float32[np.ndarray, "t a"]:
    """Returns actions within what the environment takes."""
    return np.stack([environment.executed(env, action) for action in actions])
