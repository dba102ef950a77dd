"""Success of a policy on a manifest of initial states, as files that can be audited and compared state by state.

    {"suite", "task", "seed", "states": [{"seed", "init_hash"}, ...]}                            manifest.json
    {"step", "weights", "guidance_scale", "prompt", "outcomes": [{..., "success", "length"}]}    evaluations/step_*.json

The manifest depends on the task and eval.seed alone, so that runs and checkpoints meet the same initial states, and
with them the same noise. `init_hash` is compared at every rollout: another simulator version does not pass unnoticed.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from chunkwise.data.sampling import Purpose, seed_of, words
from chunkwise.errors import DataError
from chunkwise.files.durable import make_folders, write_durably
from chunkwise.files.strict_json import read_json
from chunkwise.reports.intervals import wilson
from openpi_ript.ript.collect import Actor, Collector, Job
from openpi_ript.ript.paired import Comparison, compare
from openpi_ript.ript.rollouts import Rollout, save

MANIFEST = "manifest.json"
"""File of initial states, in a run's folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialState:
    """Where an episode begins."""

    seed: int
    """Of the environment's reset."""
    init_hash: str
    """Of the simulator's state after it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Initial states of an evaluation."""

    suite: str
    task: str
    seed: int
    states: tuple[InitialState, ...]

    def save(self, path: Path) -> None:
        """Writes manifest.json."""
        make_folders(path.parent)
        write_durably(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Reads manifest.json. Raises DataError if it is none."""
        tree = read_json(path)
        try:
            states = tuple(InitialState(**state) for state in tree.pop("states"))
            return cls(**tree, states=states)
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: expected a manifest of initial states, found {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a policy reached."""

    step: int
    weights: str
    guidance_scale: float | None
    outcomes: tuple[dict[str, Any], ...]
    """Of each episode: seed, init_hash, success, length, reward."""

    @property
    def successes(self) -> int:
        return sum(outcome["success"] for outcome in self.outcomes)

    def metrics(self) -> dict[str, float]:
        """Values for metrics.jsonl."""
        n = len(self.outcomes)
        low, high = wilson(self.successes, n)
        return {
            "policy/success": self.successes / n,
            "policy/success_low": low,
            "policy/success_high": high,
            "policy/episodes": float(n),
            "policy/length": sum(outcome["length"] for outcome in self.outcomes) / n,
        }

    def __str__(self) -> str:
        n = len(self.outcomes)
        low, high = wilson(self.successes, n)
        rate = self.successes / n
        return f"{self.successes} of {n} episodes succeeded, {rate:.1%} (95 % interval {low:.1%} to {high:.1%})"

    def save(self, path: Path) -> None:
        """Writes the evaluation as JSON."""
        make_folders(path.parent)
        write_durably(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Reads an evaluation. Raises DataError if it is none."""
        tree = read_json(path)
        try:
            return cls(**(tree | {"outcomes": tuple(tree["outcomes"])}))
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: expected an evaluation, found {error}") from error


def make_manifest(collector: Collector, *, seed: int, episodes: int) -> Manifest:
    """Draws initial states, and looks at them in the simulator; a longer manifest begins as a shorter one does."""
    states = []
    for number in range(episodes):
        job = Job(
            number=number,
            seed=seed_of(Purpose.RIPT_EVALUATION, seed, number),
            draw=tuple(words(Purpose.RIPT_EVALUATION, seed, number)),
            path=Path(f"initial_state_{number:04d}"),
        )
        states.append(InitialState(seed=job.seed, init_hash=collector.look(job).init_hash))
    config = collector.config
    return Manifest(suite=config.suite, task=config.task, seed=seed, states=tuple(states))


def manifest_of(collector: Collector, path: Path, *, seed: int, episodes: int) -> Manifest:
    """The manifest in a file; made and written if there is none, one that is too short, or one of another seed."""
    if path.exists():
        manifest = Manifest.load(path)
        if len(manifest.states) >= episodes and manifest.seed == seed:
            return manifest
    manifest = make_manifest(collector, seed=seed, episodes=episodes)
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

    Raises:
      DataError: An episode began in another state than the manifest says, or the environment is another.
      NonFiniteError: The policy gave NaN.
    """
    config = collector.config
    if (config.suite, config.task) != (manifest.suite, manifest.task) or len(manifest.states) < episodes:
        raise DataError(
            f"manifest: expected {episodes} initial states of {config.suite} {config.task}, found "
            f"{len(manifest.states)} of {manifest.suite} {manifest.task}"
        )
    finished: dict[int, Rollout] = {}

    def done(job: Job, rollout: Rollout) -> None:
        expected = manifest.states[job.number].init_hash
        if rollout.init_hash != expected:
            raise DataError(
                f"episode {job.number}: expected the initial state {expected} of the manifest, found "
                f"{rollout.init_hash}; the simulator is not the one with which the manifest was made"
            )
        if job.number < keep:
            save(job.path, rollout)
        finished[job.number] = rollout

    jobs = [
        Job(
            number=number,
            seed=state.seed,
            draw=tuple(words(Purpose.RIPT_EVALUATION, manifest.seed, number)),
            path=folder / f"episode_{number:04d}.npz",
        )
        for number, state in enumerate(manifest.states[:episodes])
    ]
    collector.play(jobs, actor, done)
    outcomes = tuple(
        {
            "seed": rollout.seed,
            "init_hash": rollout.init_hash,
            "success": rollout.success,
            "length": rollout.length,
            "reward": float(rollout.rewards.sum()),
        }
        for _, rollout in sorted(finished.items())
    )
    return Evaluation(step=actor.step, weights=actor.weights, guidance_scale=guidance_scale, outcomes=outcomes)


def compare_evaluations(a: Evaluation, b: Evaluation) -> Comparison:
    """Pairs two evaluations by initial state; the states that only one of them has are left out.

    Raises:
      DataError: If they have no initial state in common.
    """
    of_a = {outcome["init_hash"]: bool(outcome["success"]) for outcome in a.outcomes}
    of_b = {outcome["init_hash"]: bool(outcome["success"]) for outcome in b.outcomes}
    shared = [key for key in of_a if key in of_b]
    if not shared:
        raise DataError("expected two evaluations on the same manifest, found no initial state in common")
    return compare([of_a[key] for key in shared], [of_b[key] for key in shared])
