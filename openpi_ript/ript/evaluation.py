"""Evaluation of a policy on a manifest of initial states, which a run makes from eval.seed."""

import dataclasses
import functools
from pathlib import Path

from chunkwise.data.sampling import Purpose, seed_of, words
from chunkwise.distributed.division import Division
from chunkwise.envs import environment, render
from chunkwise.envs import evaluate as evaluation
from chunkwise.envs.collect import Job
from chunkwise.envs.evaluate import Evaluation, InitialState, Manifest
from chunkwise.envs.rollout import Rollout, load, save
from chunkwise.errors import ConfigError, DataError
from chunkwise.files.place import told_place
from chunkwise.reports.run_record import clip_of
from openpi_ript.ript.collect import Actor, Collector
from openpi_ript.ript.starts import Starts

MANIFEST = "manifest.json"
"""File of initial states, in a run's folder."""


def make_manifest(collector: Collector, *, seed: int, episodes: int) -> Manifest:
    """Draws initial states, of one task after the other, or takes the first published ones, and looks at them in the
    simulator.

    A longer manifest begins as a shorter one does.

    Raises:
      ConfigError: There are not equally many of each task, or more than are published.
    """
    tasks, starts = collector.tasks, Starts(collector.config)
    require_even(episodes, len(tasks))
    states = []
    for number in range(episodes):
        task = tasks[number % len(tasks)].name
        job = Job(
            number=number,
            seed=starts.held_out(task, number // len(tasks))
            if starts.published
            else seed_of(Purpose.RIPT_EVALUATION, seed, number),
            draw=tuple(words(Purpose.RIPT_EVALUATION, seed, number)),
            path=Path(f"initial_state_{number:04d}"),
            task=task,
        )
        states.append(InitialState(seed=job.seed, init_hash=collector.look(job).init_hash, task=task))
    return Manifest(suite=collector.config.suite, task=_names(collector), seed=seed, states=tuple(states))


def require_even(episodes: int, tasks: int, name: str = "--episodes") -> None:
    """Raises ConfigError unless there are equally many episodes of each task; `name` is what says how many."""
    if episodes % tasks:
        raise ConfigError(
            f"{name} is {episodes} and there are {tasks} tasks; expected equally many episodes of each, a multiple of "
            f"{tasks}"
        )


def _names(collector: Collector) -> str:
    """What a manifest calls the tasks."""
    return ", ".join(task.name for task in collector.tasks)


def manifest_of(collector: Collector, path: Path, *, seed: int, episodes: int, option: str = "--run.dir") -> Manifest:
    """Returns the manifest in a file; makes and writes it if there is none, or one too short or of another seed.

    Raises:
      StorageError: It cannot be written; `option` of the command chooses another place.
    """
    if path.exists():
        manifest = Manifest.load(path)
        if len(manifest.states) >= episodes and manifest.seed == seed:
            return manifest
    manifest = make_manifest(collector, seed=seed, episodes=episodes)
    with told_place(path, option):
        manifest.save(path)
    return manifest


def evaluate(
    collector: Collector,
    actor: Actor,
    manifest: Manifest,
    *,
    episodes: int,
    guidance_scale: float | None,
    folder: Path,
    keep: int = 0,
    option: str = "--run.dir",
    division: Division | None = None,
) -> Evaluation:
    """Plays one episode from each of the first initial states of a manifest.

    Args:
      collector: Plays them; its environment is the manifest's.
      actor: The policy.
      manifest: At least `episodes` states.
      episodes: How many.
      guidance_scale: That the actor uses; written down.
      folder: Gets the first `keep` rollouts, as episode_<number>.npz, and the rollout at which a policy failed.
      keep: Rollouts that are written.
      option: Of the command, by which another folder is chosen.
      division: Divides the episodes among the processes of the run; None: this process plays all of them.

    Raises:
      ConfigError: There are not equally many episodes of each task.
      DataError: An episode began in another state than the manifest says, or the environment is another.
      NonFiniteError: The policy gave NaN.
      StorageError: A rollout cannot be written.
      StopRequested: This process was asked to stop, or another that plays a part.
    """
    suite, names = collector.config.suite, _names(collector)
    if (suite, names) != (manifest.suite, manifest.task) or len(manifest.states) < episodes:
        raise DataError(
            f"manifest: expected {episodes} initial states of {suite} {names}, found "
            f"{len(manifest.states)} of {manifest.suite} {manifest.task}"
        )

    def done(job: Job, rollout: Rollout) -> None:
        if job.number < keep:
            with told_place(job.path, option):
                save(job.path, rollout)

    require_even(episodes, len(collector.tasks))
    states = manifest.states[:episodes]
    jobs = [
        Job(
            number=number,
            seed=state.seed,
            draw=tuple(words(Purpose.RIPT_EVALUATION, manifest.seed, number)),
            path=folder / f"episode_{number:04d}.npz",
            task=state.task,
        )
        for number, state in enumerate(states)
    ]
    result = evaluation.evaluate(
        collector,
        collector.seen_by(actor),
        jobs,
        init_hashes=[state.init_hash for state in states],
        guidance_scale=guidance_scale,
        done=done,
        division=division,
    )
    return result.with_sets_of(suite)


def write_video(collector: Collector, folder: Path, path: Path, *, episodes: int) -> None:
    """Renders the rollouts that `evaluate` kept in a folder, where the machine can; else says why not.

    The file shows them side by side; the folder gets one of each.
    """
    rollouts = [load(folder / f"episode_{number:04d}.npz") for number in range(episodes)]
    spec = dataclasses.replace(collector.spec, cameras=(), video=True)
    clips = {number: clip_of(folder, number) for number in range(episodes)}
    render.write_video(functools.partial(environment.make, spec), rollouts, path, clips=clips)
