"""Normalisation as openpi does it: the same statistics, the same JSON, the same formulas.

openpi counts quantiles in 5000 bins over the range seen so far and re-bins when a batch widens it, so its numbers
depend on the batches (32 samples in its script). That procedure is followed here to the count, several hundred
batches at a time; mean and deviation are accumulated in 64 bits (openpi: in the data's 32).
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64

from chunkwise.data import norm_stats
from chunkwise.data.lerobot.tables import FrameTable, window
from chunkwise.data.norm_stats import Affine, NormStats
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.strict_json import read_json
from openpi_ript.config.data import DataConfig, Normalization
from openpi_ript.data import lerobot_norm
from openpi_ript.robots.adapter import OWN, Adapter

BINS = 5000
EDGE = 1e-10
"""Margin of the first range on both sides."""
EPSILON = 1e-6
"""Added to every divisor by openpi."""
BATCH = 32
"""Samples of one update in openpi's script."""
BATCHES_AT_ONCE = 16
NEAR = 1e-6
"""Distance from a bin's edge, in bins, below which the arithmetic is not trusted."""
FAR_OFF = 10.0
"""Mean of a normalised dimension, in deviations, from which on it is noted."""


class RunningStats:
    """Mean, deviation and quantiles of vectors that arrive in batches; quantiles by openpi's histograms."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._moment = self._low = self._high = np.zeros(0)
        self._edges = np.zeros((0, BINS + 1))
        self._counts = np.zeros((0, BINS))

    def update(self, x: Float[np.ndarray, "batches rows d"]) -> None:
        """Adds batches of equal size, in order; all values finite."""
        x = x.astype(np.float64)
        low, high = x.min(1), x.max(1)
        if not self._count:
            self._low, self._high = low[0], high[0]
            self._edges = np.linspace(self._low - EDGE, self._high + EDGE, BINS + 1, axis=1)
            self._counts = np.zeros((x.shape[2], BINS))
            self._mean, self._moment = np.zeros(x.shape[2]), np.zeros(x.shape[2])
        low = np.minimum.accumulate(np.concatenate([self._low[None], low]))
        high = np.maximum.accumulate(np.concatenate([self._high[None], high]))
        widened = np.flatnonzero(((low[1:] < low[:-1]) | (high[1:] > high[:-1])).any(1))
        bounds = sorted({0, *widened.tolist(), len(x)})
        for start, stop in itertools.pairwise(bounds):
            if start in widened:
                self._widen(low[start + 1], high[start + 1])
            self._add_to_histograms(x[start:stop].reshape(-1, x.shape[2]))
        self._low, self._high = low[-1], high[-1]
        self._add_moments(x.reshape(-1, x.shape[2]))

    def result(self) -> NormStats:
        """Statistics so far. Raises DataError below two vectors, as openpi."""
        if self._count < 2:
            raise DataError(f"norm statistics: expected at least 2 frames, found {self._count}")
        quantiles = []
        for q in (0.01, 0.99):
            bins = [int(np.searchsorted(np.cumsum(counts), q * self._count)) for counts in self._counts]
            quantiles.append(np.array([edges[i] for edges, i in zip(self._edges, bins, strict=True)]))
        std = np.sqrt(self._moment / self._count)
        return NormStats(mean=self._mean, std=std, q01=quantiles[0], q99=quantiles[1])

    def _widen(self, low: Float64[np.ndarray, " d"], high: Float64[np.ndarray, " d"]) -> None:
        """Moves every histogram to a new range: a bin's count goes where its left edge falls."""
        edges = np.linspace(low, high, BINS + 1, axis=1)
        for d, counts in enumerate(self._counts):
            self._counts[d] = np.histogram(self._edges[d, :-1], bins=edges[d], weights=counts)[0]
        self._edges = edges

    def _add_to_histograms(self, x: Float64[np.ndarray, "rows d"]) -> None:
        """np.histogram with the present edges, by arithmetic on the evenly spaced bins and one correction."""
        first, width = self._edges[:, 0], (self._edges[:, -1] - self._edges[:, 0]) / BINS
        for d, column in enumerate(np.ascontiguousarray(x.T)):
            if width[d] == 0:
                self._counts[d, -1] += len(x)
                continue
            place = (column - first[d]) * (1 / width[d])
            bins = place.astype(np.int64)
            # Only a value within rounding of an edge can be in the wrong bin; the edges themselves decide.
            near = np.flatnonzero(np.abs(place - np.rint(place)) < NEAR)
            close = np.clip(bins[near], 0, BINS - 1)
            close -= column[near] < self._edges[d, close]
            bins[near] = close + ((column[near] >= self._edges[d, close + 1]) & (close < BINS - 1))
            self._counts[d] += np.bincount(bins, minlength=BINS)

    def _add_moments(self, x: Float64[np.ndarray, "rows d"]) -> None:
        """Merges mean and sum of squared deviations (Chan et al. 1979)."""
        rows, mean = len(x), x.mean(0)
        delta, total = mean - self._mean, self._count + len(x)
        self._moment = self._moment + np.square(x - mean).sum(0) + np.square(delta) * (self._count * rows / total)
        self._mean = self._mean + delta * (rows / total)
        self._count = total


def dataset_stats(
    table: FrameTable, config: DataConfig, *, adapter: Adapter = OWN, drop_tail: bool = False
) -> dict[str, NormStats]:
    """Statistics of "state" (each frame) and "actions" (each step of each frame's window, made relative).

    Padded steps count with the action that they repeat, as in openpi.

    Args:
      table: All frames.
      config: Its keys, horizon and relative dimensions.
      adapter: Gives the numbers that the policy sees of the table's.
      drop_tail: Leave out the last frames where they fill no batch of 32, as openpi's script does.
    """
    state, action = adapter.state(table.columns[config.state_key]), adapter.action(table.columns[config.action_key])
    episode = np.repeat(np.arange(len(table.lengths)), table.lengths)
    frame = np.arange(table.frames) - table.starts[episode]
    deltas = np.arange(config.horizon)
    dims = list(config.robot.relative_dims)
    stats = {"state": RunningStats(), "actions": RunningStats()}

    def add(rows: np.ndarray, batch: int) -> None:
        inside, _ = window(frame[rows], table.lengths[episode[rows]], deltas)
        actions = action[table.starts[episode[rows]][:, None] + inside]
        actions[..., dims] -= state[rows][:, None, dims]
        stats["state"].update(state[rows].reshape(-1, batch, state.shape[1]))
        stats["actions"].update(actions.reshape(-1, batch * config.horizon, action.shape[1]))

    whole = table.frames // BATCH * BATCH
    for start in range(0, whole, BATCH * BATCHES_AT_ONCE):
        add(np.arange(start, min(start + BATCH * BATCHES_AT_ONCE, whole)), BATCH)
    if whole < table.frames and not drop_tail:
        add(np.arange(whole, table.frames), table.frames - whole)
    return {name: running.result() for name, running in stats.items()}


def stats_source(table: FrameTable, config: DataConfig) -> dict[str, Any]:
    """What statistics belong to: stored beside them, compared when they are used."""
    source = {
        "fingerprint": table.fingerprint((config.state_key, config.action_key)),
        "frames": table.frames,
        "horizon": config.horizon,
        "relative_dims": list(config.robot.relative_dims),
    }
    return source if config.robot.adapter == "none" else source | {"adapter": config.robot.adapter}


def save_stats(path: Path, stats: Mapping[str, NormStats], source: Mapping[str, Any]) -> None:
    """Writes `stats_json`, durably; the folder is made."""
    make_folders(path.parent)
    write_durably(path, stats_json(stats, source))


def stats_json(stats: Mapping[str, NormStats], source: Mapping[str, Any]) -> str:
    """Text of openpi's norm_stats.json with one key more, "source", which openpi passes over."""
    return norm_stats.to_json(stats, source=dict(source))


def stats_file(path: Path) -> Path:
    """norm_stats.json of a folder, the file of LeRobot's statistics where it holds a policy of LeRobot's, or the file
    itself. Raises DataError where LeRobot's preprocessor names none."""
    if path.is_dir() and not (path / "norm_stats.json").exists() and lerobot_norm.is_lerobot(path):
        return lerobot_norm.state_file(path)
    return path / "norm_stats.json" if path.is_dir() else path


def load_stats(path: Path, source: Mapping[str, Any]) -> dict[str, NormStats]:
    """Reads norm_stats.json, or the one in a folder; or LeRobot's statistics, a safetensors file or its folder.

    Raises:
      DataError: If the file is missing or bad, or says that it belongs to another dataset, horizon or set of relative
        dimensions than `source`. Files without "source", such as openpi's own, are taken as they are.
    """
    path = stats_file(path)
    if path.suffix == ".safetensors":
        return lerobot_norm.load(path)
    tree = read_json(path)
    if not isinstance(tree, dict) or not isinstance(tree.get("norm_stats"), dict):
        raise DataError(f'{path}: expected {{"norm_stats": {{"state": ..., "actions": ...}}}}, found {str(tree)[:80]}')
    found = tree.get("source", source)
    differing = [key for key in source if not isinstance(found, dict) or found.get(key) != source[key]]
    if differing:
        lines = [
            f"{key}: expected {source[key]}, found {found.get(key)}" for key in differing if isinstance(found, dict)
        ]
        raise DataError(
            f"{path}: these statistics belong to another dataset or setting; {'; '.join(lines) or repr(found)}. "
            "Compute them again (data.norm_stats None), or delete the key 'source' to use them all the same"
        )
    return {name: _parse(entry, f"{path}: {name}") for name, entry in tree["norm_stats"].items()}


def named_stats(name: str, config: DataConfig, source: Mapping[str, Any]) -> dict[str, NormStats]:
    """Reads the statistics that data.norm_stats names.

    Raises:
      DataError: As `load_stats`.
      ConfigError: They are a LeRobot policy's, which normalises otherwise than the config.
    """
    path = Path(name)
    if path.is_dir() and stats_file(path).suffix == ".safetensors":
        lerobot_norm.require_modes(path, config)
    return load_stats(path, source)


def _parse(entry: Any, where: str) -> NormStats:
    """One array's statistics; quantiles that openpi left out become NaN."""
    fields = {}
    for field in ("mean", "std", "q01", "q99"):
        value = entry.get(field) if isinstance(entry, dict) else None
        if value is None and field.startswith("q"):
            fields[field] = np.full(len(fields["mean"]), np.nan)
            continue
        numbers = value if isinstance(value, list) and norm_stats.is_numbers(value) else None
        if numbers is None or len(numbers) != len(fields.get("mean", numbers)):
            raise DataError(f"{where}: expected {field} as a list of numbers as long as mean, found {str(value)[:80]}")
        if wrong := [n for n in numbers if abs(n) > norm_stats.MAX_VALUE]:  # int's own digits may be beyond a float
            raise DataError(f"{where}: expected {field} of float32's range, found {str(wrong[0])[:80]}")
        fields[field] = np.array(numbers, np.float64)
    stats = NormStats(**fields)
    norm_stats.require_sensible(stats, where)
    return stats


def affine(
    stats: NormStats | None,
    mode: Normalization,
    *,
    width: int,
    name: str,
    constant_dims: Literal["openpi", "floored"] = "openpi",
) -> tuple[Affine, tuple[str, ...]]:
    """openpi's normalisation as one affine map, and a note for each dimension that never moved.

    mean_std: (x - mean) / (std + 1e-6). quantile: 2 (x - q01) / (q99 - q01 + 1e-6) - 1. A dimension whose spread is
    below 1e-6 is one that never moved.

    Args:
      stats: Of the array; dimensions beyond `width` are cut off, as openpi does. None where nothing is normalised.
      mode: How to normalise.
      width: Dimensions of the array.
      name: Of the array, for notes and errors.
      constant_dims: openpi: the same formula for dimensions that never moved. floored: they are divided by
        chunkwise.data.norm_stats.SCALE_FLOOR instead.

    Raises:
      DataError: If the statistics have fewer dimensions than `width`, or no quantiles where they are needed.
    """
    if mode == "none" or stats is None:
        return norm_stats.identity(width), ()
    if len(stats.mean) < width:
        raise DataError(f"norm statistics of {name}: expected at least {width} dimensions, found {len(stats.mean)}")
    mean, std, q01, q99 = (field[:width] for field in (stats.mean, stats.std, stats.q01, stats.q99))
    offset, spread = mean, std
    if mode == "quantile":
        if not (np.isfinite(q01).all() and np.isfinite(q99).all()):
            raise DataError(f"norm statistics of {name}: expected q01 and q99 for quantile normalisation, found none")
        offset, spread = q01 + (q99 - q01 + EPSILON) / 2, (q99 - q01) / 2
    still = spread < EPSILON
    scale = spread + (EPSILON if mode == "mean_std" else EPSILON / 2)
    if constant_dims == "floored":
        scale = np.where(still, norm_stats.SCALE_FLOOR, scale)
    notes = [f"{name}, dimension {d}: it never moves (spread {spread[d]:.3g})" for d in np.flatnonzero(still)]
    return Affine(offset=offset, scale=scale), tuple(notes)


def affines(
    config: DataConfig, stats: Mapping[str, NormStats]
) -> tuple[tuple[Affine, tuple[str, ...]], tuple[Affine, tuple[str, ...]]]:
    """Returns the maps of state and action that a config asks for, with `affine`'s notes and errors."""
    robot, how = config.robot, config.constant_dims
    state = affine(stats.get("state"), config.state_norm, width=robot.state_dim, name="state", constant_dims=how)
    name, width = "actions", robot.action_dim
    return state, affine(stats.get(name), config.action_norm, width=width, name=name, constant_dims=how)


def plausible(x: Float32[np.ndarray, "rows d"], name: str) -> Sequence[str]:
    """Notes on normalised dimensions whose values lie far out: a sign of statistics from another dataset."""
    centre = np.abs(x.mean(0))
    return [
        f"{name}, dimension {d}: normalised values average {centre[d]:.1f}; are these another dataset's statistics?"
        for d in np.flatnonzero(centre > FAR_OFF)
    ]
