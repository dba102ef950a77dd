"""ALOHA: two arms of six joints and a gripper each, 14 numbers, whose joints and grippers pi0 knows in other units."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from chunkwise.errors import DataError
from openpi_ript.robots.adapter import Named

SIGNS = np.array([1.0, -1, -1, 1, 1, 1, 1] * 2)
"""Directions of turning, ALOHA's against pi0's."""
GRIPPERS = (6, 13)
FINGERS_CLOSED, FINGERS_OPEN = 0.01844, 0.05800
"""Metres of the fingers' travel that ALOHA's positions 0 and 1 stand for."""
ARM, HORN = 0.036, 0.022
"""Metres: the linkage between the motor's angle and the fingers."""
ANGLE_CLOSED, ANGLE_OPEN = 0.5476, 1.6296
"""Radians of the motor at pi0's gripper positions 0 and 1."""
JOINT_CLOSED, JOINT_OPEN = -0.6213, 1.4910
"""Radians of the gripper's joint at the commands 0 and 1, in which ALOHA's actions are."""
CAMERAS = {"base_0_rgb": "cam_high", "left_wrist_0_rgb": "cam_left_wrist", "right_wrist_0_rgb": "cam_right_wrist"}
UNUSED = "cam_low"
"""A fourth camera, which clients may send."""


class Aloha(Named):
    """ALOHA as openpi's pi0_aloha, pi05_aloha and fine-tunings of them see it (adapt_to_pi)."""

    words = "ALOHA's own: joints in radians, grippers from 0, closed, to 1, open; left arm, then right arm"
    metadata: Mapping[str, Any] = {"reset_pose": [0, -1.5, 1.5, 0, 0, 0]}
    state_keys = ("state",)
    camera_keys: Mapping[str, str] = {name: f"images/{key}" for name, key in CAMERAS.items()}
    optional = ("left_wrist_0_rgb", "right_wrist_0_rgb")

    def state(self, state: Float[np.ndarray, "*b s"]) -> Float64[np.ndarray, "*b s"]:
        """See Adapter: signs, and the grippers' travel as the motor's angle."""
        return _with_grippers(state, _as_angle)

    def action(self, action: Float[np.ndarray, "*b a"]) -> Float64[np.ndarray, "*b a"]:
        """See Adapter: signs, and the grippers' commands as radians of the motor, from closed."""
        return _with_grippers(action, lambda x: x * (JOINT_OPEN - JOINT_CLOSED) + JOINT_CLOSED - ANGLE_CLOSED)

    def acted(self, action: Float[np.ndarray, "*b a"]) -> Float64[np.ndarray, "*b a"]:
        """See Adapter."""
        return _with_grippers(action, lambda x: (x + ANGLE_CLOSED - JOINT_CLOSED) / (JOINT_OPEN - JOINT_CLOSED))

    def observation(self, sent: Mapping[str, Any], cameras: Sequence[str]) -> Mapping[str, Any]:
        """See Adapter; a camera that ALOHA does not have is refused, as openpi does."""
        images = sent.get("images")
        if isinstance(images, Mapping) and (unknown := sorted(map(str, set(images) - {*CAMERAS.values(), UNUSED}))):
            raise DataError(f"images: expected cameras of {[*CAMERAS.values(), UNUSED]}, found {unknown}")
        return super().observation(sent, cameras)


def _as_angle(position: Float64[np.ndarray, "*b g"]) -> Float64[np.ndarray, "*b g"]:
    """ALOHA's gripper position, which is linear in the fingers' travel, as pi0's, which is linear in the angle."""
    travel = position * (FINGERS_OPEN - FINGERS_CLOSED) + FINGERS_CLOSED
    with np.errstate(divide="ignore"):  # of no travel at all, far from what the gripper can do
        sine = (HORN**2 + travel**2 - ARM**2) / (2 * HORN * travel)
    return (np.arcsin(np.clip(sine, -1, 1)) - ANGLE_CLOSED) / (ANGLE_OPEN - ANGLE_CLOSED)


def _with_grippers(x: Float[np.ndarray, "*b d"], change: Any) -> Float64[np.ndarray, "*b d"]:
    turned = SIGNS * x
    turned[..., GRIPPERS] = change(turned[..., GRIPPERS])
    return turned
