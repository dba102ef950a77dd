"""RIPT's round: rollouts in groups from one initial state each, leave-one-out advantages, updates on their windows.

    collect groups until enough of them hold both outcomes -> label each rollout by its advantage -> `updates` updates

arXiv:2505.17016, with the guided loss in place of its policy gradient, or with PPO (tasks/ppo.py). A group whose
rollouts all end alike carries no signal and is not trained on. An initial state that every rollout of its group solved
rests for `retry_after` updates, and is tried again then; one that none solved is not spared. Rounds older than
`replay_rounds` are let go of. Where that leaves nothing to learn from, as when all states are solved, the updates of
the round leave the weights as they are. Everything is a function of the seed, the step and the weights: a round's
rollouts lie in a folder named after step and weights, and a run that was killed takes those it finds there and plays
the others. With rollout.staleness 1 a round is played with the weights of the round before, while that one is trained
on (ahead.py).
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool

from chunkwise.checkpoint.checksums import tree_digest
from chunkwise.data.sampling import Purpose, generator
from chunkwise.envs.divided import Outcome
from chunkwise.errors import ConfigError, DataError
from chunkwise.state import TrainState
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.data.batch import TrainingBatch, to_training_batch
from openpi_ript.data.dataset import TrainingData
from openpi_ript.ript.acting import ActingPolicy, ExploringPolicy
from openpi_ript.ript.ahead import Ahead, copied
from openpi_ript.ript.collect import Actor, Collector
from openpi_ript.ript.passes import Passes, passes_over
from openpi_ript.ript.playing import Plan, Player, load_own
from openpi_ript.ript.rollout_data import Group, drawn_rows, teaches, training_data

SETTLE = 0.1
"""Seconds between two looks at a round that is played beside the updates."""
WHOLE = "state"
"""Meta-World's array of all that it shows, the goal among it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rest:
    """An initial state that all of its rollouts solved, and that is not tried again for a while."""

    state: int
    """Its number among those of all tasks: the task's place times rollout.initial_states, and its own."""
    init_hash: str
    step: int
    """Updates before the round that showed it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What a round leaves behind to be trained on."""

    step: int
    folder: str
    groups: list[list[str]]
    """Names of the files of each group that is trained on."""


class NoSignal(TypedDict):
    """The batch of an update that leaves the weights as they are."""

    no_signal: Bool[np.ndarray, " b"]
    """All true."""


class Ript:
    """An `Interaction` of chunkwise/train/loop.py."""

    def __init__(
        self, config: OpenpiRiptConfig, data: TrainingData, folder: Path, collector: Collector, policy: ActingPolicy
    ) -> None:
        """Plays nothing yet.

        Args:
          config: Of the run; `rollout` and `env` are set.
          data: The dataset of the supervised updates, whose transforms and statistics serve rollouts too.
          folder: The run's, which gets `rollouts/`.
          collector: Plays this process's rollouts.
          policy: Gets the weights of each round.

        Raises:
          ConfigError: Hindsight names a task that is not played, or the policy sees the goal in another array too.
        """
        assert config.rollout is not None
        assert config.env is not None
        self._config, self._rollout, self._env = config, config.rollout, config.env
        self._data, self._folder = data, folder / "rollouts"
        self._policy = policy
        actor: Actor = ExploringPolicy(policy) if self._rollout.objective == "ppo" else policy
        self._player = Player(config, self._folder, collector, actor)
        self._tasks = collector.tasks
        self._check_hindsight()
        self._shares: dict[str, float] = {}
        self._rounds: list[Round] = []
        self._resting: list[Rest] = []
        self._training: TrainingData | Passes | None = None
        self._begun = False
        self._ahead: Ahead | None = None

    def _check_hindsight(self) -> None:
        """Raises ConfigError if hindsight names a task that is not played, or the goal is in another array too."""
        names = {task.name for task in self._tasks}
        wrong = set(self._rollout.hindsight.reached) - names if self._rollout.hindsight is not None else set[str]()
        if wrong:
            raise ConfigError(f"rollout.hindsight.reached names {sorted(wrong)}; env has the tasks {sorted(names)}")
        if self._rollout.hindsight is not None and self._env.suite == "metaworld" and WHOLE in self._env.state:
            raise ConfigError(
                f"rollout.hindsight is set and env.state {self._env.state}; expected Meta-World's parts of {WHOLE!r} "
                "alone (hand, object, goal): the whole has the goal too, which hindsight would leave as it was"
            )

    @property
    def start(self) -> int:
        """First update before which rollouts are played."""
        return self._rollout.start

    @property
    def every(self) -> int:
        """Updates of a round."""
        return self._rollout.updates

    @property
    def averaged(self) -> bool:
        """PPO compares the policy that trains with the one that acted: it is the same at first."""
        return self._rollout.objective != "ppo"

    def interact(
        self, state: TrainState, step: int, stopping: Callable[[], bool]
    ) -> Mapping[str, Sequence[float]] | None:
        """Plays the rollouts of a round.

        Returns:
          Of each rollout success and length, of each group whether it holds both outcomes, how many initial states
          are not tried in the next round, and how many advantages of the rounds that are trained on were replaced
          while they were shaped; nothing where the rollouts would have no share in the batches.
        """
        if self._rollout.dataset_share == 1:
            return {}
        came = self._ahead
        if came is None:  # staleness 0, or the first round of all
            self._policy.use(state.params, step)
            plan = self._plan(step, self._policy.weights, self._resting, self._shares)
            groups = self._player.play(plan, stopping)
            self._policy.release()
        else:
            plan, groups = came.plan, came.wait(stopping)
        if groups is None:
            return None
        self._begun = True
        resting = self._still(step, self._resting)
        alike = [group for group in groups if not group.mixed]
        resting += [
            Rest(state=group.state, init_hash=group.init_hash, step=step)
            for group in alike
            if group.rollouts[0].success
        ]
        spared = len(self._still(step + self.every, resting))  # in the next round: the others are tried in it again
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        of_tasks = self._of_tasks(groups, plan)
        explored = len(rollouts) - sum(map(len, of_tasks.values()))
        successes = [float(rollout.success) for rollout in rollouts]
        print(
            f"\nstep {step}: {sum(successes):.0f} of {len(rollouts)} rollouts succeeded"
            f"{f' ({explored} of them explored)' if explored else ''}, {len(groups) - len(alike)} of "
            f"{len(groups)} groups hold both outcomes, {spared} initial states rest",
            flush=True,
        )
        shares = self._shares | {name: (sum(won) + 1) / (len(won) + 2) for name, won in of_tasks.items()}
        if len(self._tasks) > 1:
            print("  " + ", ".join(f"{name} {sum(won):.0f}/{len(won)}" for name, won in of_tasks.items()), flush=True)
        metrics = {f"rollouts/success/{name}": won for name, won in of_tasks.items() if len(self._tasks) > 1}
        metrics |= {
            "rollouts/success": successes,
            "rollouts/length": [float(rollout.length) for rollout in rollouts],
            "rollouts/mixed_groups": [float(group.mixed) for group in groups],
            "rollouts/resting_states": [float(spared)],
        }
        by_value = self._data.returns is not None
        useful = [
            group.files
            for group in groups
            if teaches(group, self._rollout, task=self._task_of(group), by_value=by_value)
        ]
        new = Round(step=step, folder=plan.folder, groups=useful)
        rounds = self._remembered(new)
        training = self._load(rounds)
        if training is None and step == self.start and not all(successes):
            raise self._hopeless(step)
        if training is None:
            why = "every group ended alike" if groups else "no group was played"
            why = "no rollout reached anything" if rounds else why
            print(
                f"step {step}: nothing to learn from, {why} and {spared} of {self._states} initial states rest, "
                f"solved; the next {self.every} updates leave the weights as they are",
                flush=True,
            )
        ahead = self._begin(state, step, resting, shares) if self._rollout.staleness else None
        self._resting, self._shares, self._rounds, self._training, self._ahead = (
            resting,
            shares,
            rounds,
            training,
            ahead,
        )
        if isinstance(training, TrainingData) and not by_value:
            metrics |= {f"rollouts/advantages_{name}": [float(n)] for name, n in training.replaced.items()}
        if came is not None:
            came.forget()
        if isinstance(self._training, Passes):
            print(f"step {step}: {self._training.describe(self._config.train.steps)}", flush=True)
        return {name: values for name, values in metrics.items() if values}

    def batches(
        self,
        supervised: Callable[[int], Iterator[TrainingBatch]],
        start_step: int,
        *,
        shard: int = 0,
        num_shards: int = 1,
    ) -> Iterator[Any]:
        """`TrainingBatch`es: the dataset's up to the first round, then windows of rollouts, any start alike, and
        rollout.dataset_share of the dataset's; `NoSignal` where there are no rollouts to learn from.

        Args:
          supervised: Batches of the dataset from an update on, of this shard.
          start_step: First update.
          shard: Which of `num_shards` equal stretches of each global batch.
          num_shards: Processes that share a batch.
        """
        rows_here = slice(*(self._config.train.batch_size * i // num_shards for i in (shard, shard + 1)))
        step, imitated = start_step, None
        while True:
            # A dry run sees no round, and shows the batches before one.
            if step < self.start or self._rollout.dataset_share == 1 or not self._begun:
                imitated = supervised(step) if imitated is None else imitated
                yield next(imitated)
                step += 1
                continue
            if self._training is None:
                yield {"no_signal": np.ones(rows_here.stop - rows_here.start, bool)}
                step += 1
                continue
            if isinstance(self._training, Passes):
                yield self._training.batch(step, rows_here)
                step += 1
                continue
            drawn = self._drawn(self._training, step)[rows_here]
            yield to_training_batch([of.sample(row) for of, row in drawn])
            step += 1

    def _drawn(self, training: TrainingData, step: int) -> list[tuple[TrainingData, int]]:
        """Rows of an update's global batch: of the rollouts, then of the dataset."""
        rng = generator(Purpose.ROLLOUT_ROWS, self._config.run.seed, step)
        size = self._config.train.batch_size
        imitated = round(self._rollout.dataset_share * size)
        need: dict[str, float] = {}
        for task in self._tasks:
            if task.name in self._shares:  # of others there is nothing to draw
                need[task.prompt] = max(need.get(task.prompt, 0.0), 1 - self._shares[task.name])
        rows = drawn_rows(training, size - imitated, self._rollout.rows, rng, need=need)
        demonstrated = rng.choice(self._data.rows, imitated).tolist()
        return [(training, row) for row in rows] + [(self._data, row) for row in demonstrated]

    def position(self) -> dict[str, Any]:
        """The rounds that are trained on, by their files, and the initial states that rest."""
        return {
            "rounds": [dataclasses.asdict(one) for one in self._rounds],
            "resting": [dataclasses.asdict(one) for one in self._resting],
            "shares": self._shares,
        } | ({} if self._ahead is None else {"ahead": self._ahead.record()})

    def sync(self) -> None:
        """Waits for the weights of the round that is played ahead; rollouts are forced to disk when they are written.

        Raises:
          StorageError: The weights could not be written.
        """
        if (ahead := self._ahead) is not None:
            ahead.wait_until_written()

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Loads the rollouts of the rounds that were trained on. Those of a round that was cut off stay on disk, and
        are taken when the same weights come to it again.

        Raises:
          DataError: A rollout is missing or damaged.
        """
        if position is None:
            return
        self._begun = True
        # Earlier versions let states rest that no rollout solved, too, and said which.
        resting = [{"success": True, **one} for one in position["resting"]]
        self._resting = [
            Rest(state=one["state"], init_hash=one["init_hash"], step=one["step"]) for one in resting if one["success"]
        ]
        self._shares = dict(position.get("shares", {}))  # earlier versions knew one task
        self._rounds = [Round(**one) for one in position["rounds"]]
        try:
            self._training = self._load(self._rounds)
        except DataError as error:
            raise DataError(
                f"{error}. The run goes on training on these rollouts, and does so with no others: bring the file back "
                "from a copy of the run's folder, or begin the run anew"
            ) from error
        if self._rollout.staleness and position.get("ahead") is not None:
            told = position["ahead"]
            plan = self._plan(told["step"], told["weights"], self._resting, self._shares)
            self._ahead = Ahead(plan, told["policy_step"], told["weights"], self._folder)
            self._ahead.begin(self._player, self._policy, None, play=plan.step < self._config.train.steps)

    def settled(self, stopping: Callable[[], bool]) -> bool | None:
        """Waits until no round is played beside the updates; None if stopped before."""
        while self._ahead is not None and not self._ahead.settled:
            if stopping():
                return None
            time.sleep(SETTLE)
        return True

    def close(self) -> None:
        """Ends the round that is played beside the updates."""
        if self._ahead is not None:
            self._ahead.end()

    def _still(self, step: int, resting: Sequence[Rest]) -> list[Rest]:
        """Those that rest at a step."""
        return [rest for rest in resting if step - rest.step < self._rollout.retry_after]

    def _plan(self, step: int, weights: str, resting: Sequence[Rest], shares: Mapping[str, float]) -> Plan:
        return Plan(
            step=step,
            folder=f"step_{step:08d}-{weights[:12]}",
            resting={rest.state for rest in self._still(step, resting)},
            shares=shares,
        )

    def _begin(self, state: TrainState, step: int, resting: Sequence[Rest], shares: Mapping[str, float]) -> Ahead:
        """Has the next round played with these weights, if an update comes to need it."""
        params, following = copied(state.params), step + self.every
        weights = tree_digest(params)
        ahead = Ahead(self._plan(following, weights, resting, shares), step, weights, self._folder)
        ahead.begin(self._player, self._policy, params, play=following < self._config.train.steps)
        return ahead

    @property
    def _states(self) -> int:
        """Initial states of all tasks."""
        return self._rollout.initial_states * len(self._tasks)

    def _task_of(self, group: Group[Outcome]) -> str:
        """Name of a group's task."""
        return self._tasks[group.state // self._rollout.initial_states].name

    def _of_tasks(self, groups: list[Group[Outcome]], plan: Plan) -> dict[str, list[float]]:
        """Successes of the rollouts of each task that was played, in the tasks' order, without those that explored."""
        played = {self._task_of(group) for group in groups}
        return {
            task.name: [
                float(rollout.success)
                for group in groups
                if self._task_of(group) == task.name
                for k, rollout in enumerate(group.rollouts)
                if not self._player.explores(plan, group.state, k)
            ]
            for task in self._tasks
            if task.name in played
        }

    def _remembered(self, new: Round) -> list[Round]:
        """Returns those of the newest `replay_rounds` rounds that have something to train on, `new` the newest."""
        oldest = new.step - self.every * (self._rollout.replay_rounds - 1)
        return [one for one in (*self._rounds, new) if one.groups and one.step >= oldest]

    def _hopeless(self, step: int) -> ConfigError:
        """Says that the first round has nothing to learn from, and not because all is solved."""
        hindsight = self._rollout.hindsight is not None
        reached = ", and no rollout reached anything that hindsight takes for a goal," if hindsight else ","
        radius = ", rollout.hindsight.radius" if hindsight else ""
        return ConfigError(
            f"step {step}: every group of the first round ended alike{reached} so there is nothing to learn from. "
            "Start from a policy that neither always succeeds nor always fails (rollout.start, data.path), or "
            f"raise rollout.max_groups, rollout.size{radius}, in another folder: a run that is resumed keeps them"
        )

    def _load(self, rounds: Sequence[Round]) -> TrainingData | Passes | None:
        """Reads the rollouts of the rounds, and prepares their windows, or of one the passes over its chunks."""
        groups = [
            Group(
                state=-1,
                files=files,
                rollouts=[
                    load_own(self._folder / one.folder / name, seed=self._config.run.seed, step=one.step)
                    for name in files
                ],
            )
            for one in rounds
            for files in one.groups
        ]
        training = training_data(self._data, groups, self._env, self._rollout) if groups else None
        if training is None or self._rollout.objective != "ppo":
            return training
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        return passes_over(training, rollouts, self._config, rounds[-1].step)
