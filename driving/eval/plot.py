"""One figure of a waypoint model: what the cameras saw, where it would go, where it went, and the same from above."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from chunkwise.reports.figures import new_figure
from driving.data.batches import DrivingData
from driving.eval.baselines import EgoStates

TRUTH, MODEL, BLIND = "#31d843", "#ff7f0e", "#7f9fff"
WIDTHS = {TRUTH: 4.0, MODEL: 1.0, BLIND: 1.0}
"""The truth lies under the others, and is seen where they cover it."""
NEAREST = 0.5
"""Points closer to a camera than this along its view, m, are not drawn."""


def draw(
    path: Path,
    data: DrivingData,
    states: EgoStates,
    predicted: Float[np.ndarray, "b t 2"],
    blind: Float[np.ndarray, "b t 2"],
    count: int,
) -> bool:
    """Draws `count` moments: the sharpest bends and the hardest change of speed of the held-out drives.

    Args:
      path: PNG to write.
      data: Of the drives.
      states: The samples that were predicted.
      predicted: Waypoints of the model.
      blind: Waypoints of the blind MLP.
      count: Moments, a row each.

    Returns:
      Whether there was a moment to draw.
    """
    chosen = moments(states, count, data.config.waypoint_dt_s)
    if not len(chosen):
        return False
    figure = new_figure(figsize=(15, 2.1 * len(chosen) + 0.5), dpi=80)
    batch = data.batch(states.rows[chosen])
    horizon_s = data.config.waypoint_steps * data.config.waypoint_dt_s
    anchor = data.config.anchor
    order = _left_to_right(batch["extrinsics"][:, anchor], batch["calibration_valid"][:, anchor])
    grid = figure.add_gridspec(len(chosen), len(order) + 1, width_ratios=[1.5] * len(order) + [1.1])
    for i, sample in enumerate(chosen.tolist()):
        paths = {TRUTH: states.waypoints[sample][states.valid[sample]], MODEL: predicted[sample], BLIND: blind[sample]}
        for j, k in enumerate(order):
            axes = figure.add_subplot(grid[i, j])
            _draw_camera(axes, batch, (i, anchor, k), paths)
            if i == 0:
                axes.set_title(data.config.cameras[k].replace("_", " "), fontsize=10)
        speed = f"now {states.motion[sample, 0]:.1f} m/s" if states.known[sample, 0] else "speed not known"
        _draw_above(figure.add_subplot(grid[i, len(order)]), paths, speed)
    figure.suptitle(
        f"green: driven in the next {horizon_s:g} s, orange: predicted by this run, blue: from the car's own motion",
        fontsize=11,
    )
    figure.savefig(path)
    return True


def moments(states: EgoStates, count: int, dt_s: float) -> Int64[np.ndarray, " m"]:
    """Samples: sharpest to the left, sharpest to the right, strongest braking, strongest speeding up, and so on.

    Only those whose future is known as far as that of any; dt_s is between two waypoints. A speed that is not known is
    that up to the first of them.
    """
    steps = int(states.valid.sum(axis=1).max(initial=0))
    end, whole = states.waypoints[:, steps - 1], states.valid[:, :steps].all(axis=1) & (steps > 0)
    speed = np.where(states.known[:, 0], states.motion[:, 0], states.waypoints[:, 0, 0] / np.float32(dt_s))
    ahead = speed * np.float32(steps * dt_s)
    kinds = [end[:, 1], -end[:, 1], ahead - end[:, 0] - np.abs(end[:, 1]), end[:, 0] - ahead]
    chosen: list[int] = []
    while len(chosen) < min(count, int(whole.sum())):
        value = np.where(whole, kinds[len(chosen) % len(kinds)], -np.inf)
        # A drive is shown once as long as there are others: its moments resemble each other.
        used = np.isin(states.drive, states.drive[chosen])
        value[chosen] = -np.inf
        value = np.where(used, -np.inf, value) if (whole & ~used).any() else value
        chosen.append(int(value.argmax()))
    return np.array(chosen, np.int64)


def _left_to_right(extrinsics: Float32[np.ndarray, "b k 4 4"], known: Bool[np.ndarray, "b k"]) -> list[int]:
    """Cameras from left to right, as each looks where it is first calibrated; those that never are come last."""
    first = extrinsics[known.argmax(axis=0), np.arange(known.shape[1])]
    angle = -np.arctan2(first[:, 1, 2], first[:, 0, 2])
    return np.argsort(np.where(known.any(axis=0), angle, np.inf), kind="stable").tolist()


def project(
    points: Float[np.ndarray, "t 2"], intrinsics: Float[np.ndarray, "3 3"], extrinsics: Float[np.ndarray, "4 4"]
) -> Float[np.ndarray, "t 2"]:
    """Pixels of points on the ground given in the vehicle frame; NaN for those behind the camera."""
    ground = np.concatenate([points, np.zeros((len(points), 1)), np.ones((len(points), 1))], axis=1)
    seen = ground @ np.linalg.inv(extrinsics.astype(np.float64)).T
    depth = np.where(seen[:, 2] > NEAREST, seen[:, 2], np.nan)
    return (seen[:, :3] / depth[:, None] @ intrinsics.T.astype(np.float64))[:, :2]


def _draw_camera(axes: Any, batch: Any, where: tuple[int, int, int], paths: dict[str, np.ndarray]) -> None:
    axes.set_axis_off()
    image = batch["images"][where]
    height, width = image.shape[:2]
    axes.imshow(image, extent=(0, width, height, 0), interpolation="nearest")
    if not batch["image_valid"][where]:
        axes.text(width / 2, height / 2, "no image", color="white", ha="center", va="center")
    elif batch["calibration_valid"][where]:
        for colour, points in paths.items():
            pixels = project(points, batch["intrinsics"][where], batch["extrinsics"][where])
            axes.plot(pixels[:, 0], pixels[:, 1], ".-", color=colour, markersize=4, linewidth=WIDTHS[colour])
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def _draw_above(axes: Any, paths: dict[str, np.ndarray], speed: str) -> None:
    for colour, points in paths.items():
        line = np.concatenate([np.zeros((1, 2)), points])
        axes.plot(line[:, 1], line[:, 0], ".-", color=colour, markersize=4, linewidth=WIDTHS[colour])
    axes.plot([0], [0], "^k", markersize=7)
    shown = np.concatenate(list(paths.values()))
    ahead, aside = max(6.0, float(shown[:, 0].max())), float(np.abs(shown[:, 1]).max())
    half = max(0.6 * ahead, 1.1 * aside)
    axes.set_xlim(half, -half)
    axes.set_ylim(min(-0.1 * ahead, 1.1 * float(shown[:, 0].min())), 1.1 * ahead)
    axes.set_aspect("equal")
    axes.tick_params(labelsize=7)
    axes.set_title(f"from above, m; {speed}", fontsize=8)
