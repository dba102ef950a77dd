"""Layer 4 of the data specification: the names of what an arm's environment shows, and the policy's state of them.

`robot0_eef_pos` [3], `robot0_eef_quat` [4] (x, y, z, w), `robot0_gripper_qpos` [2], float32; where cameras are asked
for `agentview_image` and `robot0_eye_in_hand_image`, uint8 [h, w, 3], upright; and what else the simulator shows,
float32 vectors, such as robosuite's `object-state`.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from chunkwise.envs.suites.robosuite import HAND as LAYER_4
from chunkwise.envs.suites.robosuite import IMAGES
from chunkwise.errors import ConfigError
from chunkwise.files import trust
from openpi_ript.config.rollouts import FROM_PLACES, QUATERNION
from openpi_ript.robots.libero import rotation_vector

__all__ = ["IMAGES", "LAYER_4", "policy_state"]


def policy_state(
    observation: Mapping[str, np.ndarray], names: Sequence[str], how: str = "concatenate"
) -> Float32[np.ndarray, "*T s"]:
    """Returns the policy's state of the arrays `names`, of one frame or of many.

    Args:
      observation: Arrays by name.
      names: env.state.
      how: env.state_function; `module:function` is imported, so that the user must have named it.

    Raises:
      ConfigError: An observation lacks one of the arrays, one that is to be a quaternion has not four numbers, one that
        is to begin with a place fewer than three, or the user's function gives no floats for each frame.
    """
    missing = [name for name in names if name not in observation]
    if missing:
        raise ConfigError(
            f"env.state: expected arrays of an observation, which has {sorted(observation)}; not {missing}"
        )
    if ":" in how:
        return _own_state(observation, names, how)
    parts = [observation[name] for name in names]
    if how == "axis_angle":
        parts = [_turned(name, part) for name, part in zip(names, parts, strict=True)]
    if how in FROM_PLACES:
        places = [_place(how, name, part) for name, part in zip(names, parts, strict=True)]
        if how == "differences":
            between = [there - here for here, there in itertools.combinations(places, 2)]
            parts = between + [part[..., 3:] for part in parts]
        else:
            parts[1:] = [
                np.concatenate([place - places[0], part[..., 3:]], axis=-1)
                for place, part in zip(places[1:], parts[1:], strict=True)
            ]
    return np.concatenate(parts, axis=-1)


def _turned(name: str, part: np.ndarray) -> np.ndarray:
    """The rotation vector of a quaternion; any other array as it is."""
    if not name.endswith(QUATERNION):
        return part
    if part.shape[-1] != 4:
        raise ConfigError(
            f"env.state_function axis_angle: expected 4 numbers in {name}, found {part.shape[-1]}; a function of your "
            "own can tell which arrays are quaternions"
        )
    return rotation_vector(part)


def _place(how: str, name: str, part: np.ndarray) -> np.ndarray:
    """The first three numbers of an array."""
    if part.shape[-1] < 3:
        raise ConfigError(
            f"env.state_function {how}: expected a place, three numbers, at the beginning of {name}, found "
            f"{part.shape[-1]}; a function of your own can tell which arrays are places"
        )
    return part[..., :3]


def _own_state(observation: Mapping[str, np.ndarray], names: Sequence[str], how: str) -> Float32[np.ndarray, "*T s"]:
    found = trust.import_named(how, what="a function of an observation and names")(observation, names)
    frames = observation[names[0]].shape[:-1]
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.shape[:-1] != frames or found.ndim < 1:
        given = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        shape = ", ".join(map(str, (*frames, "s")))
        raise ConfigError(f"env.state_function {how}: expected floats of shape [{shape}], found {given}")
    return found.astype(np.float32)
