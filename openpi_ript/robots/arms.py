"""Single arms with a gripper whose openpi clients send joints and gripper apart: DROID's Panda, and a UR5."""

from collections.abc import Mapping

from openpi_ript.robots.adapter import Named


class Droid(Named):
    """DROID as openpi's pi0_droid and pi05_droid see it; its numbers are used as they are."""

    words = (
        "DROID's own: seven joints in radians and the gripper, 0 to 1; actions are velocities of the joints (positions "
        "where robot.relative_dims names them) and the gripper's position"
    )
    state_keys = ("observation/joint_position", "observation/gripper_position")
    camera_keys: Mapping[str, str] = {
        "base_0_rgb": "observation/exterior_image_1_left",
        "left_wrist_0_rgb": "observation/wrist_image_left",
    }


class Ur5(Named):
    """A UR5 as openpi's example for one sees it."""

    words = "the UR5's own: six joints and the gripper; actions are their targets"
    state_keys = ("joints", "gripper")
    camera_keys: Mapping[str, str] = {"base_0_rgb": "base_rgb", "left_wrist_0_rgb": "wrist_rgb"}
