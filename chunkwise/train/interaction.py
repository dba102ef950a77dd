"""The part of a run that meets a world between updates, and how several processes take part in it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from chunkwise.distributed import processes
from chunkwise.state import TrainState

Metrics = Mapping[str, Sequence[float]]


@runtime_checkable
class Interaction(Protocol):
    """The part of a task that meets a world between updates: steps of an environment, rounds of rollouts.

    It keeps what it brings home in the run folder, and hands it to the task's `batches`, which the loop asks for the
    next batch only afterwards. Of several processes the first acts, with step and weights alone, on its first device;
    the others `rewind` to its position. Both must be functions of seed, step and weights alone; then a run that was
    killed ends as one that was not, and nothing depends on the number of updates in a call.
    """

    @property
    def start(self) -> int:
        """First update before which `interact` is called."""
        ...

    @property
    def every(self) -> int:
        """Updates between two calls, at least 1."""
        ...

    @property
    def averaged(self) -> bool:
        """Whether it acts with the moving average of the weights where one is kept, and not with those that train."""
        ...

    def interact(self, state: TrainState, step: int, stopping: Callable[[], bool]) -> Metrics | None:
        """Acts with the weights that `step` updates made; the loop saves before, never in between.

        Args:
          state: Not yet donated to the next update.
          step: Updates behind it; start, start + every, ...
          stopping: True once a request to stop has come. Ask it at least every second or two, and return None or raise
            StopRequested: what was begun is dropped, as if `interact` had not been called. What `position` returns
            changes in one assignment, the last thing of all: the run may be saved by another thread meanwhile.

        Returns:
          Values for the next line of metrics.jsonl by name, each counted once in its mean; None if it was broken off.
        """
        ...

    def position(self) -> dict[str, Any]:
        """JSON values from which `rewind` finds back to the end of the last `interact` that was not broken off.

        When it returns, everything that it refers to is forced to disk.
        """
        ...

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Goes back to a position, and drops whatever came later; None: everything. Called first of all, and on all
        but the first of several processes, where nothing may be written, after each `interact`.

        Raises:
          DataError: What the position refers to is missing or damaged.
        """
        ...


def interact(
    interaction: Interaction,
    state: TrainState,
    step: int,
    stopping: Callable[[], bool],
    unless_stopped: Callable[[Callable[[], Metrics | None]], Metrics | None],
) -> Metrics | None:
    """Calls `interact` of the first process; the others wait, and then read what it brought home.

    Args:
      interaction: Of this process.
      state: Needed on the first process alone.
      step: As in `Interaction.interact`.
      stopping: As there; the first process asks its own.
      unless_stopped: Calls what it is given, and returns None where that raises StopRequested; ends the run in its
        place where it is in a simulator's step that does not end, and so does not ask.

    Returns:
      The metrics, on every process; None if it was broken off.
    """
    if not processes.is_multiprocess():
        return unless_stopped(lambda: interaction.interact(state, step, stopping))

    def act() -> dict[str, Any] | None:
        metrics = unless_stopped(lambda: interaction.interact(state, step, stopping))
        return None if metrics is None else {"metrics": dict(metrics), "position": interaction.position()}

    found = processes.broadcast_one_to_all(act)
    if found is None:
        return None
    if not processes.is_primary():
        interaction.rewind(found["position"])
    return found["metrics"]
