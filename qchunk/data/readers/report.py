"""What indexing finds out about an episode: facts first, and what is wrong with it whatever the config."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

from chunkwise.data.episodes import Episode, manifest_hash
from chunkwise.data.problems import Problem
from chunkwise.files.identity import Files

MOST_REWARDS = 17


def beyond_float32_as_inf(x: np.ndarray) -> np.ndarray:
    """Rewards in 64 bits, for which training has 32: what these cannot hold becomes Inf, which is reported as such."""
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(x.astype(np.float32)), x, np.inf).astype(np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageReport:
    """Images or depth maps of one camera of an episode."""

    encoding: Literal["jpeg", "raw"]
    height: int
    width: int
    dtype: str
    """Of a pixel's channel: uint8; uint16 or float32 for depth."""
    stored: int
    """Bytes of the images as recorded, padding left out."""
    digest: str
    """SHA-256 of these bytes."""
    stored_at: str = ""
    """Path in the file, where it is not the camera's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardReport:
    """Rewards of a file."""

    values: tuple[float, ...]
    """The distinct ones in order, at most 17 of them: more are a dense reward."""
    low: float
    high: float
    high_to_end: bool
    """Whether `high`, once reached, stays to the last frame."""
    terminated: bool
    """Whether the file says where it terminated."""


def report_rewards(reward: np.ndarray, *, terminated: bool) -> RewardReport:
    """Describes the rewards of a file, at least one."""
    values, high = np.unique(reward), float(reward.max())
    reached = np.flatnonzero(reward == high)
    return RewardReport(
        values=tuple(values[:MOST_REWARDS].tolist()),
        low=float(reward.min()),
        high=high,
        high_to_end=bool(len(reached) == len(reward) - reached[0]),
        terminated=terminated,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeReport:
    """One episode as indexing saw it. Holds no setting of a run, so that it can be cached for all of them."""

    id: str
    path: str
    """File, relative to the dataset's folder."""
    size: int
    mtime_ns: int
    content_hash: str
    """Of the file."""
    arrays_hash: str = ""
    """Of what a reader of the user's made of the file; empty for the formats that are read here."""
    length: int = 0
    dims: dict[str, int] = dataclasses.field(default_factory=dict)
    """Width of each array, by its short name (action, qpos, state, sim_qpos, ...)."""
    env: str | None = None
    """Simulator environment, where the file names it."""
    fps: float | None = None
    """Frames a second, where the file says them."""
    score: int | None = None
    """n of the folder score_<n> that the file lies in, below the dataset's own."""
    success: bool | None = None
    """The file's attribute `success`."""
    total_reward: float | None = None
    """Undiscounted; None without a reward in the file."""
    rewards: RewardReport | None = None
    """None without a reward in the file, and where another reader gives the rewards."""
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Of everything but images."""
    images: dict[str, ImageReport] | None = None
    """Every camera by the path of its dataset; None where no images were looked at, which takes a while."""
    image_problems: tuple[Problem, ...] = ()

    def row(self) -> tuple[object, ...]:
        """What the dataset's fingerprint covers."""
        return (self.id, self.path, self.size, self.length, self.dims, self.content_hash)


_RENAMED = {"pictures": "images", "picture_problems": "image_problems"}
"""Fields by the names that earlier versions wrote into an index."""


def from_json(tree: Mapping[str, object]) -> EpisodeReport:
    """Inverse of `dataclasses.asdict` after a round trip through JSON."""
    fields = {_RENAMED.get(name, name): value for name, value in tree.items()}
    problems, of_images, images = (fields.pop(name) for name in ("problems", "image_problems", "images"))
    assert isinstance(problems, list)
    assert isinstance(of_images, list)
    for name in ("action_low", "action_high"):
        values = fields[name]
        assert isinstance(values, list)
        fields[name] = tuple(values)
    rewards = fields.pop("rewards")
    if rewards is not None:
        assert isinstance(rewards, dict)
        rewards["values"] = tuple(rewards["values"])
        fields["rewards"] = RewardReport(**rewards)
    if images is not None:
        assert isinstance(images, dict)
        fields["images"] = {name: ImageReport(**one) for name, one in images.items()}
    return EpisodeReport(
        **fields,  # pyright: ignore[reportArgumentType]
        problems=tuple(Problem(**p) for p in problems),
        image_problems=tuple(Problem(**p) for p in of_images),
    )


def check_lengths(file: str, arrays: Mapping[str, np.ndarray], names: Mapping[str, str]) -> list[Problem]:
    """Problems inside one episode: no frames, or arrays of different lengths.

    Args:
      file: For the messages.
      arrays: By short name, at least one; `action` or, without it, the first gives the expected length.
      names: Name inside the file of each short name.
    """
    first = "action" if "action" in arrays else next(iter(arrays))
    length = len(arrays[first])
    problems = []
    if not length:
        found = f"shape {arrays[first].shape}"
        problems.append(Problem(file=file, key=names[first], expected="at least 1 frame", found=found))
    expected = f"{length} rows, as many as {names[first]}"
    problems += [
        Problem(file=file, key=names[key], row=min(len(x), length), expected=expected, found=f"{len(x)} rows")
        for key, x in arrays.items()
        if len(x) != length
    ]
    return problems


def check_finite(file: str, arrays: Mapping[str, np.ndarray], names: Mapping[str, str], row: int = 0) -> list[Problem]:
    """Arrays that hold NaN or Inf, each with its first bad row.

    Args:
      file: For the messages.
      arrays: By short name, [T] or [T, d].
      names: Name inside the file of each short name.
      row: Number of the arrays' first row in the file.
    """
    problems = []
    for key, x in arrays.items():
        flat = x[:, None] if x.ndim == 1 else x
        bad = np.flatnonzero(~np.isfinite(flat).all(1))
        if len(bad):
            column = int(np.flatnonzero(~np.isfinite(flat[bad[0]]))[0])
            found = f"{flat[bad[0], column]} in column {column} ({len(bad)} such row(s))"
            problems.append(
                Problem(file=file, key=names[key], row=row + int(bad[0]), expected="finite numbers", found=found)
            )
    return problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoodEpisodes:
    """Episodes of a dataset that indexing found good."""

    path: Path
    """The dataset's folder or file."""
    reports: Sequence[EpisodeReport]
    positives: Bool[np.ndarray, " episodes"]
    """Label of each."""
    files: Files
    """The dataset's, as they were indexed."""
    action: str
    """Short name of the array that holds the actions, action or qpos."""

    def widths_of(self, names: Sequence[str]) -> dict[str, int]:
        """Returns the width of each array that all episodes have, and of one width."""
        found = {name: {report.dims.get(name) for report in self.reports} for name in names}
        return {name: width for name, (width, *others) in found.items() if width is not None and not others}


class IndexedEpisodes(abc.ABC):
    """An EpisodeSource of episodes that were found good; a subclass loads them."""

    def __init__(self, good: GoodEpisodes, dims: Mapping[str, int]) -> None:
        """Takes the episodes, and the width of "action" and of each state array."""
        self._path, self._files, self._action = good.path, good.files, good.action
        self._reports, self._positives, self._dims = good.reports, good.positives, dims
        self._lengths = np.array([report.length for report in good.reports], np.int64)

    @property
    def ids(self) -> Sequence[str]:
        return [report.id for report in self._reports]

    @property
    def lengths(self) -> Int64[np.ndarray, " episodes"]:
        return self._lengths

    @property
    def positives(self) -> Bool[np.ndarray, " episodes"]:
        return self._positives

    @property
    def dims(self) -> Mapping[str, int]:
        return self._dims

    def __len__(self) -> int:
        return len(self._reports)

    def manifest_hash(self) -> str:
        return manifest_hash(report.row() for report in self._reports)

    @abc.abstractmethod
    def load(self, index: int) -> Episode:
        """Reads one episode, as EpisodeSource says."""
