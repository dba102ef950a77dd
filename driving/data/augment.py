"""Random changes of a training batch under which its labels stay true.

What is drawn for a sample is a function of (seed, epoch, index of the sample in the epoch), and the same whichever of
the changes are switched on.
"""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int32, UInt8
from PIL import Image, ImageEnhance

from chunkwise.data.sampling import Purpose, uniform_rows
from chunkwise.errors import ConfigError
from driving.config import AugmentConfig
from driving.data.batch import Batch
from driving.data.episodes import ROUTE_COMMANDS
from driving.data.tables import PAST_S
from driving.data.targets import wrap

MIRROR_VEHICLE = np.diag([1.0, -1.0, 1.0, 1.0]).astype(np.float32)
"""y becomes -y."""
MIRROR_CAMERA = np.diag([-1.0, 1.0, 1.0, 1.0]).astype(np.float32)
"""The camera's x (to the right) becomes -x."""
MID_GREY = 127.5
OFF_AXIS_M, OFF_AXIS = 0.3, 0.1
"""A camera has a side that stands farther from the vehicle's axis, or looks away from it by more (sine of the angle).
Cameras in the middle of real rigs: up to 0.1 m and 0.01."""
CHANGES = ("crop", "colour", "flipped")
"""What a batch says of how its images are to be changed, where the train step does it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """Random numbers of b samples, uniform in [0, 1)."""

    flip: Float64[np.ndarray, " b"]
    stays: Float64[np.ndarray, " b"]
    """Chooses the camera that stays if all are dropped."""
    dropout: Float64[np.ndarray, "b k"]
    crop: Float64[np.ndarray, "b k 3"]
    """How much is left out, and where the rest lies: down, right."""
    colour: Float64[np.ndarray, "b n k 3"]
    """Brightness, contrast, saturation."""


def draw(places: Sequence[tuple[int, int]], *, seed: int, times: int, cameras: int) -> Draws:
    """Numbers for samples at (epoch, index in the epoch).

    Each sample has a counter of its own (Philox, key (seed, epoch)), so any of them can be drawn alone.
    """
    numbers = uniform_rows(Purpose.AUGMENTATION, seed, places, 2 + cameras * (4 + 3 * times))
    b = len(places)
    head, rest = numbers[:, :2], numbers[:, 2:]
    return Draws(
        flip=head[:, 0],
        stays=head[:, 1],
        dropout=rest[:, :cameras],
        crop=rest[:, cameras : 4 * cameras].reshape(b, cameras, 3),
        colour=rest[:, 4 * cameras :].reshape(b, times, cameras, 3),
    )


def mirror_order(cameras: Sequence[str]) -> list[int]:
    """For each camera the position of the one on the other side (left for right, in any case); itself where it has no
    side.

    Raises:
      ConfigError: If a camera's partner is missing.
    """
    sides = {"left": "right", "right": "left"}

    def other(found: re.Match[str]) -> str:
        word, side = found[0], sides[found[0].lower()]
        return side.upper() if word.isupper() else side.capitalize() if word[0].isupper() else side

    def partner(name: str) -> str:
        return re.sub("left|right", other, name, flags=re.IGNORECASE)

    lonely = [name for name in cameras if partner(name) not in cameras]
    if lonely:
        raise ConfigError(
            f"data.augment.flip needs both sides of every camera, and {lonely} lack theirs in data.cameras; expected "
            "both, or --data.augment.flip 0"
        )
    return [list(cameras).index(partner(name)) for name in cameras]


def sideless_note(
    cameras: Sequence[str],
    mirror: Sequence[int],
    row: Int32[np.ndarray, "F k"],
    extrinsics: Float64[np.ndarray, "m 4 4"],
) -> str:
    """Says which cameras are mirrored in their own place though nothing tells where they look; empty: none.

    Args:
      cameras: Names.
      mirror: From `mirror_order`.
      row: Of `extrinsics`, by frame and camera; -1 where unknown.
      extrinsics: Camera to vehicle.

    Raises:
      ConfigError: If one of them has a side by its extrinsics, which its name does not tell.
    """
    alone = [k for k, partner in enumerate(mirror) if partner == k]
    unknown = []
    for k in alone:
        known = extrinsics[np.unique(row[:, k][row[:, k] >= 0])]
        if not len(known):
            unknown.append(cameras[k])
            continue
        place, view = float(np.abs(known[:, 1, 3]).max()), float(np.abs(known[:, 1, 2]).max())
        if place > OFF_AXIS_M or view > OFF_AXIS:
            raise ConfigError(
                f"data.augment.flip exchanges cameras by the words left and right in their names, of which "
                f"{cameras[k]!r} has none; expected a camera on the vehicle's axis, found extrinsics {place:.2g} m off "
                f"it that look {math.degrees(math.asin(min(view, 1.0))):.0f} degrees away from it. Rename the cameras "
                "of both sides in the episodes (as front_left and front_right), or set --data.augment.flip 0"
            )
    if not unknown:
        return ""
    return f"data.augment.flip: {unknown} are taken as without a side (by name; their extrinsics are not known)"


def kept_cameras(draws: Draws, seen: Bool[np.ndarray, "b k"], probability: float) -> Bool[np.ndarray, "b k"]:
    """Cameras that dropout leaves; of those that saw something at the anchor, one always stays."""
    keep = draws.dropout >= probability
    for row in np.flatnonzero(~(keep & seen).any(1) & seen.any(1)):
        there = np.flatnonzero(seen[row])
        keep[row, there[int(draws.stays[row] * len(there))]] = True
    return keep


def augment(
    batch: Batch, draws: Draws, config: AugmentConfig, mirror: Sequence[int], *, pixels: bool = True
) -> dict[str, np.ndarray]:
    """Crops, recolours and mirrors a batch in place; `kept_cameras` comes before its images are read.

    Without `pixels` its images stay as they were read, and the train step changes them (driving/model/images.py).

    Args:
      batch: Owned by the caller.
      draws: For its samples.
      config: What to do.
      mirror: From `mirror_order`; empty if nothing is mirrored.
      pixels: Whether images are changed here.

    Returns:
      What changes the images where they are not changed here, by the names of CHANGES, else nothing: `crop` [b, k, 3],
      the share of height and width that is left out, and which part of that lies before the rest, down and right;
      `colour` [b, n, k, 3], factors of brightness, contrast, saturation; `flipped` [b]. All of the cameras as read.
    """
    flipped = draws.flip < config.flip
    share = draws.crop[..., 0] * config.crop
    strengths = np.array([config.brightness, config.contrast, config.saturation])
    factors = 1 + (2 * draws.colour - 1) * strengths
    if pixels and (config.crop or strengths.any()):
        for b, n, k in np.argwhere(batch["image_valid"]).tolist():
            shown = batch["images"][b, n, k]
            shown[:] = _change(shown, share[b, k], draws.crop[b, k, 1:], factors[b, n, k])
    _crop_intrinsics(batch, share, draws.crop[..., 1:])
    if flipped.any():
        _mirror(batch, np.flatnonzero(flipped), list(mirror), pixels=pixels)
    if pixels:
        return {}
    crop = np.concatenate([share[..., None], draws.crop[..., 1:]], axis=-1).astype(np.float32)
    return {"crop": crop, "colour": factors.astype(np.float32), "flipped": flipped}


def _change(
    pixels: UInt8[np.ndarray, "h w 3"],
    share: float,
    place: Float64[np.ndarray, "2"],
    factors: Float64[np.ndarray, "3"],
) -> UInt8[np.ndarray, "h w 3"]:
    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels)
    if share:
        top, left = place[0] * share * height, place[1] * share * width
        box = (left, top, left + (1 - share) * width, top + (1 - share) * height)
        image = image.resize((width, height), resample=Image.Resampling.BILINEAR, box=box)
    brightness, contrast, saturation = factors.tolist()
    if saturation != 1:
        image = ImageEnhance.Color(image).enhance(saturation)
    if (brightness, contrast) != (1, 1):
        levels = (np.arange(256) * brightness - MID_GREY) * contrast + MID_GREY
        image = image.point(np.clip(np.round(levels), 0, 255).astype(np.uint8).tolist() * 3)
    return np.asarray(image)


def _crop_intrinsics(batch: Batch, share: Float64[np.ndarray, "b k"], place: Float64[np.ndarray, "b k 2"]) -> None:
    """A pixel (u, v) of the image becomes ((u - left) / (1 - share), (v - top) / (1 - share))."""
    height, width = batch["images"].shape[3:5]
    matrix = np.zeros((*share.shape, 3, 3), np.float32)
    matrix[..., 0, 0] = matrix[..., 1, 1] = 1 / (1 - share)
    matrix[..., 0, 2] = -place[..., 1] * share * width / (1 - share)
    matrix[..., 1, 2] = -place[..., 0] * share * height / (1 - share)
    matrix[..., 2, 2] = 1
    changed = batch["calibration_valid"] & (share > 0)[:, None, :]
    batch["intrinsics"][:] = np.where(
        changed[..., None, None], matrix[:, None] @ batch["intrinsics"], batch["intrinsics"]
    )


def _mirror(batch: Batch, rows: np.ndarray, mirror: list[int], *, pixels: bool) -> None:
    """y -> -y in the vehicle frame of some samples."""
    width = batch["images"].shape[4]
    if pixels:
        batch["images"][rows] = batch["images"][rows][:, :, mirror, :, ::-1]
    for key in ("image_valid", "camera_t", "calibration_valid"):
        batch[key][rows] = batch[key][rows][:, :, mirror]
    known = batch["calibration_valid"][rows][..., None, None]
    intrinsics = batch["intrinsics"][rows][:, :, mirror]
    mirrored = intrinsics.copy()  # u' = width - u, and the camera's x' = -x
    mirrored[..., 0, 1] *= -1
    mirrored[..., 0, 2] = width - intrinsics[..., 0, 2]
    batch["intrinsics"][rows] = np.where(known, mirrored, intrinsics)
    extrinsics = batch["extrinsics"][rows][:, :, mirror]
    batch["extrinsics"][rows] = np.where(known, MIRROR_VEHICLE @ extrinsics @ MIRROR_CAMERA, extrinsics)
    batch["yaw_rad"][rows] = wrap(-batch["yaw_rad"][rows])
    batch["yaw_rate_radps"][rows] *= -1
    batch["past_motion"][rows, len(PAST_S) :] *= -1
    batch["waypoints"][rows, :, 1] *= -1
    batch["relative_pose"][rows, :, 1] *= -1
    batch["relative_pose"][rows, :, 2] = wrap(-batch["relative_pose"][rows, :, 2])
    left, right = ROUTE_COMMANDS.index("left"), ROUTE_COMMANDS.index("right")
    command = batch["route_command"][rows]
    batch["route_command"][rows] = np.where(command == left, right, np.where(command == right, left, command))
