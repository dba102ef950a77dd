"""Which rollouts a round has, and how they are played: by all processes of the run (chunkwise/envs/divided.py).

rollouts/step_00000300-<weights>/state_00017-03.npz    a rollout, whole or not there
rollouts/step_00000300-<weights>/round.json            what became of all of them, once all are there
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from chunkwise.data.sampling import Purpose, generator, seed_of, words
from chunkwise.distributed import processes
from chunkwise.envs.collect import Job
from chunkwise.envs.divided import MANIFEST, DividedRollouts, Outcome
from chunkwise.envs.rollout import Rollout, load
from chunkwise.errors import DataError
from chunkwise.files.strict_json import read_json
from openpi_ript.config.experiment import OpenpiRiptConfig
from openpi_ript.ript.candidates import candidates
from openpi_ript.ript.collect import Actor, Collector
from openpi_ript.ript.rollout_data import Group
from openpi_ript.ript.starts import Starts

UNPLAYED = 0.5
"""Share of successes of a task that was not played yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides a round beside seed and weights."""

    step: int
    """Updates before the round's own; with the seed it decides every draw."""
    folder: str
    """Name of the round's folder."""
    resting: Collection[int]
    """Initial states that are not tried."""
    shares: Mapping[str, float]
    """Of each task that was played, of successes then."""


class Player:
    """Plays rounds."""

    def __init__(self, config: OpenpiRiptConfig, folder: Path, collector: Collector, actor: Actor) -> None:
        """Plays nothing yet.

        Args:
          config: Of the run; `rollout` and `env` are set.
          folder: Of all rounds.
          collector: Plays this process's rollouts.
          actor: The policy, which has the weights of a round while it is played.

        Raises:
          DataError: The file of env.initial_states is bad.
        """
        assert config.rollout is not None
        assert config.env is not None
        self._seed, self._settings = config.run.seed, config.rollout
        self._folder, self._collector, self._actor = folder, collector, actor
        self._starts = Starts(config.env)
        self._divided = DividedRollouts(folder.parent)

    def play(self, plan: Plan, stopping: Callable[[], bool]) -> list[Group[Outcome]] | None:
        """Plays a round, in waves of as many groups as are still wanted, and returns them; None if stopped.

        Raises:
          DataError: A file that lies there is another rollout, or the processes do not see one another's files.
          RunError: As the collector raises, on all processes.
        """
        settings = self._settings
        todo = candidates(
            settings.tasks,
            seed=self._seed,
            step=plan.step,
            states=settings.initial_states,
            shares=[plan.shares.get(task.name, UNPLAYED) for task in self._collector.tasks],
            resting=plan.resting,
            most=settings.max_groups,
        )
        enough = math.ceil(Fraction(str(settings.early_stop)) * settings.groups)  # 7 for 0.07 of 100, not 8
        groups: list[Group[Outcome]] = []
        while todo and (found := sum(group.mixed for group in groups)) < enough:
            wave = todo[: settings.groups - found]
            del todo[: len(wave)]
            played = self._wave(plan, wave, len(groups), stopping)
            if played is None:
                return None
            groups += played
        told = [(group.state, dict(zip(group.files, group.rollouts, strict=True))) for group in groups]
        self._divided.agree(self._folder / plan.folder, plan.step, self._actor, told)
        return groups

    def explores(self, plan: Plan, state: int, k: int) -> bool:
        """Whether a rollout's actions get an offset.

        Args:
          plan: Of its round.
          state: Number of the initial state among those of all tasks.
          k: Number in its group.
        """
        settings = self._settings.exploration
        share = plan.shares.get(self._collector.tasks[state // self._settings.initial_states].name, UNPLAYED)
        return settings is not None and k >= self._settings.size - self._settings.explorers and share < settings.below

    def offset(self, plan: Plan, state: int, k: int) -> tuple[tuple[float, ...], int | None]:
        """Returns what is added to the actions of a rollout, and for how many steps (None: all); () and None where it
        does not explore. The arguments are those of `explores`.
        """
        settings = self._settings.exploration
        if settings is None or not self.explores(plan, state, k):
            return (), None
        rng = generator(Purpose.EXPLORATION, self._seed, plan.step, state, k)
        deviation = np.array(settings.deviation)
        drawn = rng.normal(size=len(deviation)) * deviation * (rng.random(len(deviation)) < settings.each)
        steps = None if settings.steps is None else int(rng.integers(-(-settings.steps // 2), settings.steps + 1))
        return tuple(drawn.tolist()), steps

    def recorded(self, plan: Plan, policy_step: int, weights: str) -> list[Group[Outcome]] | None:
        """Returns a round that is on disk as a whole, without a look at its rollouts; None if it is not.

        The first process looks, for all of them: one that did not see a file yet would play what the others do not.

        Raises:
          DataError: What lies there is another round.
        """
        path = self._folder / plan.folder / MANIFEST
        told = processes.broadcast_one_to_all(lambda: read_json(path) if path.exists() else None)
        if told is None:
            return None
        found = tuple(told.get(name) for name in ("step", "policy_step", "weights"))
        if found != (plan.step, policy_step, weights):
            raise DataError(
                f"{path}: expected the round {(plan.step, policy_step, weights)}, found {found}; delete the folder"
            )
        try:
            return [
                Group(
                    state=group["state"],
                    files=[rollout.pop("file") for rollout in group["rollouts"]],
                    rollouts=[Outcome(**rollout) for rollout in group["rollouts"]],
                )
                for group in told["groups"]
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: expected the groups of a round, found {type(error).__name__}: {error}") from error

    def _wave(
        self, plan: Plan, wave: list[int], first: int, stopping: Callable[[], bool]
    ) -> list[Group[Outcome]] | None:
        """The rollouts of some initial states."""
        size, known = self._settings.size, self._collector.tasks
        tasks = [known[state // self._settings.initial_states].name for state in wave]
        led = {(state, k): self.offset(plan, state, k) for state in wave for k in range(size)}
        jobs = [
            Job(
                number=(first + i) * size + k,
                seed=self._starts.of_group(tasks[i], state % self._settings.initial_states)
                if self._starts.published
                else seed_of(Purpose.ROLLOUT_SCENE, self._seed, state),
                draw=_draw(self._seed, plan.step, state, k),
                path=self._folder / plan.folder / f"state_{state:05d}-{k:02d}.npz",
                task=tasks[i],
                offset=led[state, k][0],
                offset_steps=led[state, k][1],
            )
            for i, state in enumerate(wave)
            for k in range(size)
        ]

        def play(missing: Sequence[Job], done: Callable[[Job, Rollout], None], stopping: Callable[[], bool]) -> bool:
            return self._collector.collect(missing, self._actor, done, stopping)

        outcomes = self._divided.play(jobs, self._actor, play, stopping)
        if outcomes is None:
            return None
        names = [job.path.name for job in jobs]
        return [
            Group(state=state, files=files, rollouts=[outcomes[name] for name in files])
            for i, state in enumerate(wave)
            for files in [names[i * size : (i + 1) * size]]
        ]


def load_own(path: Path, *, seed: int, step: int) -> Rollout:
    """Loads a rollout that a round was trained on, by its frames.

    Args:
      path: The file, in the folder of its round.
      seed: The run's.
      step: The round's.

    Raises:
      DataError: It is missing, damaged, or another one than its name and folder say: brought back from another place.
    """
    rollout = load(path, by_frame=True)
    state, k = (int(number) for number in path.stem.removeprefix("state_").split("-"))
    expected = (_draw(seed, step, state, k), path.parent.name.rpartition("-")[2])
    found = (rollout.draw, rollout.weights[:12])
    if found != expected:
        raise DataError(
            f"{path}: expected the rollout of the draw {expected[0]} by the weights {expected[1]}, found that of "
            f"{found[0]} by {found[1]}"
        )
    return rollout


def _draw(seed: int, step: int, state: int, k: int) -> tuple[int, ...]:
    """Returns what seeds the actions of the k-th rollout from a state."""
    return tuple(words(Purpose.ROLLOUT_ACTION, seed, step, state, k))
