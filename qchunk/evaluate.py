"""Success of a policy in the real environment, several environments at once.

    chunkwise evaluate RUN [--episodes 100] [--checkpoint best] [--env ID] [--execute 2] [--video 4]

plays the episodes that the run plays at its end, and writes RUN/evaluations/step_<n>.json (or --out), with what differs
from the run's own in the name.
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt32

from chunkwise.checkpoint.weights import which
from chunkwise.cli import command
from chunkwise.cli.command import Parser
from chunkwise.config.experiment import FleetConfig
from chunkwise.data.sampling import Purpose, seed_of, seed_of_draw, words
from chunkwise.distributed.division import Division
from chunkwise.distributed.ray_cluster import add_flag
from chunkwise.envs import evaluate as evaluation
from chunkwise.envs import render
from chunkwise.envs.collect import Collector, Draw, Job, Task
from chunkwise.envs.environment import Observation
from chunkwise.envs.evaluate import Evaluation
from chunkwise.envs.fleet import make_workers
from chunkwise.envs.rollout import Rollout
from chunkwise.envs.thread_workers import ThreadWorkers
from chunkwise.errors import ConfigError, RunError
from chunkwise.files import trust
from chunkwise.files.place import prepare_place, told_place
from chunkwise.policies.execution import Committed, Execution, add_flags, execution_of
from chunkwise.policies.load import load_policy
from qchunk.agents.base import Agent
from qchunk.config import QChunkConfig
from qchunk.data import Dims
from qchunk.envs import simulators
from qchunk.policies.policy import QChunkPolicy

Policy = Callable[[Observation, UInt32[np.ndarray, " b"]], np.ndarray]
"""Chooses the next chunk of each environment: (observations, seeds) -> actions (b, t, a).

Observations are float32 (b, s) under their names in the recordings, `qpos` and `state`, and with a View uint8
(b, k, h, w, 3) as `images`. A row's seed, 0 to 2^32 - 1, seeds whatever the policy draws for that row, and differs from
chunk to chunk. Actions outside the environment's bounds are clipped."""

CompletingPolicy = Callable[[Observation, UInt32[np.ndarray, " b"], Sequence[Committed] | None], np.ndarray]
"""A policy whose chunks can be completed from what is committed in each row."""


@dataclasses.dataclass
class _Acting:
    """A policy as the collector calls it."""

    policy: Callable[..., np.ndarray]
    horizon: int
    view: simulators.View | None
    step: int
    weights: str = ""

    def __call__(
        self, observations: Observation, draws: Sequence[Draw | None], prompts: Sequence[str]
    ) -> Float32[np.ndarray, "b t a"]:
        return self._checked(self.policy(*self._given(observations, draws)), len(draws))

    def complete(
        self,
        observations: Observation,
        draws: Sequence[Draw | None],
        prompts: Sequence[str],
        committed: Sequence[Committed],
    ) -> Float32[np.ndarray, "b t a"]:
        return self._checked(self.policy(*self._given(observations, draws), committed), len(draws))

    def _given(
        self, observations: Observation, draws: Sequence[Draw | None]
    ) -> tuple[Observation, UInt32[np.ndarray, " b"]]:
        seen = {name: observations[name] for name in ("qpos", "state") if name in observations}
        if self.view is not None:
            seen["images"] = simulators.stacked_images(observations, self.view)
        return seen, np.array([0 if draw is None else seed_of_draw(draw) for draw in draws], np.uint32)

    def _checked(self, chunks: np.ndarray, rows: int) -> Float32[np.ndarray, "b t a"]:
        if chunks.ndim != 3 or chunks.shape[:2] != (rows, self.horizon):
            expected = f"({rows}, {self.horizon}, actions)"
            raise ValueError(f"the policy returned shape {chunks.shape}; expected {expected}")
        return np.asarray(chunks, np.float32)


def evaluate(
    policy: Policy | CompletingPolicy,
    env_id: str,
    *,
    seed: int,
    step: int,
    episodes: int,
    num_envs: int,
    horizon: int,
    rows: int | None = None,
    view: simulators.View | None = None,
    rules: simulators.Rules = simulators.USUAL,
    execution: Execution | None = None,
    max_steps: int | None = None,
    fleet: FleetConfig | None = None,
    done: Callable[[Job, Rollout], None] = lambda job, rollout: None,
    division: Division | None = None,
) -> Evaluation:
    """Runs episodes 0 to `episodes - 1`; the result is a function of the arguments, not of the clock.

    Episode e starts in a state that depends on (seed, e) alone, so that evaluations at different steps meet the same
    scenes, and draws what depends on (seed, step, e) alone, whatever the number of environments. An episode ends with
    the environment's first success, at a termination, or at its time limit.

    The batch always has `rows` rows, so that a compiled policy meets one shape: it is of the environments that wait,
    and another row's observation fills what is left.

    Args:
      policy: Maps observations to chunks of `horizon` actions; for real-time chunking it is given, behind the seeds,
        what each row's chunk is completed from.
      env_id: Of the environment (simulators.make).
      seed: Of the initial states and, with `step`, of the policy's draws.
      step: Updates behind the policy.
      episodes: Episodes in all.
      num_envs: Environments that are played at once. Each costs 0.9 s once to make; stepping is what takes the time,
        about 1 ms a step on one core.
      horizon: Actions of one chunk.
      rows: Of every batch that the policy infers for; None: as many as there are environments.
      view: Images that the policy sees, rendered when it is asked; None: none.
      rules: How the environment judges what is done.
      execution: How chunks are executed; None: each as a whole, without delay.
      max_steps: Steps after which an episode is cut; None: where the environment says that it ends.
      fleet: Where the environments run; without an address in threads of this process.
      done: Called with each episode that this process played, whose actions are kept and whose observations are not,
        when it has ended.
      division: Divides the episodes among the processes of the run, all of which call this alike; None: this process
        plays all of them.

    Raises:
      ConfigError: If the environment is unknown, the simulator is not installed, it cannot render what is asked for,
        or chunks are too short for the execution.
      NonFiniteError: If the policy gave NaN or Inf.
      ValueError: If the policy's chunks have the wrong shape.
    """
    jobs = [
        Job(
            number=episode,
            seed=scene_seed(seed, episode),
            draw=_draw(seed, step, episode),
            path=Path(f"episode_{episode:04d}"),
        )
        for episode in range(episodes)
    ]
    actor = _Acting(policy, horizon, view, step)
    execution = execution or Execution()
    execution.interval(horizon)
    collector = _collector(
        env_id, num_envs, rows or num_envs, view, rules, execution, max_steps, fleet or FleetConfig()
    )
    return evaluation.evaluate(collector, actor, jobs, done=done, division=division)


def scene_seed(seed: int, episode: int) -> int:
    """Returns the seed with which an evaluation resets the environment for an episode."""
    return seed_of(Purpose.QCHUNK_EVALUATION_SCENE, seed, episode)


def action_seed(seed: int, step: int, episode: int, chunk: int) -> int:
    """Returns the seed that an evaluation gives the policy for a chunk of an episode; `infer(..., seed=...)` takes it.

    Args:
      seed: Of the evaluation.
      step: Updates behind the policy.
      episode: Its number, from 0 on.
      chunk: Its number in the episode, from 0 on.
    """
    return seed_of_draw((*_draw(seed, step, episode), chunk))


def _draw(seed: int, step: int, episode: int) -> tuple[int, ...]:
    return tuple(words(Purpose.QCHUNK_EVALUATION_ACTION, seed, step, episode))


_kept: dict[tuple[Any, ...], Collector] = {}
"""The collector of the latest evaluation, by its settings."""


def close_environments() -> None:
    """Closes the environments that are kept from one evaluation to the next."""
    while _kept:
        _kept.popitem()[1].close()


def _collector(
    env_id: str,
    num_envs: int,
    rows: int,
    view: simulators.View | None,
    rules: simulators.Rules,
    execution: Execution,
    max_steps: int | None,
    fleet: FleetConfig,
) -> Collector:
    """Environments, kept from one evaluation to the next; a reset leaves nothing of what they did before."""
    settings = (env_id, num_envs, rows, view, rules, execution, max_steps, fleet)
    if settings in _kept:
        return _kept[settings]
    close_environments()
    opener = functools.partial(simulators.make, env_id, view, rules)
    if fleet.address is None:
        workers = ThreadWorkers(opener, num_envs, name=env_id)
    else:
        workers = make_workers(fleet, opener, num_envs, name=env_id, every_frame=False)
    _kept[settings] = Collector(workers, rows=rows, execution=execution, tasks=(Task(max_steps=max_steps),))
    return _kept[settings]


def view_of(config: QChunkConfig, dims: Dims) -> simulators.View | None:
    """Returns the cameras of the environment as the networks are used to them; None without cameras."""
    render_size = config.eval.render_size
    if not dims.cameras:
        return None
    return simulators.View(
        cameras=dims.cameras,
        render_size=render_size,
        image_size=dims.image_size or render_size,
        shrunk=dims.shrunk,
    )


def require_shown(agent: Agent) -> None:
    """Raises ConfigError for an agent that acts by depth, which no environment here shows."""
    if agent.acts_by_depth and agent.dims.depth_cameras:
        raise ConfigError(
            f"{type(agent).__name__} acts by depth, of {list(agent.dims.depth_cameras)}, and no environment here shows "
            "it; expected eval.env None: data.holdout measures the policy on recordings, and `chunkwise serve` gives "
            "it to a robot"
        )


def evaluate_run(
    policy: QChunkPolicy,
    *,
    env: str | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    execution: Execution | None = None,
    max_steps: int | None = None,
    fleet: FleetConfig | None = None,
    done: Callable[[Job, Rollout], None] = lambda job, rollout: None,
) -> Evaluation:
    """Evaluates a loaded policy; without arguments it is the evaluation at the end of the run, if it is of that step.

    Args:
      policy: Of a run.
      env: As the user names it; None: eval.env of the run, which a `module:factory` is not taken from.
      episodes: None: eval.final_episodes.
      seed: Of scenes and draws; None: the run's.
      num_envs: Environments at once; None: eval.num_envs.
      execution: How chunks are executed; None: each as a whole, without delay.
      max_steps: Steps after which an episode is cut; None: eval.max_steps.
      fleet: As of `evaluate`; never the run's own, whose address may be anybody's.
      done: Called with each episode when it has ended.

    Raises:
      ConfigError: There is no environment, or it shows or takes other widths than the run's, or as `evaluate`.
    """
    config = policy.config
    name = env or config.eval.env
    if name is None:
        raise ConfigError("eval.env of the run is None; expected an environment in --env")
    if env is None and ":" in name:
        trust.refuse_code(f"eval.env of the run is {name!r}; expected it in --env, where you trust it")
    require_shown(policy.agent)
    widths = (config.data.observation, policy.agent.dims.observation)
    if execution is not None and execution.how == "realtime":
        policy.require_completing()
    action, rules = policy.agent.dims.action, simulators.rules_of(config)
    view = view_of(config, policy.agent.dims)
    simulators.require_widths(
        "--env", name, config.data.path, observation=widths, action=action, view=view, rules=rules
    )
    return evaluate(
        policy.chunks,
        name,
        seed=config.run.seed if seed is None else seed,
        step=policy.step,
        episodes=episodes or config.eval.final_episodes,
        num_envs=num_envs or config.eval.num_envs,
        rows=config.eval.rows,
        horizon=policy.agent.action_horizon,
        view=view,
        rules=rules,
        execution=execution,
        max_steps=max_steps or config.eval.max_steps,
        fleet=fleet,
        done=done,
    )


def write_video(
    env: str,
    played: Mapping[int, Rollout],
    path: Path,
    count: int,
    *,
    clips: Path,
    rules: simulators.Rules = simulators.USUAL,
) -> Path | None:
    """Writes videos of some of an evaluation's episodes, as render.write_some; None if the machine cannot render."""
    rollouts = [played[number] for number in range(len(played))]
    opener = functools.partial(simulators.make, env, rules=rules, video=True)
    return render.write_some(opener, rollouts, path, count, clips=clips)


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads a command line, None is this process's; `execution` is what its flags say of how chunks are executed.

    Raises:
      ConfigError: A number is out of its range, or flags contradict one another.
      SystemExit: A flag is unknown, or its value is.
    """
    parser = Parser(
        prog="python -m qchunk.evaluate",
        description="Evaluates a checkpoint of a run in its environment.",
        epilog="example: chunkwise evaluate runs/qchunk-debug-... --episodes 100",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--episodes", type=int, help="default: eval.final_episodes of the run")
    parser.add_argument("--env", metavar="ID", help="default: eval.env of the run")
    parser.add_argument("--seed", type=command.seed, help="of scenes and draws; default: the run's")
    add_flags(parser, "open_loop, each as a whole, and with --execute every N steps a new one")
    parser.add_argument("--max-steps", type=int, metavar="N", help="cut episodes after so many steps")
    parser.add_argument("--num-envs", type=int, metavar="N", help="environments at once")
    add_flag(parser)
    parser.add_argument(
        "--video", type=int, metavar="N", help="write a video of so many episodes beside the JSON, and one of each"
    )
    parser.add_argument("--checkpoint", default="newest", metavar="WHICH", help="newest, best, or a step")
    parser.add_argument(
        "--out",
        type=Path,
        help="JSON to write; default: RUN/evaluations/step_<n>.json, what differs from the run's own in its name",
    )
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON object")
    parser.add_argument("--allow-code", metavar="MODULE:FUNCTION", help="agent.factory of the run, where you trust it")
    arguments = parser.parse_args(argv)
    for name in ("episodes", "execute", "max_steps", "num_envs", "video"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; expected a number above 0")
    arguments.checkpoint = which(arguments.checkpoint)
    arguments.execution = execution_of(arguments.how, arguments.execute, arguments.delay)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    try:
        arguments = read_arguments(argv)
        evaluation.require_place(arguments.out, videos=arguments.video is not None)
        policy = load_policy(arguments.run, checkpoint=arguments.checkpoint, allow_code=arguments.allow_code)
        if not isinstance(policy, QChunkPolicy):
            raise ConfigError(f"{arguments.run}: expected a run of qchunk; chunkwise evaluate takes any")
        names = ("env", "seed", "how", "execute", "delay", "max_steps", "episodes")
        config = policy.config
        own = {"env": config.eval.env, "seed": config.run.seed, "max_steps": config.eval.max_steps}
        own["episodes"] = config.eval.final_episodes
        given = {name: getattr(arguments, name) for name in names}
        settings = {name: value for name, value in given.items() if value is not None and value != own.get(name)}
        out = arguments.out or evaluation.file_of(arguments.run, policy.step, settings)
        prepare_place(out)
        played: dict[int, Rollout] = {}
        result = evaluate_run(
            policy,
            env=arguments.env,
            episodes=arguments.episodes,
            seed=arguments.seed,
            num_envs=arguments.num_envs,
            execution=arguments.execution,
            max_steps=arguments.max_steps,
            fleet=arguments.fleet,
            done=lambda job, rollout: played.update({job.number: rollout}),
        )
        result = dataclasses.replace(result, settings=settings)
        # First: whatever becomes of the file, the episodes have been played.
        print(json.dumps(result.metrics()) if arguments.json else f"step {policy.step}: {result}")
        with told_place(out):
            result.save(out)
        if arguments.video is not None:
            env, rules = arguments.env or policy.config.eval.env, simulators.rules_of(policy.config)
            assert env is not None  # or nothing would have been played
            film = out.with_suffix(".mp4")
            if write_video(env, played, film, arguments.video, clips=out.with_suffix(""), rules=rules) is not None:
                print(f"video: {film}", file=sys.stderr, flush=True)  # stdout is one JSON object with --json
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        close_environments()
    if not arguments.json:
        print(out)
    return 0


if __name__ == "__main__":
    command.run(main)
