"""Episodes that the tests write: a car on a circle, images that tell their frame and camera."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from jaxtyping import UInt8

from driving.config import CAMERAS

SPEED, TURN = 8.0, 0.4
"""Of the car: m/s and rad/s."""
INTRINSICS = [40.0, 42.0, 24.5, 15.5]
SIZE = (32, 48)
YAWS = {"front": 0.0, "front_left": 0.8, "front_right": -0.8, "side_left": 1.6, "side_right": -1.6}


def extrinsics(camera: str) -> list[float]:
    """Camera 1.5 m above the ground, looking in its direction."""
    yaw = YAWS[camera]
    cos, sin = np.cos(yaw), np.sin(yaw)
    right, down, ahead = (sin, -cos, 0.0), (0.0, 0.0, -1.0), (cos, sin, 0.0)
    place = (1.0 * cos, 1.0 * sin, 1.5)
    rows = [[right[i], down[i], ahead[i], place[i]] for i in range(3)]
    return [float(x) for row in [*rows, [0.0, 0.0, 0.0, 1.0]] for x in row]


def pose_at(t: float, start_yaw: float = 0.0) -> tuple[float, float, float]:
    """Pose of the car on its circle: x, y, yaw."""
    yaw = start_yaw + TURN * t
    radius = SPEED / TURN
    return radius * (np.sin(yaw) - np.sin(start_yaw)), radius * (np.cos(start_yaw) - np.cos(yaw)), yaw


def render(frame: int, camera: int, size: tuple[int, int] = SIZE) -> UInt8[np.ndarray, "h w 3"]:
    """Smooth colours that differ by frame and camera, brighter to the right and to the bottom."""
    height, width = size
    v, u = np.mgrid[0:height, 0:width]
    red = 40 + 100 * u / width
    green = 40 + 100 * v / height
    blue = np.full(size, 20 + 40 * camera + frame % 20)
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def frame_tree(
    frame: int, t: float, *, cameras: Sequence[str] = CAMERAS, start_yaw: float = 0.0, images: str = "images"
) -> dict[str, Any]:
    """One frame with everything known."""
    x, y, yaw = pose_at(t, start_yaw)
    return {
        "t": t,
        "observations": {
            "cameras": {
                name: {
                    "image_path": f"{images}/{frame:04d}_{name}.jpg",
                    "intrinsics": INTRINSICS,
                    "extrinsics": extrinsics(name),
                }
                for name in cameras
            },
            "state": {
                "speed_mps": SPEED,
                "yaw_rad": float(np.arctan2(np.sin(yaw), np.cos(yaw))),
                "yaw_rate_radps": TURN,
                "x_m": float(x),
                "y_m": float(y),
            },
        },
    }


def write_drive(
    root: Path,
    name: str,
    *,
    frames: int = 30,
    dt: float = 0.1,
    change: Callable[[dict[str, Any]], object] | None = None,
    source: Mapping[str, str] | None = None,
    start_yaw: float = 0.0,
    size: tuple[int, int] = SIZE,
    images: bool = True,
) -> Path:
    """Writes root/<name>.json and its images; `change` edits the tree before it is written.

    Images are written for the paths of the tree before the change, so that a test can name a file that is absent.
    """
    folder = root / f"{name}_images"
    tree: dict[str, Any] = {
        "episode_id": name,
        "domain": "driving",
        "cameras": list(CAMERAS),
        "frames": [frame_tree(i, round(i * dt, 6), start_yaw=start_yaw, images=folder.name) for i in range(frames)],
    }
    if source is not None:
        tree["source"] = dict(source)
    if images:
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(frames):
            for k, camera in enumerate(CAMERAS):
                shown = render(i + len(name) + sum(name.encode()), k, size)
                data = simplejpeg.encode_jpeg(shown, quality=95, colorspace="RGB", colorsubsampling="444")
                (folder / f"{i:04d}_{camera}.jpg").write_bytes(data)
    if change is not None:
        change(tree)
    file = root / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tree))
    return file
