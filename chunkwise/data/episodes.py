"""Episodes, and chunks of `n` consecutive steps cut from them.

A chunk may start at any frame. What it holds past the end of its episode, and after a termination inside it, is
decided here once, for every loader:

  action          the last action repeated
  next frame      the last recorded frame
  reward          cumulative and discounted; constant past the end and after a terminated frame

Padding every episode by `n` rows makes each of these a contiguous stretch of rows of one array, so that a batch is a
handful of gathers.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, Shaped

NEVER = 1 << 40  # steps until a termination that does not come; above any episode's length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """One recorded episode of T frames: at each a state, an action and what came of it."""

    id: str
    """Where it was read from, relative to the dataset."""
    states: Mapping[str, Float32[np.ndarray, "rows _"]]
    """State arrays by name. T rows, or T + 1 where the state after the last action was recorded."""
    action: Float32[np.ndarray, "T a"]
    reward: Float64[np.ndarray, " T"]
    """Reward of each step. Kept in 64 bits, so that sums over a chunk round only once."""
    terminated: Bool[np.ndarray, " T"]
    """True where no value may be bootstrapped after the step. May be true in mid-file; a time limit is none."""
    positive: bool
    """The episode's label."""

    @property
    def length(self) -> int:
        """T, the number of frames that a chunk may start at."""
        return len(self.action)


@runtime_checkable
class EpisodeSource(Protocol):
    """Episodes of one dataset, indexed and found good before the first is loaded."""

    @property
    def ids(self) -> Sequence[str]:
        """Name of each episode, as messages show it."""
        ...

    @property
    def lengths(self) -> Int64[np.ndarray, " episodes"]:
        """Frames of each episode."""
        ...

    @property
    def positives(self) -> Bool[np.ndarray, " episodes"]:
        """Label of each episode."""
        ...

    @property
    def dims(self) -> Mapping[str, int]:
        """Width of "action" and of each state array, by name."""
        ...

    def __len__(self) -> int: ...

    def load(self, index: int) -> Episode:
        """Reads one episode.

        Raises:
          OSError: The file could not be read; worth another try.
          DataError: The file is no longer what was indexed.
        """
        ...

    def manifest_hash(self) -> str:
        """Fingerprint of the content: equal for equal bytes, wherever the folder lies."""
        ...


def manifest_hash(rows: Iterable[Sequence[Any]]) -> str:
    """SHA-256 over one JSON row an episode (relative path, size, length, dims, content hash, ...), in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def cumulative_lengths(lengths: Int64[np.ndarray, " e"]) -> Int64[np.ndarray, " e"]:
    """Frames up to and including each episode: the boundaries that `episode_of` searches."""
    return np.cumsum(lengths, dtype=np.int64)


def episode_of(cumulative: Int64[np.ndarray, " e"], starts: Int64[np.ndarray, "*draws"]) -> Int64[np.ndarray, "*draws"]:
    """Episode that each global start lies in.

    Args:
      cumulative: From `cumulative_lengths`.
      starts: In [0, cumulative[-1]).
    """
    return cumulative.searchsorted(starts, side="right")


def steps_to_termination(terminated: Bool[np.ndarray, " T"]) -> Int64[np.ndarray, " T"]:
    """Steps from each frame to the first terminated frame at or after it: 0 where it is itself one, else NEVER."""
    frames = np.arange(len(terminated), dtype=np.int64)
    position = np.where(terminated, frames, NEVER)
    first = np.minimum.accumulate(position[::-1])[::-1]
    return np.where(first == NEVER, NEVER, first - frames)


def chunk_returns(
    reward: Float64[np.ndarray, " T"], to_termination: Int64[np.ndarray, " T"], *, horizon: int, discount: float
) -> Float32[np.ndarray, "T t"]:
    """Cumulative discounted reward of the chunk that starts at each frame.

    out[s, i] = sum over j <= i of discount^j reward[s + j], over frames inside the episode and up to and including
    the first terminated one. Added up in 64 bits in the order of j with discount^j from Python's float power, then
    rounded once to 32 bits: the bits are those of a plain loop over one sample.

    Args:
      reward: Reward of each step.
      to_termination: From `steps_to_termination`.
      horizon: t, steps of a chunk.
      discount: Per step, in (0, 1].
    """
    frames = len(reward)
    total = np.zeros(frames, np.float64)
    out = np.empty((frames, horizon), np.float32)
    for j in range(horizon):
        count = max(frames - j, 0)  # chunks that still have a frame at step j
        gained = discount**j * reward[j:]
        total[:count] += np.where(to_termination[:count] >= j, gained, 0.0)
        out[:, j] = total
    return out


def pad_with_last(out: Shaped[np.ndarray, "rows *d"], x: Shaped[np.ndarray, "real *d"]) -> None:
    """Writes x to the head of `out` and repeats its last row to the end."""
    out[: len(x)] = x
    out[len(x) :] = x[-1]


def chunk_view(x: Shaped[np.ndarray, "rows a"], horizon: int) -> Shaped[np.ndarray, "starts t a"]:
    """Every stretch of `horizon` consecutive rows as a read-only view; nothing is copied.

    Args:
      x: C-contiguous, at least `horizon` rows.
      horizon: t, steps of a chunk.
    """
    rows, width = x.shape
    strides = (x.strides[0], x.strides[0], x.strides[1])
    return np.lib.stride_tricks.as_strided(x, (rows - horizon + 1, horizon, width), strides, writeable=False)


def first_steps(horizon: int) -> Bool[np.ndarray, "counts t"]:
    """Row k is true at the first k of `horizon` steps, for k = 0 .. horizon: a mask looked up by its count."""
    return np.arange(horizon)[None, :] < np.arange(horizon + 1)[:, None]
