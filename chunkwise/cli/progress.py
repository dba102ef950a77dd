"""A progress bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from chunkwise.printable import printable

# A log file of a long run stays readable: at most a line every so many seconds.
SECONDS_BETWEEN_LINES = 10.0

Item = TypeVar("Item")


class Lines:
    """A line every ten seconds about work whose items are counted as they end."""

    def __init__(
        self, total: int, done: str, *, rate: tuple[float, str] | None = None, say: Callable[[str], None] = print
    ) -> None:
        """Starts the clock.

        Args:
          total: How many items.
          done: Begins a line, "recorded {count} of {total} episodes".
          rate: How much an item holds, and of what, for a speed: (1001, "transitions"); None shows none.
          say: Takes the lines.
        """
        self._total, self._done, self._rate, self._say = total, done, rate, say
        self._count = 0
        self._start = self._said = time.monotonic()

    def advance(self, *, silent: bool = False) -> float:
        """Counts an item, and returns how much of `rate` was done a second."""
        self._count += 1
        now = time.monotonic()
        speed = self._count * (self._rate[0] if self._rate else 1) / max(now - self._start, 1e-9)
        if not silent and now - self._said > SECONDS_BETWEEN_LINES:
            fast = f", {speed:.0f} {self._rate[1]} a second" if self._rate else ""
            left = (self._total - self._count) * (now - self._start) / self._count
            self._say(f"{self._done.format(count=self._count, total=self._total)}{fast}, {left:.0f} s left")
            self._said = now
        return speed


def follow(
    items: Iterable[Item],
    total: int,
    doing: str,
    done: str,
    *,
    rate: tuple[float, str] | None,
    say: Callable[[str], None],
) -> Iterator[Item]:
    """The items one by one, with a bar on a terminal and a line every ten seconds elsewhere.

    Args:
      items: What is gone through; time passes while the next one is made, or while the last one is used.
      total: How many.
      doing: Before the bar, "recording".
      done: Of the lines, as are `rate` and `say`.
    """
    with counting(total, doing, done, rate=rate, say=say) as advance:
        for item in items:
            yield item
            advance()


@contextlib.contextmanager
def counting(
    total: int, doing: str, done: str, *, rate: tuple[float, str] | None, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Yields what counts an item that is done, from any thread; shown and described as by `follow`."""
    shown = "{task.fields[speed]:.0f} " + f"{rate[1]}/s" if rate else ""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(shown), TimeRemainingColumn())
    lines, lock = Lines(total, done, rate=rate, say=say), threading.Lock()
    silent = not sys.stdout.isatty()  # rich alone would believe FORCE_COLOR, which notebooks and CI set
    with Progress(*columns, TextColumn("left"), console=Console(), disable=silent) as bar:
        task = bar.add_task("", total=total, speed=0.0)

        def advance() -> None:
            with lock:
                bar.update(task, advance=1, speed=lines.advance(silent=not bar.disable))

        yield advance


@contextlib.contextmanager
def live_table(columns: Sequence[str], rows: Callable[[], Sequence[Sequence[str]]]) -> Iterator[None]:
    """Shows a table below what is printed, anew each second, on a terminal; elsewhere nothing.

    Args:
      columns: Their names.
      rows: Gives the texts of each row; called from another thread.
    """
    if not sys.stdout.isatty():
        yield
        return

    def table() -> Table:
        found = Table(*columns)
        for row in rows():
            found.add_row(*(Text(printable(text)) for text in row))  # no markup: these are names of the user's
        return found

    with Live(get_renderable=table, console=Console(), refresh_per_second=1, vertical_overflow="ellipsis"):
        yield


def duration(seconds: float) -> str:
    """Returns a time in words: 42 s, 7 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def speed_text(rate: float) -> str:
    """Returns a number a second to three digits, and all of those before the point."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


class ProgressLine:
    """Shows steps done, speed, time left, and the newest metrics; use it as a context manager."""

    def __init__(self, start: int, total: int) -> None:
        """Starts at step `start` of `total`."""
        self._start, self._total = start, total
        # First step and its time: before it, the program was compiled. Since it evaluations count, as they will again.
        self._warm: tuple[int, float] | None = None
        self._acting = False
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

    def _speed(self) -> float | None:
        """Updates a second since the first of this phase were done; None while there are these alone."""
        if self._warm is None or self._step == self._warm[0]:
            return None
        step, began = self._warm
        return (self._step - step) / max(time.monotonic() - began, 1e-9)

    def update(self, step: int, *, acting: bool = False) -> None:
        """Moves to `step`; `acting` says whether there are interactions among the updates, another phase."""
        self._step = step
        if self._warm is None or acting != self._acting:
            self._warm = step, time.monotonic()
        self._acting = acting
        if self._bar is not None:
            speed = self._speed()
            shown = "" if speed is None else f"{speed_text(speed)}/s"
            self._bar.update(self._bar_task, completed=step, speed=shown)

    def show(self, metrics: dict[str, float]) -> None:
        """Prints metrics above the bar; without a terminal at most every ten seconds."""
        text = _line(metrics)
        if self._bar is not None:
            self._bar.console.print(f"step {self._step}: {text}", highlight=False)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            speed = self._speed()
            left = "" if not speed else f"{duration((self._total - self._step) / speed)} left"
            parts = [f"step {self._step}/{self._total}", f"{speed_text(speed)}/s" if speed else "", left, text]
            print("  ".join(part for part in parts if part), flush=True)


def _line(metrics: dict[str, float]) -> str:
    """Metrics as one line. Where there are both NAME and several of NAME/<task>, the line has NAME and how many."""
    tasks = {name: [other for other in metrics if other.startswith(f"{name}/")] for name in metrics}
    tasks = {name: others for name, others in tasks.items() if len(others) > 1}
    left_out = {other for others in tasks.values() for other in others}
    counts = {name: f" (each of {len(others)}: metrics.jsonl)" for name, others in tasks.items()}
    shown = {name: value for name, value in metrics.items() if name not in left_out}
    return "  ".join(f"{name} {value:.4g}{counts.get(name, '')}" for name, value in shown.items())
