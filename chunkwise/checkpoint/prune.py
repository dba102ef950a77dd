"""Which saves stay: the newest, those at multiples of a step, and the one whose evaluation was the best so far."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from chunkwise.config.experiment import CheckpointConfig
from chunkwise.errors import ConfigError


def require_evaluated(wanted: str | None, nothing: str) -> None:
    """Refuses a best save of a run that evaluates nothing, so that none would ever be it.

    Args:
      wanted: checkpoint.keep_best.
      nothing: Why nothing is evaluated, by the fields of the run's config.

    Raises:
      ConfigError: `wanted` is set.
    """
    if wanted is not None:
        raise ConfigError(
            f"checkpoint.keep_best is {wanted}, and this run evaluates nothing: {nothing}. Set one of them, or leave "
            "checkpoint.keep_best out"
        )


def finite_metrics(metrics: Mapping[str, float], wanted: str | None) -> dict[str, float]:
    """The metrics of an evaluation that are finite.

    Raises:
      ConfigError: `wanted` (checkpoint.keep_best) is set, and the evaluation gives no such metric.
    """
    if wanted is not None and wanted not in metrics:
        raise ConfigError(f"checkpoint.keep_best is {wanted}; expected one of {', '.join(sorted(metrics))}")
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


class KeepBest:
    """The save with the best evaluation, of equals the newest.

    Evaluations come from the metadata beside the saves, which are checked against their hash, and of a save that was
    made before its evaluation was done from metrics.jsonl.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._name = config.keep_best
        self._sign = 1.0 if config.best == "highest" else -1.0
        self._scores: dict[int, float] = {}

    def note(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Tells the finite metrics of a save's evaluation; empty where it has none."""
        if self._name is not None and self._name in evaluation:
            self._scores[step] = self._sign * evaluation[self._name]

    def best(self, steps: Sequence[int]) -> int | None:
        """The best of these saves; None if none of them was evaluated, or the config asks for none."""
        scored = [(self._scores[step], step) for step in steps if step in self._scores]
        return max(scored)[1] if scored else None


def logged_evaluations(run: Path) -> dict[str, dict[str, float]]:
    """The finite metrics of all evaluations that metrics.jsonl has, by step; of a step that is there twice the last.

    A run that is stopped within an evaluation saves without it, and makes up for it when it goes on.
    """
    try:
        with open(run / "metrics.jsonl", "rb") as lines:
            told = [evaluation_in(line) for line in lines]
    except FileNotFoundError:
        return {}
    return {str(step): metrics for found in told for step, metrics in found.items()}


def evaluation_in(line: bytes) -> dict[int, dict[str, float]]:
    """The finite metrics of a line of metrics.jsonl by its step; {} where it is of no evaluation."""
    try:
        row = json.loads(line) if b'"eval"' in line else None
    except ValueError:  # a power cut may leave half a line
        return {}
    if not (isinstance(row, dict) and row.get("split") == "eval" and isinstance(row.get("step"), int)):
        return {}
    numbers = {name: value for name, value in row.items() if isinstance(value, float | int) and name != "step"}
    return {row["step"]: finite_metrics(numbers, None)}


def outdated(steps: Sequence[int], max_to_keep: int, keep_period: int | None, best: int | None) -> list[int]:
    """Those of the saves that no rule keeps, oldest first.

    Args:
      steps: Of all saves, in any order.
      max_to_keep: Newest ones that stay, at least 1.
      keep_period: Multiples of this step stay too.
      best: One more that stays.
    """
    older = sorted(steps)[:-max_to_keep]
    return [step for step in older if step != best and (keep_period is None or step % keep_period)]
