"""Reinforcement in closed loop: drives of the policy that trains, between its updates, and batches of what they teach.

    round n    routes, a function of (seed, step) -> rollout.size drives of each, the policy drawing its modes
               -> scores (driving/eval/closed_loop.py) of the drives, or of what followed each decision, each minus the
                  mean of its group's others (RLOO)
    update     the imitation loss of the dataset's batch + weight * the clipped ratio of the drawn modes' probabilities

    rollouts/step_00000020-<weights>/route_00003-01.npz    a drive
    rollouts/step_00000020-<weights>/round.json            what became of all of them, once all are there
    rollouts/expert/route_00003.npz                        the town's own driver, by whose way progress is measured

Every process of the run plays its part of the drives (chunkwise/envs/divided.py), and reads all of them. A run that was
killed finds those of the same weights there, and plays the others.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.arrays import NumpyTree
from chunkwise.data.sampling import Purpose, generator, seed_of, words
from chunkwise.envs.collect import Actor, Collector, Job, Task
from chunkwise.envs.divided import DividedRollouts, Outcome
from chunkwise.envs.environment import EnvSpec
from chunkwise.envs.rollout import Rollout, load
from chunkwise.envs.workers import ProcessWorkers
from chunkwise.state import TrainState
from driving.config import DrivingConfig
from driving.data.index import Index
from driving.eval.closed_loop import result_of
from driving.eval.routes import open_town, spec_of
from driving.online.acting import DrawingPolicy
from driving.online.decisions import Decisions, decisions_of, worth_of
from driving.policies.policy import WaypointPolicy
from driving.policies.town import TownDriver
from driving.sim.environment import TASK

ROLLOUTS, EXPERT = "rollouts", "expert"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What a round leaves behind to be trained on."""

    step: int
    folder: str
    routes: list[int]
    """Each with rollout.size drives."""


class Rounds:
    """An `Interaction` of chunkwise/train/loop.py."""

    averaged = False
    """The clipped ratio compares the policy that trains with the one that acted: it is the same at first."""

    def __init__(
        self, config: DrivingConfig, folder: Path, index: Index | None = None, *, shrunk: tuple[str, ...] = ()
    ) -> None:
        """Starts no environment yet.

        Args:
          config: Of the run; `rollout` is set.
          folder: The run's, which gets `rollouts/`.
          index: Of its data, for the town as `spec_of` shows it.
          shrunk: As of `WaypointPolicy`.
        """
        assert config.rollout is not None
        self._config, self._rollout = config, config.rollout
        self._folder, self._spec = folder / ROLLOUTS, spec_of(config, index)
        self._actor, self._shrunk = DrawingPolicy(config, shrunk=shrunk), shrunk
        self._collectors: dict[str, Collector] = {}
        self._divided = DividedRollouts(folder)
        self._round: Round | None = None
        self._decisions: Decisions | None = None

    @property
    def start(self) -> int:
        """First update before which drives are played."""
        return self._rollout.start

    @property
    def every(self) -> int:
        """Updates of a round."""
        return self._rollout.updates

    def interact(
        self, state: TrainState, step: int, stopping: Callable[[], bool]
    ) -> Mapping[str, Sequence[float]] | None:
        """Plays the drives of a round.

        Returns:
          Of each drive score, metres, whether it ended without a collision of its fault and without any infraction;
          of each group whether its drives were worth different scores.

        Raises:
          DataError: A file that lies there is another drive, or the processes do not see one another's files.
          RunError: As the collector raises, on all processes.
        """
        settings = self._rollout
        self._actor.use(state.params, step)
        folder = self._folder / f"step_{step:08d}-{self._actor.weights[:12]}"
        order = generator(Purpose.ROUND_ROUTES, self._config.run.seed, step).permutation(settings.routes)
        routes = order[: settings.groups].tolist()
        jobs = self._jobs(folder, step, routes)
        expert = self._play(EXPERT, TownDriver(), self._expert_jobs(routes), stopping)
        played = None if expert is None else self._play("policy", self._actor, jobs, stopping)
        if played is not None:
            files, size = list(played.items()), settings.size
            groups = [(route, dict(files[i * size : (i + 1) * size])) for i, route in enumerate(routes)]
            self._divided.agree(folder, step, self._actor, groups)
        self._actor.release()
        if played is None:
            return None
        new = Round(step=step, folder=folder.name, routes=routes)
        drives = [load(job.path) for job in jobs]
        decisions, scores = self._taught(new, drives)
        results = [result_of(drive) for drive in drives]
        mixed = [float(len(set(group)) > 1) for group in scores.reshape(len(routes), settings.size).tolist()]
        print(
            f"\nstep {step}: {len(drives)} drives, mean score {scores.mean():.3f}, "
            f"{sum(not one.infractions for one in results)} without infraction; in {sum(mixed):.0f} of {len(routes)} "
            "groups the drives were worth different scores",
            flush=True,
        )
        self._round, self._decisions = (new, decisions)
        return {
            "drives/score": scores.tolist(),
            "drives/no_fault_collision": [one.no_fault_collision for one in results],
            "drives/without_infraction": [float(not one.infractions) for one in results],
            "drives/metres": [one.metres for one in results],
            "drives/mixed_groups": mixed,
        }

    def batches(
        self,
        imitated: Callable[[int], Iterator[Any]],
        start_step: int,
        *,
        shard: int = 0,
        num_shards: int = 1,
    ) -> Iterator[NumpyTree]:
        """The dataset's batches, and beside each as many decisions of the last round as it has rows, under "decisions".

        Args:
          imitated: Batches of the dataset from an update on, of this shard.
          start_step: First update.
          shard: Which of `num_shards` equal stretches of each global batch.
          num_shards: Processes that share a batch.
        """
        size = self._config.train.batch_size
        rows = slice(*(size * i // num_shards for i in (shard, shard + 1)))
        for step, batch in enumerate(imitated(start_step), start_step):
            decisions = None if step < self.start else self._decisions
            yield batch if decisions is None else {**batch, "decisions": decisions.batch(step, rows, size)}

    def position(self) -> dict[str, Any]:
        """The round that is trained on, by its files."""
        return {"round": None if self._round is None else dataclasses.asdict(self._round)}

    def sync(self) -> None:
        """Nothing to do: drives are forced to disk when they are written."""

    def rewind(self, position: dict[str, Any] | None) -> None:
        """Loads the drives of the round that was trained on. Those of a round that was cut off stay on disk, and are
        taken when the same weights come to it again.

        Raises:
          DataError: A drive is missing or damaged.
        """
        if position is None or position["round"] is None:
            return
        new = Round(**position["round"])
        jobs = self._jobs(self._folder / new.folder, new.step, new.routes)
        self._round, self._decisions = new, self._taught(new, [load(job.path) for job in jobs])[0]

    def close(self) -> None:
        """Ends the workers."""
        for collector in self._collectors.values():
            collector.close()

    def _taught(self, new: Round, drives: Sequence[Rollout]) -> tuple[Decisions | None, np.ndarray]:
        """What a round teaches, and the scores of its drives."""
        size = self._rollout.size
        experts = [result_of(load(job.path)).metres for job in self._expert_jobs(new.routes)]
        far = np.repeat(experts, size).tolist()
        scores = np.array([result_of(drive).score(metres) for drive, metres in zip(drives, far, strict=True)])
        settings = self._rollout
        worth = worth_of(drives, far, seconds=settings.seconds, horizon_s=settings.horizon_s)
        groups = np.repeat(np.arange(len(new.routes)), size)
        reader = WaypointPolicy(self._config, {}, shrunk=self._shrunk)
        return decisions_of(reader, drives, worth, groups, seed=self._config.run.seed), scores

    def _expert_jobs(self, routes: Sequence[int]) -> list[Job]:
        """The drives of the town's own driver."""
        return [
            Job(
                number=i,
                seed=seed_of(Purpose.ROUTE_TRAINING, self._config.run.seed, route),
                draw=(route,),
                path=self._folder / EXPERT / f"route_{route:05d}.npz",
            )
            for i, route in enumerate(routes)
        ]

    def _jobs(self, folder: Path, step: int, routes: Sequence[int]) -> list[Job]:
        """The policy's drives, numbered by their places, so that all processes have about as many."""
        seed, size = self._config.run.seed, self._rollout.size
        return [
            Job(
                number=i * size + k,
                seed=seed_of(Purpose.ROUTE_TRAINING, seed, route),
                draw=tuple(words(Purpose.MODE_DRAW, seed, step, route, k)),
                path=folder / f"route_{route:05d}-{k:02d}.npz",
            )
            for i, route in enumerate(routes)
            for k in range(size)
        ]

    def _play(
        self, who: str, actor: Actor, jobs: Sequence[Job], stopping: Callable[[], bool]
    ) -> dict[str, Outcome] | None:
        """What became of some drives, by file, once all processes have played theirs; None if any was stopped."""

        def play(missing: Sequence[Job], done: Callable[[Job, Rollout], None], stopping: Callable[[], bool]) -> bool:
            return self._collector(who).play(missing, actor, done, stopping)

        return self._divided.play(jobs, actor, play, stopping)

    def _collector(self, who: str) -> Collector:
        """Plays the policy's drives, or those of the town's driver, which sees no image and is asked ten times a
        second, as in an evaluation."""
        if who not in self._collectors:
            expert, settings = who == EXPERT, self._rollout
            spec = EnvSpec(suite="town", task=TASK) if expert else self._spec
            opener = functools.partial(
                open_town,
                spec,
                self._config,
                seconds=settings.seconds,
                hold=1 if expert else settings.hold,
                expert=expert,
                measured=True,
                horizon_s=None if expert else settings.horizon_s,
                lead_s=settings.lead_s,
            )
            workers = ProcessWorkers(opener, settings.num_envs, name=f"town/{TASK}")
            self._collectors[who] = Collector(workers, rows=1, tasks=(Task(),))
        return self._collectors[who]
