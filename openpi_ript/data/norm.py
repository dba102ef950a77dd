"""Normalisation as openpi does it: the same statistics, the same JSON, the same formulas.

openpi counts quantiles in 5000 bins over the range seen so far and re-bins when a batch widens it, so its numbers
depend on the batches (32 samples in its script). That procedure is followed here to the count, several hundred
batches at a time; mean and deviation are accumulated in 64 bits (openpi: in the data's 32).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from chunkwise.data import norm_stats
from chunkwise.data.lerobot.tables import FrameTable, window
from chunkwise.data.norm_stats import Affine, NormStats
from chunkwise.distributed.jobs import Hands, do_here_or, in_order
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
PIECES_A_JOB = 16
"""Pieces of BATCHES_AT_ONCE batches that a worker takes at a time: 8192 samples."""
NEAR = 1e-6
"""Distance from a bin's edge, in bins, below which the arithmetic is not trusted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a piece of b batches of equal size shows before its values are counted in bins."""

    rows: int
    low: Float64[np.ndarray, "b d"]
    high: Float64[np.ndarray, "b d"]
    mean: Float64[np.ndarray, " d"]
    moment: Float64[np.ndarray, " d"]
    """Sum of squared deviations from the mean."""

    @staticmethod
    def of(x: Float64[np.ndarray, "b rows d"]) -> "_Seen":
        flat = x.reshape(-1, x.shape[2])
        mean = flat.mean(0)
        off = flat - mean
        return _Seen(rows=len(off), low=x.min(1), high=x.max(1), mean=mean, moment=np.square(off, out=off).sum(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Span:
    """Batches of a piece that are counted in the same bins."""

    batches: slice
    low: Float64[np.ndarray, " d"]
    high: Float64[np.ndarray, " d"]
    """Range of the bins."""
    widened: bool
    """Whether the bins before had another range."""

    def edges(self) -> Float64[np.ndarray, "d edges"]:
        return np.linspace(self.low, self.high, BINS + 1, axis=1)


class RunningStats:
    """Mean, deviation and quantiles of vectors that arrive in batches; quantiles by openpi's histograms.

    A piece is taken in three steps, of which the second may be done elsewhere: what it shows tells the bins, its values
    are counted in them, and the counts are added. Whole numbers add up to the same in any order; the rest is merged in
    that of the pieces.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._moment = self._low = self._high = np.zeros(0)
        self._range = np.zeros(0), np.zeros(0)
        self._edges = np.zeros((0, BINS + 1))
        self._counts = np.zeros((0, BINS), np.int64)

    def update(self, x: Float[np.ndarray, "batches rows d"]) -> None:
        """Adds batches of equal size, in order; all values finite."""
        x = x.astype(np.float64)
        for span in self.take(_Seen.of(x)):
            self.move_to(span)
            self.add(count(x[span.batches], self._edges))

    def take(self, seen: _Seen) -> Sequence[_Span]:
        """Takes in range and moments of the next piece; returns in which bins its values are to be counted."""
        low, high = seen.low, seen.high
        if not self._count:
            self._low, self._high = low[0], high[0]
            self._range = low[0] - EDGE, high[0] + EDGE
            self._mean, self._moment = np.zeros(low.shape[1]), np.zeros(low.shape[1])
        low = np.minimum.accumulate(np.concatenate([self._low[None], low]))
        high = np.maximum.accumulate(np.concatenate([self._high[None], high]))
        widened = np.flatnonzero(((low[1:] < low[:-1]) | (high[1:] > high[:-1])).any(1))
        bounds = sorted({0, *widened.tolist(), len(seen.low)})
        spans = []
        for start, stop in itertools.pairwise(bounds):
            if start in widened:
                self._range = low[start + 1], high[start + 1]
            of = {"low": self._range[0], "high": self._range[1]}
            spans.append(_Span(batches=slice(start, stop), widened=start in widened, **of))
        self._low, self._high = low[-1], high[-1]
        self._merge(seen)
        return spans

    def move_to(self, span: _Span) -> None:
        """Moves the histograms to the bins of a span: a bin's count goes where its left edge falls."""
        if span.widened:
            edges = span.edges()
            for d, counts in enumerate(self._counts):
                self._counts[d] = np.histogram(self._edges[d, :-1], bins=edges[d], weights=counts)[0]
            self._edges = edges
        elif not len(self._edges):
            self._edges = span.edges()
            self._counts = np.zeros((len(self._edges), BINS), np.int64)

    def add(self, counts: Int64[np.ndarray, "d bins"]) -> None:
        """Adds counts in the present bins."""
        self._counts += counts

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

    def _merge(self, seen: _Seen) -> None:
        """Merges mean and sum of squared deviations (Chan et al. 1979)."""
        rows = seen.rows
        delta, total = seen.mean - self._mean, self._count + rows
        self._moment = self._moment + seen.moment + np.square(delta) * (self._count * rows / total)
        self._mean = self._mean + delta * (rows / total)
        self._count = total


def count(x: Float64[np.ndarray, "*b d"], edges: Float64[np.ndarray, "d edges"]) -> Int64[np.ndarray, "d bins"]:
    """np.histogram of each dimension, by arithmetic on the evenly spaced bins and one correction."""
    counts = np.zeros((len(edges), BINS), np.int64)
    first, width = edges[:, 0], (edges[:, -1] - edges[:, 0]) / BINS
    for d, column in enumerate(np.ascontiguousarray(x.reshape(-1, len(edges)).T)):
        if width[d] == 0:
            counts[d, -1] = len(column)
            continue
        place = (column - first[d]) * (1 / width[d])
        bins = place.astype(np.int64)
        # Only a value within rounding of an edge can be in the wrong bin; the edges themselves decide.
        near = np.flatnonzero(np.abs(place - np.rint(place)) < NEAR)
        close = np.clip(bins[near], 0, BINS - 1)
        close -= column[near] < edges[d, close]
        bins[near] = close + ((column[near] >= edges[d, close + 1]) & (close < BINS - 1))
        counts[d] = np.bincount(bins, minlength=BINS)
    return counts


class _Tally:
    """How many values lie in the bins of a span, and of those after it that have the same bins; only those with any."""

    def __init__(self, span: _Span) -> None:
        self.span = span
        self._bins, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, counts: Int64[np.ndarray, "d bins"]) -> None:
        counts = counts.ravel()
        counts[self._bins] += self._counts
        self._bins = np.flatnonzero(counts)
        self._counts = counts[self._bins]

    def dense(self) -> Int64[np.ndarray, "d bins"]:
        counts = np.zeros((len(self.span.low), BINS), np.int64)
        counts.ravel()[self._bins] = self._counts
        return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pieces:
    """A dataset's samples in order, in pieces of BATCHES_AT_ONCE batches; the last frames are a piece of one batch."""

    state: Float[np.ndarray, "T s"]
    action: Float[np.ndarray, "T a"]
    lengths: Int64[np.ndarray, " e"]
    horizon: int
    relative_dims: Sequence[int]
    drop_tail: bool

    def __len__(self) -> int:
        whole, tail = divmod(len(self.state), BATCH)
        return -(-whole // BATCHES_AT_ONCE) + bool(tail and not self.drop_tail)

    def read(self, piece: int) -> dict[str, Float[np.ndarray, "b rows d"]]:
        """Makes the batches of a piece."""
        whole = len(self.state) // BATCH * BATCH
        start = min(piece * BATCH * BATCHES_AT_ONCE, whole)
        rows = np.arange(start, min(start + BATCH * BATCHES_AT_ONCE, whole) if start < whole else len(self.state))
        batch, dims = min(BATCH, len(rows)), list(self.relative_dims)
        starts = np.cumsum(self.lengths) - self.lengths
        episode = np.searchsorted(starts, rows, side="right") - 1
        inside, _ = window(rows - starts[episode], self.lengths[episode], np.arange(self.horizon))
        state, actions = self.state[rows], self.action[starts[episode][:, None] + inside]
        actions[..., dims] -= state[:, None, dims]
        return {
            "state": state.reshape(-1, batch, state.shape[1]),
            "actions": actions.reshape(-1, batch * self.horizon, actions.shape[2]),
        }

    def look(self, job: int) -> list[dict[str, _Seen]]:
        """Says of each piece of a job what it shows."""
        return [{name: _Seen.of(x.astype(np.float64)) for name, x in self.read(p).items()} for p in self._of(job)]

    def tally(self, spans: Sequence[Mapping[str, Sequence[_Span]]], job: int) -> dict[str, list["_Tally"]]:
        """Counts the values of a job in the bins that `spans` gives for each piece of the dataset."""
        tallies: dict[str, list[_Tally]] = {"state": [], "actions": []}
        edges: dict[str, np.ndarray] = {}
        for piece in self._of(job):
            for name, x in self.read(piece).items():
                for span in spans[piece][name]:
                    if span.widened or not tallies[name]:
                        tallies[name].append(_Tally(span))
                        edges[name] = span.edges()
                    tallies[name][-1].add(count(x[span.batches].astype(np.float64), edges[name]))
        return tallies

    def _of(self, job: int) -> range:
        return range(job * PIECES_A_JOB, min((job + 1) * PIECES_A_JOB, len(self)))


def dataset_stats(
    table: FrameTable,
    config: DataConfig,
    *,
    adapter: Adapter = OWN,
    drop_tail: bool = False,
    hands: Hands | None = None,
) -> dict[str, NormStats]:
    """Statistics of "state" (each frame) and "actions" (each step of each frame's window, made relative).

    Padded steps count with the action that they repeat, as in openpi. They are the same to the bit for any number of
    workers.

    Args:
      table: All frames.
      config: Its keys, horizon and relative dimensions.
      adapter: Gives the numbers that the policy sees of the table's.
      drop_tail: Leave out the last frames where they fill no batch of 32, as openpi's script does.
      hands: By how many processes, and where; each gets the two columns.
    """
    pieces = _Pieces(
        state=adapter.state(table.columns[config.state_key]),
        action=adapter.action(table.columns[config.action_key]),
        lengths=table.lengths,
        horizon=config.horizon,
        relative_dims=config.robot.relative_dims,
        drop_tail=drop_tail,
    )
    stats = {"state": RunningStats(), "actions": RunningStats()}
    if hands is None or hands.is_alone:
        for piece in range(len(pieces)):
            for name, x in pieces.read(piece).items():
                stats[name].update(x)
    else:
        _share_out(pieces, stats, hands)
    return {name: running.result() for name, running in stats.items()}


def _share_out(pieces: _Pieces, stats: Mapping[str, RunningStats], hands: Hands) -> None:
    """Takes in all pieces, which workers look at first, and then count in the bins that come of it."""
    jobs = range(-(-len(pieces) // PIECES_A_JOB))
    spans: list[dict[str, Sequence[_Span]]] = []
    looking = do_here_or(jobs, _Opener(pieces.look), pieces.look, hands, name="job")
    for seen in in_order(jobs, looking):
        spans += [{name: stats[name].take(one) for name, one in piece.items()} for piece in seen]
    counting = functools.partial(pieces.tally, spans)
    for tallies in in_order(jobs, do_here_or(jobs, _Opener(counting), counting, hands, name="job")):
        for name, each in tallies.items():
            for tally in each:
                stats[name].move_to(tally.span)
                stats[name].add(tally.dense())


@dataclasses.dataclass(frozen=True)
class _Opener:
    """A worker that needs nothing opened."""

    worker: Callable[[int], Any]

    def __call__(self) -> Callable[[int], Any]:
        return self.worker


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
      DataError: If the file is missing or bad, or says that it belongs to another dataset, horizon, set of relative
        dimensions or adapter than `source`. Files without "source", such as openpi's own, are taken as they are, and so
        are all where `source` is empty: those of a run's own folder.
    """
    path = stats_file(path)
    if path.suffix == ".safetensors":
        return lerobot_norm.load(path)
    tree = read_json(path)
    if not isinstance(tree, dict) or not isinstance(tree.get("norm_stats"), dict):
        raise DataError(f'{path}: expected {{"norm_stats": {{"state": ..., "actions": ...}}}}, found {str(tree)[:80]}')
    found = tree.get("source", source)
    known = found if isinstance(found, dict) else {}
    wanted, made_by = source.get("adapter", "none"), known.get("adapter", "none")
    if source and made_by != wanted:  # other signs and units, whatever the dataset: not to be used all the same
        raise DataError(
            f"{path}: expected statistics of the numbers that data.robot.adapter {wanted} makes, found those of "
            f"{made_by}. Compute them again: data.norm_stats None, or inspect --adapter {wanted} --write-stats FILE"
        )
    differing = [key for key in source if key != "adapter" and known.get(key) != source[key]]
    if differing:
        lines = [f"{key}: expected {source[key]}, found {known.get(key)}" for key in differing if known]
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
    below 1e-6 counts as one that never moved; of one that `rarely_moves` there is no note.

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
    never = still & (std < EPSILON)
    notes = [f"{name}, dimension {d}: it never moves (spread {spread[d]:.3g})" for d in np.flatnonzero(never)]
    return Affine(offset=offset, scale=scale), tuple(notes)


def affines(
    config: DataConfig, stats: Mapping[str, NormStats]
) -> tuple[tuple[Affine, tuple[str, ...]], tuple[Affine, tuple[str, ...]]]:
    """Returns the maps of state and action that a config asks for, with `affine`'s notes and errors."""
    robot, how = config.robot, config.constant_dims
    state = affine(stats.get("state"), config.state_norm, width=robot.state_dim, name="state", constant_dims=how)
    name, width = "actions", robot.action_dim
    return state, affine(stats.get(name), config.action_norm, width=width, name=name, constant_dims=how)


def rarely_moves(stats: NormStats | None, mode: Normalization, width: int) -> Bool[np.ndarray, " d"]:
    """Tells the dimensions that move, and whose quantiles are the same: in 98 % or more of the samples they are still.

    They are divided by 1e-6 all the same, so what moves lies far out.
    """
    if mode != "quantile" or stats is None:
        return np.zeros(width, bool)
    still = (stats.q99 - stats.q01) / 2 < EPSILON
    return (still & (stats.std >= EPSILON))[:width]
