"""Ways of executing chunks: which action of which chunk is executed at a step, and when the next chunk is begun.

An inference begins at a step, with what is seen there, and its chunk is there `delay` steps later; meanwhile the old
chunk is executed. The first chunk is computed while the robot stands. Action i of a chunk is for step i after the one
at which its inference began, so what is over when it arrives is never executed.

  open_loop  the whole chunk, then the next one
  every      a new chunk every n steps
  ensemble   the mean of all chunks' actions for a step (temporal ensembling of ACT, arXiv:2304.13705)
  realtime   as every, and each chunk is completed from the actions that are committed already (real-time chunking,
             arXiv:2506.07339); for policies that sample by the steps of a flow

Evaluation and the loop of a real robot ask one `Plan` for each episode. numpy alone: worker processes import this.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float32

from chunkwise.errors import ConfigError

How = Literal["open_loop", "every", "ensemble", "realtime"]
HOWS: tuple[How, ...] = ("open_loop", "every", "ensemble", "realtime")
DECAY = 0.01
"""m of ACT's weights exp(-m i) of the i-th chunk, the oldest first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Committed:
    """Actions of the coming steps that a new chunk is completed from, the next one first."""

    actions: Float32[np.ndarray, "n a"]
    """In the robot's own units; fewer than a chunk has. Without any nothing is committed."""
    weights: Float32[np.ndarray, " m"]
    """One for each: how much it counts, 1 where it is executed in any case."""


NOTHING = Committed(actions=np.zeros((0, 0), np.float32), weights=np.zeros(0, np.float32))
"""What is committed before the first chunk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How chunks are executed."""

    how: How = "open_loop"
    execute: int | None = None
    """Steps from the beginning of one inference to that of the next. None: with open_loop what is left of a chunk when
    it arrives, with ensemble and realtime as few as the delay allows."""
    delay: int = 0
    """Steps that are executed while a chunk is computed."""
    decay: float = DECAY
    """Of the weights of ensemble."""

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise ConfigError(f"--how is {self.how!r}; expected one of {', '.join(HOWS)}")
        for name, steps in (("--execute", self.execute), ("--delay", self.delay)):
            if isinstance(steps, bool) or not isinstance(steps, int | np.integer | None):
                raise ConfigError(f"{name} is {steps!r}; expected a whole number of steps")
        if self.how == "open_loop" and self.execute is not None:
            raise ConfigError(
                f"--execute is {self.execute} and --how open_loop, which executes whole chunks; leave one of them away"
            )
        if self.how == "every" and self.execute is None:
            raise ConfigError("--how every: expected the number of steps in --execute N, found none")
        if self.execute is not None and self.execute < 1:
            raise ConfigError(f"--execute is {self.execute}; expected a number above 0")
        if self.delay < 0:
            raise ConfigError(f"--delay is {self.delay}; expected a number of steps, 0 or above")
        if not (math.isfinite(self.decay) and self.decay >= 0):
            raise ConfigError(f"decay is {self.decay}; expected a number of 0 or above")

    def interval(self, horizon: int) -> int:
        """Returns the steps from the beginning of one inference to that of the next, for chunks of `horizon` actions.

        Raises:
          ConfigError: A chunk is too short: it has to last until the next one is there, and one is computed at a time.
        """
        if self.execute is None and self.how == "open_loop" and 2 * self.delay > horizon:
            raise ConfigError(
                f"--delay is {self.delay}; expected at most {horizon // 2}, half of the {horizon} actions of a chunk, "
                "since one is computed at a time and the next begins where its delay ends"
            )
        if self.execute is not None:
            steps = self.execute
        else:
            steps = horizon - self.delay if self.how == "open_loop" else max(self.delay, 1)
        if self.execute is not None and steps > horizon:
            raise ConfigError(f"--execute is {steps}; a chunk of this policy has {horizon} actions")
        if steps + self.delay > horizon:
            raise ConfigError(
                f"--delay is {self.delay} and an inference begins every {steps} steps; expected both together within "
                f"the {horizon} actions of a chunk, which is executed until the next one is there"
            )
        if steps < self.delay:
            raise ConfigError(
                f"--delay is {self.delay} and an inference begins every {steps} steps (chunks of {horizon} actions); "
                f"expected at least {self.delay}, since one is computed at a time"
            )
        return steps


def add_flags(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds --how, --execute and --delay.

    Args:
      parser: Of the command.
      default: How chunks are executed without these, in words.
    """
    parser.add_argument("--how", choices=HOWS, help=f"how chunks are executed; default: {default}")
    parser.add_argument("--execute", type=int, metavar="N", help="steps until the next chunk is begun")
    parser.add_argument("--delay", type=int, metavar="D", help="steps that are executed while a chunk is computed")


def execution_of(how: How | None, execute: int | None, delay: int | None) -> Execution:
    """Returns what flags say: without a way it is every where a number of steps is given, else open_loop.

    Raises:
      ConfigError: They contradict one another.
    """
    chosen: How = how or ("open_loop" if execute is None else "every")
    return Execution(how=chosen, execute=execute, delay=delay or 0)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    begun: int
    """Step whose observation it was made from: that of its first action."""
    ready: int
    """First step at which it may be executed."""
    actions: Float32[np.ndarray, "t a"]


class Plan:
    """The coming actions of one episode, from the chunks so far. A step is over when its action was taken."""

    def __init__(self, execution: Execution) -> None:
        """Has no chunk yet; how long they are is what the first one says."""
        self.execution = execution
        self.step = 0
        """Of the next action."""
        self._chunks: list[_Chunk] = []
        self._begun: int | None = None
        self._waiting = False

    @property
    def due(self) -> bool:
        """Whether an inference is to begin now, with what is seen before the next action."""
        if self._waiting:
            return False
        if self._begun is None or not self._chunks:
            return True
        return self.step >= self._begun + self.execution.interval(len(self._chunks[-1].actions))

    def begin(self) -> Committed | None:
        """Notes that an inference begins. Returns what its chunk is completed from; None with other ways."""
        self._waiting, self._begun = True, self.step
        return self._committed() if self.execution.how == "realtime" else None

    def fail(self) -> None:
        """Notes that the inference under way gave no chunk; the next is due at once."""
        self._waiting, self._begun = False, None

    def take(self, chunk: Float32[np.ndarray, "t a"]) -> None:
        """Takes the chunk of the inference under way.

        Raises:
          ConfigError: It is too short for this way.
        """
        if not self._waiting or self._begun is None:
            raise ValueError("a chunk came that nobody waits for; expected begin() before take()")
        self.execution.interval(len(chunk))
        self._chunks.append(_Chunk(self._begun, max(self.step, self._begun + self.execution.delay), chunk))
        self._waiting = False

    def next(self) -> Float32[np.ndarray, " a"] | None:
        """Returns the action of this step, and goes on to the next; None, and stays, where there is none."""
        self._chunks = [chunk for chunk in self._chunks if self.step < chunk.begun + len(chunk.actions)]
        # Where nothing else is left to execute, as at the first step, a chunk is ready as soon as it is there.
        found = [chunk for chunk in self._chunks if chunk.ready <= self.step] or self._chunks
        if not found:
            return None
        actions = np.stack([chunk.actions[self.step - chunk.begun] for chunk in found])
        self.step += 1
        if self.execution.how != "ensemble":
            return actions[-1]
        weights = np.exp(-self.execution.decay * np.arange(len(actions)))
        return (weights @ actions.astype(np.float64) / weights.sum()).astype(np.float32)

    def stretch(self, chunk: Float32[np.ndarray, "t a"]) -> Float32[np.ndarray, "n a"]:
        """Takes a chunk, and returns the actions of all steps until the next inference begins."""
        self.take(chunk)
        steps = self.execution.interval(len(chunk))
        at_once = self.execution.delay == 0 and self._begun == self.step
        if self.execution.how != "ensemble" and at_once:  # of the newest chunk alone
            self._chunks = self._chunks[-1:]  # 8 take 2 us so, and 38 step by step
            self.step += steps
            return chunk[:steps].copy()
        found = [self.next() for _ in range(steps)]
        return np.stack([action for action in found if action is not None])

    def restart(self) -> None:
        """Forgets all chunks, and the inference under way: somebody else has moved the robot."""
        self._chunks, self._begun, self._waiting = [], None, False

    def _committed(self) -> Committed:
        """What is left of the newest chunk."""
        if not self._chunks:
            return NOTHING
        newest = self._chunks[-1]
        actions = newest.actions[self.step - newest.begun :]
        return Committed(actions=actions, weights=soft_mask(len(actions), self.execution.delay))


def soft_mask(left: int, delay: int) -> Float32[np.ndarray, " left"]:
    """Returns real-time chunking's weights of the actions that are left of the old chunk (equation 5 of the paper).

    1 for the `delay` that are executed before the new chunk is there, then c (e^c - 1) / (e - 1), where c falls
    linearly towards 0 behind the last.
    """
    c = (left - np.arange(left)) / max(left - delay + 1, 1)
    weights = np.where(np.arange(left) < delay, 1.0, c * np.expm1(c) / math.expm1(1.0))
    return weights.astype(np.float32)


def padded(
    committed: Sequence[Committed], horizon: int, width: int
) -> tuple[Float32[np.ndarray, "b t a"], Float32[np.ndarray, "b t"]]:
    """Returns what rows are completed from as arrays of whole chunks, zeros of weight 0 behind what is committed.

    Raises:
      ConfigError: Actions are too many, of another width, or not as many as their weights.
    """
    actions = np.zeros((len(committed), horizon, width), np.float32)
    weights = np.zeros((len(committed), horizon), np.float32)
    for row, one in enumerate(committed):
        count = len(one.actions)
        if count == 0:
            continue
        if one.actions.shape != (min(count, horizon), width) or one.weights.shape != (count,):
            raise ConfigError(
                f"committed: expected at most {horizon} actions of {width} numbers and a weight for each, found "
                f"actions {list(one.actions.shape)} and weights {list(one.weights.shape)}"
            )
        actions[row, :count], weights[row, :count] = one.actions, one.weights
    return actions, weights
