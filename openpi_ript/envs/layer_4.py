"""Layer 4 of the data specification: the names of what an arm's environment shows, and the policy's state of them.

`robot0_eef_pos` [3], `robot0_eef_quat` [4] (x, y, z, w), `robot0_gripper_qpos` [2], float32; where cameras are asked
for `agentview_image` and `robot0_eye_in_hand_image`, uint8 [h, w, 3], upright; and what else the simulator shows,
float32 vectors, such as robosuite's `object-state`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from chunkwise.envs.suites.robosuite import HAND as LAYER_4
from chunkwise.envs.suites.robosuite import IMAGES
from chunkwise.errors import ConfigError

__all__ = ["IMAGES", "LAYER_4", "policy_state"]


def policy_state(observation: Mapping[str, np.ndarray], names: Sequence[str]) -> Float32[np.ndarray, "*T s"]:
    """Returns the arrays `names` one after another, of one frame or of many.

    Raises:
      ConfigError: If an observation lacks one.
    """
    missing = [name for name in names if name not in observation]
    if missing:
        raise ConfigError(
            f"env.state: expected arrays of an observation, which has {sorted(observation)}; not {missing}"
        )
    return np.concatenate([observation[name] for name in names], axis=-1)
