"""Where the wall-clock time of a run went."""

import dataclasses
import time
from typing import Any

import jax


@dataclasses.dataclass
class Clock:
    """Seconds spent, by purpose."""

    step: float = 0.0
    """Updates: dispatching them and waiting for the device. The productive part."""
    data: float = 0.0
    """Waiting for batches."""
    interact: float = 0.0
    evaluate: float = 0.0
    save: float = 0.0
    """What saves kept the loop from doing; they are written in the background."""
    compile: float = 0.0
    start: float = 0.0
    """Making or restoring the state."""

    def charge(self, purpose: str, since: float) -> None:
        """Adds the time since `since` (of time.perf_counter) to a purpose."""
        setattr(self, purpose, getattr(self, purpose) + time.perf_counter() - since)

    def after(self, calls: Any) -> float:
        """Waits for updates under way, which is their time; returns when that was, for what comes next.

        An evaluation or an interaction would wait for their weights, and be charged for it.

        Args:
          calls: What they return, a tree of arrays.
        """
        began = time.perf_counter()
        jax.block_until_ready(calls)
        self.charge("step", began)
        return time.perf_counter()

    def summary(self, wall: float) -> str:
        """Goodput, the productive share of `wall` seconds, and where the rest went."""
        spent = dataclasses.asdict(self)
        other = wall - sum(spent.values())
        rest = ", ".join(f"{name} {value:.1f} s" for name, value in (spent | {"other": other}).items() if value >= 0.05)
        return f"goodput {self.step / wall:.0%} of {wall:.0f} s: {rest}"
