"""One figure of a run: frames of its video above, success in the environment and losses over the updates below.

python -m qchunk.envs.run_summary RUN          # draws RUN/summary.png again
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.cli import command
from chunkwise.errors import ConfigError
from chunkwise.reports.figures import new_figure
from chunkwise.reports.run_record import rows_of

FRAMES = 4  # of the video, from its first to its last
BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": 8, "borderaxespad": 0.2}
"""Where a legend lies: to the right of the curves, of which it hides none."""


def draw(run: Path) -> Path:
    """Draws `<run>/summary.png` from metrics.jsonl and the newest video, and returns its path."""
    rows = rows_of(run)
    videos = videos_of(run)
    figure = new_figure(figsize=(13, 5.6 if videos else 3.6), dpi=100)
    grid = figure.add_gridspec(2 if videos else 1, 2, height_ratios=[1, 2] if videos else [1])
    if videos:
        strip = figure.add_subplot(grid[0, :])
        strip.imshow(np.concatenate(_frames(videos[-1]), axis=1))
        strip.set_axis_off()
        strip.set_title("rollouts of the trained policy: green succeeded, red failed", fontsize=10)
    evaluations = [row for row in rows if row["split"] == "eval"]
    draw_evaluations = _draw_success if any("policy/success" in row for row in evaluations) else _draw_errors
    draw_evaluations(figure.add_subplot(grid[-1, 0]), evaluations)
    _draw_losses(figure.add_subplot(grid[-1, 1]), [row for row in rows if row["split"] == "train"])
    path = run / "summary.png"
    figure.savefig(path)
    return path


def videos_of(run: Path) -> list[Path]:
    """Returns a run's videos, `videos/step_<n>.mp4`, by their step."""
    return sorted((run / "videos").glob("step_*.mp4"), key=lambda video: int(video.stem.removeprefix("step_")))


def _frames(video: Path) -> list[np.ndarray]:
    """FRAMES frames of a video, evenly spaced."""
    import av  # loads ffmpeg's libraries, which only a run with a video needs

    with av.open(str(video)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [frames[i] for i in np.linspace(0, len(frames) - 1, FRAMES).round().astype(int)]


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
        axes.legend(**BESIDE)


def _draw_errors(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Mean error of an action on the episodes held out, for each policy."""
    for name in sorted({key for row in rows for key in row if re.fullmatch("holdout/[^/]*/error", key)}):
        points = [row for row in rows if name in row]
        label = name.split("/")[1].replace("_", " ")
        axes.plot([row["step"] for row in points], [row[name] for row in points], marker="o", label=label)
    axes.set_title("error of an action on episodes held out, in recorded units", fontsize=10)
    axes.set_xlabel("updates")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(**BESIDE)


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
        axes.legend(**BESIDE)


def main() -> None:
    """Command line."""
    parser = command.Parser(prog="python -m qchunk.envs.run_summary", description="Draws RUN/summary.png.")
    parser.add_argument("run", metavar="RUN", type=Path)
    run = parser.parse_args().run
    if not (run / "metrics.jsonl").is_file():
        raise ConfigError(f"{run}: expected the folder of a run, with its metrics.jsonl, found none")
    print(draw(run))


if __name__ == "__main__":
    command.run(main)
