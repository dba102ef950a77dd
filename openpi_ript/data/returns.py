"""What came of each frame of an episode, in units of a task's worst outcome: for a value function and labels by it.

The reward is that of pi*0.6 (arXiv:2511.14759): -1 for each step, 0 for the one that succeeds, -C for the one with
which an episode ends without success. C is `failure_cost` times the task's limit L, and all is divided by L + C: a
return lies above -1, is 0 at the moment of success, and that of a failure is at most -C / (L + C). Nothing is clipped,
so a return is the rewards up to any later frame plus the return from there. No jax here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
from jaxtyping import Int64

from chunkwise.data.lerobot.tables import FrameTable
from chunkwise.errors import DataError
from openpi_ript.config.value import ValueConfig


class Seen(TypedDict):
    """An observation as a value function takes it, beside the task."""

    image: dict[str, np.ndarray]
    """By openpi's name: [h, w, 3] uint8."""
    state: np.ndarray
    """[sample_state_dim] float32, normalised."""


class ReturnSample(TypedDict):
    """What came of one frame."""

    observed: float
    """Return from here to the episode's end, -1 to 0."""
    ahead: float
    """Sum of the rewards of the next `lookahead` steps; 0 where the episode ends before."""
    continues: bool
    """Whether the episode goes on for more than `lookahead` steps."""
    task: int
    """Number of the prompt."""
    forced: bool
    """Whether the label is positive whatever the value says: a demonstration, or a correction by a person."""
    later: NotRequired[Seen]
    """What was seen `lookahead` steps later, or here where the episode does not continue."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Returns:
    """Judges frames by what came of them."""

    prompts: tuple[str, ...]
    """Of all tasks, in the order of their numbers."""
    limits: Int64[np.ndarray, " n"]
    """Steps of each task's longest episode."""
    config: ValueConfig
    demonstrations: bool
    """Whether every frame is one of a demonstration."""

    def of(self, prompt: str, frame: int, length: int, *, success: bool, corrected: bool) -> ReturnSample:
        """Returns what came of a frame, without what was seen later.

        Args:
          prompt: The task.
          frame: Place in its episode, from 0.
          length: Frames of the episode.
          success: Of the episode.
          corrected: Whether a person acted here.

        Raises:
          DataError: The prompt is no task's.
        """
        if prompt not in self.prompts:
            raise DataError(f"prompt: expected one of {list(self.prompts)}, found {prompt!r}")
        task = self.prompts.index(prompt)
        limit = int(self.limits[task])
        cost = self.config.failure_cost * limit
        unit = limit + cost
        lookahead = self.config.lookahead
        continues = lookahead is not None and frame + lookahead < length
        return {
            "observed": -(length - 1 - frame + (0.0 if success else cost)) / unit,
            "ahead": -(lookahead or 0) / unit if continues else 0.0,
            "continues": continues,
            "task": task,
            "forced": self.demonstrations or corrected,
        }

    def of_rollouts(self) -> "Returns":
        """Returns the same for episodes of the policy's own."""
        return dataclasses.replace(self, demonstrations=False)


def returns_of(
    table: FrameTable,
    config: ValueConfig,
    *,
    demonstrations: bool,
    default_prompt: str | None = None,
    limits: Mapping[str, int] | None = None,
) -> Returns:
    """Returns the judge of a dataset's frames.

    Args:
      table: The dataset's.
      config: The value's.
      demonstrations: Whether all of it is labelled positive.
      default_prompt: Of frames whose task is empty.
      limits: Steps after which an episode has failed, by prompt, of the tasks in which the policy acts; the longest
        episode of a prompt counts where it is the longer.
    """
    longest = dict(limits or {})
    for number, prompt in table.tasks.items():
        of_prompt = np.repeat(table.lengths, table.lengths)[table.columns["task_index"] == number]
        if of_prompt.size:
            name = prompt if prompt.strip() else default_prompt or ""
            longest[name] = max(longest.get(name, 0), int(of_prompt.max()))
    prompts = tuple(sorted(longest))
    return Returns(
        prompts=prompts,
        limits=np.array([longest[prompt] for prompt in prompts], np.int64),
        config=config,
        demonstrations=demonstrations,
    )


class ReturnBatch(TypedDict):
    """Rows of `ReturnSample`."""

    observed: np.ndarray
    """[b] float32."""
    ahead: np.ndarray
    """[b] float32."""
    continues: np.ndarray
    """[b] bool."""
    task: np.ndarray
    """[b] int32."""
    forced: np.ndarray
    """[b] bool."""
    later: NotRequired[Seen]
    """With a leading axis of rows."""


def to_return_batch(samples: Sequence[ReturnSample]) -> ReturnBatch:
    """Returns rows as arrays."""
    batch: ReturnBatch = {
        "observed": np.array([sample["observed"] for sample in samples], np.float32),
        "ahead": np.array([sample["ahead"] for sample in samples], np.float32),
        "continues": np.array([sample["continues"] for sample in samples], bool),
        "task": np.array([sample["task"] for sample in samples], np.int32),
        "forced": np.array([sample["forced"] for sample in samples], bool),
    }
    seen = [sample["later"] for sample in samples if "later" in sample]
    if seen:
        batch["later"] = {
            "image": {name: np.stack([one["image"][name] for one in seen]) for name in seen[0]["image"]},
            "state": np.stack([one["state"] for one in seen]),
        }
    return batch
