"""What every reader of a foreign format hands over, and the checks that they share."""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped, UInt8

from chunkwise.data import convert
from chunkwise.data.problems import Problem
from chunkwise.errors import ConfigError
from qchunk.data.readers.report import check_finite, check_lengths

Images = Callable[[], Iterator[Mapping[str, UInt8[np.ndarray, "h w 3"]]]]
"""Gives all cameras of one frame after another; called once, when the episode is written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertSettings(convert.ConvertSettings):
    """What may be chosen; a setting that the source's format cannot use is refused.

    `cameras` that are empty take all under their own names; these, and `quality`, are for robomimic and lerobot,
    `allow_links_to` for lerobot.
    """

    observation_keys: tuple[str, ...] = ()
    """Arrays that make up the observation, in this order; empty takes the format's default. robomimic, lerobot."""
    filter_key: str | None = None
    """Only the episodes of this list under /mask. robomimic."""
    images: Literal["jpeg", "raw", "none"] = "jpeg"
    """How images are stored. robomimic, lerobot."""
    final_done: Literal["time_limit", "termination"] = "time_limit"
    """Meaning of a done in an episode's last frame that earned no success. robomimic, lerobot."""
    max_episode_steps: int | None = None
    """Length at which an episode was cut, for files that do not say where they were. d4rl."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := wrong_names(self.cameras.values()):
            raise ConfigError(
                f"--camera: {wrong} cannot name a camera of the output; give each its own name without '/'"
            )
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(f"--max-episode-steps is {self.max_episode_steps}; expected at least 1")


def wrong_names(cameras: Collection[str]) -> list[str]:
    """Names that no camera of the output may have, and those that are there twice."""
    names = list(cameras)
    return [name for name in names if not name or "/" in name or name.startswith(".") or names.count(name) > 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """One episode of T frames as read from its source."""

    id: str
    """Where it came from: file and group, row or episode."""
    observation: Float32[np.ndarray, "T s"]
    action: Float32[np.ndarray, "T a"]
    reward: Float64[np.ndarray, " T"] | None = None
    terminated: Bool[np.ndarray, " T"] | None = None
    """None where the source says nothing, or has no reward."""
    success: bool | None = None
    """Where the source says so itself; a sparse reward is judged by the caller."""
    extra: Mapping[str, Shaped[np.ndarray, "T ..."]] = dataclasses.field(default_factory=dict)
    """More datasets by their name in the output."""
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: Images | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """An episode, or what is wrong with it."""

    recording: Recording | None
    problems: tuple[Problem, ...] = ()


@runtime_checkable
class Reader(Protocol):
    """Episodes of one source. Its constructor raises DataError for a file that cannot be cut into episodes."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Reading:
        """Reads and checks one episode; bad content is reported, never raised."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What a person should know of the source, as JSON values."""
        ...

    def close(self) -> None: ...


def check_arrays(name: str, arrays: Mapping[str, np.ndarray], *, row: int = 0) -> list[Problem]:
    """Lengths that differ, no frames, NaN and Inf.

    Args:
      name: The episode, for the messages.
      arrays: By their names in the file; the actions first, which give the length.
      row: Number of the arrays' first row in the file.
    """
    names = {key: key for key in arrays}
    return check_lengths(name, arrays, names) + check_finite(name, arrays, names, row)


def check_widths(widths: Mapping[str, Mapping[str, str]]) -> list[Problem]:
    """Episodes in which an array has another width than in most, is missing, or is there alone.

    Args:
      widths: Of each episode by its id: name of an array to its width in words.
    """
    problems = []
    for key in dict.fromkeys(key for found in widths.values() for key in found):
        count = collections.Counter(found.get(key, "none") for found in widths.values())
        usual = count.most_common(1)[0][0]
        expected = f"{usual}, as in most episodes"
        problems += [
            Problem(file=name, key=key, expected=expected, found=found.get(key, "none"))
            for name, found in widths.items()
            if found.get(key, "none") != usual
        ]
    return problems


def as_float32(x: np.ndarray) -> np.ndarray:
    """float32; a number too large becomes Inf, which is reported as such."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Columns side by side, in 32 bits."""
    return np.concatenate([as_float32(x) for x in arrays], axis=1)
