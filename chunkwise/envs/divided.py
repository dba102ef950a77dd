"""Rounds of rollouts that all processes of a run play: each rollout by one of them, written as a file.

    <folder>/<name>.npz    a rollout, whole or not there
    <folder>/round.json    what became of all of them, once all are there

A rollout is played by the process whose index is the rollout's number modulo the processes. What it does depends on its
seeds, the weights and the rows of a batch, so that files and outcomes are the same for any number of processes. Those
that lie there already, from before a kill, are taken and not played again.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chunkwise.data.threads import Behind
from chunkwise.distributed import processes
from chunkwise.distributed.division import Division
from chunkwise.envs.collect import Job
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, write_json
from chunkwise.files.strict_json import read_json
from chunkwise.train.run_dir import storage_error

MANIFEST = "round.json"
"""File of a round's folder."""

Play = Callable[[Sequence[Job], Callable[[Job, Rollout], None], Callable[[], bool]], bool]
"""Plays jobs, as `Collector.play` does for one actor."""


class Acting(Protocol):
    """Whose rollouts they are, as files name it."""

    @property
    def step(self) -> int:
        """Updates behind it."""
        ...

    @property
    def weights(self) -> str:
        """Digest of the weights; empty where nobody asked."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a rollout."""

    success: bool
    length: int
    """Actions that were executed."""
    init_hash: str
    """Of the simulator's initial state."""


class DividedRollouts:
    """Stretches of rollouts, one after the other, of which every process plays its part.

    Made and used as a Division: at the same place of the program by all processes, by one thread at a time.
    """

    def __init__(self, run: Path) -> None:
        """Plays nothing yet.

        Args:
          run: Folder of the run, below which rollouts lie.
        """
        self._run, self._division = run, Division()

    def play(
        self, jobs: Sequence[Job], actor: Acting, play: Play, stopping: Callable[[], bool]
    ) -> dict[str, Outcome] | None:
        """Plays this process's rollouts, and waits for those of the others.

        Args:
          jobs: Of all processes, the same on each; their paths' names differ.
          actor: Who acts.
          play: Plays those of this process that are not on disk yet.
          stopping: Whether this process was asked to stop.

        Returns:
          What became of each, by the name of its file, in the order of the jobs; None if any process was stopped.

        Raises:
          DataError: A file that lies there is another rollout.
          StorageError: A rollout cannot be written, on all processes.
          RunError: As `play` raises, on all processes.
        """
        parts = self._division.work(lambda stopping: self._part(jobs, actor, play, stopping), stopping)
        if parts is None:
            return None
        told = {name: outcome for part in parts for name, outcome in part.items()}
        return {job.path.name: Outcome(**told[job.path.name]) for job in jobs}

    def agree(
        self, folder: Path, step: int, actor: Acting, groups: Iterable[tuple[int, Mapping[str, Outcome]]]
    ) -> None:
        """Has the first process write what became of a round, and every process compare it.

        Args:
          folder: Of the round.
          step: Updates before the round's own.
          actor: Who acted.
          groups: Of each the number of the initial state, and what became of its rollouts, by file.

        Raises:
          DataError: Another process does not find there what it was told itself.
          StorageError: It cannot be written, on all processes.
        """
        path = folder / MANIFEST
        told = {
            "step": step,
            "policy_step": actor.step,
            "weights": actor.weights,
            "groups": [
                {
                    "state": state,
                    "rollouts": [{"file": name, **dataclasses.asdict(outcome)} for name, outcome in rollouts.items()],
                }
                for state, rollouts in groups
            ],
        }

        def write(_: Any) -> bool:
            if processes.is_primary():
                with storage_error(self._run):
                    make_folders(folder)  # where nothing was to be played nothing lies there
                    write_json(path, told)
            return True

        self._division.work(write)
        if not processes.is_primary() and read_json(path) != told:
            raise DataError(
                f"{path}: expected what the first process wrote, found another file; all processes must "
                "see one folder in run.dir"
            )

    def _part(
        self, jobs: Sequence[Job], actor: Acting, play: Play, stopping: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """This process's rollouts, from disk as far as they lie there: outcomes by file; None if stopped."""
        # Nobody looks for another's file before it is there: a network's file system may go on saying that it is not.
        jobs = [job for job in jobs if self._division.mine(job.number)]
        outcomes = {job.path.name: _outcome(_reload(job, actor)) for job in jobs if job.path.exists()}

        missing = [job for job in jobs if job.path.name not in outcomes]
        if not missing:
            return outcomes
        with Behind("rollouts", waiting=4) as writing:

            def done(job: Job, rollout: Rollout) -> None:
                writing.do(self._save, job.path, rollout)
                outcomes[job.path.name] = _outcome(rollout)

            finished = play(missing, done, stopping)
        return outcomes if finished else None

    def _save(self, path: Path, rollout: Rollout) -> None:
        with storage_error(self._run):
            save(path, rollout)


def _reload(job: Job, actor: Acting) -> Rollout:
    try:
        rollout = load(job.path, outcome_only=True)
    except DataError as error:
        raise DataError(f"{error}; delete the file, and the rollout is played again") from error
    found = (rollout.seed, rollout.draw, rollout.offset, rollout.offset_steps, rollout.step, rollout.weights)
    expected = (job.seed, job.draw, job.offset, job.offset_steps, actor.step, actor.weights)
    if found != expected:
        raise DataError(f"{job.path}: expected the rollout of {expected}, found {found}; delete the folder")
    return rollout


def _outcome(rollout: Rollout) -> dict[str, Any]:
    return dataclasses.asdict(Outcome(success=rollout.success, length=rollout.length, init_hash=rollout.init_hash))
