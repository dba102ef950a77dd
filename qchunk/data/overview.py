"""One figure of a dataset: what the cameras of some episodes show, and histograms of length, return and action."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from chunkwise.data.episodes import EpisodeSource
from chunkwise.data.images import resize_into
from chunkwise.errors import DataError
from chunkwise.files.identity import Files
from chunkwise.reports.figures import new_figure
from qchunk.config import DataConfig
from qchunk.data.index import make_source
from qchunk.data.readers.aloha import AlohaSource
from qchunk.data.selection import Selection

SHOWN = 6
"""Episodes whose images are drawn, half of them of each label where there are both."""
READ = 50
"""Episodes whose actions are read, evenly spaced over the dataset."""
BINS = 60
_THUMBNAIL = 96  # height in pixels
_GAP = 4
_COLOURS = {True: "tab:green", False: "tab:red"}
_WORDS = {True: "positive", False: "negative"}


def draw(selection: Selection, data: DataConfig, files: Files, file: Path) -> None:
    """Draws the good episodes of a dataset into a PNG.

    Args:
      selection: Of the dataset.
      data: Where it is.
      files: Of the dataset, as they were indexed.
      file: To write.

    Raises:
      DataError: There is no good episode, or one changed meanwhile.
    """
    if not selection.reports:
        raise DataError(f"{data.path}: no good episode to draw")
    source = make_source(selection, data, files)
    sheet = _sheet(source, selection) if isinstance(source, AlohaSource) else None
    width = 12.0
    height = 0.0 if sheet is None else (width - 1.2) * sheet[0].shape[0] / sheet[0].shape[1] + 0.5
    figure = new_figure(figsize=(width, 3.4 + height), dpi=110)
    if sheet is None:
        grid = figure.add_gridspec(1, 3)
    else:
        grid = figure.add_gridspec(2, 3, height_ratios=[height, 3.4])
        _draw_sheet(figure.add_subplot(grid[0, :]), *sheet)
    _draw_lengths(figure.add_subplot(grid[-1, 0]), selection)
    _draw_returns(figure.add_subplot(grid[-1, 1]), selection)
    _draw_actions(figure, figure.add_subplot(grid[-1, 2]), source)
    figure.savefig(file)


def _chosen(selection: Selection) -> list[int]:
    """Episodes to show, evenly spaced within each label."""
    labels = [np.flatnonzero(selection.positives == label) for label in (True, False)]
    kinds = [members for members in labels if len(members)]
    chosen = []
    for members in kinds:
        count = min(SHOWN // len(kinds), len(members))
        chosen += members[np.linspace(0, len(members) - 1, count).round().astype(int)].tolist()
    return chosen


def _sheet(source: AlohaSource, selection: Selection) -> tuple[UInt8[np.ndarray, "h w 3"], list[str], list[str]] | None:
    """First, middle and last frame of each camera, a row an episode; None without cameras. With the labels of both."""
    chosen = _chosen(selection)
    names = sorted({name for i in chosen for name in source.images_of[i]})
    if not names:
        return None
    rows, labels = [], []
    for i in chosen:
        length, label = int(source.lengths[i]), _WORDS[bool(selection.positives[i])]
        labels.append(f"{source.ids[i]}\n{label}, {length} frames")
        with source.images(i) as file:
            rows.append(
                [
                    [_thumbnail(file.image(name, frame)) for frame in (0, length // 2, length - 1)]
                    if name in source.images_of[i]
                    else None
                    for name in names
                ]
            )
    widths = [max(row[k][0].shape[1] for row in rows if row[k]) for k in range(len(names))]
    lines = [
        np.concatenate([_line(row[k], widths[k]) for k in range(len(names))], axis=1)[:, : -2 * _GAP] for row in rows
    ]
    return np.concatenate(lines)[:-_GAP], labels, [name.removeprefix("/observations/") for name in names]


def _line(thumbnails: list[np.ndarray] | None, width: int) -> UInt8[np.ndarray, "h w 3"]:
    """Three thumbnails of one camera beside one another, with white gaps."""
    line = np.full((_THUMBNAIL + _GAP, 3 * (width + _GAP) + _GAP, 3), 255, np.uint8)
    for i, thumbnail in enumerate(thumbnails or []):
        left = i * (width + _GAP)
        line[:_THUMBNAIL, left : left + thumbnail.shape[1]] = thumbnail
    return line


def _thumbnail(image: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    """At a common height; depth from black (near) to white, by its 1 % and 99 %."""
    if image.ndim == 2:
        low, high = np.percentile(image.astype(np.float64), (1, 99))
        gray = np.clip((image - low) / max(high - low, 1e-9), 0, 1) * 255
        image = np.repeat(gray.astype(np.uint8)[..., None], 3, axis=2)
    height, width = image.shape[:2]
    out = np.empty((_THUMBNAIL, max(1, round(width * _THUMBNAIL / height)), 3), np.uint8)
    resize_into(image, out)
    return out


def _draw_sheet(axes: Any, sheet: UInt8[np.ndarray, "h w 3"], labels: list[str], names: list[str]) -> None:
    axes.imshow(sheet, aspect="equal", interpolation="none")
    pitch = _THUMBNAIL + _GAP
    axes.set_yticks([pitch * i + _THUMBNAIL / 2 for i in range(len(labels))], labels, fontsize=7)
    wide = sheet.shape[1] / len(names)
    ticks = [wide * (k + 0.5) for k in range(len(names))]
    axes.set_xticks(ticks, [f"{name}: first, middle, last" for name in names], fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_lengths(axes: Any, selection: Selection) -> None:
    lengths = np.array([report.length for report in selection.reports])
    _by_label(axes, lengths, selection.positives)
    axes.set_title("length", fontsize=10)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("frames")
    axes.set_ylabel("episodes")


def _draw_returns(axes: Any, selection: Selection) -> None:
    rewarded = np.array([report.total_reward is not None for report in selection.reports])
    axes.set_title("return (sum of the rewards in the file)", fontsize=10)
    if not rewarded.any():
        axes.text(0.5, 0.5, "no file has a reward", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    returns = np.array([report.total_reward for report in selection.reports if report.total_reward is not None])
    _by_label(axes, returns, selection.positives[rewarded])
    axes.set_xlabel("return")
    axes.set_ylabel("episodes")


def _by_label(axes: Any, values: np.ndarray, positives: np.ndarray) -> None:
    """One stacked histogram, green and red."""
    labels = [label for label in (True, False) if (positives == label).any()]
    axes.hist(
        [values[positives == label] for label in labels],
        bins=min(30, max(len(np.unique(values)), 5)),
        stacked=True,
        color=[_COLOURS[label] for label in labels],
        label=[f"{int((positives == label).sum())} {_WORDS[label]}" for label in labels],
    )
    axes.legend(fontsize=8)


def _draw_actions(figure: Any, axes: Any, source: EpisodeSource) -> None:
    """Share of frames by value, one line of colour a dimension."""
    read = np.unique(np.linspace(0, len(source) - 1, min(READ, len(source))).round().astype(int))
    actions = np.concatenate([source.load(int(i)).action for i in read])
    low, high = float(actions.min()), float(actions.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts = np.stack([np.histogram(column, edges)[0] for column in actions.T]) / len(actions)
    shown = axes.imshow(
        counts,
        aspect="auto",
        interpolation="none",
        extent=(edges[0], edges[-1], len(counts) - 0.5, -0.5),
        cmap="viridis",
    )
    figure.colorbar(shown, ax=axes, label="share of frames")
    axes.set_title(f"action, {len(actions):,} frames of {len(read)} episode(s)", fontsize=10)
    axes.set_xlabel("value")
    axes.set_ylabel("dimension")
