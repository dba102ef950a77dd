"""Success of a policy on a manifest of initial states, as files that can be audited and compared state by state.

    {"suite", "task", "seed", "states": [{"seed", "init_hash", "task"}, ...]}                    manifest.json
    {"step", "weights", "guidance_scale", "prompt", "outcomes": [{..., "success", "length"}]}    evaluations/step_*.json

A manifest depends on a task and a seed alone, so that runs and checkpoints meet the same initial states, and with them
the same noise. `init_hash` is compared at every rollout: another simulator version does not pass unnoticed.
"""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkwise.distributed.division import Division
from chunkwise.distributed.stopping import is_requested
from chunkwise.envs import environment
from chunkwise.envs.collect import Actor, Collector, Job
from chunkwise.envs.rollout import Rollout
from chunkwise.errors import ConfigError, DataError, StopRequested
from chunkwise.files.durable import make_folders, write_json
from chunkwise.files.strict_json import read_json
from chunkwise.reports.intervals import wilson
from chunkwise.reports.paired import Comparison, compare
from chunkwise.reports.run_record import remove_videos, settings_of

_PLACES = ("file", "video")
"""Entries of a report of drives that say where it lies."""

MAX_WORD = 60
"""Letters of a setting that stand in a file's name as they are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialState:
    """Where an episode begins."""

    seed: int
    """Of the environment's reset."""
    init_hash: str
    """Of the simulator's state after it."""
    task: str = ""
    """By its suite's name; empty: the manifest's only one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Initial states of an evaluation."""

    suite: str
    task: str
    """Or the names of several, with a comma between them."""
    seed: int
    states: tuple[InitialState, ...]

    def save(self, path: Path) -> None:
        """Writes manifest.json."""
        make_folders(path.parent)
        write_json(path, dataclasses.asdict(self))

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
    """Updates behind the policy."""
    weights: str = ""
    """Digest of them; empty where nobody asked."""
    guidance_scale: float | None = None
    """With which it acted, where it is guided."""
    outcomes: tuple[dict[str, Any], ...]
    """Of each episode: seed, init_hash, success, length, reward, and its task where the environment has several."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What differed from the run's own evaluation: its flags on the command line."""
    task_sets: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Sets of its tasks that are told on lines of their own, such as those of a suite by difficulty."""

    @property
    def successes(self) -> int:
        return sum(outcome["success"] for outcome in self.outcomes)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, where there are several, in their order."""
        names = tuple(dict.fromkeys(outcome.get("task", "") for outcome in self.outcomes))
        return names if len(names) > 1 else ()

    def of_task(self, *tasks: str) -> "Evaluation":
        """Returns the episodes of one task, or of several."""
        outcomes = tuple(outcome for outcome in self.outcomes if outcome.get("task", "") in tasks)
        return dataclasses.replace(self, outcomes=outcomes)

    def with_sets_of(self, suite: str) -> "Evaluation":
        """Returns the evaluation with those of a suite's sets of tasks of which it has every task, and others too."""
        names = set(self.tasks)
        found = {name: list(tasks) for name, tasks in environment.task_sets(suite).items() if set(tasks) < names}
        return dataclasses.replace(self, task_sets=found)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the success rate."""
        return wilson(self.successes, len(self.outcomes))

    def mean(self, name: str) -> float:
        """Mean of an outcome over episodes."""
        return sum(outcome[name] for outcome in self.outcomes) / len(self.outcomes)

    def metrics(self, prefix: str = "policy") -> dict[str, float]:
        """Returns values for metrics.jsonl, each name led by `prefix` and a slash.

        Where there are several tasks, the success of each is `prefix`/success/<task>.
        """
        low, high = self.interval
        of_tasks = {f"{prefix}/success/{task}": self.of_task(task).mean("success") for task in self.tasks}
        return of_tasks | {
            f"{prefix}/success": self.mean("success"),
            f"{prefix}/success_low": low,
            f"{prefix}/success_high": high,
            f"{prefix}/episodes": float(len(self.outcomes)),
            f"{prefix}/return": self.mean("reward"),
            f"{prefix}/length": self.mean("length"),
        }

    def __str__(self) -> str:
        n = len(self.outcomes)
        low, high = self.interval
        lines = [f"\n  {task}: {one.successes} of {len(one.outcomes)}" for task, one in self._by_task()]
        for name, tasks in self.task_sets.items():
            one = self.of_task(*tasks)
            between = "{:.1%} to {:.1%}".format(*one.interval)
            lines.append(
                f"\n  {name}, {len(tasks)} tasks: {one.successes} of {len(one.outcomes)}, {one.mean('success'):.1%} "
                f"({between})"
            )
        return (
            f"{self.successes} of {n} episodes succeeded, {self.mean('success'):.1%} (95 % interval {low:.1%} to "
            f"{high:.1%}), return {self.mean('reward'):.1f}, length {self.mean('length'):.0f}"
        ) + "".join(lines)

    def _by_task(self) -> list[tuple[str, "Evaluation"]]:
        return [(task, self.of_task(task)) for task in self.tasks]

    def save(self, path: Path) -> None:
        """Writes the evaluation as JSON; as `write_over`."""
        make_folders(path.parent)
        write_over(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Reads an evaluation, or the report of drives in closed loop, of which it takes what an evaluation has.

        Raises:
          DataError: It is none.
        """
        tree = read_json(path)
        try:
            for number, one in enumerate(tree["outcomes"]):
                if not (isinstance(one, Mapping) and isinstance(one.get("init_hash"), str) and "success" in one):
                    expected = "an init_hash, which is text, and success"
                    raise DataError(f"{path}: outcomes[{number}]: expected {expected}, found {one!r:.80}")
            own = {field.name: tree[field.name] for field in dataclasses.fields(cls) if field.name in tree}
            return cls(**(own | {"outcomes": tuple(tree["outcomes"]), "settings": settings_of(tree)}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: expected an evaluation, found {error}") from error


def write_over(path: Path, evaluated: Mapping[str, Any]) -> None:
    """Writes an evaluation's file in the place of another one, whose videos go where it was not the same.

    Pages would show them as those of the episodes that are listed now.

    Raises:
      OSError: It could not be written, or a video not be removed.
    """
    replaced = path.is_file()
    try:
        before = read_json(path) if replaced else None
    except DataError:
        before = None
    write_json(path, evaluated)
    if replaced and not _same(before, json.loads(json.dumps(evaluated))):
        remove_videos(path)


def _same(before: Any, now: dict[str, Any]) -> bool:
    """Whether two evaluations are of one policy and have the same episodes; where the video lies counts for nothing."""
    return isinstance(before, dict) and before | dict.fromkeys(_PLACES) == now | dict.fromkeys(_PLACES)


def require_place(out: Path | None, *, videos: bool) -> None:
    """Raises ConfigError where an evaluation's file has the name of its video, or of the folder of single ones."""
    if videos and out is not None and out.suffix in ("", ".mp4"):
        raise ConfigError(f"--out is {out}, and --video writes there too; expected a name that ends in .json")


def file_of(run: Path, step: int, settings: Mapping[str, Any]) -> Path:
    """Returns the file of an evaluation in a run's folder; what differed from the run's own is in its name, sentences
    and long texts by their digest."""
    parts = [f"step_{step:08d}", *(f"{name}_{_in_name(str(value))}" for name, value in settings.items())]
    return run / f"evaluations/{re.sub(r'[^A-Za-z0-9_-]', '-', '-'.join(parts))}.json"


def _in_name(text: str) -> str:
    return text if len(text) <= MAX_WORD and " " not in text else hashlib.sha256(text.encode()).hexdigest()[:12]


def evaluate(
    collector: Collector,
    actor: Actor,
    jobs: Sequence[Job],
    *,
    init_hashes: Sequence[str] | None = None,
    guidance_scale: float | None = None,
    done: Callable[[Job, Rollout], None] = lambda job, rollout: None,
    division: Division | None = None,
) -> Evaluation:
    """Plays one episode for each job.

    Args:
      collector: Plays them.
      actor: The policy.
      jobs: Numbered from 0.
      init_hashes: Of the initial state of each job, where a manifest says them.
      guidance_scale: That the actor uses; written down.
      done: Called with each episode that this process played when it has ended.
      division: Divides the episodes among the processes of the run, all of which call this alike; None: this process
        plays all of them.

    Raises:
      DataError: An episode began in another state.
      NonFiniteError: The policy gave NaN.
      StopRequested: This process was asked to stop, or another that plays a part.
    """
    finished: dict[int, Rollout] = {}

    def ended(job: Job, rollout: Rollout) -> None:
        expected = rollout.init_hash if init_hashes is None else init_hashes[job.number]
        if rollout.init_hash != expected:
            raise DataError(
                f"episode {job.number}: expected the initial state {expected} of the manifest, found "
                f"{rollout.init_hash}; the simulator is not the one with which the manifest was made"
            )
        done(job, rollout)
        finished[job.number] = rollout

    several = len({job.task for job in jobs}) > 1

    def play(stopping: Callable[[], bool]) -> list[Any] | None:
        mine = [job for job in jobs if division is None or division.mine(job.number)]
        if not collector.play(mine, actor, ended, stopping):
            return None
        return [(number, _outcome(rollout, several=several)) for number, rollout in finished.items()]

    parts = [play(is_requested)] if division is None else division.work(play, is_requested)
    if parts is None or None in parts:
        raise StopRequested("the evaluation was broken off; what was finished before stands")
    outcomes = dict(outcome for part in parts if part is not None for outcome in part)
    return Evaluation(
        step=actor.step,
        weights=actor.weights,
        guidance_scale=guidance_scale,
        outcomes=tuple(outcomes[number] for number in sorted(outcomes)),
    )


def _outcome(rollout: Rollout, *, several: bool) -> dict[str, Any]:
    """What an evaluation keeps of an episode, with its task where there are several."""
    return {
        "seed": rollout.seed,
        "init_hash": rollout.init_hash,
        "success": rollout.success,
        "length": rollout.length,
        "reward": float(rollout.rewards.sum(dtype=np.float64)),
    } | ({"task": rollout.task} if several else {})


def compare_evaluations(a: Evaluation, b: Evaluation) -> Comparison:
    """Pairs two evaluations by task and initial state; the states that only one of them has are left out.

    Where several episodes of one of them begin in the same state, as where an environment always begins alike, those
    with the same seed are a pair, one after another. Where one does not say its task, as of a single one, states are
    told by themselves.

    Raises:
      DataError: If they have no initial state in common.
    """
    tasks = all("task" in outcome for of in (a, b) for outcome in of.outcomes)

    def state(outcome: Mapping[str, Any]) -> tuple[str, str]:
        return outcome["task"] if tasks else "", outcome["init_hash"]

    counts = [Counter(map(state, of.outcomes)) for of in (a, b)]

    def named(of: Evaluation) -> dict[tuple[Any, ...], bool]:
        found: dict[tuple[Any, ...], bool] = {}
        seen = Counter[tuple[Any, ...]]()
        for outcome in of.outcomes:
            several = max(count[state(outcome)] for count in counts) > 1
            key = (*state(outcome), outcome.get("seed") if several else None)
            found[*key, seen[key]] = bool(outcome["success"])
            seen[key] += 1
        return found

    of_a, of_b = named(a), named(b)
    shared = [key for key in of_a if key in of_b]
    if not shared:
        raise DataError("expected two evaluations on the same manifest, found no initial state in common")
    return compare([of_a[key] for key in shared], [of_b[key] for key in shared])
