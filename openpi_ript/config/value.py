"""Settings of the value function that labels chunks (guidance.labels 'value'), as a frozen dataclass. No jax here."""

import dataclasses

from chunkwise.config.experiment import require_non_negative, require_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """A distributional value of the time to success, and the labels by it (pi*0.6, arXiv:2511.14759)."""

    bins: int = 201
    """Of the distribution, evenly from -1, the worst that can happen, to 0, success."""
    failure_cost: float = 1.0
    """What failing costs beside the steps taken, in time limits of the task: its steps at most."""
    lookahead: int | None = 50
    """N: steps whose rewards an advantage sums before the value of what was reached takes over. None: it sums to the
    episode's end, and so judges each chunk by the whole rest of its episode."""
    positive_share: float = 0.4
    """Share of each task's chunks that are labelled positive: those above the quantile of its newest advantages."""
    window: int = 256
    """Newest advantages of each task of which the quantile is taken, at least a batch. More of them lie farther back:
    while the value still changes, the share that is positive then strays from `positive_share`."""
    warmup: int = 0
    """Updates at the beginning of a run in which only the value learns from what it would judge: labels are none."""
    width: int = 128
    """Of the value network's two hidden layers."""
    learning_rate: float = 1e-3
    """Of the value network, which learns from random weights; the run's optim is the policy's."""

    def __post_init__(self) -> None:
        require_positive(self, "failure_cost", "window", "width", "learning_rate")
        require_non_negative(self, "warmup")
        if self.bins < 2:
            raise ValueError(f"guidance.value.bins is {self.bins}; expected at least 2, the worst and success")
        if self.lookahead is not None and self.lookahead < 1:
            raise ValueError(f"guidance.value.lookahead is {self.lookahead}; expected at least 1, or None")
        if not 0 < self.positive_share < 1:
            raise ValueError(
                f"guidance.value.positive_share is {self.positive_share}; expected above 0 and below 1: with one label "
                "alone there is nothing to guide by"
            )
