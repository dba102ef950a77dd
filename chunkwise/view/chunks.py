"""A trained policy asked at frames of recordings, for a page that draws its chunks over what was done."""

import argparse
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from chunkwise.errors import DataError
from chunkwise.view.source import Chunk


@runtime_checkable
class Acts(Protocol):
    """What of `chunkwise.policies.policy.Policy` is asked; that module imports jax."""

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Returns a chunk of actions."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sight:
    """What a policy is shown at one frame."""

    observation: Mapping[str, Any]
    """As the policy's spec has it."""
    over: str
    """Column of the recorded actions."""
    recorded: Float32[np.ndarray, "n a"]
    """Those from this frame to the episode's end."""


class PolicyChunks:
    """A run's policy in the episodes of some recordings; a PolicyView."""

    def __init__(
        self,
        policy: Acts,
        name: str,
        sight: Callable[[int, int], Sight],
        notes: Callable[[Sight, Float32[np.ndarray, "t a"]], tuple[str, ...]] = lambda *_: (),
    ) -> None:
        """Asks nothing yet.

        Args:
          policy: Called by one thread at a time.
          name: Of its run.
          sight: What is seen at a frame of an episode. Raises DataError where the policy's inputs are not there.
          notes: What is said of a chunk.
        """
        self.name = name
        self._policy, self._sight, self._notes = policy, sight, notes
        self._lock = threading.Lock()

    def chunk(self, episode: int, frame: int) -> Chunk:
        """Returns the policy's chunk; what it draws is a function of episode and frame."""
        with self._lock:
            sight = self._sight(episode, frame)
            actions = np.asarray(self._policy.infer(sight.observation, draw=(episode, frame), by_spec=True)["actions"])
            if actions.shape[1] != sight.recorded.shape[1]:
                raise DataError(
                    f"{sight.over}: expected {actions.shape[1]} numbers as the policy's actions have, found "
                    f"{sight.recorded.shape[1]}"
                )
            notes = self._notes(sight, actions)
        return Chunk(actions=actions, over=sight.over, recorded=sight.recorded[: len(actions)], notes=notes)


def load_policy_of(arguments: argparse.Namespace) -> Any:
    """Loads the policy that --policy and --checkpoint name. Raises as `chunkwise.load_policy`."""
    from chunkwise.checkpoint.weights import which  # jax, which a page without a policy does not need
    from chunkwise.policies.load import load_policy

    return load_policy(arguments.policy, checkpoint=which(arguments.checkpoint), allow_code=arguments.allow_code)
