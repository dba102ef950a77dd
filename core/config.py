"""Config dataclasses that every package shares, and `load`, which turns a command line into one of them.

No jax is imported on this path, so that `--help` answers at once.
"""

import dataclasses
from typing import Any, Literal

from core.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: its folder and its seed."""

    dir: str | None = None
    """Run folder. By default runs/<package>-<config>-<time>."""
    resume: bool = False
    """Continue the run in `dir`. A folder that holds a run is refused without it."""
    seed: int = 0
    """Seed of weights, batches, environments: all randomness of the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length and rhythm of training."""

    steps: int
    """Gradient updates in all."""
    batch_size: int
    """Rows of one update, over all devices and processes."""
    updates_per_call: int = 1
    """Updates per dispatch (lax.scan); the results do not depend on it."""
    log_every: int = 100
    """Updates between two lines of metrics.jsonl; each line is the mean since the line before."""
    eval_every: int = 0
    """Updates between two evaluations; 0 evaluates only at the end."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch_size", "updates_per_call", "log_every")
        require_non_negative(self, "eval_every")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam or AdamW with a warm-up, a schedule and clipping; core/optim.py makes it."""

    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Global-norm clipping of the gradient; None switches it off."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", "epsilon")
        require_non_negative(self, "warmup_steps", "weight_decay")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"optim.clip_norm is {self.clip_norm}; expected a number above 0, or None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices as a grid ('data', 'fsdp'): the batch is spread over both, large weights over fsdp."""

    data: int = -1
    """Devices along data; -1 takes all that fsdp leaves."""
    fsdp: int = 1
    """Devices that share one copy of the weights."""

    def __post_init__(self) -> None:
        require_positive(self, "fsdp")
        if self.data != -1 and self.data < 1:
            raise ValueError(f"mesh.data is {self.data}; expected -1 (all devices left over) or at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved, and how many saves stay."""

    every: int = 1000
    """Updates between two saves; the last step is always saved."""
    keep_last: int = 2
    """Newest saves that stay."""
    keep_every: int | None = None
    """Saves at multiples of this step stay for good."""

    def __post_init__(self) -> None:
        require_positive(self, "every", "keep_last")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"checkpoint.keep_every is {self.keep_every}; expected at least 1, or None")


def require_positive(config: Any, *names: str) -> None:
    """Raises ValueError if a field is not above 0, naming class, field and value."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected a number above 0")


def require_non_negative(config: Any, *names: str) -> None:
    """Raises ValueError if a field is below 0, naming class, field and value."""
    for name in names:
        if not getattr(config, name) >= 0:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected 0 or above")


def require_fraction(config: Any, *names: str) -> None:
    """Raises ValueError if a field is outside [0, 1], naming class, field and value."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{type(config).__name__}.{name} is {getattr(config, name)}; expected 0 to 1")
