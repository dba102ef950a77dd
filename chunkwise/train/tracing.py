"""A trace of some updates: what host and devices did when, as xprof and TensorBoard open it (run.profile).

    pip install xprof && xprof server --logdir RUN/profile

Each call of the compiled update is a step of the trace by the name `update`, numbered as the run numbers it.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from chunkwise.distributed import processes

FOLDER = "profile"
"""In the folder of a run; each start that traces adds a folder below plugins/profile in it."""
WARM_UP = 2
"""Calls of a compiled update that are not traced: memory is still being fetched in them."""


class Tracing:
    """Traces the updates of a run once, after the first calls; does nothing where none are asked for."""

    def __init__(self, folder: Path, updates: int) -> None:
        """Starts nothing yet.

        Args:
          folder: Of the run.
          updates: How many are traced at least, in whole calls; 0: none. Of several processes the first one traces.
        """
        self._folder = folder / FOLDER
        self._left = updates if processes.is_primary() else 0
        self._calls = 0
        self._on = False

    @contextlib.contextmanager
    def call(self, step: int, updates: int, state: Callable[[], Any]) -> Iterator[None]:
        """Surrounds a call of the update; begins the trace before it and ends it after it where that is due.

        Args:
          step: Of the call's first update.
          updates: That the call makes.
          state: Returns that of the run, which is there once all calls so far are done.
        """
        self._calls += 1
        if self._left <= 0 or self._calls <= WARM_UP + 1:  # one more: it compiles
            yield
            return
        if not self._on:
            jax.block_until_ready(state())  # or the calls under way would be in the trace without their beginning
            self._on = self._tried(self._start)
        with jax.profiler.StepTraceAnnotation("update", step_num=step):
            yield
        self._left -= updates
        if self._left <= 0:
            jax.block_until_ready(state())
            self.stop()

    def stop(self) -> None:
        """Writes the trace, if one is under way, and says where it is, or that there is none."""
        if self._on and self._tried(jax.profiler.stop_trace):
            print(f"trace of updates: {self._folder}", flush=True)
        elif self._left > 0:
            print(
                f"run.profile: no update was traced, since a trace begins after {WARM_UP + 1} calls of the update and "
                "the run ended before that",
                flush=True,
            )
        self._on, self._left = False, 0

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each Python function would be an event, and slow what is measured
        jax.profiler.start_trace(self._folder, profiler_options=options)

    def _tried(self, work: Callable[[], None]) -> bool:
        """Whether it could be done; if not, says so, since the run is worth more than its trace."""
        try:
            work()
        except (RuntimeError, OSError) as error:  # another trace is under way; the disk is full
            print(f"run.profile: no trace: {' '.join(str(error).split())[:300]}", flush=True)
            self._left = 0
            return False
        return True
