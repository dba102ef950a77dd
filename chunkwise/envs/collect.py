"""Plays rollouts: a policy infers for the environments that wait while others step.

A batch is of whoever is ready, and always has the same number of rows: what is left of it is filled up. So a slow
environment keeps nobody waiting. What a policy draws for a rollout is seeded by the rollout's own numbers and the
chunk's, and a row of a batch does not depend on its neighbours, nor on its place (tests/rows.py asks the policies of
every package, to the bit). What happens in a rollout depends on its seeds, the weights and the number of rows: not on
how many environments there are, nor on which are fast, nor on what was done before a kill. The number of rows is part
of it because a matrix product of another size may round differently.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from chunkwise.cli.progress import Lines
from chunkwise.distributed.jobs import MAX_DEATHS
from chunkwise.envs.environment import Observation
from chunkwise.envs.failures import Shapes
from chunkwise.envs.rollout import Rollout, append_frames, save
from chunkwise.envs.turns import next_of, waits_until
from chunkwise.envs.workers import Request, Reset, Run, Start, Stretch, WorkerDiedError, Workers
from chunkwise.errors import ConfigError, NonFiniteError, RunError
from chunkwise.policies.execution import NOTHING, Committed, Execution, Plan

ENDLESS = 10_000
"""Steps of an episode without a limit, after which the flag that sets one is named."""

REMEMBERED = 64
"""Answers whose median says how long one takes: a few slow environments among them do not move it."""

Draw = tuple[int, ...]
"""Words that seed what a policy draws for one chunk: those of its rollout, then the number of the chunk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a rollout is to do."""

    name: str = ""
    """By its suite's name; empty where the environment has only one."""
    prompt: str = ""
    """In words, as the policy is told it."""
    max_steps: int | None = None
    """Steps after which a rollout ends; None: where its environment ends it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One rollout to be played."""

    number: int
    """Of its own among those that are played together."""
    seed: int
    """Of the environment's reset."""
    draw: Draw
    """Seeds the policy's noise."""
    path: Path
    """Names the rollout in errors; where it is written, if it is."""
    task: str = ""
    """Name of one of the collector's tasks; empty: the first."""
    offset: tuple[float, ...] = ()
    """Added to every action that the policy gives, before it is clipped and executed; empty: nothing."""
    offset_steps: int | None = None
    """Steps of the episode, from its first on, to whose actions it is added; None: to all of them."""

    @property
    def start(self) -> tuple[str, int]:
        """Where the rollout begins."""
        return self.task, self.seed


@runtime_checkable
class Actor(Protocol):
    """A policy as the collector calls it."""

    step: int
    """Updates behind it."""
    weights: str
    """Digest of the weights; empty where nobody asked."""

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        """Returns chunks for a batch.

        Args:
          observations: By name, a row for each environment.
          draws: Of each row; None where a row has no rollout: then another's observation and prompt fill it.
          prompts: Of each row, its task in words.
        """
        ...


@runtime_checkable
class CompletingActor(Actor, Protocol):
    """A policy whose chunks can be completed from actions that are committed already, for real-time chunking."""

    def complete(
        self,
        observations: Observation,
        draws: Sequence[Draw | None],
        prompts: Sequence[str],
        committed: Sequence[Committed],
    ) -> Float32[np.ndarray, "b t a"]:
        """Returns chunks for a batch, each completed from what is committed in its row."""
        ...


@runtime_checkable
class NotingActor(Actor, Protocol):
    """A policy that notes something of each chunk, which the rollout keeps; told once, where rollouts begin."""

    def noted(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> tuple[Float32[np.ndarray, "b t a"], Mapping[str, np.ndarray]]:
        """Returns chunks for a batch, and notes by name, a row for each environment."""
        ...


_Inference = Callable[
    [Observation, Sequence[Draw | None], Sequence[str], Sequence[Committed]],
    tuple[Float32[np.ndarray, "b t a"], Mapping[str, np.ndarray] | None],
]
"""Of a batch its chunks, and what was noted of them by name; None where the policy notes nothing."""


@dataclasses.dataclass
class _Slot:
    """A rollout under way."""

    job: Job
    task: Task
    plan: Plan
    frames: list[Observation]
    """Observed so far, with a leading axis; where only the last frame is wanted, that one alone."""
    stretches: list[Stretch] = dataclasses.field(default_factory=list)
    notes: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    """Of each chunk, with a leading axis; empty where the policy notes nothing."""
    init_hash: str = ""
    deaths: int = 0

    @property
    def length(self) -> int:
        return sum(len(stretch.actions) for stretch in self.stretches)

    @property
    def left(self) -> int | None:
        """Steps up to its task's limit; None without one."""
        return None if self.task.max_steps is None else self.task.max_steps - self.length


def _take(todo: list[Job], last: Job | None, slots: Mapping[int, _Slot]) -> Job:
    """Takes from a queue what a worker gets that has played `last`."""
    playing = {slot.job.start for slot in slots.values()}
    return todo.pop(next_of([job.start for job in todo], last and last.start, playing))


class Collector:
    """Plays jobs on workers."""

    def __init__(
        self,
        workers: Workers,
        *,
        rows: int | None = None,
        execution: Execution | None = None,
        tasks: Sequence[Task] = (Task(),),
    ) -> None:
        """Starts nothing yet.

        Args:
          workers: The environments.
          rows: Of every batch; None: as many as there are environments.
          execution: How chunks are executed; None: each as a whole.
          tasks: What jobs name; at least one.
        """
        self.workers = workers
        self.deaths = 0
        """Workers that died so far; each cost one rollout, which was played again."""
        self.rows = workers.count if rows is None else rows
        self._execution = execution or Execution()
        self._tasks = {task.name: task for task in tasks} | {"": tasks[0]}
        self._shown = Shapes()
        self._said_endless = False
        self._inferences = 0
        self._fastest = math.inf
        """Seconds of the shortest inference but for the first, which compiles."""
        self._way = math.inf
        """Seconds of the shortest way there and back: what an answer took beyond the environment's own time."""
        self._asked_at = [0.0] * workers.count
        self._took = dict[tuple[int, type[Request]], float]()
        """Seconds that each one's latest answer to each kind of request took."""
        self._expected = [math.inf] * workers.count
        """Seconds that what each was asked for last took before; infinite where that is not known."""
        self._seconds = deque[float](maxlen=REMEMBERED)
        """That the latest answers to actions took."""
        self._cores = deque[float](maxlen=REMEMBERED)
        """That an environment kept busy, or waited for, in each of them."""

    def play(
        self,
        jobs: Sequence[Job],
        actor: Actor,
        done: Callable[[Job, Rollout], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Plays rollouts, each up to its first success, the environment's own end, or max_steps.

        Args:
          jobs: In any order; each has a number of its own.
          actor: The policy.
          done: Called with each finished rollout, in the order in which they end.
          stopping: Asked before every inference; if true everything under way is dropped.

        Returns:
          False if it was stopped.

        Raises:
          StopRequested: It was stopped while a worker did not answer.
          NonFiniteError: The policy gave NaN or Inf; the rollout so far is written beside job.path, and named, if
            frames are kept.
          ConfigError: The policy's chunks are too short for how they are executed, or cannot be completed.
          RunError: An environment failed, or workers keep dying in one rollout.
        """
        self._shown = Shapes()
        lines = Lines(len(jobs), "played {count} of {total} rollouts")
        todo = list(jobs)
        slots: dict[int, _Slot] = {}
        asked: list[int] = []  # slots whose answer is awaited, the one that was asked longest ago first
        try:
            infer = self._inference(actor)
            for i in range(min(self.workers.count, len(todo))):
                slots[i] = self._begin(i, _take(todo, None, slots))
                asked.append(i)
            while slots:
                ready, since = list[int](), math.inf
                while asked and len(ready) < self.rows:
                    try:
                        i = self._receive(asked, slots, stopping, self._until(ready, asked, since))
                    except TimeoutError:
                        break
                    asked.remove(i)
                    if not self._is_over(slots[i]):
                        since = min(since, time.monotonic())
                        ready.append(i)
                        continue
                    slot = slots.pop(i)
                    done(slot.job, self._rollout(slot, actor))
                    lines.advance()
                    if todo:
                        slots[i] = self._begin(i, _take(todo, slot.job, slots))
                        asked.append(i)
                if stopping():
                    self.workers.close()
                    return False
                if ready:
                    self._act({i: slots[i] for i in ready}, actor, infer)
                    asked += ready
        except BaseException:
            self.workers.close()  # or their answers would be taken for those to other requests
            raise
        return True

    def look(self, job: Job) -> Start:
        """Begins a rollout, and drops it. Raises RunError as `play`."""
        try:
            slot = self._begin(0, job)
            _, answer = self._answer([0], {0: slot}, lambda: False)
        except BaseException:
            self.workers.close()
            raise
        assert isinstance(answer, Start)
        return answer

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()

    def _until(self, ready: Sequence[int], asked: Sequence[int], since: float) -> float:
        """When a batch goes, by the clock: `ready` wait for it, the first since then, and `asked` are awaited.

        As long as those that are awaited keep all cores busy, waiting costs nothing, and each batch less saves an
        inference: then as long as an answer takes, but no longer, for one that hangs would keep the others waiting.
        Environments that themselves wait, for a robot or a server, keep none busy.
        """
        if not ready:
            return math.inf
        parallel = self.workers.parallel
        # Half of the cores is all of them: in threads, what steps in Python takes turns at one.
        if len(asked) >= parallel and self._cores and self.workers.count * median(self._cores) >= parallel / 2:
            return since + median(self._seconds)
        expected = [(self._asked_at[i], self._expected[i], self._took.get((i, Run), 0.0)) for i in asked]
        chunks = [self._took.get((i, Run), 0.0) for i in ready]
        room = self.rows - len(ready)
        return waits_until(time.monotonic(), since, chunks, room, expected, self._fastest)

    def _begin(self, slot: int, job: Job) -> _Slot:
        self._reset(slot, job)
        return _Slot(job, self._tasks[job.task], Plan(self._execution), [])

    def _reset(self, slot: int, job: Job) -> None:
        self._ask(slot, Reset(job.seed, job.task))

    def _ask(self, slot: int, request: Request) -> None:
        self._asked_at[slot] = time.monotonic()
        self._expected[slot] = self._took.get((slot, type(request)), math.inf) + self._way
        self.workers.submit(slot, request)

    def _answer(
        self,
        asked: Sequence[int],
        slots: Mapping[int, _Slot],
        stopping: Callable[[], bool],
        until: float = math.inf,
    ) -> tuple[int, Start | Stretch]:
        """What any worker answers; a rollout whose worker died begins again, and answers with that."""
        while True:
            try:
                return self.workers.receive(asked, stopping, within=max(until - time.monotonic(), 0.0))
            except WorkerDiedError as error:
                slot = slots[error.slot]
                self.deaths += 1
                slot.deaths += 1
                if slot.deaths >= MAX_DEATHS:
                    raise RunError(
                        f"{slot.job.path}: {slot.deaths} workers died in this rollout (seed {slot.job.seed}), the "
                        f"last: {error.why}. Has it printed why? Is there enough memory for num_envs "
                        f"{self.workers.count}?"
                    ) from error
                print(f"\nan environment worker died ({error.why}); {slot.job.path.stem} is played again", flush=True)
                slot.notes = []
                slot.plan, slot.frames, slot.stretches = Plan(self._execution), [], []
                self._reset(error.slot, slot.job)

    def _receive(
        self, asked: Sequence[int], slots: Mapping[int, _Slot], stopping: Callable[[], bool], until: float
    ) -> int:
        """Takes a worker's answer into its rollout; returns its slot. Raises TimeoutError at `until`, by the clock."""
        i, answer = self._answer(asked, slots, stopping, until)
        slot = slots[i]
        if slot.left is None and slot.length > ENDLESS and not self._said_endless:
            self._said_endless = True
            print(
                f"{slot.job.path.stem} has not ended after {slot.length} steps; if its environment has no time limit, "
                "cut episodes with --max-steps N (eval.max_steps N in a config)",
                flush=True,
            )
        self._way = min(self._way, time.monotonic() - self._asked_at[i] - answer.took_s)
        self._took[i, Reset if isinstance(answer, Start) else Run] = answer.took_s
        if isinstance(answer, Start):
            slot.frames = [{name: value[None] for name, value in answer.observation.items()}]
            slot.init_hash = answer.init_hash
        else:
            seconds = time.monotonic() - self._asked_at[i]
            self._seconds.append(seconds)
            self._cores.append(answer.busy_s / max(seconds, 1e-9))
            if not self.workers.every_frame:
                slot.frames.clear()
            slot.frames.append(answer.observations)
            slot.stretches.append(answer)
        return i

    def _is_over(self, slot: _Slot) -> bool:
        if not slot.stretches:
            return False
        return slot.stretches[-1].over or (slot.left is not None and slot.left <= 0)

    def _inference(self, actor: Actor) -> _Inference:
        """How a policy is asked; found once, since it takes 15 us to look for a protocol's methods."""
        if self._execution.how == "realtime":
            if not isinstance(actor, CompletingActor):
                raise ConfigError(
                    f"--how realtime: a {type(actor).__name__} cannot complete chunks; choose another way"
                )
            complete = actor.complete
            return lambda observations, draws, prompts, committed: (
                complete(observations, draws, prompts, committed),
                None,
            )
        if isinstance(actor, NotingActor):
            noted = actor.noted
            return lambda observations, draws, prompts, committed: noted(observations, draws, prompts)
        return lambda observations, draws, prompts, committed: (actor(observations, draws, prompts), None)

    def _act(self, ready: Mapping[int, _Slot], actor: Actor, infer: _Inference) -> None:
        """Infers for those that wait, and sends their workers what to do."""
        began = time.monotonic()
        slots = list(ready.values())
        padding = self.rows - len(slots)
        draws = [(*slot.job.draw, len(slot.stretches)) for slot in slots] + [None] * padding
        shown = slots + slots[:1] * padding
        latest = [{name: value[-1] for name, value in slot.frames[-1].items()} for slot in shown]
        # Of several rows in whatever batch: whether two of other shapes meet in one depends on who is fast.
        batch = self._shown if self.rows > 1 else Shapes()
        for slot, row in zip(slots, latest, strict=False):
            batch.require(f"{slot.job.path}: its environment (seed {slot.job.seed})", row)
        observations = {name: np.stack([row[name] for row in latest]) for name in latest[0]}
        prompts = [slot.task.prompt for slot in shown]
        committed = [slot.plan.begin() or NOTHING for slot in slots] + [NOTHING] * padding
        chunks, notes = infer(observations, draws, prompts, committed)
        for row, (i, slot) in enumerate(ready.items()):
            if notes is not None:
                slot.notes.append({name: value[row, None] for name, value in notes.items()})
            if not np.isfinite(chunks[row]).all():
                raise self._non_finite(slot, actor)
            stretch = slot.plan.stretch(np.asarray(chunks[row], np.float32))
            if slot.job.offset:
                until = slot.job.offset_steps
                led = None if until is None else max(0, until - slot.length)
                stretch = stretch.copy()  # a plan's own array may be one that it goes on with
                stretch[:led] += np.array(slot.job.offset, np.float32)
            self._ask(i, Run(np.ascontiguousarray(stretch[: slot.left])))
        self._inferences += 1
        if self._inferences > 1:
            self._fastest = min(self._fastest, time.monotonic() - began)

    def _rollout(self, slot: _Slot, actor: Actor) -> Rollout:
        actions = [stretch.actions for stretch in slot.stretches]
        rewards = [stretch.rewards for stretch in slot.stretches]
        return Rollout(
            observations=append_frames(slot.frames) if self.workers.every_frame else {},
            notes=append_frames(slot.notes),
            actions=np.concatenate(actions) if actions else np.zeros((0, 0), np.float32),
            rewards=np.concatenate(rewards) if rewards else np.zeros(0, np.float32),
            success=bool(slot.stretches and slot.stretches[-1].success[-1]),
            seed=slot.job.seed,
            draw=slot.job.draw,
            offset=slot.job.offset,
            offset_steps=slot.job.offset_steps,
            init_hash=slot.init_hash,
            prompt=slot.task.prompt,
            task=slot.task.name,
            step=actor.step,
            weights=actor.weights,
        )

    def _non_finite(self, slot: _Slot, actor: Actor) -> NonFiniteError:
        """Writes what there is of a rollout whose policy failed."""
        path, kept = slot.job.path, ""
        if self.workers.every_frame:
            path, kept = path.with_suffix(".nan.npz"), "; its file holds what the policy saw"
            try:
                save(path, self._rollout(slot, actor))
            except OSError as error:  # the finding counts for more than its file
                kept = f"; its file could not be written: {error.strerror or error}"
        return NonFiniteError(
            f"{path}: the policy of step {actor.step} answered with NaN or Inf after {slot.length} steps of this "
            f"rollout{kept}. Lower optim.learning_rate, or the scale of a guidance, or set optim.clip_norm"
        )
