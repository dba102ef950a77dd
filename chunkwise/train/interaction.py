"""The parts of a run that meet a world, between updates and in evaluations, and how several processes take part."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from chunkwise import errors
from chunkwise.distributed import host, processes
from chunkwise.errors import RunError
from chunkwise.state import TrainState

T = TypeVar("T")
Metrics = Mapping[str, Sequence[float]]


@runtime_checkable
class Interaction(Protocol):
    """The part of a task that meets a world between updates: steps of an environment, rounds of rollouts.

    It keeps what it brings home in the run folder, and hands it to the task's `batches`, which the loop asks for the
    next batch only afterwards. Several processes act together, each its part, and come home with the same: metrics,
    position, or None. Each has step and weights alone then, on its first device. Both must be functions of seed, step
    and weights alone; then a run that was killed ends as one that was not, and nothing depends on the number of updates
    in a call.
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
            StopRequested: what was begun is dropped, as if `interact` had not been called. So it is where it raises
            after a request, of one process: what `position` returns changes last of all.

        Returns:
          Values for the next line of metrics.jsonl by name, each counted once in its mean; None if it was broken off.
        """
        ...

    def position(self) -> dict[str, Any]:
        """JSON values from which `rewind` finds back to the end of the last `interact` that was not broken off."""
        ...

    def sync(self) -> None:
        """Forces to disk everything that positions so far refer to; another thread may call it during `interact`.

        Raises:
          StorageError: It cannot be written.
        """
        ...

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Goes back to a position, and drops whatever came later; None: everything. Called first of all.

        Raises:
          DataError: What the position refers to is missing or damaged.
        """
        ...

    def close(self) -> None:
        """Ends what goes on beside the updates; called last of all, however the run ends."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Home:
    """What the last interaction came home with. The loop replaces it as a whole, in one assignment: the watching thread
    may save at any moment, and must not find the position of one interaction beside the word of another."""

    position: dict[str, Any] | None = None
    """Of `Interaction.position`."""
    metrics: Metrics = dataclasses.field(default_factory=dict)
    """Which are not in the window yet."""
    interacted: bool = False
    """Whether it was before this very update."""

    def counted(self, window: Mapping[str, list[float]]) -> dict[str, list[float]]:
        """Returns the sums and counts of the next line of metrics.jsonl by name, with these metrics in them."""
        found = {name: list(entry) for name, entry in window.items()}
        for name, values in self.metrics.items():
            entry = found.setdefault(name, [0.0, 0.0])
            for value in values:
                entry[0] += value
                entry[1] += 1
        return found


@runtime_checkable
class Evaluated(Protocol):
    """A task, as evaluation sees it."""

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """As of the task."""
        ...


@runtime_checkable
class EvaluatedTogether(Evaluated, Protocol):
    """A task whose evaluation all processes do together."""

    def help_evaluate(self, state: TrainState, *, final: bool) -> None:
        """Does the part of a process that is not the first, while that one is in `evaluate`.

        Both raise StopRequested, on all processes, where any of them was asked to stop.
        """
        ...


def interact(
    interaction: Interaction,
    state: TrainState,
    step: int,
    stopping: Callable[[], bool],
    unless_stopped: Callable[[Callable[[], Metrics | None]], Metrics | None],
    came_home: Callable[[Home], None],
) -> Metrics | None:
    """Calls `interact`, and compares what all processes came home with.

    Args:
      interaction: Of this process.
      state: As in `Interaction.interact`; every process must come with it.
      step: As there.
      stopping: As there; each process asks its own.
      unless_stopped: Calls what it is given, and returns None where that raises StopRequested; ends a run of one
        process in its place where it is in a simulator's step that does not end, and so does not ask.
      came_home: Told of it right after `Interaction.interact`, within `unless_stopped`.

    Returns:
      The metrics, on every process; None if it was broken off.

    Raises:
      RunError: Processes came home with different things, or one of them with an error.
    """

    def act() -> Metrics | None:
        try:
            metrics = interaction.interact(state, step, stopping)
        except Exception as error:  # a simulator's own process may have been sent the signal, too
            if not stopping() or processes.is_multiprocess():
                raise
            print(f"dropped, since the run is to stop: {type(error).__name__}: {error}", flush=True)
            return None
        if metrics is not None:
            came_home(Home(position=interaction.position(), metrics=metrics, interacted=True))
        return metrics

    if not processes.is_multiprocess():
        return unless_stopped(act)
    state = weights_of(state, everywhere=True)
    metrics = unless_stopped(act)
    failed: RunError | None = None
    try:
        interaction.sync()
        came = None if metrics is None else {"metrics": dict(metrics), "position": interaction.position()}
    except RunError as error:  # a full disk of one process, which the others wait for
        failed, came = error, {"failed": [processes.kind(error), *error.args]}
    found = processes.gather(json.dumps(came, sort_keys=True))
    if failed is not None:
        raise failed
    for told in map(json.loads, found):
        if told is not None and "failed" in told:
            kind, *words = told["failed"]
            raise getattr(errors, kind)(*words)
    if differing := [index for index, text in enumerate(found) if text != found[0]]:
        raise RunError(
            f"step {step}: processes 0 and {differing[0]} came from acting with different things, so what they train "
            f"on differs: {found[0]:.300} and {found[differing[0]]:.300}"
        )
    return metrics


def weights_of(state: TrainState, *, everywhere: bool) -> TrainState:
    """Step and weights of several processes' state whole, on the first one's first device, or each one's."""
    return host.to_one_device(state.replace(opt_state={}, target={}, ema={}), everywhere=everywhere)


def evaluate(
    task: Evaluated,
    state: TrainState,
    *,
    final: bool,
    stopping: Callable[[], bool],
    unless_stopped: Callable[[Callable[[], Any], float], Any],
) -> dict[str, float] | None:
    """Calls `evaluate` of the first process, with the others' help where the task takes it.

    Args:
      task: Of this process.
      state: With the weights that are evaluated.
      final: As of `evaluate`.
      stopping: Whether this process was asked to stop.
      unless_stopped: As in `interact`, with the seconds after which a request to stop breaks off what is called.

    Returns:
      The metrics, on every process; None if it was broken off.
    """
    together = processes.is_multiprocess() and isinstance(task, EvaluatedTogether)
    if processes.is_multiprocess():
        state = weights_of(state, everywhere=together)
    # Of processes that wait for one another none may leave alone; they ask one another whether to stop.
    patience = math.inf if together else 0.0

    def act() -> dict[str, float] | None:
        if stopping() and not together:  # it came a moment ago, and is not agreed on yet
            return None
        metrics = unless_stopped(lambda: task.evaluate(state, final=final), patience)
        return None if metrics is None else {name: float(value) for name, value in metrics.items()}

    if not isinstance(task, EvaluatedTogether) or not together:
        return processes.broadcast_one_to_all(act)
    if processes.is_primary():
        act = _done(act)  # now: inside the broadcast, which is a call itself, calls of the others would meet other ones
    else:
        unless_stopped(lambda: task.help_evaluate(state, final=final), patience)
    return processes.broadcast_one_to_all(act)


def _done(act: Callable[[], T]) -> Callable[[], T]:
    """Calls `act`; returns what gives its result, or raises its RunError."""
    try:
        value = act()
    except RunError as error:
        failed = error

        def fail() -> T:
            raise failed

        return fail
    return lambda: value
