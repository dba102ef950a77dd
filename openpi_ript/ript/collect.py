"""Plays rollouts: a policy infers for several environments at once while others step.

Slots are split into two halves. While the workers of one half execute their chunks, the policy infers for the other, in
a batch that always has the same number of rows. A rollout keeps its slot, and with it its row, and that row's noise is
drawn from the rollout's own numbers: so what happens in it depends on its number, its seeds and the weights, not on
what runs beside it nor on what was done before a kill.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from chunkwise.cli.progress import Lines
from chunkwise.envs.environment import Observation
from chunkwise.envs.recorder import MAX_DEATHS
from chunkwise.errors import NonFiniteError, RunError
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.layer_4 import policy_state
from openpi_ript.ript.rollouts import Rollout, append_frames, save
from openpi_ript.ript.workers import Start, Stretch, WorkerDiedError, Workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One rollout to be played."""

    number: int
    """Decides slot and row: number modulo env.num_envs."""
    seed: int
    """Of the environment's reset."""
    draw: tuple[int, ...]
    """Seeds the policy's noise."""
    path: Path
    """Names the rollout in errors; where it is written, if it is."""


@runtime_checkable
class Actor(Protocol):
    """A policy as the collector calls it."""

    step: int
    weights: str
    """Digest of the weights."""
    chunk: tuple[int, int]
    """Steps and width of the noise of one chunk."""

    def __call__(
        self, observation: dict[str, Any], noise: Float32[np.ndarray, "b t n"]
    ) -> Float32[np.ndarray, "b t a"]:
        """Chunks for a batch: "state" [b, s], "image" by openpi's names, "prompt", a list."""
        ...


@dataclasses.dataclass
class _Slot:
    """A rollout under way."""

    job: Job
    frames: list[Observation]
    stretches: list[Stretch] = dataclasses.field(default_factory=list)
    init_hash: str = ""
    deaths: int = 0

    @property
    def length(self) -> int:
        return sum(len(stretch.actions) for stretch in self.stretches)


class Collector:
    """Plays jobs on the workers of one environment config."""

    def __init__(self, config: EnvConfig, *, allow_code: bool = False) -> None:
        """Starts nothing yet.

        Args:
          config: Which environment, and how the policy acts in it.
          allow_code: Whether the user named `module:factory`, if that is what env.suite is.

        Raises:
          ConfigError: env.suite is code that the user did not name.
        """
        self.config = config
        self.workers = Workers(config, allow_code=allow_code)
        self.deaths = 0
        """Workers that died so far; each cost one rollout, which was played again."""
        self._halves = [range(config.rows), range(config.rows, config.num_envs)]

    def play(
        self,
        jobs: Sequence[Job],
        actor: Actor,
        done: Callable[[Job, Rollout], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Plays rollouts, each up to its first success or env.max_steps.

        Args:
          jobs: In any order; each has a number of its own.
          actor: The policy.
          done: Called with each finished rollout, in the order in which they end.
          stopping: Asked before every inference; if true everything under way is dropped.

        Returns:
          False if it was stopped.

        Raises:
          StopRequested: It was stopped while a worker did not answer.
          NonFiniteError: The policy gave NaN or Inf; the rollout so far is written beside job.path, and named.
          RunError: An environment failed, or workers keep dying in one rollout.
        """
        lines = Lines(len(jobs), "played {count} of {total} rollouts")
        queues = [[job for job in reversed(jobs) if job.number % self.config.num_envs == slot] for slot in self._slots]
        slots: list[_Slot | None] = [None] * self.config.num_envs
        try:
            for slot, queue in enumerate(queues):
                slots[slot] = self._begin(slot, queue.pop()) if queue else None
            while any(slots):
                for half in self._halves:
                    for i in half:
                        while (slot := slots[i]) is not None and self._receive(i, slot, stopping):
                            done(slot.job, self._rollout(slot, actor))
                            lines.advance()
                            slots[i] = self._begin(i, queues[i].pop()) if queues[i] else None
                    if stopping():
                        self.workers.close()
                        return False
                    self._act([slots[i] for i in half], half.start, actor)
        except BaseException:
            self.workers.close()  # or their answers would be taken for those to other requests
            raise
        return True

    @property
    def _slots(self) -> range:
        return range(self.config.num_envs)

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()

    def _begin(self, slot: int, job: Job) -> _Slot:
        self.workers.reset(slot, job.seed)
        return _Slot(job, [])

    def look(self, job: Job) -> Start:
        """Begins a rollout, and drops it. Raises RunError as `play`."""
        try:
            answer = self._answer(0, self._begin(0, job), lambda: False)
        except BaseException:
            self.workers.close()
            raise
        assert isinstance(answer, Start)
        return answer

    def _answer(self, i: int, slot: _Slot, stopping: Callable[[], bool]) -> Start | Stretch:
        """What a worker answers; a rollout whose worker died begins again, and answers with that."""
        while True:
            try:
                return self.workers.receive(i, stopping)
            except WorkerDiedError as error:
                self.deaths += 1
                slot.deaths += 1
                if slot.deaths >= MAX_DEATHS:
                    raise RunError(
                        f"{slot.job.path}: {slot.deaths} workers died in this rollout (seed {slot.job.seed}); is there "
                        f"enough memory for env.num_envs {self.config.num_envs}?"
                    ) from error
                print(f"\nan environment worker died; {slot.job.path.stem} is played again", flush=True)
                slot.frames, slot.stretches = [], []
                self.workers.reset(i, slot.job.seed)

    def _receive(self, i: int, slot: _Slot, stopping: Callable[[], bool]) -> bool:
        """Takes a worker's answer; whether the episode is over."""
        answer = self._answer(i, slot, stopping)
        if isinstance(answer, Start):
            slot.frames = [{name: value[None] for name, value in answer.observation.items()}]
            slot.init_hash = answer.init_hash
            return False
        slot.frames.append(answer.observations)
        slot.stretches.append(answer)
        return bool(answer.success[-1]) or slot.length >= self.config.max_steps

    def _act(self, slots: Sequence[_Slot | None], first: int, actor: Actor) -> None:
        """Infers for one half and sends its workers what to do."""
        active = [(row, slot) for row, slot in enumerate(slots) if slot is not None]
        if not active:
            return
        noise = np.zeros((self.config.rows, *actor.chunk), np.float32)
        for row, slot in active:
            rng = np.random.default_rng([*slot.job.draw, len(slot.stretches)])
            noise[row] = rng.standard_normal(actor.chunk, np.float32)
        latest = [{name: value[-1] for name, value in (slot or active[0][1]).frames[-1].items()} for slot in slots]
        chunks = actor(self._batch(latest), noise)
        for row, slot in active:
            chunk = chunks[row, : min(self.config.execute, self.config.max_steps - slot.length)]
            if not np.isfinite(chunk).all():
                raise self._non_finite(slot, actor)
            self.workers.run(first + row, np.ascontiguousarray(chunk, np.float32))

    def _batch(self, rows: Sequence[Observation]) -> dict[str, Any]:
        """Observations of the same names as a batch for the policy."""
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return {
            "state": policy_state(stacked, self.config.state),
            "image": {name: stacked[shown] for name, shown in self.config.cameras.items()},
            "prompt": [self.config.prompt] * len(rows),
        }

    def _rollout(self, slot: _Slot, actor: Actor) -> Rollout:
        actions = [stretch.actions for stretch in slot.stretches]
        rewards = [stretch.rewards for stretch in slot.stretches]
        return Rollout(
            observations=append_frames(slot.frames),
            actions=np.concatenate(actions) if actions else np.zeros((0, 0), np.float32),
            rewards=np.concatenate(rewards) if rewards else np.zeros(0, np.float32),
            success=bool(slot.stretches and slot.stretches[-1].success[-1]),
            seed=slot.job.seed,
            draw=slot.job.draw,
            init_hash=slot.init_hash,
            prompt=self.config.prompt,
            step=actor.step,
            weights=actor.weights,
        )

    def _non_finite(self, slot: _Slot, actor: Actor) -> NonFiniteError:
        """Writes what there is of a rollout whose policy failed."""
        path = slot.job.path.with_suffix(".nan.npz")
        save(path, self._rollout(slot, actor))
        return NonFiniteError(
            f"{path}: the policy of step {actor.step} answered with NaN or Inf after {slot.length} steps of this "
            "rollout; its file holds what the policy saw. Lower optim.learning_rate, guidance.scale, or set "
            "optim.clip_norm"
        )
