"""Two policies on the same initial states: what their successes say, and what they cannot say."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from chunkwise.reports.intervals import wilson

POWER = 0.8
"""How often a difference is to be found that is called shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Outcomes of two policies, A and B, on the same initial states."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def episodes(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def p_value(self) -> float:
        """Two-sided exact test of McNemar: how likely so uneven a split of the states that tell A and B apart is,
        if A and B are equally good (binomial with 1/2; doi:10.1007/BF02295996)."""
        differing, fewer = self.only_a + self.only_b, min(self.only_a, self.only_b)
        tail = sum(math.comb(differing, i) for i in range(fewer + 1))
        return min(1.0, 2 * tail / 2**differing)

    @functools.cached_property
    def detectable(self) -> float | None:
        """Smallest difference of success rates that so many states show in 80 % of such comparisons, at p = 0.05, to a
        thousandth; None where none is shown so often, as of fewer than six states, whatever they say.

        The power of McNemar's exact test, with as large a share of differing states as here, or as the difference
        needs. Were A and B to differ in more of them, it would take a larger difference.
        """
        share = (self.only_a + self.only_b) / self.episodes
        low, high = 0, 1000  # thousandths; the power rises with the difference
        if _power(self.episodes, 1.0, 1.0) < POWER:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            difference = middle / 1000
            enough = _power(self.episodes, max(share, difference), difference) >= POWER
            low, high = (low, middle) if enough else (middle, high)
        return high / 1000

    @property
    def shown(self) -> str:
        """What so many states would show, in words."""
        if self.detectable is None:
            return "no difference, however large, would show four times in five on so few"
        return f"they would show a difference of {self.detectable:.1%} four times in five"

    def __str__(self) -> str:
        lines = []
        for name, successes in (("A", self.both + self.only_a), ("B", self.both + self.only_b)):
            low, high = wilson(successes, self.episodes)
            lines.append(
                f"{name}: {successes} of {self.episodes}, {successes / self.episodes:.1%} ({low:.1%} to {high:.1%})"
            )
        lines.append(
            f"both {self.both}, only A {self.only_a}, only B {self.only_b}, neither {self.neither}; "
            f"McNemar's exact p = {self.p_value:.3g}"
        )
        if self.p_value >= 0.05:
            lines.append(
                f"warning: {self.episodes} episodes cannot tell A and B apart; {self.shown}. Evaluate on more initial "
                "states"
            )
        return "\n".join(lines)


def _power(episodes: int, share: float, difference: float) -> float:
    """Returns how often the two-sided exact test finds p < 0.05.

    Args:
      episodes: Initial states.
      share: Of them that tell A and B apart, by a binomial law.
      difference: Of the success rates, up to `share`.
    """
    from scipy.stats import binom  # 0.5 s, and only here

    around = binom.ppf([1e-9, 1 - 1e-9], episodes, share)
    differing = np.arange(around[0], around[1] + 1)
    fewest = binom.ppf(0.025, differing, 0.5) - 1  # at most so many of the rarer kind have p < 0.05
    for_a = (share + difference) / (2 * share) if share else 0.5
    found = binom.cdf(fewest, differing, for_a) + binom.cdf(fewest, differing, 1 - for_a)
    return float(np.sum(binom.pmf(differing, episodes, share) * np.where(fewest < 0, 0.0, found)))


def compare(a: Sequence[bool], b: Sequence[bool]) -> Comparison:
    """Counts outcomes, state by state.

    Raises:
      ValueError: If there are not as many of A as of B, or none.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"expected outcomes on the same initial states, found {len(a)} and {len(b)}")
    pairs = list(zip(a, b, strict=True))
    return Comparison(
        both=pairs.count((True, True)),
        only_a=pairs.count((True, False)),
        only_b=pairs.count((False, True)),
        neither=pairs.count((False, False)),
    )
