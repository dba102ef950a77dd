"""What a policy's actions may be, by the statistics of the actions that it was trained on."""

import dataclasses
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64

from chunkwise.data.norm_stats import SCALE_FLOOR, NormStats
from chunkwise.errors import ConfigError, NonFiniteError, RunError


class OutOfBoundsError(RunError):
    """A policy's action lies outside its bounds; the message names step, dimension, value and bounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of each dimension of an action, as the dataset has it: relative where the robot's config says so."""

    mode: Literal["refuse", "clip"]
    """What becomes of a chunk with a value outside: no answer, or the nearest value inside."""
    low: Float64[np.ndarray, " a"]
    high: Float64[np.ndarray, " a"]

    @classmethod
    def of(cls, stats: NormStats | None, mode: Literal["refuse", "clip"], *, margin: float, width: int) -> "Bounds":
        """From q01 - margin (q99 - q01) to q99 + margin (q99 - q01) of each dimension.

        A dimension that never moved has SCALE_FLOOR as its range.

        Args:
          stats: Of the actions.
          mode: See the field.
          margin: At least 0. One of 0 leaves out 2 % of the actions that the policy was trained on.
          width: Dimensions of an action.

        Raises:
          ConfigError: If there are no quantiles, or the margin is none.
        """
        if not (np.isfinite(margin) and margin >= 0):
            raise ConfigError(f"--bounds-margin is {margin}; expected a number of 0 or above")
        if stats is None or len(stats.q01) < width or not np.isfinite([stats.q01[:width], stats.q99[:width]]).all():
            raise ConfigError(
                f"--bounds {mode}: expected q01 and q99 of {width} action dimensions in norm_stats.json, found none; "
                "serve without --bounds"
            )
        q01, q99 = stats.q01[:width], stats.q99[:width]
        room = margin * np.maximum(q99 - q01, SCALE_FLOOR)
        return cls(mode=mode, low=q01 - room, high=q99 + room)

    @property
    def metadata(self) -> dict[str, Any]:
        """As plain values, for clients."""
        return {"mode": self.mode, "low": self.low.tolist(), "high": self.high.tolist()}

    def apply(
        self, action: Float32[np.ndarray, "b t a"]
    ) -> tuple[Float32[np.ndarray, "b t a"], Int64[np.ndarray, " b"]]:
        """Actions inside the bounds, and how many values of each row were clipped.

        Args:
          action: Finite.

        Raises:
          OutOfBoundsError: If a value is outside, and is not to be clipped.
        """
        low, high = self.low.astype(np.float32), self.high.astype(np.float32)
        outside = (action < low) | (action > high)
        if self.mode == "refuse" and outside.any():
            row, step, dim = (int(i) for i in np.argwhere(outside)[0])
            raise OutOfBoundsError(
                f"actions: expected {low[dim]:g} to {high[dim]:g} in dimension {dim}, as --bounds refuse says, found "
                f"{action[row, step, dim]:g} at step {step}{_of(row, len(action))}; no action is sent"
            )
        return np.clip(action, low, high), outside.sum(axis=(1, 2))


def require_finite(actions: Float32[np.ndarray, "b t a"]) -> None:
    """Raises NonFiniteError if an action is NaN or infinite, naming step and dimension of the first one."""
    bad = np.argwhere(~np.isfinite(actions))
    if len(bad):
        row, step, dim = (int(i) for i in bad[0])
        raise NonFiniteError(
            f"actions: expected finite numbers, found {actions[row, step, dim]} at step {step}, dimension {dim}"
            f"{_of(row, len(actions))}; no action is sent"
        )


def _of(row: int, rows: int) -> str:
    return f" of row {row}" if rows > 1 else ""
