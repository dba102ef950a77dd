"""Evaluates a run's policy in its environment, or compares two evaluations.

    python -m openpi_ript.evaluate run RUN [--episodes 100] [--manifest FILE] [--guidance-scale 1.0] [--video 9]
                                        [--how realtime] [--execute 8] [--delay 2] [--allow-env my_sim:Env]
                                        [--env metaworld/push-v3] [--prompt "push the puck to the goal"]
                                        [--initial-states FILE.npz]
    python -m openpi_ript.evaluate compare A.json B.json

The first writes RUN/evaluations/step_<n>.json (or --out), with what differs from the run's own in the name, on the
initial states of RUN/manifest.json unless another manifest is given; with --env in another environment, or in one of
the run's tasks, with initial states of its own; with --initial-states on the first ones of a file, of which no groups
of the run may have begun in any; with --video a grid of the first episodes, successes framed green, failures red.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from chunkwise.cli import command
from chunkwise.distributed.ray_cluster import add_flag
from chunkwise.envs.environment import task_sets
from chunkwise.envs.evaluate import (
    Evaluation,
    Manifest,
    compare_evaluations,
    file_of,
    require_place,
)
from chunkwise.envs.names import FORMS, split_name
from chunkwise.errors import ConfigError, DataError, RunError
from chunkwise.files.budget import read_bytes
from chunkwise.files.place import prepare_place, told_place
from chunkwise.policies.execution import add_flags, execution_of
from openpi_ript.config.rollouts import EnvConfig
from openpi_ript.envs.make import ALLOWED, code_of, require_own_function
from openpi_ript.ript.collect import Collector
from openpi_ript.ript.evaluation import MANIFEST, evaluate, manifest_of, write_video
from openpi_ript.ript.starts import Starts


def initial_states(collector: Collector, own: Path, given: Path | None, *, seed: int, episodes: int) -> Manifest:
    """Reads the manifest that the user named, which may be another run's and is never changed, or else the run's own.

    Where the file does not exist it is made from `seed`, and so is the run's own if it is too short.

    Raises:
      StorageError: It cannot be written.
    """
    if given is not None and given.exists():
        return Manifest.load(given)
    return manifest_of(collector, given or own, seed=seed, episodes=episodes, option="--manifest")


def environment_of(config: EnvConfig, name: str, prompt: str | None, python: str = "") -> EnvConfig:
    """Returns a run's settings for an environment that the user named, or a suite's set of tasks.

    Of the run's own suite, tasks keep the prompts and limits that the run has for them; another is rendered "full".

    Raises:
      ConfigError: It has no name, no policy of this package acts in it, or a prompt is given for several tasks.
    """
    suite, task = split_name(name)
    several = task in task_sets(suite)
    if several and prompt is not None:
        raise ConfigError(f"--prompt: {name} has several tasks; each is told in the run's words or its suite's")
    own = suite == config.suite
    known = {config.task: config.prompt} | config.prompts if own else {}
    members = task_sets(suite)[task] if several else ()
    with _told_of(f"--env {name}"):
        return dataclasses.replace(
            config,
            suite=suite,
            python=python,
            task="" if several else task,
            tasks=(task,) if several else (),
            prompt=("" if several else known.get(task, "")) if prompt is None else prompt,
            prompts={name: words for name, words in known.items() if name in members and words},
            steps={name: count for name, count in config.steps.items() if own and name in members},
            max_steps=config.steps.get(task, config.max_steps),
            rendering=config.rendering if own else "full",
            initial_states="",
        )


@contextlib.contextmanager
def _told_of(option: str) -> Iterator[None]:
    """Turns what a config refuses into a ConfigError that names the option."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def published(env: EnvConfig, path: Path, own: Path) -> tuple[EnvConfig, Path]:
    """Returns settings for an evaluation in a file's initial states, and a manifest that is named after its content.

    Raises:
      ConfigError: The environment cannot begin in given states.
      DataError: The file cannot be read.
    """
    try:
        with _told_of(f"--initial-states {path}"):
            found = dataclasses.replace(env, initial_states=str(path))
        name = digest_of(path)
    except OSError as error:
        raise DataError(f"--initial-states {path}: cannot be read: {error.strerror}") from error
    return found, own.with_stem(f"{own.stem}-{name}")


def _other(given: Path | None, own: Path) -> str | None:
    """Name of a manifest that was given, after its content; None for one that is the run's own, or not given."""
    if given is None or (own.exists() and read_bytes(given) == read_bytes(own)):
        return None
    return digest_of(given)


def digest_of(path: Path) -> str:
    """Returns what stands for a file's content in a name."""
    return hashlib.sha256(read_bytes(path)).hexdigest()[:12]


def require_unseen(env: EnvConfig, own: EnvConfig, episodes: int, groups: int) -> None:
    """Raises ConfigError where an evaluation in published states would begin in one that the run's groups began in.

    Args:
      env: In which it is evaluated.
      own: Of the run.
      episodes: Of all tasks.
      groups: Initial states of each task from which the run's groups were taken.
    """
    if not env.initial_states:
        return
    same = own.initial_states and (
        env.initial_states == own.initial_states or read_bytes(env.initial_states) == read_bytes(own.initial_states)
    )
    Starts(env).require_apart(episodes, groups if same else 0)


def evaluate_run(arguments: argparse.Namespace) -> None:
    """The newest checkpoint of a run."""
    # Imported here: each worker process imports this module, and has no use for jax.
    from openpi_ript.policies.saved import read_config, read_run_weights, read_stats
    from openpi_ript.ript.acting import ActingPolicy, ExploringPolicy

    run: Path = arguments.run
    require_place(arguments.out, videos=bool(arguments.video))
    config = read_config(run)
    if config.env is None or config.eval is None:
        raise ConfigError(f"{run}: expected a run with env and eval, found one without an environment")
    env, own = config.env, run / MANIFEST
    if arguments.env is not None:
        env = environment_of(env, arguments.env, arguments.prompt, arguments.python)
        own = own.with_stem(f"{own.stem}-{re.sub(r'[^A-Za-z0-9_-]+', '-', arguments.env)}")
    if arguments.initial_states is not None:
        env, own = published(env, arguments.initial_states, own)
    execute = arguments.execute
    if arguments.how in (None, "every") and execute is None:
        execute = env.execute
    execution = execution_of(arguments.how, execute, arguments.delay)
    execution.interval(config.model.action_horizon)
    trusted = arguments.allow_env == code_of(env)
    if arguments.env is not None:  # it names the environment, and not the run's own function of its state
        require_own_function(env, allow_code=arguments.allow_env in (env.state_function, code_of(env)))
        trusted = True
    collector = Collector(env, allow_code=trusted, execution=execution, fleet=arguments.fleet)
    step, params = read_run_weights(run, config)
    trusted = arguments.allow_code == config.data.robot.adapter
    policy = ActingPolicy(config, read_stats(run, config), allow_code=trusted)
    policy.use(params, step)
    policy.guidance_scale = arguments.guidance_scale
    scale = arguments.guidance_scale
    if scale is None and config.guidance is not None:
        scale = config.guidance.scale
    episodes = config.eval.final_episodes if arguments.episodes is None else arguments.episodes
    require_unseen(env, config.env, episodes, 0 if config.rollout is None else config.rollout.initial_states)
    try:
        manifest = initial_states(collector, own, arguments.manifest, seed=config.eval.seed, episodes=episodes)
        names = ("env", "prompt", "initial_states", "how", "execute", "delay")
        given = {name: getattr(arguments, name) for name in names} | {"python": arguments.python or None}
        if (states := arguments.initial_states) is not None:
            given["initial_states"] = f"{states.name}-{digest_of(states)}"
        given["manifest"] = _other(arguments.manifest, own)
        given["guidance_scale"] = None if config.guidance and scale == config.guidance.scale else scale
        given["episodes"] = None if episodes == config.eval.final_episodes else episodes
        settings = {name: value for name, value in given.items() if value is not None}
        out: Path = arguments.out or file_of(run, step, settings)
        prepare_place(out)
        result = evaluate(
            collector,
            ExploringPolicy(policy) if config.rollout and config.rollout.evaluated_with_noise else policy,
            manifest,
            episodes=episodes,
            guidance_scale=scale,
            folder=out.with_suffix(""),
            keep=arguments.video,
            option="--out",
        )
    finally:
        collector.close()
    result = dataclasses.replace(result, settings=settings)
    print(f"step {step}: {result}")  # whatever becomes of the file, the episodes have been played
    with told_place(out):
        result.save(out)
    print(out)
    if arguments.video:
        count = min(arguments.video, episodes)
        write_video(collector, out.with_suffix(""), out.with_suffix(".mp4"), episodes=count)


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; `act` is what does it.

    Raises:
      ConfigError: A number is out of its range, or a flag goes with one that is not there.
      SystemExit: A flag is unknown, or its value is.
    """
    parser = command.Parser(
        prog="python -m openpi_ript.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="evaluate the newest checkpoint of a run")
    run.add_argument("run", type=Path)
    run.add_argument("--episodes", type=int, help="initial states (default: eval.final_episodes)")
    run.add_argument("--manifest", type=Path, help="initial states to use (default: RUN/manifest.json)")
    run.add_argument("--env", metavar="NAME", help=f"in place of the run's: {FORMS}")
    run.add_argument("--prompt", help="the task of --env in words; default: the run's for that task, or its suite's")
    run.add_argument("--python", default="", metavar="PATH", help="interpreter that runs --env module:factory")
    run.add_argument("--initial-states", type=Path, metavar="FILE.npz", help="published states in which it begins")
    run.add_argument("--guidance-scale", type=float, help="in place of the run's")
    add_flags(run, "env.execute actions of each chunk")
    add_flag(run)
    run.add_argument(
        "--out",
        type=Path,
        help="JSON to write (default: RUN/evaluations/step_<n>.json; what differs from the run's own is in its name)",
    )
    run.add_argument("--allow-env", help=f"{ALLOWED} of the run, that you trust")
    run.add_argument("--allow-code", help="data.robot.adapter of the run, where it is a module:factory that you trust")
    run.add_argument("--video", type=int, default=0, help="episodes in a video beside it, and in one each")
    run.set_defaults(act=evaluate_run)
    pair = commands.add_parser("compare", help="compare two evaluations, initial state by initial state")
    pair.add_argument("a", type=Path)
    pair.add_argument("b", type=Path)
    pair.set_defaults(act=lambda found: print(compare_evaluations(Evaluation.load(found.a), Evaluation.load(found.b))))
    arguments = parser.parse_args(argv)
    if arguments.act is not evaluate_run:
        return arguments
    for name, least in (("episodes", 1), ("execute", 1), ("video", 0)):
        if (value := getattr(arguments, name)) is not None and value < least:
            raise ConfigError(f"--{name} is {value}; expected at least {least}")
    given = 1 if arguments.how == "every" and arguments.execute is None else arguments.execute  # else env.execute
    execution_of(arguments.how, given, arguments.delay)
    behind = {"prompt": arguments.prompt is not None, "python": bool(arguments.python)}
    if arguments.env is None and any(behind.values()):
        name = next(name for name, given in behind.items() if given)
        raise ConfigError(f"--{name}: expected --env, the environment that it is for")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    try:
        arguments = read_arguments(argv)
        arguments.act(arguments)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
