"""Mean, standard deviation, quantiles and range of each dimension in one streaming pass, stored as openpi stores them.

JSON: {"norm_stats": {"state": {"mean": [...], "std": [...], "q01": [...], "q99": [...]}, "actions": {...}}}

"min" and "max" stand beside them where they are needed; openpi passes over them.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from chunkwise.errors import DataError
from chunkwise.files import budget
from chunkwise.files.durable import write_durably
from chunkwise.files.strict_json import parse_json

BINS = 8192
"""Bins a dimension. A quantile is off by at most one bin: less than 1/4096 of the dimension's range."""
SCALE_FLOOR = 1e-3
"""Smallest standard deviation, or half quantile range, that values are divided by: a dimension that never moved
would otherwise blow up the first time it does."""
MAX_VALUE = float(np.finfo(np.float32).max)

Mode = Literal["mean_std", "quantile", "min_max"]
_FIELDS = ("mean", "std", "q01", "q99")
_RANGE = ("min", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormStats:
    """Statistics of each dimension over all rows, as measured: no floor is applied."""

    mean: Float64[np.ndarray, " d"]
    std: Float64[np.ndarray, " d"]
    """Of the population (divided by the count)."""
    q01: Float64[np.ndarray, " d"]
    q99: Float64[np.ndarray, " d"]
    min: Float64[np.ndarray, " d"] | None = None
    """Least value of all rows; None, as max is, in files of openpi and of earlier versions."""
    max: Float64[np.ndarray, " d"] | None = None


class RunningStats:
    """Takes rows in any number of pieces, in memory that does not grow with them.

    Mean and variance merge by Chan et al. (1979). Quantiles come from one histogram a dimension whose bin width is
    a power of two: when the range outgrows the bins, neighbours merge exactly, so nothing is ever re-binned.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._moment = self._low = self._high = np.zeros(0)
        self._histograms: list[_Histogram] = []

    def update(self, x: Float[np.ndarray, "rows d"]) -> None:
        """Adds rows; all finite, and of the same width each time."""
        x = x.astype(np.float64)
        rows, width = x.shape
        if not rows:
            return
        mean, low, high = x.mean(0), x.min(0), x.max(0)
        moment = np.square(x - mean).sum(0)
        if not self._count:
            self._mean, self._moment, self._low, self._high = mean, moment, low, high
            self._histograms = [_Histogram(low[i], high[i]) for i in range(width)]
        else:
            total = self._count + rows
            delta = mean - self._mean
            self._moment = self._moment + moment + np.square(delta) * (self._count * rows / total)
            self._mean = self._mean + delta * (rows / total)
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        self._count += rows
        for i, histogram in enumerate(self._histograms):
            histogram.add(x[:, i])

    def result(self) -> NormStats:
        """Statistics of all rows so far.

        Raises:
          ValueError: If there were none.
        """
        if not self._count:
            raise ValueError("no rows to compute statistics from")
        q01, q99 = (np.clip([h.quantile(q) for h in self._histograms], self._low, self._high) for q in (0.01, 0.99))
        std = np.sqrt(self._moment / self._count)
        return NormStats(mean=self._mean, std=std, q01=q01, q99=q99, min=self._low, max=self._high)


def mixed(parts: Sequence[RunningStats], weights: Sequence[float]) -> NormStats:
    """Returns the statistics of a mixture: the rows of each part together weigh its weight.

    mean = sum_i w_i mean_i,  variance = sum_i w_i (variance_i + (mean_i - mean)^2); quantiles of the mixed histograms;
    the least and the greatest value of all.

    Args:
      parts: Each with at least one row, all of one width.
      weights: Of each, above 0; they add up to 1.
    """
    w = np.asarray(weights)[:, None]
    means = np.stack([part._mean for part in parts])
    variances = np.stack([part._moment / part._count for part in parts])
    mean = (w * means).sum(0)
    low, high = np.min([part._low for part in parts], 0), np.max([part._high for part in parts], 0)
    columns = list(zip(*(part._histograms for part in parts), strict=True))
    q01, q99 = (
        np.clip([_Histogram.mixed_quantile(column, weights, q) for column in columns], low, high) for q in (0.01, 0.99)
    )
    std = np.sqrt((w * (variances + np.square(means - mean))).sum(0))
    return NormStats(mean=mean, std=std, q01=q01, q99=q99, min=low, max=high)


class _Histogram:
    """Counts of one dimension in bins [k width, (k + 1) width), k = first .. first + len(counts) - 1."""

    def __init__(self, low: float, high: float) -> None:
        if high > low:
            self._width = 2.0 ** math.ceil(math.log2((high - low) / BINS))
        else:  # constant so far: fine enough for any range that may come
            self._width = 2.0 ** (math.floor(math.log2(max(abs(low), 1e-6))) - 30)
        self._first = math.floor(low / self._width)
        self._counts: Int64[np.ndarray, " bins"] = np.zeros(1, np.int64)

    def add(self, x: Float64[np.ndarray, " rows"]) -> None:
        low, high = float(x.min()), float(x.max())
        while self._last_with(high) - self._first_with(low) >= BINS:
            self._coarsen()
        first, last = self._first_with(low), self._last_with(high)
        before = self._first - first
        after = last - (self._first + len(self._counts) - 1)
        self._counts = np.pad(self._counts, (before, after))
        self._first = first
        bins = np.floor(x / self._width).astype(np.int64) - first
        self._counts += np.bincount(bins, minlength=len(self._counts))

    def quantile(self, q: float) -> float:
        """Value below which a share q of the rows lies, linear inside its bin."""
        cumulative = np.cumsum(self._counts)
        rank = q * cumulative[-1]
        i = int(np.searchsorted(cumulative, rank))
        inside = (rank - (cumulative[i] - self._counts[i])) / max(self._counts[i], 1)
        return (self._first + i + inside) * self._width

    @staticmethod
    def mixed_quantile(parts: Sequence["_Histogram"], weights: Sequence[float], q: float) -> float:
        """As `quantile`, where the rows of each part together weigh its weight; the bins are those of the coarsest."""
        width = max(part._width for part in parts)
        edges, shares = [], []
        for part, weight in zip(parts, weights, strict=True):
            bins = part._first + np.arange(len(part._counts))
            edges.append(np.floor(bins * (part._width / width)).astype(np.int64))
            shares.append(part._counts * (weight / part._counts.sum()))
        first, place = np.unique(np.concatenate(edges), return_inverse=True)
        share = np.bincount(place, np.concatenate(shares))
        cumulative = np.cumsum(share)
        i = min(int(np.searchsorted(cumulative, q * cumulative[-1])), len(share) - 1)
        inside = (q * cumulative[-1] - (cumulative[i] - share[i])) / share[i] if share[i] else 0.0
        return float((first[i] + inside) * width)

    def _first_with(self, low: float) -> int:
        return min(self._first, math.floor(low / self._width))

    def _last_with(self, high: float) -> int:
        return max(self._first + len(self._counts) - 1, math.floor(high / self._width))

    def _coarsen(self) -> None:
        """Doubles the width: bins 2k and 2k + 1 become bin k."""
        odd_start, odd_end = self._first % 2, (self._first + len(self._counts)) % 2
        counts = np.pad(self._counts, (odd_start, odd_end))
        self._counts = counts.reshape(-1, 2).sum(1)
        self._first //= 2
        self._width *= 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Affine:
    """x -> (x - offset) / scale, dimension by dimension."""

    offset: Float64[np.ndarray, " d"]
    scale: Float64[np.ndarray, " d"]

    def apply(self, x: Float[np.ndarray, "*rows d"]) -> Float32[np.ndarray, "*rows d"]:
        """Normalises; computed in 64 bits and rounded once."""
        return ((x.astype(np.float64) - self.offset) / self.scale).astype(np.float32)

    def invert(self, x: Float[np.ndarray, "*rows d"]) -> Float32[np.ndarray, "*rows d"]:
        """Undoes `apply`, up to rounding."""
        return (x.astype(np.float64) * self.scale + self.offset).astype(np.float32)


def identity(width: int) -> Affine:
    """Leaves values as they are, to the bit."""
    return Affine(offset=np.zeros(width), scale=np.ones(width))


def normalizer(stats: NormStats, mode: Mode, name: str) -> tuple[Affine, tuple[str, ...]]:
    """Makes the map to mean 0 and deviation 1, or of a range to -1 .. 1; and a note for each floored dimension.

    A dimension whose scale is below SCALE_FLOOR, as of one that never moved, is divided by SCALE_FLOOR instead. So
    -1 .. 1 still reaches every value of a range: a constant c becomes 0, and c - 0.001 .. c + 0.001 are in reach.

    Args:
      stats: Of the array to normalise.
      mode: mean_std; quantile, where values outside q01 .. q99 are not clipped; min_max, outside which there are none.
      name: Of the array, for the notes.

    Raises:
      DataError: If min_max is asked for, and the statistics have no min and max.
    """
    if mode == "mean_std":
        offset, scale = stats.mean, stats.std
    elif mode == "quantile":
        offset, scale = (stats.q01 + stats.q99) / 2, (stats.q99 - stats.q01) / 2
    elif stats.min is None or stats.max is None:
        raise DataError(
            f"norm statistics of {name}: expected min and max for min_max normalisation, found none; "
            "leave data.norm_stats out, which computes them, or choose another normalisation"
        )
    else:
        offset, scale = (stats.min + stats.max) / 2, (stats.max - stats.min) / 2
    notes = tuple(
        f"{name}, dimension {i}: scale {scale[i]:.3g} is below {SCALE_FLOOR:g}, which is used instead"
        for i in np.flatnonzero(scale < SCALE_FLOOR)
    )
    return Affine(offset=offset, scale=np.maximum(scale, SCALE_FLOOR)), notes


def without_range(stats: Mapping[str, NormStats]) -> dict[str, NormStats]:
    """Leaves min and max out, as files of earlier versions do."""
    return {name: dataclasses.replace(one, min=None, max=None) for name, one in stats.items()}


def save(path: Path, stats: Mapping[str, NormStats]) -> None:
    """Writes the JSON, durably."""
    write_durably(path, to_json(stats))


def to_json(stats: Mapping[str, NormStats], **beside: Any) -> str:
    """The JSON as text; `beside` are further keys, over which openpi passes."""
    tree = {name: as_lists(one) for name, one in stats.items()}
    return json.dumps({"norm_stats": tree, **beside}, indent=2) + "\n"


def as_lists(stats: NormStats) -> dict[str, list[float]]:
    """Returns the statistics that there are, by the names of openpi's JSON."""
    return {field: x.tolist() for field in (*_FIELDS, *_RANGE) if (x := getattr(stats, field)) is not None}


def load(path: Path) -> dict[str, NormStats]:
    """Reads statistics written by `save` or by openpi.

    Raises:
      DataError: The file is missing, is no such JSON, or holds a value that cannot be a statistic.
    """
    try:
        tree = parse_json(budget.read_bytes(path).decode(), source=str(path))["norm_stats"]
        return {name: _parse(entry, name) for name, entry in tree.items()}
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: norm statistics are missing; set data.norm_stats to a JSON file, or to None"
        ) from error
    except budget.LimitError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, DataError) as error:
        found = str(error) if isinstance(error, ValueError | OSError | DataError) else repr(error)
        raise DataError(
            f'{path}: expected {{"norm_stats": {{"state": {{"mean", "std", "q01", "q99"}}, "actions": ...}}}} '
            f"with finite numbers, found: {found}"
        ) from error


def require_sensible(stats: NormStats, where: str) -> None:
    """Refuses what no rows have: values beyond float32, deviations below 0, a low quantile or end above the high one.

    Quantiles that are NaN, as where a file leaves them out, pass.

    Raises:
      DataError: With `where`, the field and its dimension.
    """
    for field in (*_FIELDS, *_RANGE):
        value = getattr(stats, field)
        if value is not None and (bad := np.flatnonzero(np.abs(value) > MAX_VALUE)).size:
            raise DataError(
                f"{where}: expected {field} of float32's range, found {value[bad[0]]:g} in dimension {bad[0]}"
            )
    if (bad := np.flatnonzero(stats.std < 0)).size:
        raise DataError(f"{where}: expected std of at least 0, found {stats.std[bad[0]]:g} in dimension {bad[0]}")
    for low, high in (("q01", "q99"), _RANGE):
        below, above = getattr(stats, low), getattr(stats, high)
        if below is not None and above is not None and (bad := np.flatnonzero(below > above)).size:
            at = bad[0]
            raise DataError(
                f"{where}: expected {low} of at most {high}, found {below[at]:g} > {above[at]:g} in dimension {at}"
            )


def is_numbers(value: Any) -> bool:
    """Whether a value of JSON is a list of numbers; true and false are none, though Python counts with them."""
    return isinstance(value, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)


def _parse(entry: Mapping[str, Any], name: str) -> NormStats:
    fields = {}
    for field in (*_FIELDS, *(_RANGE if any(field in entry for field in _RANGE) else ())):
        if not is_numbers(entry[field]):
            raise ValueError(f"{name}: {field} that is no list of numbers: {str(entry[field])[:80]}")
        value = fields[field] = np.array([float(n) for n in entry[field]], np.float64)
        if value.shape != fields["mean"].shape or not np.isfinite(value).all():
            raise ValueError(f"{name}: {field} of shape {value.shape}, or not finite")
    stats = NormStats(**fields)
    require_sensible(stats, name)
    return stats
