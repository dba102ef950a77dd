"""How far apart two sets of arrays are that ought to be the same but for rounding."""

import dataclasses
from collections.abc import Mapping

import numpy as np

BOUND = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest differences over all arrays."""

    close: float
    """|a - b| / (1 + |b|): at most 1e-5 where numpy's `allclose` holds with an `rtol` and an `atol` of 1e-5."""
    absolute: float
    relative: float
    """|a - b| over the largest |b| of the same array."""
    where: str
    """The array of the largest relative difference."""
    beyond: int
    """Numbers whose relative difference is more than 1e-5."""


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> Difference:
    """Compares arrays by name."""
    assert a.keys() == b.keys()
    absolute = {name: np.abs(a[name] - b[name]) for name in a}
    relative = {name: x / max(float(np.abs(b[name]).max()), 1e-12) for name, x in absolute.items()}
    where = max(relative, key=lambda name: relative[name].max())
    return Difference(
        close=max(float((x / (1 + np.abs(b[name]))).max()) for name, x in absolute.items()),
        absolute=max(float(x.max()) for x in absolute.values()),
        relative=float(relative[where].max()),
        where=where,
        beyond=sum(int((x > BOUND).sum()) for x in relative.values()),
    )
