"""A run's policy drives in the town, beside the town's own driver and those who see nothing.

Every row drives the same routes: route e of seed n is a town of its own, a function of (n, e), whatever the number of
workers. A policy is asked every 0.1 s, one car at a time, so that no batch rounds otherwise.

  expert             the town's own driver, through the same controller; its progress is what others' is measured by
  stationary         stands
  constant_velocity  straight on at the present speed
  history_mlp        as in driving/eval/baselines.py: motion now and before, and the route command, no image
  model              the run's own
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from chunkwise.data.sampling import Purpose, seed_of
from chunkwise.envs import render
from chunkwise.envs.collect import Actor, Collector, Draw, Job, Task
from chunkwise.envs.environment import EnvSpec, Observation
from chunkwise.envs.evaluate import require_place, write_over
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.workers import ProcessWorkers
from chunkwise.errors import ConfigError, StorageError
from chunkwise.files.durable import write_json
from chunkwise.files.place import prepare_place, told_place
from chunkwise.policies.load import load_policy
from chunkwise.policies.policy import Policy
from chunkwise.printable import say
from chunkwise.reports.intervals import wilson
from driving.config import DrivingConfig
from driving.data.batches import open_data
from driving.data.images import recorded_size
from driving.data.index import Index
from driving.eval import baselines
from driving.eval.closed_loop import MULTIPLIERS, Result, result_of
from driving.eval.metrics import Score, score
from driving.policies.policy import WaypointPolicy
from driving.policies.town import TownDriver, named
from driving.sim.environment import SECONDS, TASK, TownEnv

EPISODES, WORKERS = 30, 2
EXPERT, MODEL, BLIND = "expert", "model", "history_mlp"
SHARES = ("no_fault_collision", "drivable_area", "traffic_light", "ttc", "comfort")
"""Measures that are 0 or 1: the mean is a share of the routes."""
COLUMNS = ("score", "progress", *MULTIPLIERS, "ttc", "comfort")
_USUAL: Mapping[str, float] = {"seconds": SECONDS, "lead_s": 0.0, "hold": 1}
"""Of an evaluation whose file does not name them."""


@dataclasses.dataclass
class _Driver(abc.ABC):
    """Whoever gives a plan for every car that waits."""

    step: int = 0
    weights: str = ""

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        rows = [{name: value[i] for name, value in observations.items()} for i in range(len(draws))]
        plans = [self.plan(row) for row in rows]
        return np.stack([np.asarray(plan, np.float32).reshape(1, -1) for plan in plans])

    @abc.abstractmethod
    def plan(self, seen: Observation) -> np.ndarray:
        """Returns the waypoints of one car."""


@dataclasses.dataclass
class _Straight(_Driver):
    """Goes straight on, at the present speed times `share`."""

    share: float = 1.0
    steps: int = 20
    dt_s: float = 0.1

    def plan(self, seen: Observation) -> np.ndarray:
        metres = self.share * float(seen["speed_mps"]) * self.dt_s * np.arange(1, self.steps + 1)
        return np.stack([metres, np.zeros(self.steps)], axis=-1)


@dataclasses.dataclass
class _Policy(_Driver):
    """A trained policy, asked for one car at a time."""

    policy: WaypointPolicy | None = None

    def plan(self, seen: Observation) -> np.ndarray:
        assert self.policy is not None
        return plan_of(self.policy, seen)


def plan_of(policy: Policy[Any], seen: Mapping[str, Any]) -> Float32[np.ndarray, "t 2"]:
    """Returns the waypoints of a policy for one observation of the town, with the images of its cameras."""
    row = {name: value[None] for name, value in seen.items()}
    return policy.infer(named(policy, row))["actions"][0]


def open_town(spec: EnvSpec, config: DrivingConfig, **more: Any) -> TownEnv:
    """Makes the town for plans of a run's length; `more` as of TownEnv."""
    steps, dt_s = config.data.waypoint_steps, config.data.waypoint_dt_s
    return TownEnv(spec, waypoint_steps=steps, waypoint_dt_s=dt_s, **more)


def evaluate_run(
    run: Path,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    workers: int = WORKERS,
    video: int = 0,
    seconds: float = SECONDS,
    lead_s: float = 0.0,
    hold: int = 1,
    out: Path | None = None,
) -> dict[str, Any]:
    """Drives the newest checkpoint of a run and every other row; writes the report, and a video beside it.

    Args:
      run: Folder of a run that learnt waypoints.
      episodes: Routes.
      seed: Of the routes.
      workers: Processes that simulate; the result does not depend on it.
      video: Drives of the model that are shown, from above and from the front camera; 0: none.
      seconds: Of a drive.
      lead_s: At most so many seconds more, drawn for each route, the town's own driver drives before.
      hold: Tenths of a second that a plan is followed before the next, but for the town's own driver.
      out: Where the report is written; None: into the run's evaluations, what was asked for in its name.

    Returns:
      {"kind": "closed_loop", "routes", "seed", "seconds", "lead_s", "hold", "step", "rows": {row: {measure: {mean, low,
      high}}}, "gain": {row: {mean, low, high}} of the score, model - row, by route, "drives": {row: [{seed, ...}]},
      "settings": those of seconds, lead_s and hold that are not the usual ones,
      "outcomes": [{seed, init_hash, success, length, score}] of the model, "file", "video"}.

    Raises:
      ConfigError: The run is a pretraining, the town does not show what it sees, or the machine cannot render.
      DataError: There is no whole checkpoint, or the dataset, from which the blind row learns, is bad.
      StorageError: The report cannot be written; found before anything is driven where the place itself is at fault.
    """
    require_place(out, videos=bool(video))
    policy = load_policy(run)
    if not isinstance(policy, WaypointPolicy):
        raise ConfigError(f"{run}: expected a run of driving that learnt waypoints")
    config = policy.config
    if config.unseen_in_town:
        raise ConfigError(f"{run}: it is to drive in the town, and {config.unseen_in_town}")
    if hold > config.data.longest_hold:
        raise ConfigError(
            f"{run}: --hold is {hold} tenths of a second; expected at most {config.data.longest_hold}, where a plan of "
            "this run ends"
        )
    asked = {"seconds": seconds, "lead_s": lead_s, "hold": hold}
    unusual = {name: value for name, value in asked.items() if value != _USUAL[name]}
    drawn = "-".join(f"{name}_{value}" for name, value in {"episodes": episodes, "seed": seed, **unusual}.items())
    path = out or run / f"evaluations/closed_loop-step_{policy.step:08d}-{drawn}.json"
    prepare_place(path)
    data = open_data(config.data, "train")
    if told := other_angles(config, data.index):
        say(f"note: {told}")
    blind = WaypointPolicy(
        baselines.blind_config(config, use_past=True),
        baselines.train_blind(config, baselines.EgoStates(data), use_past=True),
    )
    steps, dt_s = config.data.waypoint_steps, config.data.waypoint_dt_s
    drivers: dict[str, Actor] = {
        EXPERT: TownDriver(),
        "stationary": _Straight(share=0.0, steps=steps, dt_s=dt_s),
        "constant_velocity": _Straight(steps=steps, dt_s=dt_s),
        BLIND: _Policy(policy=blind),
        MODEL: _Policy(step=policy.step, policy=policy),
    }
    found: dict[str, list[tuple[Rollout, Result]]] = {}
    for name, driver in drivers.items():
        seen = isinstance(driver, _Policy) and driver.policy is policy
        spec = spec_of(config, data.index) if seen else _SPEC
        expert = name == EXPERT
        given = asked | {"hold": 1 if expert else hold}
        opener = functools.partial(open_town, spec, config, expert=expert, measured=True, **given)
        found[name] = play(opener, driver, episodes=episodes, seed=seed, workers=workers)
    result = table_of({name: [one for _, one in drives] for name, drives in found.items()})
    drives = {
        name: [{"seed": rollout.seed, "steps": rollout.length, **vars(one)} for rollout, one in played]
        for name, played in found.items()
    }
    far = [one.metres for _, one in found[EXPERT]]
    outcomes = [
        {
            "seed": drive.seed,
            "init_hash": drive.init_hash,
            "success": drive.success,
            "length": drive.length,
            "score": one.score(metres),
        }
        for (drive, one), metres in zip(found[MODEL], far, strict=True)
    ]
    report = {
        "kind": "closed_loop",
        "routes": episodes,
        "seed": seed,
        **asked,
        "settings": unusual,
        "step": policy.step,
        **result,
        "drives": drives,
        "outcomes": outcomes,
        "file": str(path),
        "video": None,
    }
    try:  # first: whatever becomes of the video, the routes have been driven
        with told_place(path):
            write_over(path, report)
    except StorageError:
        print(text(report, run.name), flush=True)
        raise
    if video:
        rollouts = [rollout for rollout, _ in found[MODEL]]
        spec = dataclasses.replace(spec_of(config, data.index), video=True)
        shown = functools.partial(open_town, spec, config, **asked)
        film = path.with_suffix(".mp4")
        written = render.write_some(shown, rollouts, film, min(video, episodes), clips=film.with_suffix(""))
        report["video"] = None if written is None else str(written)
        write_json(path, report)
    return report


def spec_of(config: DrivingConfig, index: Index | None = None) -> EnvSpec:
    """Returns the town as a run's policy sees it.

    Where recorded images were stretched to another ratio of height to width, the town is shown as it was recorded, and
    the policy stretches it: rendered at the policy's size, its cameras would see another angle than in training. A
    camera that no episode has is not shown: its images were masked in every sample.

    Args:
      config: Of the run.
      index: Of its data: its cameras, and how the images of the first of them were recorded. None: all cameras, as
        config.record has them.
    """
    (height, width), size = config.data.image_size, config.data.image_size
    shown = [name for name in config.data.cameras if index is None or name in index.cameras]
    recorded = recorded_size(index, shown[0]) if index is not None and shown else None
    if recorded is None and config.record is not None:
        recorded = config.record.image_size
    if recorded is not None and height * recorded[1] != width * recorded[0]:
        size = recorded
    views = tuple(view for view in config.views if view.partition("@")[0] in shown)
    return dataclasses.replace(_SPEC, cameras=views, image_size=size)


def other_angles(config: DrivingConfig, index: Index) -> str:
    """Says which cameras were recorded in another ratio of height to width than the first, which the town gives all
    (`spec_of`); empty: none was."""
    cameras = dict.fromkeys(view.partition("@")[0] for view in config.views)
    sizes = {name: size for name in cameras if (size := recorded_size(index, name)) is not None}
    first, *others = sizes or [""]
    other = [name for name in others if sizes[name][0] * sizes[first][1] != sizes[name][1] * sizes[first][0]]
    if not other:
        return ""
    found = ", ".join(f"{name} {sizes[name][0]} x {sizes[name][1]}" for name in (first, *other))
    return (
        f"images were recorded as {found}, and the town renders all cameras as {first}, so that the policy sees other "
        "angles of the others than in training"
    )


_SPEC = EnvSpec(suite="town", task=TASK)


def play(opener: Any, driver: Actor, *, episodes: int, seed: int, workers: int) -> list[tuple[Rollout, Result]]:
    """Drives each route once; returns the drives, without what was seen, and what each is worth."""
    found: dict[int, tuple[Rollout, Result]] = {}

    def done(job: Job, rollout: Rollout) -> None:
        found[job.number] = (dataclasses.replace(rollout, observations={}), result_of(rollout))

    collector = Collector(ProcessWorkers(opener, min(workers, episodes), name=f"town/{TASK}"), tasks=(Task(),))
    try:
        collector.play([_job(seed, e) for e in range(episodes)], driver, done)
    finally:
        collector.close()
    return [found[e] for e in range(episodes)]


def _job(seed: int, episode: int) -> Job:
    return Job(
        number=episode,
        seed=seed_of(Purpose.ROUTE_EVALUATION, seed, episode),
        draw=(seed, episode),
        path=Path(f"route_{episode:04d}"),
    )


def table_of(results: dict[str, list[Result]]) -> dict[str, Any]:
    """Returns `rows` and `gain` of the report: means over routes with 95 % intervals.

    Shares have Wilson's interval, the others that of driving/eval/metrics.py, by t quantiles over routes.
    """
    expert = [one.metres for one in results[EXPERT]]
    scores, rows = {}, {}
    for name, drives in results.items():
        values = {
            column: np.array([getattr(one, column) for one in drives]) for column in (*MULTIPLIERS, "ttc", "comfort")
        }
        values["progress"] = np.array([one.progress(far) for one, far in zip(drives, expert, strict=True)])
        values["score"] = np.array([one.score(far) for one, far in zip(drives, expert, strict=True)])
        scores[name] = values["score"]
        rows[name] = {column: vars(_with_interval(column, values[column])) for column in COLUMNS}
    routes = np.arange(len(expert))
    gain = {name: vars(score(scores[MODEL] - one, routes)) for name, one in scores.items() if name != MODEL}
    return {"rows": rows, "gain": gain}


def _with_interval(column: str, values: np.ndarray) -> Score:
    if column not in SHARES:
        found = score(values, np.arange(len(values)))
        ends = {end: None if value is None else float(np.clip(value, 0, 1)) for end, value in vars(found).items()}
        return Score(mean=found.mean, low=ends["low"], high=ends["high"])  # nothing is beyond 0 and 1
    low, high = wilson(round(values.sum()), len(values))
    return Score(mean=float(values.mean()), low=low, high=high)


def text(report: dict[str, Any], name: str) -> str:
    """Returns the table in Markdown, and what a reader has to know below it."""
    led = f" behind up to {report['lead_s']:g} s of the expert" if report["lead_s"] else ""
    head = f"| closed loop, {report['routes']} routes of {report['seconds']:g} s{led} | " + " | ".join(COLUMNS) + " |"
    lines = [head, "|---" * (len(COLUMNS) + 1) + "|"]
    for row, values in report["rows"].items():
        label = name if row == MODEL else row
        lines.append(f"| {label} | " + " | ".join(str(Score(**values[column])) for column in COLUMNS) + " |")
    gain = ", ".join(f"{Score(**value)} over {row}" for row, value in report["gain"].items())
    lines += ["", f"score of {name}, by route: {gain}", report["file"]]
    return "\n".join([*lines, f"video: {report['video']}"] if report["video"] else lines)
