"""LIBERO as openpi's pi0_libero and pi05_libero see it: a rotation vector in the state, images turned by 180 degrees.

openpi's dataset and its client have both already. Our environments show the simulator's quaternion, and images that
are upright (the simulator's own have their first row at the bottom), so the same picture is theirs mirrored.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float32, UInt8

from chunkwise.errors import DataError
from openpi_ript.robots.adapter import Named


class Libero(Named):
    """State of 8: position of the hand, its rotation vector, two fingers. Actions of 7, relative already."""

    words = (
        "LIBERO's: the hand's position, its rotation as axis times angle, both fingers; actions are steps of the hand "
        "and the gripper, from -1 to 1"
    )
    state_keys = ("observation/state",)
    camera_keys: Mapping[str, str] = {
        "base_0_rgb": "observation/image",
        "left_wrist_0_rgb": "observation/wrist_image",
    }

    def simulated_state(self, state: Float[np.ndarray, "*b s"]) -> Float32[np.ndarray, "*b 8"]:
        """See Adapter; env.state is position, quaternion, fingers.

        Raises:
          DataError: If it is not 9 numbers wide.
        """
        if state.shape[-1] != 9:
            raise DataError(f"state: expected position, quaternion and fingers, 9 numbers, found {state.shape[-1]}")
        parts = state[..., :3], rotation_vector(state[..., 3:7]), state[..., 7:]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def simulated_image(self, image: UInt8[np.ndarray, "*b h w 3"]) -> UInt8[np.ndarray, "*b h w 3"]:
        """See Adapter."""
        return np.ascontiguousarray(image[..., ::-1, :])


def rotation_vector(quaternion: Float[np.ndarray, "*b 4"]) -> Float32[np.ndarray, "*b 3"]:
    """Returns the axis times the angle, 0 to 2 pi, of unit quaternions x, y, z, w.

    As robosuite computes it: q and -q, the same rotation, give different vectors.
    """
    q = quaternion.astype(np.float64)
    w = np.clip(q[..., 3:], -1, 1)
    sine = np.sqrt(1 - w * w)
    turned = sine > 0
    scale = np.where(turned, 2 * np.arccos(w) / np.where(turned, sine, 1), 0)
    return (q[..., :3] * scale).astype(np.float32)
