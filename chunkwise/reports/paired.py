"""Two policies on the same initial states: what their successes say, and what they cannot say."""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from chunkwise.reports.intervals import wilson


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

    @property
    def detectable(self) -> float:
        """Difference of success rates that so many states show in 80 % of such comparisons, at p = 0.05.

        Normal approximation for paired shares: (z_0.975 + z_0.8) sqrt(share of differing states / n).
        """
        share = max(self.only_a + self.only_b, 1) / self.episodes
        z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
        return min(1.0, z * math.sqrt(share / self.episodes))

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
                f"warning: {self.episodes} episodes cannot tell A and B apart; they would show a difference of "
                f"{self.detectable:.0%} four times in five. Evaluate on more initial states"
            )
        return "\n".join(lines)


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
