"""The ground of a town as one image seen from above: grass, pavements, asphalt, markings, stop lines."""

import dataclasses

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image, ImageDraw

from driving.sim.roads import JUNCTION_HALF, LANE, SPACING, Road, direction

PIXELS_PER_METRE = 6.0
MARGIN = 90.0
"""Metres of ground around the route."""
_PAVEMENT = 2.4
_LINE = 0.45
"""Width of a painted line, m: three times the usual, so that it survives at 64 x 96 pixels."""
_COARSE = 4
"""Every so many points of a line are drawn: whole pixels make finer polygons ragged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ground:
    """An image of the ground and where it lies: row 0 at the largest y, column 0 at the smallest x."""

    image: UInt8[np.ndarray, "h w 3"]
    low: Float64[np.ndarray, "2"]
    """x and y of the lower left corner, m."""
    high: Float64[np.ndarray, "2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours of one town, each RGB from 0 to 255."""

    grass: tuple[int, int, int]
    pavement: tuple[int, int, int]
    asphalt: tuple[int, int, int]
    line: tuple[int, int, int]
    middle: tuple[int, int, int]
    """Of the line between the two directions."""


def make_palette(rng: np.random.Generator) -> Palette:
    """Colours that vary from town to town, lines always brighter than asphalt by at least 120."""
    grey = int(rng.integers(45, 85))
    stone = int(rng.integers(140, 190))
    green = rng.integers(0, 30, size=3)
    yellow = rng.random() < 0.5
    return Palette(
        grass=(int(70 + green[0]), int(110 + green[1]), int(50 + green[2])),
        pavement=(stone, stone - 6, stone - 14),
        asphalt=(grey, grey, grey + 5),
        line=(240, 240, 240),
        middle=(250, 205, 60) if yellow else (240, 240, 240),
    )


def paint(road: Road, palette: Palette, rng: np.random.Generator) -> Ground:
    """The ground of a town around `road`.

    Layers from below: grass with patches, pavements of all roads, asphalt of all roads, lines. Lines are interrupted
    inside a junction, where the stop lines are.
    """
    low, high = road.points.min(axis=0) - MARGIN, road.points.max(axis=0) + MARGIN
    canvas = _Canvas(low, high, palette.grass)
    for _ in range(int(np.prod(high - low) / 400)):
        shade = rng.integers(-16, 17)
        tone = tuple(int(np.clip(c + shade, 0, 255)) for c in palette.grass)
        canvas.disc(rng.uniform(low, high), rng.uniform(2, 9), tone)
    branches = road.branch_lines
    lines = [road.points, *branches]
    for width, colour in ((2 * LANE + 2 * _PAVEMENT, palette.pavement), (2 * LANE + 0.8, palette.asphalt)):
        for line in lines:
            canvas.stroke(line, width, colour)
        for junction in road.junctions:
            canvas.disc(junction.centre, width / 2 + 3.0, colour)
    for branch in branches:
        outside = branch[round(JUNCTION_HALF / 0.5) :]
        _mark(canvas, outside, palette)
        towards = branch[0] - branch[1]
        _stop_line(canvas, outside[0], float(np.arctan2(towards[1], towards[0])), palette)
    for first, last in _open_stretches(road):
        _mark(canvas, road.points[first:last], palette)
    for junction in road.junctions:
        _stop_line(canvas, road.pose(junction.enter, 0.0)[:2], junction.heading, palette)
        away = road.pose(junction.leave, 0.0)
        _stop_line(canvas, away[:2], away[2] + np.pi, palette)
    return Ground(image=np.asarray(canvas.image), low=low, high=high)


def _open_stretches(road: Road) -> list[tuple[int, int]]:
    """Index ranges of the centre line outside junctions."""
    marks = [0.0] + [end for junction in road.junctions for end in (junction.enter, junction.leave)] + [road.length]
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return [(round(start / SPACING), round(end / SPACING)) for start, end in pairs if end - start > 1]


def _mark(canvas: "_Canvas", line: Float64[np.ndarray, "n 2"], palette: Palette) -> None:
    """Solid lines along both edges, dashes of 3 m between the directions."""
    for offset in (-LANE, LANE):
        canvas.stroke(_shifted(line, offset), _LINE, palette.line)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=-1))])
    for start in np.arange(0.0, along[-1] - 3.0, 6.0):
        dash = line[(along >= start) & (along <= start + 3.0)]
        canvas.stroke(dash, _LINE, palette.middle)


def _stop_line(canvas: "_Canvas", at: Float64[np.ndarray, "2"], heading: float, palette: Palette) -> None:
    """A broad line across the right-hand lane of a road that leads along `heading` up to `at`."""
    right = direction(heading - np.pi / 2)
    canvas.stroke(np.stack([at, at + LANE * right]), 0.7, palette.line)


def _shifted(line: Float64[np.ndarray, "n 2"], offset: float) -> Float64[np.ndarray, "n 2"]:
    """A line moved to its left."""
    tangent = np.gradient(line, axis=0)
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], axis=-1)
    return line + offset * normal / np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)


class _Canvas:
    """An image on which metres are drawn."""

    def __init__(self, low: Float64[np.ndarray, "2"], high: Float64[np.ndarray, "2"], colour: tuple[int, ...]) -> None:
        self.low, self.high = low, high
        width, height = np.ceil((high - low) * PIXELS_PER_METRE).astype(int)
        self.image = Image.new("RGB", (int(width), int(height)), colour)
        self.draw = ImageDraw.Draw(self.image)

    def _pixels(self, line: Float64[np.ndarray, "n 2"]) -> list[tuple[float, float]]:
        columns = (line[:, 0] - self.low[0]) * PIXELS_PER_METRE
        rows = (self.high[1] - line[:, 1]) * PIXELS_PER_METRE
        return list(zip(columns.tolist(), rows.tolist(), strict=True))

    def stroke(self, line: Float64[np.ndarray, "n 2"], width: float, colour: tuple[int, ...]) -> None:
        """A line `width` metres broad; discs close the wedges that Pillow leaves open on the outside of bends."""
        if len(line) < 2:
            return
        line = np.concatenate([line[:-1:_COARSE], line[-1:]])
        self.draw.line(self._pixels(line), fill=colour, width=max(1, round(width * PIXELS_PER_METRE)))
        for point in line[1:-1]:
            self.disc(point, width / 2, colour)

    def disc(self, centre: Float64[np.ndarray, "2"], radius: float, colour: tuple[int, ...]) -> None:
        """A filled circle."""
        ((x, y),) = self._pixels(centre[None])
        r = radius * PIXELS_PER_METRE
        self.draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)
