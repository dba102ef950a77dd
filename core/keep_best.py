"""Which save stays because its evaluation was the best so far."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from core.config import CheckpointConfig
from core.errors import ConfigError


def finite_metrics(metrics: Mapping[str, float], wanted: str | None) -> dict[str, float]:
    """The metrics of an evaluation that are finite.

    Raises:
      ConfigError: `wanted` (checkpoint.keep_best) is set, and the evaluation gives no such metric.
    """
    if wanted is not None and wanted not in metrics:
        raise ConfigError(f"checkpoint.keep_best is {wanted}; expected one of {', '.join(sorted(metrics))}")
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


class KeepBest:
    """A preservation policy of Orbax: the save with the best evaluation, of equals the newest.

    Evaluations come from the notes beside the saves, which are checked against their hash. Orbax would keep them in
    files of its own, and one flipped bit there would keep a run from going on.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._name = config.keep_best
        self._sign = 1.0 if config.best == "highest" else -1.0
        self._scores: dict[int, float] = {}

    def note(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Tells the finite metrics of a save's evaluation; empty where it has none."""
        if self._name is not None and self._name in evaluation:
            self._scores[step] = self._sign * evaluation[self._name]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Whether each of the saves, which have a `step`, stays."""
        del context
        scored = [(self._scores[one.step], one.step) for one in checkpoints if one.step in self._scores]
        best = max(scored)[1] if scored else None
        return [one.step == best for one in checkpoints]
