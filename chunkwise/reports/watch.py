"""A run, live in a notebook: how far it is, its newest results and curves, what it warned of.

    watching = chunkwise.watch("runs/first")     # returns at once; the cell's output follows the run until it is done
    watching.stop()                              # or watching.wait()

What is shown is markup without scripts, from what the run's folder says; the folder may not be there yet. In a terminal
`chunkwise report RUN --watch` does the same for a browser.
"""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkwise.cli.progress import duration, speed_text
from chunkwise.errors import ConfigError, RunError, one_line
from chunkwise.files.trouble import SYSTEM
from chunkwise.reports import results
from chunkwise.reports.markup import table, text
from chunkwise.reports.page import curves
from chunkwise.reports.run_record import CONFIG, RunRecord, read_run, starts_of

MOST_CHARTS = 6
MOST_COLUMNS = 4
"""Of the results; report.html has all."""
MOST_WARNINGS = 3
QUIET_S = 60
"""Seconds without a line in metrics.jsonl or timing.jsonl after which that is said."""
ROWS_OF_SPEED = 20
"""Lines of timing.jsonl, the newest, over which the speed is taken."""
WIDTH, HEIGHT, EDGE = 260, 90, 4
COLOURS = ("#d1741f", "#2f6db3", "#3d9357", "#b0444b", "#7b5ea7")


def watch(run: str | Path, *, seconds: float = 5.0) -> "Watch":
    """Shows a run below the cell, again and again until it is done; returns at once.

    Args:
      run: Folder of a run; while there is none yet, that is said.
      seconds: Between two looks, above 0.

    Raises:
      ConfigError: This is no notebook.
      ValueError: If seconds is not above 0.
    """
    if seconds <= 0:
        raise ValueError(f"seconds is {seconds}; expected a number above 0")
    try:
        from IPython.core.getipython import get_ipython  # pyright: ignore[reportMissingImports]
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if shell is None:
        raise ConfigError(f"chunkwise.watch shows a run in a notebook; elsewhere: chunkwise report {run} --watch")
    return Watch(Path(run), seconds)


class Watch:
    """What follows a run; made by `watch`."""

    def __init__(self, run: Path, seconds: float) -> None:
        """Shows the run once, and begins to follow it."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._run, self._seconds = run, seconds
        self._ended = threading.Event()
        self._looking = threading.Lock()
        self._shown, over = shown(run)
        self._display = display(self._shown, raw=True, display_id=True)
        self._thread = threading.Thread(target=self._follow, name=f"watch {run}", daemon=True)
        if over:
            self._ended.set()
        else:
            self._thread.start()

    def stop(self) -> None:
        """Leaves the output as it is."""
        self._ended.set()

    def wait(self) -> None:
        """Returns when the run is done, or has been interrupted, which leaves the run alone."""
        try:
            while not self._ended.wait(self._seconds):
                self._look()
        finally:
            self.stop()

    def _follow(self) -> None:
        while not self._ended.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        with self._looking:
            if self._ended.is_set():
                return
            now, over = shown(self._run)
            if now != self._shown:
                self._shown = now
                self._display.update(now, raw=True)
            if over:
                self._ended.set()

    def _ipython_display_(self) -> None:
        """Shows nothing more where the cell ends with it."""


def shown(run: Path) -> tuple[dict[str, str], bool]:
    """Returns a run as it is now, by the kind of text, and whether it is done; trouble with its folder as a line."""
    if not (run / CONFIG).exists():
        return _line(f"{run}: no run yet"), False
    try:
        record = read_run(run)
        files = (run / "metrics.jsonl", run / "timing.jsonl")
        written = max((file.stat().st_mtime for file in files if file.exists()), default=None)
    except (RunError, *SYSTEM) as error:
        return _line(one_line(error)), False
    quiet = 0.0 if written is None else time.time() - written
    return live(record, quiet_s=quiet), record.done is not None


def _line(said: str) -> dict[str, str]:
    return {"text/plain": said, "text/html": f"<p>{text(said)}</p>"}


def live(record: RunRecord, *, quiet_s: float = 0.0) -> dict[str, str]:
    """Returns a run as plain text and as HTML without scripts, by their media types.

    Args:
      record: The run.
      quiet_s: Seconds since it last wrote a line.
    """
    name = record.path.resolve().name
    done = record.done is not None
    share = 1.0 if done else min(record.step / max(record.steps, 1), 1.0)
    parts = [f"step {record.step:,} of {record.steps:,}"]
    speed = updates_per_second(record.timing)
    if done:
        parts.append("done")
    elif speed:
        parts += [f"{speed_text(speed)} updates a second", f"{duration((record.steps - record.step) / speed)} left"]
    if not done and quiet_s > QUIET_S:
        parts.append(f"no news for {duration(quiet_s)}")
    said = ", ".join(parts)
    rows = results.rows_of_results({name: record})
    lines = [line[1:] for line in results.texts(rows, results.columns_of(rows)[:MOST_COLUMNS])] if rows else []
    warnings = record.warnings[-MOST_WARNINGS:]
    plain = [f"{name}: {said}", *([results.plain(lines)] if lines else []), *warnings]
    bar = f'<div style="width:{100 * share:.1f}%;height:100%;background:#3d9357"></div>'
    head, *body = [[text(cell) for cell in line] for line in lines] or [[]]
    charts = "".join(_chart(chart) for chart in curves({name: record})["charts"][:MOST_CHARTS])
    told = "".join(f'<div style="color:#b0444b">{text(line)}</div>' for line in warnings)
    html = (
        f"<div><b>{text(name)}</b> {text(said)}"
        f'<div style="height:6px;max-width:540px;background:#8884;margin:4px 0 8px">{bar}</div>'
        f"{table(head, body) if head else ''}"
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{charts}</div>{told}</div>'
    )
    return {"text/plain": "\n".join(plain), "text/html": html}


def updates_per_second(timing: list[dict[str, Any]]) -> float | None:
    """Returns the speed over the newest lines of timing.jsonl that one start wrote; None where they do not say."""
    newest = [row for rows in starts_of(timing[-ROWS_OF_SPEED:])[-1:] for row in rows]
    if len(newest) < 2:
        return None
    steps, seconds = newest[-1].get("step", 0) - newest[0].get("step", 0), _wall(newest[-1]) - _wall(newest[0])
    return steps / seconds if steps > 0 and seconds > 0 else None


def _wall(row: Mapping[str, Any]) -> float:
    return float(row["seconds"].get("wall", 0.0))


def _chart(chart: Mapping[str, Any]) -> str:
    """A small drawing of one metric: a line for each series, with what it came to."""
    series = chart["series"]
    values = [v for one in series for v in (*one["y"], *one.get("low", ()), *one.get("high", ())) if v is not None]
    low, high = (0.0, 1.0) if chart["name"] == "success" else (min(values), max(values))
    if low == high:
        low, high = low - 0.5, high + 0.5
    first = min(one["x"][0] for one in series)
    across = (WIDTH - 2 * EDGE) / max(max(one["x"][-1] for one in series) - first, 1)
    upward = (HEIGHT - 2 * EDGE) / (high - low)

    def points(steps: list[int], heights: list[float]) -> str:
        pairs = zip(steps, heights, strict=True)
        return " ".join(f"{EDGE + (x - first) * across:.1f},{HEIGHT - EDGE - (y - low) * upward:.1f}" for x, y in pairs)

    drawn, said = [], []
    for k, one in enumerate(series):
        colour = COLOURS[k % len(COLOURS)]
        if "low" in one:
            there = [i for i, bound in enumerate(one["low"]) if bound is not None and one["high"][i] is not None]
            order = [*there, *reversed(there)]
            bounds = [one["high"][i] for i in there] + [one["low"][i] for i in reversed(there)]
            area = points([one["x"][i] for i in order], bounds)
            drawn.append(f'<polygon points="{area}" fill="{colour}" opacity="0.15"/>')
        line = points(one["x"], one["y"])
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, _, y = line.rpartition(" ")[2].partition(",")
        drawn.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>')  # all that is seen of a single point
        label = f"{one['key']} " if len(series) > 1 else ""
        said.append(f'<span style="color:{colour}">{text(label)}{one["y"][-1]:.4g}</span>')
    title = f"<small>{text(chart['name'])} {' '.join(said)}</small>"
    size = f'width="{WIDTH}" height="{HEIGHT}" style="border:1px solid #8884"'
    return f'<div style="width:{WIDTH + 2}px">{title}<br><svg {size}>{"".join(drawn)}</svg></div>'
