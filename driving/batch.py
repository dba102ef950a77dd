"""A training batch of multi-camera frames, and the pretrain batch contract's dict at the edge.

Inside, every array has a static shape whatever is missing, and a mask says what is real. Where a mask is false the
value is 0 (identity matrices for cameras), never NaN.
"""

from typing import TypedDict

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, UInt8


class Batch(TypedDict):
    """b samples of n times (data.offsets_s) and k cameras (data.cameras, in that order).

    n is there for frames too (n = 1). Position `data.anchor` of the n times is the anchor frame.
    """

    images: UInt8[np.ndarray, "b n k h w 3"]
    """RGB; 0 where image_valid is false."""
    image_valid: Bool[np.ndarray, "b n k"]
    time_valid: Bool[np.ndarray, "b n"]
    """Whether a frame lies within data.tolerance_s of the offset."""
    t: Float64[np.ndarray, "b n"]
    """Seconds since the episode's start of the frame that was taken, not of the offset."""
    camera_t: Float64[np.ndarray, "b n k"]
    """t plus the camera's own offset (rolling cameras fire one after another)."""
    intrinsics: Float32[np.ndarray, "b n k 3 3"]
    """In pixels of `images`; the upper left corner of the picture is (0, 0)."""
    extrinsics: Float32[np.ndarray, "b n k 4 4"]
    """Camera (x right, y down, z ahead) to vehicle (x forward, y left, z up)."""
    calibration_valid: Bool[np.ndarray, "b n k"]
    """Whether both matrices are known."""
    speed_mps: Float32[np.ndarray, "b n"]
    speed_valid: Bool[np.ndarray, "b n"]
    yaw_rad: Float32[np.ndarray, "b n"]
    """Heading in the world, in (-pi, pi]; as recorded, else from the direction of travel."""
    yaw_valid: Bool[np.ndarray, "b n"]
    yaw_rate_radps: Float32[np.ndarray, "b n"]
    yaw_rate_valid: Bool[np.ndarray, "b n"]
    relative_pose: Float32[np.ndarray, "b n 3"]
    """Pose at each time in the vehicle frame of the anchor: x forward, y left, yaw in (-pi, pi]; 0 at the anchor."""
    relative_pose_valid: Bool[np.ndarray, "b n"]
    waypoints: Float32[np.ndarray, "b t 2"]
    """Places at (i + 1) data.waypoint_dt_s after the anchor, in its vehicle frame: x forward, y left, metres."""
    waypoint_valid: Bool[np.ndarray, "b t"]
    """False past the end of the episode and where poses are missing; no place is ever repeated to fill up."""
    route_command: Int32[np.ndarray, " b"]
    """Of the anchor; position in driving.episodes.ROUTE_COMMANDS, 0 where unknown."""
    episode: Int32[np.ndarray, " b"]
    """Position of the episode in the dataset: equal numbers, same drive."""
    frame: Int32[np.ndarray, " b"]
    """Position of the anchor frame in its episode."""
