"""A training batch of multi-camera frames, and the pretrain batch contract's dict at the edge.

Inside, every array has a static shape whatever is missing, and a mask says what is real. Where a mask is false the
value is 0 (identity matrices for cameras), never NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, UInt8

from chunkwise.errors import DataError


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
    """In pixels of `images`; the upper left corner of the image is (0, 0)."""
    extrinsics: Float32[np.ndarray, "b n k 4 4"]
    """Camera (x right, y down, z ahead) to the vehicle at time t (x forward, y left, z up); the way that the vehicle
    went between t and the exposure is in them."""
    calibration_valid: Bool[np.ndarray, "b n k"]
    """Whether both matrices are known."""
    speed_mps: Float32[np.ndarray, "b n"]
    speed_valid: Bool[np.ndarray, "b n"]
    yaw_rad: Float32[np.ndarray, "b n"]
    """Heading in the world, in (-pi, pi]; as recorded, else from the direction of travel."""
    yaw_valid: Bool[np.ndarray, "b n"]
    yaw_rate_radps: Float32[np.ndarray, "b n"]
    yaw_rate_valid: Bool[np.ndarray, "b n"]
    past_motion: Float32[np.ndarray, "b p"]
    """By how much the anchor's speed, then its yaw rate, differed at each of driving.data.tables.PAST_S before."""
    past_motion_valid: Bool[np.ndarray, "b p"]
    relative_pose: Float32[np.ndarray, "b n 3"]
    """Pose at each time in the vehicle frame of the anchor: x forward, y left, yaw in (-pi, pi]; 0 at the anchor."""
    relative_pose_valid: Bool[np.ndarray, "b n"]
    waypoints: Float32[np.ndarray, "b t 2"]
    """Places at (i + 1) data.waypoint_dt_s after the anchor, in its vehicle frame: x forward, y left, metres."""
    waypoint_valid: Bool[np.ndarray, "b t"]
    """False past the end of the episode and where poses are missing; no place is ever repeated to fill up."""
    route_command: Int32[np.ndarray, " b"]
    """Of the anchor; position in driving.data.episodes.ROUTE_COMMANDS, 0 where unknown."""
    episode: Int32[np.ndarray, " b"]
    """Position of the episode in the dataset: equal numbers, same drive."""
    frame: Int32[np.ndarray, " b"]
    """Position of the anchor frame in its episode."""


class Sample(TypedDict, total=False):
    """One frame, as `collate` takes it; `driving.data.DrivingData.sample` gives it."""

    image_paths_by_cam: Required[Mapping[str, str | None]]
    state: Required[Mapping[str, float | None]]
    """speed_mps, yaw_rad; None or absent where unknown."""
    meta: Required[Mapping[str, Any]]
    """episode_id, and t in seconds since the episode's start."""
    images_by_cam: Mapping[str, UInt8[np.ndarray, "h w 3"] | None]
    """Absent where images are not decoded."""


def collate(
    samples: Sequence[Sample], stack_images: bool = False, *, image_size: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The pretrain batch contract's dict of B samples, with numpy arrays where it has tensors.

    | key                  | value                                                                                   |
    |----------------------|-----------------------------------------------------------------------------------------|
    | image_paths_by_cam   | {camera: B paths, None where unavailable}                                               |
    | state                | speed_mps, yaw_rad: (B,) float32; speed_valid, yaw_valid: (B,) bool, False (and 0) where |
    |                      | unknown                                                                                 |
    | meta                 | episode_id: B strings; t: B floats                                                      |
    | images_by_cam        | if the samples hold images. stack_images: {camera: (B, 3, H, W) float32 in 0..1, zeros |
    |                      | where there is none}; otherwise {camera: B arrays (3, H, W), None where there is none}  |
    | image_valid_by_cam   | with stack_images only: {camera: (B,) bool}                                             |

    The cameras are all that any sample names, in the order in which they first occur, whatever is missing.
    `torch.from_numpy` takes the arrays without a copy.

    Args:
      samples: At least one.
      stack_images: Stack images into arrays.
      image_size: Height and width of images, for a batch without any; None takes it from the first image, and
        gives None for every camera where there is no image at all, as the contract allows.

    Raises:
      DataError: If there is no sample, some hold images and some do not, or stacked images differ in size.
    """
    if not samples:
        raise DataError("collate: expected at least one sample, found none")
    cameras = list(dict.fromkeys(name for sample in samples for name in sample["image_paths_by_cam"]))
    out: dict[str, Any] = {
        "image_paths_by_cam": {name: [s["image_paths_by_cam"].get(name) for s in samples] for name in cameras},
        "state": {**_state(samples, "speed_mps", "speed_valid"), **_state(samples, "yaw_rad", "yaw_valid")},
        "meta": {
            "episode_id": [str(sample["meta"]["episode_id"]) for sample in samples],
            "t": [float(sample["meta"]["t"]) for sample in samples],
        },
    }
    decoded = {"images_by_cam" in sample for sample in samples}
    if len(decoded) > 1:
        raise DataError("collate: expected images_by_cam in all samples or in none, found it in some")
    if decoded == {False}:
        return out
    images = {
        name: [_channels_first(sample["images_by_cam"].get(name)) for sample in samples]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        for name in cameras
    }
    if not stack_images:
        return out | {"images_by_cam": images}
    if image_size is None:
        image_size = next((p.shape[1:] for row in images.values() for p in row if p is not None), None)
    out["images_by_cam"] = {name: _stacked(row, image_size, name) for name, row in images.items()}
    out["image_valid_by_cam"] = {name: np.array([p is not None for p in row]) for name, row in images.items()}
    return out


collate_batch = collate
"""By the name that the contract has for it."""


def _state(samples: Sequence[Sample], key: str, mask: str) -> dict[str, np.ndarray]:
    values = [sample["state"].get(key) for sample in samples]
    return {
        key: np.array([0.0 if value is None else value for value in values], np.float32),
        mask: np.array([value is not None for value in values]),
    }


def _channels_first(image: UInt8[np.ndarray, "h w 3"] | None) -> Float32[np.ndarray, "3 h w"] | None:
    if image is None:
        return None
    return np.ascontiguousarray(image.transpose(2, 0, 1)).astype(np.float32) / np.float32(255)


def _stacked(
    row: Sequence[Float32[np.ndarray, "3 _ _"] | None], size: tuple[int, ...] | None, camera: str
) -> Float32[np.ndarray, "b 3 h w"] | None:
    if size is None:
        return None
    out = np.zeros((len(row), 3, *size), np.float32)
    for i, image in enumerate(row):
        if image is not None and image.shape[1:] != tuple(size):
            raise DataError(
                f"collate: camera {camera}, sample {i}: expected an image of {size[0]} x {size[1]} (height x width) "
                f"as in the rest of the batch, found {image.shape[1]} x {image.shape[2]}"
            )
        if image is not None:
            out[i] = image
    return out
