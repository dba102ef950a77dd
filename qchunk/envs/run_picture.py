"""One picture of a run: frames of its film above, success in the environment and losses over the updates below.

python -m qchunk.envs.run_picture RUN          # draws RUN/summary.png again
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

FRAMES = 8  # of the film: half of them of rollouts that succeeded, where there are both kinds


def draw(run: Path) -> Path:
    """Draws `<run>/summary.png` from metrics.jsonl and the newest film, and returns its path."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    films = sorted((run / "videos").glob("*.mp4"))
    figure = matplotlib.figure.Figure(figsize=(12, 5.6 if films else 3.6), dpi=100, layout="constrained")
    grid = figure.add_gridspec(2 if films else 1, 2, height_ratios=[1, 2] if films else [1])
    if films:
        strip = figure.add_subplot(grid[0, :])
        strip.imshow(np.concatenate(_frames(films[-1]), axis=1))
        strip.set_axis_off()
        strip.set_title("rollouts of the trained policy: green succeeded, red failed", fontsize=10)
    _draw_success(figure.add_subplot(grid[-1, 0]), [row for row in rows if row["split"] == "eval"])
    _draw_losses(figure.add_subplot(grid[-1, 1]), [row for row in rows if row["split"] == "train"])
    path = run / "summary.png"
    figure.savefig(path)
    return path


def _frames(film: Path) -> list[np.ndarray]:
    """FRAMES images of a film, evenly spaced over the rollouts that succeeded and over those that failed."""
    import av  # loads ffmpeg's libraries, which only a run with a film needs

    with av.open(str(film)) as container:
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    green = [image for image in images if image[0, 0, 1] > image[0, 0, 0]]  # the border tells
    red = [image for image in images if image[0, 0, 1] <= image[0, 0, 0]]
    kinds = [kind for kind in (green, red) if kind]
    return [kind[i] for kind in kinds for i in np.linspace(0, len(kind) - 1, FRAMES // len(kinds)).round().astype(int)]


def _draw_success(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Success rate with its Wilson interval, for each policy that was evaluated."""
    names = sorted({key.removesuffix("/success") for row in rows for key in row if key.endswith("/success")})
    for name, colour in zip(names, ("tab:orange", "tab:blue", "tab:green"), strict=False):
        points = [row for row in rows if f"{name}/success" in row]
        steps = [row["step"] for row in points]
        rate = np.array([row[f"{name}/success"] for row in points])
        low, high = (np.array([row[f"{name}/success_{end}"] for row in points]) for end in ("low", "high"))
        axes.errorbar(steps, rate, yerr=[rate - low, high - rate], color=colour, marker="o", capsize=3, label=name)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title("success rate, 95 % Wilson interval", fontsize=10)
    axes.set_xlabel("updates")
    axes.grid(alpha=0.3)
    if names:
        axes.legend()


def _draw_losses(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Every metric named a loss."""
    for name in sorted({key for row in rows for key in row if key.endswith("loss")}):
        points = [row for row in rows if row.get(name) is not None]
        axes.plot([row["step"] for row in points], [row[name] for row in points], label=name)
    axes.set_yscale("log")
    axes.set_title("losses", fontsize=10)
    axes.set_xlabel("updates")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help") or not (Path(sys.argv[1]) / "metrics.jsonl").exists():
        sys.exit("usage: python -m qchunk.envs.run_picture RUN\n\nDraws RUN/summary.png.")
    print(draw(Path(sys.argv[1])))
