"""What a page needs of a dataset, which each package gives for its readers; and of a config and a policy, if there are.

All of it is asked for from several threads at a time.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped, UInt8

from chunkwise.data.problems import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSummary:
    """An episode in the list; None where it is not known, or not known yet."""

    name: str
    task: str = ""
    success: bool | None = None
    """Also the label, where a dataset has labels."""
    length: int | None = None
    """Frames."""
    total_reward: float | None = None
    group: str = ""
    """Part of the dataset that it belongs to, such as a round of rollouts; empty: there are no parts."""
    advantage: float | None = None
    """Over the rollouts that it is compared with."""
    label: str = ""
    """What training takes it for, in a word or two."""
    problems: tuple[Problem, ...] = ()
    """Each with its row counted from the episode's first frame."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeContent:
    """What is plotted of an episode, and which cameras show it."""

    cameras: tuple[str, ...]
    columns: Mapping[str, Shaped[np.ndarray, "rows *d"]]
    """By name, [T] or [T, d]; T + 1 rows where the state after the last action was recorded. Numbers or bools."""
    labels: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Names of a column's dimensions, where the dataset has them."""
    fps: float | None = None
    times: Float64[np.ndarray, " rows"] | None = None
    """Seconds of each frame, where the recording says them; None: a frame every 1 / fps."""
    frames: int | None = None
    """Where there is one more than actions, the state after the last of them; None: as many as actions."""
    notes: tuple[str, ...] = ()
    """What else is known of it, in words."""
    problems: tuple[Problem, ...] = ()
    """Met while it was read, beside those of the summary."""


class Recordings(Protocol):
    """Episodes of a dataset, good and bad."""

    @property
    def title(self) -> str:
        """Where they lie."""
        ...

    @property
    def kind(self) -> str:
        """Their format, in a word or two."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Of all episodes, without reading them."""
        ...

    def examine(self) -> Iterator[tuple[int, EpisodeSummary]]:
        """Reads all episodes and yields what each holds; an episode may come again once more of it is known.

        Raises:
          DataError: The rest cannot be read.
        """
        ...

    def open(self, episode: int) -> EpisodeContent:
        """Reads an episode without its images.

        Raises:
          DataError: It cannot be read.
        """
        ...

    def image(self, episode: int, camera: str, frame: int) -> bytes:
        """Returns one image as JPEG or PNG; as recorded, where it is one of these.

        Args:
          episode: In [0, len(names)).
          camera: One of the content's.
          frame: At or above 0.

        Raises:
          DataError: There is none, or it is damaged.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """What training draws at one start."""

    recorded: Float32[np.ndarray, "t a"]
    """Actions in the units of the column that `over` names."""
    over: str
    valid: Bool[np.ndarray, " t"]
    """Which of them the losses count; the others are padding, or unknown."""
    arrays: Mapping[str, Shaped[np.ndarray, "..."]]
    """Entries of the batch, without its first axis: [t], [t, d], [d] or []."""
    per_step: tuple[str, ...]
    """Names of those whose first axis are the chunk's steps."""
    images: Mapping[str, UInt8[np.ndarray, "h w 3"]]
    """As the network gets them."""
    in_plane: bool = False
    """As of `Chunk`."""
    notes: tuple[str, ...] = ()


class TrainingView(Protocol):
    """What a config makes of the same episodes."""

    @property
    def name(self) -> str:
        """Of the config."""
        ...

    def window(self, episode: int, frame: int) -> Window:
        """Returns what training draws at this start.

        Raises:
          DataError: Training takes no chunk there; the message says why.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """What a policy would do at one frame."""

    actions: Float32[np.ndarray, "t a"]
    """In the units of the column that `over` names."""
    over: str
    recorded: Float32[np.ndarray, "n a"]
    """What was done from this frame on, as far as it is known: at most t steps."""
    in_plane: bool = False
    """Whether the actions are places (x ahead, y to the left), which are drawn as seen from above."""
    notes: tuple[str, ...] = ()


class PolicyView(Protocol):
    """What a policy would do in the same episodes."""

    @property
    def name(self) -> str:
        """Of the run."""
        ...

    def chunk(self, episode: int, frame: int) -> Chunk:
        """Returns the policy's chunk at a frame, the same whenever it is asked for.

        Raises:
          DataError: The episode has not what the policy takes.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What a page shows."""

    recordings: Recordings
    training: TrainingView | None = None
    policy: PolicyView | None = None
