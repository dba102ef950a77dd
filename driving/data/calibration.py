"""Where the cameras of every frame look: matrices for images at training size, and the time of each exposure."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from driving.config import DataConfig
from driving.data.images import by_camera
from driving.data.index import Index
from driving.data.tables import Tables
from driving.data.targets import relative_pose


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Calibration of all frames F and the k cameras of the config."""

    row: Int32[np.ndarray, "F k"]
    """Of intrinsics and extrinsics; -1 where unknown."""
    intrinsics: Float64[np.ndarray, "m 3 3"]
    extrinsics: Float64[np.ndarray, "m 4 4"]
    size: Int32[np.ndarray, "F k 2"]
    """Height and width of the files' images, which the intrinsics are of; 0 where there is none."""
    t: Float64[np.ndarray, "F k"]
    """Time of each exposure."""
    motion: Float32[np.ndarray, "F k 3"]
    """The vehicle's pose at the exposure, in its frame at the frame's time."""

    def at(
        self, frames: Int64[np.ndarray, "b n"], valid: Bool[np.ndarray, "b n"], size: tuple[int, ...]
    ) -> dict[str, Any]:
        """A batch's camera_t, intrinsics, extrinsics, calibration_valid; `size` is its images' height and width."""
        row, original = self.row[frames], self.size[frames]
        known = valid[..., None] & (row >= 0) & (original > 0).all(-1)
        scale = np.zeros((*row.shape, 3, 3))
        safe = np.where(original > 0, original, 1)
        scale[..., 0, 0], scale[..., 1, 1], scale[..., 2, 2] = size[1] / safe[..., 1], size[0] / safe[..., 0], 1
        intrinsics, extrinsics = np.eye(3, dtype=np.float32), np.eye(4, dtype=np.float32)
        if len(self.intrinsics):
            place = np.where(known, row, 0)
            moved = _transform(self.motion[frames]) @ self.extrinsics[place]
            intrinsics = np.where(known[..., None, None], scale @ self.intrinsics[place], intrinsics)
            extrinsics = np.where(known[..., None, None], moved, extrinsics)
        return {
            "camera_t": np.where(valid[..., None], self.t[frames], 0.0),
            "intrinsics": np.broadcast_to(intrinsics, (*row.shape, 3, 3)).astype(np.float32),
            "extrinsics": np.broadcast_to(extrinsics, (*row.shape, 4, 4)).astype(np.float32),
            "calibration_valid": known,
        }


def make_calibration(index: Index, tables: Tables, config: DataConfig) -> Calibration:
    """Gathers it for the cameras of the config."""

    def of(array: np.ndarray, empty: float | int) -> np.ndarray:
        return by_camera(index, array, config.cameras, empty)

    offset = of(index.t_offset_s, 0.0).astype(np.float64)
    return Calibration(
        row=of(index.calibration, -1),
        intrinsics=index.intrinsics,
        extrinsics=index.extrinsics,
        size=of(index.image_size, 0),
        t=index.t[:, None] + offset,
        motion=_motion(index, tables, offset, of(index.camera_pose, np.nan)).astype(np.float32),
    )


def _motion(
    index: Index, tables: Tables, offset_s: Float64[np.ndarray, "F k"], recorded: Float64[np.ndarray, "F k 3"]
) -> Float64[np.ndarray, "F k 3"]:
    """From the recorded pose at the exposure; else from speed and yaw rate, which for 50 ms is as good."""
    speed, turn = tables.speed_mps[:, None] * offset_s, tables.yaw_rate_radps[:, None] * offset_s
    driven = np.stack([speed * np.cos(turn / 2), speed * np.sin(turn / 2), turn], axis=-1)
    pose = np.concatenate([index.pose[:, :2], tables.yaw_rad[:, None]], axis=1)
    here = np.isfinite(pose).all(axis=1, keepdims=True) & tables.yaw_valid[:, None]
    origin = np.where(here, pose, 0.0)
    known = np.isfinite(recorded).all(-1) & here
    relative = relative_pose(origin[:, None, :], np.where(known[..., None], recorded, 0.0))
    return np.where(known[..., None], relative, driven)


def _transform(pose: Float32[np.ndarray, "*any 3"]) -> Float64[np.ndarray, "*any 4 4"]:
    """4 x 4 matrix of a pose in the plane."""
    out = np.zeros((*pose.shape[:-1], 4, 4))
    cos, sin = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    out[..., 0, 0], out[..., 0, 1], out[..., 0, 3] = cos, -sin, pose[..., 0]
    out[..., 1, 0], out[..., 1, 1], out[..., 1, 3] = sin, cos, pose[..., 1]
    out[..., 2, 2] = out[..., 3, 3] = 1
    return out
