"""A progress bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# A log file of a long run stays readable: at most a line every so many seconds.
SECONDS_BETWEEN_LINES = 10.0


class ProgressLine:
    """Shows steps done, speed, time left, and the newest metrics; use it as a context manager."""

    def __init__(self, start: int, total: int) -> None:
        """Starts at step `start` of `total`."""
        self._start, self._total = start, total
        self._began = time.monotonic()
        self._last_line = 0.0
        self._step = start
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, TextColumn("{task.fields[speed]}"), console=Console())
            self._bar_task = self._bar.add_task("updates", total=total, completed=start, speed="")

    def __enter__(self) -> "ProgressLine":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._bar is not None:
            self._bar.stop()

    def _speed(self) -> float:
        """Updates per second since the start."""
        return (self._step - self._start) / max(time.monotonic() - self._began, 1e-9)

    def update(self, step: int) -> None:
        """Moves to `step`."""
        self._step = step
        if self._bar is not None:
            self._bar.update(self._bar_task, completed=step, speed=f"{self._speed():.0f}/s")

    def show(self, metrics: dict[str, float]) -> None:
        """Prints metrics above the bar; without a terminal at most every ten seconds."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        if self._bar is not None:
            self._bar.console.print(f"step {self._step}: {text}", highlight=False)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = (self._total - self._step) / max(self._speed(), 1e-9)
            print(f"step {self._step}/{self._total}  {self._speed():.0f}/s  {left:.0f} s left  {text}", flush=True)
