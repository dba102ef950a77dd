"""Looks at all episodes in the background, while the page already shows the first."""

import itertools
import math
import threading
from typing import Any

from chunkwise.errors import RunError, one_line
from chunkwise.printable import printable
from chunkwise.view.source import EpisodeSummary, Recordings


class Survey:
    """The summaries of all episodes as far as they are known, and which of them changed since the page asked."""

    def __init__(self, recordings: Recordings) -> None:
        """Takes the names; reads nothing yet."""
        self._recordings = recordings
        self._summaries = [EpisodeSummary(name=name) for name in recordings.names]
        # Number of the last change of each episode that has changed, in the order of these numbers.
        self._changed: dict[int, int] = {}
        self._number = 1
        self._done, self._error = False, ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="survey", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def wait(self) -> None:
        """Returns once all episodes were examined."""
        self._thread.join()

    def _run(self) -> None:
        error = ""
        try:
            for episode, summary in self._recordings.examine():
                with self._lock:
                    self._number += 1
                    self._summaries[episode] = summary
                    self._changed.pop(episode, None)
                    self._changed[episode] = self._number
        except RunError as refused:
            error = str(refused)
        except Exception as fault:  # said on the page: a thread that ended in silence would look like one that reads
            error = f"{type(fault).__name__}: {one_line(fault)}"
        with self._lock:
            self._done, self._error = True, error

    def since(self, number: int) -> dict[str, Any]:
        """Returns the episodes that changed after a change of this number; all for 0.

        Returns:
          "episodes": a row each: number, name, task, success, length, total reward, group, advantage, label, problems
          as text and row.
          "number": of the last change, to ask for those after it. "done": all was read. "error": why it was not.
        """
        with self._lock:
            if number:
                newest = itertools.takewhile(lambda one: one[1] > number, reversed(self._changed.items()))
                wanted = [episode for episode, _ in newest]
            else:
                wanted = list(range(len(self._summaries)))
            rows = [_row(episode, self._summaries[episode]) for episode in wanted]
            return {"episodes": rows, "number": self._number, "done": self._done, "error": self._error}

    def summary(self, episode: int) -> EpisodeSummary:
        """What is known of an episode by now."""
        with self._lock:
            return self._summaries[episode]


def _row(episode: int, summary: EpisodeSummary) -> list[Any]:
    return [
        episode,
        printable(summary.name),
        printable(summary.task),
        summary.success,
        summary.length,
        _finite(summary.total_reward),
        printable(summary.group),
        _finite(summary.advantage),
        printable(summary.label),
        [[str(problem), problem.row] for problem in summary.problems],
    ]


def _finite(value: float | None) -> float | None:
    """JSON has no other numbers."""
    return value if value is not None and math.isfinite(value) else None
